//! A file as an object of JSON, the same for all commands.

use super::format;
use crate::json::insert_bytes;
use serde_json::{Map, Value, json};
use uringfs::volume::{FileType, Inode, InodeNumber, Time};

/// A file with its attributes. Times are seconds since 1970, and nanoseconds.
pub fn file(path: &[u8], number: InodeNumber, inode: &Inode) -> Map<String, Value> {
    let time = |time: Time| json!({ "seconds": time.seconds(), "nanoseconds": time.nanoseconds() });
    let mut object = Map::new();
    insert_bytes(&mut object, "path", path);
    let fields = json!({
        "kind": format::kind(inode.kind),
        "size": inode.size,
        "blocks": inode.allocated() / 512,
        "inode": number.0,
        "links": inode.links,
        "mode": format!("{:04o}", inode.permissions),
        "user": inode.user,
        "group": inode.group,
        "accessed": time(inode.accessed),
        "modified": time(inode.modified),
        "changed": time(inode.changed),
        "created": time(inode.created),
    });
    object.extend(fields.as_object().cloned().unwrap_or_default());
    match inode.kind {
        FileType::Symlink => insert_bytes(&mut object, "target", &inode.target),
        FileType::BlockDevice(number) | FileType::CharacterDevice(number) => {
            let numbers = [rustix::fs::major(number), rustix::fs::minor(number)];
            object.insert("device".into(), json!(numbers));
        }
        _ => {}
    }
    object
}
