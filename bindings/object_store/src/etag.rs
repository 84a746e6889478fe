//! The ETag and the other metadata of an object.

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use uringfs::volume::Metadata;

/// The ETag: the inode's number, the time of its creation, and the change cookie.
///
/// Each put makes a new file, whose number no other file of the volume ever gets. After a power cut a number may be
/// given again whose file was not durable yet, though a reader may have seen it: such files differ in their creation,
/// which nothing changes later. The time of the last change is not in it: two changes may have the same. Their cookies
/// differ.
pub(crate) fn etag(metadata: &Metadata) -> String {
    let created = metadata.inode().created;
    let (seconds, nanoseconds) = (created.seconds(), created.nanoseconds());
    format!("{:x}-{seconds:x}.{nanoseconds:x}-{:x}", metadata.ino(), metadata.change_cookie())
}

pub(crate) fn object_meta(location: Path, metadata: &Metadata) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: last_modified(metadata),
        size: metadata.len(),
        e_tag: Some(etag(metadata)),
        version: None,
    }
}

/// A time beyond those of chrono, some 262,000 years from now, is the last of them.
fn last_modified(metadata: &Metadata) -> DateTime<Utc> {
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec() as u32);
    let otherwise = if seconds < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use uringfs::volume::{FileType, Inode, InodeNumber, Time};

    use super::*;

    fn metadata(number: u64, created: i64, modified: i64, change_cookie: u64) -> Metadata {
        let mut inode = Inode::new(FileType::File, 0o644);
        inode.created = Time::from_nanoseconds(created);
        inode.modified = Time::new(modified, 0).unwrap();
        inode.change_cookie = change_cookie;
        Metadata::new(InodeNumber(number), inode)
    }

    #[test]
    fn an_etag_is_of_the_file_its_creation_and_its_content() {
        let tag = etag(&metadata(7, 5_000_000_017, 1, 255));
        assert_eq!(tag, "7-5.11-ff");
        assert_eq!(tag, etag(&metadata(7, 5_000_000_017, 2, 255)));
        for other in [(8, 5_000_000_017, 255), (7, 5_000_000_018, 255), (7, 5_000_000_017, 254)] {
            assert_ne!(tag, etag(&metadata(other.0, other.1, 1, other.2)));
        }
    }

    #[test]
    fn every_time_of_a_file_is_one_of_an_object() {
        assert_eq!(last_modified(&metadata(1, 0, -1, 0)).timestamp(), -1);
        assert_eq!(last_modified(&metadata(1, 0, i64::MAX, 0)), DateTime::<Utc>::MAX_UTC);
        assert_eq!(last_modified(&metadata(1, 0, i64::MIN, 0)), DateTime::<Utc>::MIN_UTC);
    }
}
