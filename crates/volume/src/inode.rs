//! What is known of a file besides its bytes and its names, and its record in the catalog.

use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::blocks::BLOCK;
use crate::error::Error;
use crate::extent::FILE_BLOCKS;

/// A file's number in its volume, never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The directory at the top.
    pub const ROOT: InodeNumber = InodeNumber(1);

    /// A number as it was read. None for those that nothing has: 0, and the largest, behind whose
    /// records there would be no key.
    pub(crate) fn of(number: u64) -> Option<InodeNumber> {
        (1..u64::MAX).contains(&number).then_some(InodeNumber(number))
    }
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
    /// The coarse clock's: it moves a few hundred times a second, and asking it is no system call.
    #[inline]
    pub fn now() -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
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
    /// Blocks of 4096 bytes that a file has on the device.
    pub blocks: u64,
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
const VERSION: u8 = 2;
/// The bits of a mode that say no kind.
const PERMISSIONS: u16 = 0o7777;
/// What relatime lets a time of access be old.
const DAY: i64 = 24 * 3600 * 1_000_000_000;
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
    blocks: U64,
}

impl Inode {
    /// A new one, of no size, made now.
    pub fn new(kind: FileKind, permissions: u16) -> Inode {
        let now = Time::now();
        Inode {
            kind,
            permissions: permissions & PERMISSIONS,
            user: 0,
            group: 0,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            parent: InodeNumber(0),
            target: Box::default(),
        }
    }

    /// A new symbolic link.
    ///
    /// # Errors
    /// EINVAL for a target that is empty or has a byte 0 in it.
    pub fn symlink(target: &[u8]) -> Result<Inode, Error> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::refused(Errno::INVAL, "a symbolic link has to lead somewhere"));
        }
        let mut inode = Inode::new(FileKind::Symlink, 0o777);
        (inode.size, inode.target) = (target.len() as u64, target.into());
        Ok(inode)
    }

    /// Bytes that it has on the device.
    pub fn allocated(&self) -> u64 {
        self.blocks * BLOCK
    }

    /// Gives it to another user or group, where one is told. As on Linux a file does not run as its
    /// owner or group any more then.
    pub fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) {
        (self.user, self.group) = (user.unwrap_or(self.user), group.unwrap_or(self.group));
        self.take_rights();
    }

    /// Takes away what [`Self::lent_rights`] answers.
    pub(crate) fn take_rights(&mut self) {
        self.permissions &= !self.lent_rights();
    }

    /// The permissions by which whoever runs it does so as its owner or group. Set-group-ID without
    /// the group's right to run it means something else.
    pub(crate) fn lent_rights(&self) -> u16 {
        match self.kind {
            FileKind::Directory => 0,
            _ if self.permissions & 0o010 != 0 => self.permissions & 0o6000,
            _ => self.permissions & 0o4000,
        }
    }

    /// Whether a read moves its time of access, as relatime has it: once after each change, and once a
    /// day.
    pub(crate) fn is_access_due(&self, now: Time) -> bool {
        self.accessed <= self.modified.max(self.changed)
            || now.0.saturating_sub(self.accessed.0) >= DAY
    }

    /// As it stands in the catalog: 80 bytes, and a symlink's target.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        let (bits, device) = self.kind.mode_bits();
        let record = Record {
            version: VERSION,
            reserved: 0,
            // Other bits that a caller has set would make another kind.
            mode: (bits | self.permissions & PERMISSIONS).into(),
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
            blocks: self.blocks.into(),
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
        if kind == FileKind::Directory && InodeNumber::of(record.parent.get()).is_none() {
            return Err(damaged("has a parent that cannot be"));
        }
        if record.blocks.get() > if kind == FileKind::File { FILE_BLOCKS } else { 0 } {
            return Err(damaged("has blocks that cannot be"));
        }
        Ok(Inode {
            kind,
            permissions: record.mode.get() & PERMISSIONS,
            user: record.user.get(),
            group: record.group.get(),
            links: record.links.get(),
            size: record.size.get(),
            blocks: record.blocks.get(),
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
            FileKind::File => (inode.size, inode.blocks) = (1 << 40, 7),
            _ => inode.size = 1 << 40,
        }
        inode
    }

    #[test]
    fn records_come_back_as_they_were() {
        for kind in KINDS {
            let inode = of(kind);
            let record = inode.to_record();
            assert_eq!(record.len(), 80 + inode.target.len());
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
        assert!(spoilt(0, 3).contains("version"));
        assert!(spoilt(1, 1).contains("version"));
        assert!(spoilt(3, 0xf0).contains("kind"));
        assert!(spoilt(23, 0x80).contains("size"));
        assert!(spoilt(79, 0x80).contains("blocks"));
        let record = of(FileKind::Symlink).to_record();
        for length in 0..record.len() {
            assert!(Inode::of_record(&record[..length]).is_err(), "{length}");
        }
        assert!(Inode::of_record(&[&record[..], &[b'x'; 5000]].concat()).is_err());
    }

    #[test]
    fn who_writes_or_gives_away_takes_the_rights_that_a_file_lends() {
        let left = |kind, permissions| {
            let mut inode = Inode::new(kind, permissions);
            inode.set_owner(None, Some(7));
            assert_eq!((inode.user, inode.group), (0, 7));
            inode.permissions
        };
        assert_eq!(left(FileKind::File, 0o6755), 0o755);
        assert_eq!(left(FileKind::File, 0o6745), 0o2745);
        assert_eq!(left(FileKind::File, 0o1755), 0o1755);
        assert_eq!(left(FileKind::Directory, 0o7777), 0o7777);
    }

    #[test]
    fn times_of_access_move_after_a_change_and_once_a_day() {
        let mut inode = Inode::new(FileKind::File, 0o644);
        let now = inode.modified;
        assert!(inode.is_access_due(now));
        inode.accessed = Time(now.0 + 1);
        assert!(!inode.is_access_due(Time(now.0 + DAY)));
        assert!(inode.is_access_due(Time(now.0 + 1 + DAY)));
        inode.changed = inode.accessed;
        assert!(inode.is_access_due(now));
    }

    #[test]
    fn times_reach_as_far_as_64_bits() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(Time::of(SystemTime::UNIX_EPOCH - Duration::from_nanos(5)), Time(-5));
        assert_eq!(Time::of(SystemTime::UNIX_EPOCH + year * 1000), Time(i64::MAX));
    }
}
