//! `uringfs stat`: shows the attributes of files in a volume.

use super::error_sink::ErrorSink;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open};
use super::times::TimeFormat;
use super::volume_path::{VolumePath, with_path};
use super::{file_json, format};
use crate::json::document;
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{FileType, Inode, InodeNumber, Time};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::Read)?;
    let errors = ErrorSink::default();
    let mut found = Vec::new();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        let inode = lookup(&volume, &path.bytes);
        if let Some(inode) = errors.record(inode.map_err(|error| with_path(&path, error))) {
            found.push((inode, path));
        }
    }
    if arguments.json {
        let file = |((number, inode), path): &((InodeNumber, Inode), VolumePath)| {
            Value::from(file_json::file(&path.bytes, *number, inode))
        };
        let files: Vec<Value> = found.iter().map(file).collect();
        print(&document(json!({ "files": files })))?;
    } else {
        let times = TimeFormat::new();
        let text: Vec<Vec<u8>> =
            found.iter().map(|(inode, path)| text(path, inode, &times)).collect();
        print_bytes(&text.concat())?;
    }
    Ok(errors.exit_code())
}

fn text(path: &VolumePath, (number, inode): &(InodeNumber, Inode), times: &TimeFormat) -> Vec<u8> {
    let mut text = format::printable(&path.bytes);
    if inode.kind == FileType::Symlink {
        text.extend_from_slice(b" -> ");
        text.extend(format::printable(&inode.target));
    }
    let time = |time: Time| times.full(time);
    text.extend_from_slice(
        format!(
            "\n  {}, {} bytes, {} blocks of 512, inode {}, links {}\n  mode {:04o} ({}), user {}, group {}\n  \
             accessed {}\n  modified {}\n  changed  {}\n  created  {}\n",
            format::kind(inode.kind),
            inode.size,
            inode.allocated() / 512,
            number.0,
            inode.links,
            inode.permissions,
            format::mode(inode),
            inode.user,
            inode.group,
            time(inode.accessed),
            time(inode.modified),
            time(inode.changed),
            time(inode.created),
        )
        .as_bytes(),
    );
    text
}
