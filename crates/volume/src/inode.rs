//! What is known of a file besides its bytes and its names, and its record in the catalog.

use std::time::{Duration, SystemTime};

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Error;

/// A file's number in its volume, never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The directory at the top.
    pub const ROOT: InodeNumber = InodeNumber(1);
}

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Bytes.
    File,
    /// Names of others.
    Directory,
    /// A path to look at instead.
    Symlink,
    /// A block device of this number.
    BlockDevice(u64),
    /// A character device of this number.
    CharacterDevice(u64),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
}

impl FileKind {
    /// The bits of `st_mode` that say so (`S_IFMT`), and the device's number.
    pub fn mode_bits(self) -> (u16, u64) {
        match self {
            FileKind::Fifo => (0o010_000, 0),
            FileKind::CharacterDevice(number) => (0o020_000, number),
            FileKind::Directory => (0o040_000, 0),
            FileKind::BlockDevice(number) => (0o060_000, number),
            FileKind::File => (0o100_000, 0),
            FileKind::Symlink => (0o120_000, 0),
            FileKind::Socket => (0o140_000, 0),
        }
    }

    /// The kind that bits of `st_mode` say, if they say one.
    pub fn of_mode(mode: u16, device: u64) -> Option<FileKind> {
        Some(match mode & 0o170_000 {
            0o010_000 => FileKind::Fifo,
            0o020_000 => FileKind::CharacterDevice(device),
            0o040_000 => FileKind::Directory,
            0o060_000 => FileKind::BlockDevice(device),
            0o100_000 => FileKind::File,
            0o120_000 => FileKind::Symlink,
            0o140_000 => FileKind::Socket,
            _ => return None,
        })
    }
}

/// Nanoseconds since 1970, before it negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// The clock's.
    pub fn now() -> Time {
        Time::of(SystemTime::now())
    }

    /// The nearest that can be told: from 1677 to 2262.
    pub fn of(time: SystemTime) -> Time {
        let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Time(nanoseconds(after)),
            Err(before) => Time(-nanoseconds(before.duration())),
        }
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What kind it is.
    pub kind: FileKind,
    /// Permissions, with set-ID and sticky bits: the lower twelve bits of `st_mode`.
    pub permissions: u16,
    /// Who owns it.
    pub user: u32,
    /// And which group.
    pub group: u32,
    /// Names it has; of a directory two and one for each directory in it.
    pub links: u32,
    /// Bytes; of a symlink those of its target, of a directory 0.
    pub size: u64,
    /// Last read, where relatime says so.
    pub accessed: Time,
    /// Bytes last changed.
    pub modified: Time,
    /// Anything last changed.
    pub changed: Time,
    /// Made.
    pub created: Time,
    /// The directory it is in, of a directory; itself, of the root; 0, of all others.
    pub parent: InodeNumber,
    /// Where a symlink leads.
    pub target: Box<[u8]>,
}

/// Format of the record.
const VERSION: u8 = 1;
/// The longest target of a symlink, as the kernel's PATH_MAX.
pub(crate) const LONGEST_TARGET: usize = 4095;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    version: u8,
    reserved: u8,
    mode: U16,
    links: U32,
    user: U32,
    group: U32,
    size: U64,
    device: U64,
    accessed: I64,
    modified: I64,
    changed: I64,
    created: I64,
    parent: U64,
}

impl Inode {
    /// A new one, of no size, made now.
    pub fn new(kind: FileKind, permissions: u16) -> Inode {
        let now = Time::now();
        Inode {
            kind,
            permissions: permissions & 0o7777,
            user: 0,
            group: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            parent: InodeNumber(0),
            target: Box::default(),
        }
    }

    /// As it stands in the catalog: 72 bytes, and a symlink's target.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        let (bits, device) = self.kind.mode_bits();
        let record = Record {
            version: VERSION,
            reserved: 0,
            mode: (bits | self.permissions).into(),
            links: self.links.into(),
            user: self.user.into(),
            group: self.group.into(),
            size: self.size.into(),
            device: device.into(),
            accessed: self.accessed.0.into(),
            modified: self.modified.0.into(),
            changed: self.changed.0.into(),
            created: self.created.0.into(),
            parent: self.parent.0.into(),
        };
        [record.as_bytes(), &self.target].concat()
    }

    /// From the catalog.
    ///
    /// # Errors
    /// What about the record cannot be.
    pub(crate) fn of_record(bytes: &[u8]) -> Result<Inode, Error> {
        let damaged = |what: &str| Error::damaged(format!("an inode's record {what}"));
        let (record, target) =
            Record::ref_from_prefix(bytes).map_err(|_| damaged("is too short"))?;
        if record.version != VERSION || record.reserved != 0 {
            return Err(damaged("is of no known version"));
        }
        let kind = FileKind::of_mode(record.mode.get(), record.device.get())
            .ok_or_else(|| damaged("is of no known kind"))?;
        let is_symlink = kind == FileKind::Symlink;
        if is_symlink == target.is_empty() || target.len() > LONGEST_TARGET {
            return Err(damaged("has a target that cannot be"));
        }
        if is_symlink && record.size.get() != target.len() as u64 || record.size.get() >> 63 != 0 {
            return Err(damaged("has a size that cannot be"));
        }
        Ok(Inode {
            kind,
            permissions: record.mode.get() & 0o7777,
            user: record.user.get(),
            group: record.group.get(),
            links: record.links.get(),
            size: record.size.get(),
            accessed: Time(record.accessed.get()),
            modified: Time(record.modified.get()),
            changed: Time(record.changed.get()),
            created: Time(record.created.get()),
            parent: InodeNumber(record.parent.get()),
            target: target.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::BlockDevice(0x801),
        FileKind::CharacterDevice(5),
        FileKind::Fifo,
        FileKind::Socket,
    ];

    fn of(kind: FileKind) -> Inode {
        let mut inode = Inode::new(kind, 0o7644);
        (inode.user, inode.group, inode.parent) = (1000, 100, InodeNumber(7));
        inode.modified = Time(-5);
        match kind {
            FileKind::Symlink => (inode.target, inode.size) = (b"../a".as_slice().into(), 4),
            _ => inode.size = 1 << 40,
        }
        inode
    }

    #[test]
    fn records_come_back_as_they_were() {
        for kind in KINDS {
            let inode = of(kind);
            let record = inode.to_record();
            assert_eq!(record.len(), 72 + inode.target.len());
            assert_eq!(Inode::of_record(&record).unwrap(), inode);
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let spoilt = |at: usize, byte: u8| {
            let mut record = of(FileKind::File).to_record();
            record[at] = byte;
            Inode::of_record(&record).unwrap_err().to_string()
        };
        assert!(spoilt(0, 2).contains("version"));
        assert!(spoilt(1, 1).contains("version"));
        assert!(spoilt(3, 0xf0).contains("kind"));
        assert!(spoilt(23, 0x80).contains("size"));
        let record = of(FileKind::Symlink).to_record();
        for length in 0..record.len() {
            assert!(Inode::of_record(&record[..length]).is_err(), "{length}");
        }
        assert!(Inode::of_record(&[&record[..], &[b'x'; 5000]].concat()).is_err());
    }

    #[test]
    fn times_reach_as_far_as_64_bits() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(Time::of(SystemTime::UNIX_EPOCH - Duration::from_nanos(5)), Time(-5));
        assert_eq!(Time::of(SystemTime::UNIX_EPOCH + year * 1000), Time(i64::MAX));
    }
}
