//! Attributes of a file, and its record in the catalog.

use std::time::{Duration, SystemTime};

use rustix::process::{getegid, geteuid};
use rustix::time::{ClockId, clock_gettime};
use uringfs_device::Errno;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::blocks::BLOCK;
use crate::catalog::INODE_BYTES;
use crate::error::Error;
use crate::space::extent::FILE_BLOCKS;

/// A file's number in its volume. Never reused for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: InodeNumber = InodeNumber(1);

    /// A number that was read from the device. `None` for 0, and for the largest number: no key
    /// could follow its records.
    pub(crate) fn new(number: u64) -> Option<InodeNumber> {
        (1..u64::MAX).contains(&number).then_some(InodeNumber(number))
    }
}

impl From<u64> for InodeNumber {
    fn from(number: u64) -> InodeNumber {
        InodeNumber(number)
    }
}

impl From<InodeNumber> for u64 {
    fn from(number: InodeNumber) -> u64 {
        number.0
    }
}

/// The kind of a file, as the type bits of `st_mode` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
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

impl FileType {
    /// True for a regular file.
    pub fn is_file(self) -> bool {
        self == FileType::File
    }

    /// True for a directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }

    /// True for a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }

    /// The type bits of `st_mode` (`S_IFMT`), and the device's number.
    pub fn mode_bits(self) -> (u16, u64) {
        match self {
            FileType::Fifo => (0o010_000, 0),
            FileType::CharacterDevice(number) => (0o020_000, number),
            FileType::Directory => (0o040_000, 0),
            FileType::BlockDevice(number) => (0o060_000, number),
            FileType::File => (0o100_000, 0),
            FileType::Symlink => (0o120_000, 0),
            FileType::Socket => (0o140_000, 0),
        }
    }

    /// The kind in the type bits of `st_mode`, if they name one.
    pub fn from_mode(mode: u16, device: u64) -> Option<FileType> {
        Some(match mode & 0o170_000 {
            0o010_000 => FileType::Fifo,
            0o020_000 => FileType::CharacterDevice(device),
            0o040_000 => FileType::Directory,
            0o060_000 => FileType::BlockDevice(device),
            0o100_000 => FileType::File,
            0o120_000 => FileType::Symlink,
            0o140_000 => FileType::Socket,
            _ => return None,
        })
    }
}

/// A time in UTC as in `statx`: seconds since 1970, negative before it, and the nanoseconds after
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    seconds: i64,
    nanoseconds: u32,
}

const NANOSECONDS_PER_SECOND: u32 = 1_000_000_000;

impl Time {
    /// `None` for a billion nanoseconds and more.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Option<Time> {
        match nanoseconds < NANOSECONDS_PER_SECOND {
            true => Some(Time { seconds, nanoseconds }),
            false => None,
        }
    }

    /// The time this many nanoseconds after 1970 began: from 1677 to 2262.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Time {
        Time {
            seconds: nanoseconds.div_euclid(NANOSECONDS_PER_SECOND as i64),
            nanoseconds: nanoseconds.rem_euclid(NANOSECONDS_PER_SECOND as i64) as u32,
        }
    }

    /// The coarse clock's time. It changes a few hundred times a second, and reading it needs no
    /// system call.
    #[inline]
    pub fn now() -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
    }

    /// Whole seconds since 1970. For -0.1 s this is -1.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// The nanoseconds after [`Self::seconds`], below a billion.
    pub fn nanoseconds(self) -> u32 {
        self.nanoseconds
    }

    /// Nanoseconds since 1970, modulo 2^64: distinct within some centuries.
    #[inline]
    pub(crate) fn wrapping_nanoseconds(self) -> i64 {
        self.seconds
            .wrapping_mul(NANOSECONDS_PER_SECOND.into())
            .wrapping_add(self.nanoseconds.into())
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Time {
        // The kernel's times, so that the seconds fit.
        let whole = |time: Duration| (time.as_secs() as i64, time.subsec_nanos());
        match time.duration_since(SystemTime::UNIX_EPOCH).map_err(|before| before.duration()) {
            Ok(after) => {
                let (seconds, nanoseconds) = whole(after);
                Time { seconds, nanoseconds }
            }
            Err(before) => match whole(before) {
                (seconds, 0) => Time { seconds: seconds.wrapping_neg(), nanoseconds: 0 },
                (seconds, part) => {
                    Time { seconds: -seconds - 1, nanoseconds: NANOSECONDS_PER_SECOND - part }
                }
            },
        }
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> SystemTime {
        let (seconds, part) = (time.seconds, Duration::from_nanos(time.nanoseconds.into()));
        let second = Duration::from_secs(seconds.unsigned_abs());
        match seconds < 0 {
            true => SystemTime::UNIX_EPOCH - second + part,
            false => SystemTime::UNIX_EPOCH + second + part,
        }
    }
}

/// Attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inode {
    /// The kind of file.
    pub kind: FileType,
    /// Permissions, with set-ID and sticky bits: the lower twelve bits of `st_mode`.
    pub permissions: u16,
    /// The owner's user ID.
    pub user: u32,
    /// The group ID.
    pub group: u32,
    /// Number of names. For a directory: two, and one for each directory in it.
    pub links: u32,
    /// Size in bytes. For a symlink: of its target. For a directory: 0.
    pub size: u64,
    /// Blocks of 4096 bytes that the file has on the device.
    pub blocks: u64,
    /// Last access, updated by the rules of relatime.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
    /// Creation.
    pub created: Time,
    /// For a directory: its parent; the root is its own parent. For others: 0.
    pub parent: InodeNumber,
    /// Of a regular file: a number that differs after each change of the content. For others: 0. See
    /// [`Metadata::change_cookie`](crate::Metadata::change_cookie).
    pub change_cookie: u64,
    /// A directory of unfinished files, as the program's `put` creates. No process owns it: a
    /// program that finds it later removes it.
    pub is_staging: bool,
    /// The target of a symlink.
    pub target: Box<[u8]>,
}

/// Version of the record that this code writes.
const VERSION: u8 = 3;
/// The previous version, which is only read: volumes of older versions have it.
const PREVIOUS_VERSION: u8 = 2;
/// The flag of [`Inode::is_staging`].
const STAGING_FLAG: u8 = 1;
/// The bits of a mode without the kind.
const PERMISSION_BITS: u16 = 0o7777;
/// The age at which relatime updates the access time, in seconds.
const DAY_SECONDS: i64 = 24 * 3600;
/// The most bytes of a symlink's target, as the kernel's PATH_MAX.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawInode {
    version: u8,
    /// [`STAGING_FLAG`], or 0.
    flags: u8,
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
    /// [`Inode::parent`] of a directory, [`Inode::change_cookie`] of a regular file.
    parent_or_cookie: U64,
    blocks: U64,
}

/// The nanoseconds of the four times, in their order. They follow the record. In
/// [`PREVIOUS_VERSION`] they are missing, and the times are nanoseconds since 1970.
type Nanoseconds = [U32; 4];

/// The catalog reserves pages for a record and its key.
const _: () = assert!(
    INODE_BYTES as usize == size_of::<u64>() + size_of::<RawInode>() + size_of::<Nanoseconds>()
);

impl RawInode {
    fn times(&self) -> [i64; 4] {
        [self.accessed, self.modified, self.changed, self.created].map(I64::get)
    }
}

impl Inode {
    /// A new inode of size 0, with the current time. It belongs to the effective user and group of this process.
    pub fn new(kind: FileType, permissions: u16) -> Inode {
        let now = Time::now();
        Inode {
            kind,
            permissions: permissions & PERMISSION_BITS,
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            links: if kind == FileType::Directory { 2 } else { 1 },
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            parent: InodeNumber(0),
            change_cookie: 0,
            is_staging: false,
            target: Box::default(),
        }
    }

    /// A new symbolic link.
    ///
    /// # Errors
    /// EINVAL for a target that is empty or contains a zero byte.
    pub fn symlink(target: &[u8]) -> Result<Inode, Error> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::refused(
                Errno::INVAL,
                "the target of a symbolic link is empty or contains a zero byte",
            ));
        }
        let mut inode = Inode::new(FileType::Symlink, 0o777);
        (inode.size, inode.target) = (target.len() as u64, target.into());
        Ok(inode)
    }

    /// Bytes allocated on the device.
    pub fn allocated(&self) -> u64 {
        self.blocks * BLOCK
    }

    /// Sets user and group, where given. Clears the set-ID bits as Linux does.
    pub fn set_owner(&mut self, user: Option<u32>, group: Option<u32>) {
        (self.user, self.group) = (user.unwrap_or(self.user), group.unwrap_or(self.group));
        self.strip_privileges();
    }

    /// Clears [`Self::set_id_bits`].
    pub(crate) fn strip_privileges(&mut self) {
        self.permissions &= !self.set_id_bits();
    }

    /// The permission bits with which a program runs as the file's owner or group. Set-group-ID
    /// without group execute permission has another meaning.
    pub(crate) fn set_id_bits(&self) -> u16 {
        match self.kind {
            FileType::Directory => 0,
            _ if self.permissions & 0o010 != 0 => self.permissions & 0o6000,
            _ => self.permissions & 0o4000,
        }
    }

    /// Whether a read updates the access time, by the rules of relatime: once after each change,
    /// and once a day.
    pub(crate) fn atime_due(&self, now: Time) -> bool {
        let seconds = self.accessed.seconds.saturating_add(DAY_SECONDS);
        let a_day_later = Time { seconds, ..self.accessed };
        self.accessed <= self.modified.max(self.changed) || now >= a_day_later
    }

    /// The record in the catalog: 96 bytes, and a symlink's target.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        let (bits, device) = self.kind.mode_bits();
        let record = RawInode {
            version: VERSION,
            flags: if self.is_staging { STAGING_FLAG } else { 0 },
            // Other bits, which a caller may have set, would change the kind.
            mode: (bits | self.permissions & PERMISSION_BITS).into(),
            links: self.links.into(),
            user: self.user.into(),
            group: self.group.into(),
            size: self.size.into(),
            device: device.into(),
            accessed: self.accessed.seconds.into(),
            modified: self.modified.seconds.into(),
            changed: self.changed.seconds.into(),
            created: self.created.seconds.into(),
            parent_or_cookie: match self.kind {
                FileType::Directory => self.parent.0.into(),
                FileType::File => self.change_cookie.into(),
                _ => 0.into(),
            },
            blocks: self.blocks.into(),
        };
        let times = [self.accessed, self.modified, self.changed, self.created];
        let nanoseconds: Nanoseconds = times.map(|time| time.nanoseconds.into());
        [record.as_bytes(), nanoseconds.as_bytes(), &self.target].concat()
    }

    /// Parses a record of the catalog.
    ///
    /// # Errors
    /// `Damaged`, with the invalid field.
    pub(crate) fn from_record(bytes: &[u8]) -> Result<Inode, Error> {
        let damaged = |what: &str| Error::damaged(format!("an inode's record {what}"));
        let too_short = || damaged("is too short");
        let (record, rest) = RawInode::ref_from_prefix(bytes).map_err(|_| too_short())?;
        let (times, target) = match (record.version, record.flags) {
            (VERSION, 0 | STAGING_FLAG) => {
                let (nanoseconds, target) =
                    Nanoseconds::ref_from_prefix(rest).map_err(|_| too_short())?;
                let seconds = record.times();
                let time = |which: usize| {
                    let time = Time::new(seconds[which], nanoseconds[which].get());
                    time.ok_or_else(|| damaged("has an invalid time"))
                };
                let times = [time(0)?, time(1)?, time(2)?, time(3)?];
                (times, target)
            }
            (PREVIOUS_VERSION, 0) => (record.times().map(Time::from_nanoseconds), rest),
            _ => return Err(damaged("has an unknown version")),
        };
        let [accessed, modified, changed, created] = times;
        let kind = FileType::from_mode(record.mode.get(), record.device.get())
            .ok_or_else(|| damaged("has an unknown kind"))?;
        let is_symlink = kind == FileType::Symlink;
        if is_symlink == target.is_empty() || target.len() > MAX_TARGET_BYTES {
            return Err(damaged("has an invalid target"));
        }
        if is_symlink && record.size.get() != target.len() as u64 || record.size.get() >> 63 != 0 {
            return Err(damaged("has an invalid size"));
        }
        let (parent, change_cookie) = match (kind, record.parent_or_cookie.get()) {
            (FileType::Directory, parent) => (parent, 0),
            (FileType::File, cookie) => (0, cookie),
            _ => (0, 0),
        };
        if kind == FileType::Directory && InodeNumber::new(parent).is_none() {
            return Err(damaged("has an invalid parent"));
        }
        let is_staging = record.flags & STAGING_FLAG != 0;
        if is_staging && kind != FileType::Directory {
            return Err(damaged("has an invalid flag"));
        }
        if record.blocks.get() > if kind == FileType::File { FILE_BLOCKS } else { 0 } {
            return Err(damaged("has an invalid number of blocks"));
        }
        Ok(Inode {
            kind,
            permissions: record.mode.get() & PERMISSION_BITS,
            user: record.user.get(),
            group: record.group.get(),
            links: record.links.get(),
            size: record.size.get(),
            blocks: record.blocks.get(),
            accessed,
            modified,
            changed,
            created,
            parent: InodeNumber(parent),
            change_cookie,
            is_staging,
            target: target.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FileType; 7] = [
        FileType::File,
        FileType::Directory,
        FileType::Symlink,
        FileType::BlockDevice(0x801),
        FileType::CharacterDevice(5),
        FileType::Fifo,
        FileType::Socket,
    ];

    fn of(kind: FileType) -> Inode {
        let mut inode = Inode::new(kind, 0o7644);
        (inode.user, inode.group) = (1000, 100);
        inode.modified = Time::from_nanoseconds(-5);
        inode.created = Time::new(i64::MIN, 999_999_999).unwrap();
        inode.accessed = Time::new(i64::MAX, 7).unwrap();
        match kind {
            FileType::Symlink => (inode.target, inode.size) = (b"../a".as_slice().into(), 4),
            FileType::File => {
                (inode.size, inode.blocks, inode.change_cookie) = (1 << 40, 7, u64::MAX - 1);
            }
            FileType::Directory => (inode.parent, inode.is_staging) = (InodeNumber(7), true),
            _ => inode.size = 1 << 40,
        }
        inode
    }

    #[test]
    fn records_are_read_back_unchanged() {
        for kind in KINDS {
            let inode = of(kind);
            let record = inode.to_record();
            assert_eq!(record.len(), 96 + inode.target.len());
            assert_eq!(Inode::from_record(&record).unwrap(), inode);
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        let spoilt = |at: usize, byte: u8| {
            let mut record = of(FileType::File).to_record();
            record[at] = byte;
            Inode::from_record(&record).unwrap_err().to_string()
        };
        assert!(spoilt(0, 4).contains("version"));
        assert!(spoilt(1, 1).contains("flag"));
        assert!(spoilt(1, 2).contains("version"));
        assert!(spoilt(3, 0xf0).contains("kind"));
        assert!(spoilt(23, 0x80).contains("size"));
        assert!(spoilt(79, 0x80).contains("blocks"));
        assert!(spoilt(83, 0x40).contains("time"));
        let record = of(FileType::Symlink).to_record();
        for length in 0..record.len() {
            assert!(Inode::from_record(&record[..length]).is_err(), "{length}");
        }
        assert!(Inode::from_record(&[&record[..], &[b'x'; 5000]].concat()).is_err());
    }

    #[test]
    fn a_change_of_owner_clears_the_set_id_bits() {
        let left = |kind, permissions| {
            let mut inode = Inode::new(kind, permissions);
            inode.set_owner(None, Some(7));
            assert_eq!((inode.user, inode.group), (0, 7));
            inode.permissions
        };
        assert_eq!(left(FileType::File, 0o6755), 0o755);
        assert_eq!(left(FileType::File, 0o6745), 0o2745);
        assert_eq!(left(FileType::File, 0o1755), 0o1755);
        assert_eq!(left(FileType::Directory, 0o7777), 0o7777);
    }

    #[test]
    fn the_access_time_is_due_after_a_change_and_once_a_day() {
        let mut inode = Inode::new(FileType::File, 0o644);
        let now = inode.modified;
        assert!(inode.atime_due(now));
        let later =
            |nanoseconds: i64| Time::from_nanoseconds(now.wrapping_nanoseconds() + nanoseconds);
        inode.accessed = later(1);
        assert!(!inode.atime_due(later(DAY_SECONDS * 1_000_000_000)));
        assert!(inode.atime_due(later(DAY_SECONDS * 1_000_000_000 + 1)));
        inode.changed = inode.accessed;
        assert!(inode.atime_due(now));
    }

    #[test]
    fn a_record_of_the_previous_version_is_read() {
        let inode = of(FileType::Symlink);
        let record = inode.to_record();
        let mut old = [&record[..80], &inode.target].concat();
        old[0] = PREVIOUS_VERSION;
        for (time, nanoseconds) in [(32, 7), (40, -5), (48, i64::MIN), (56, i64::MAX)] {
            old[time..time + 8].copy_from_slice(&i64::to_le_bytes(nanoseconds));
        }
        let read = Inode::from_record(&old).unwrap();
        assert_eq!(
            (read.accessed, read.modified),
            (Time { seconds: 0, nanoseconds: 7 }, inode.modified)
        );
        assert_eq!(
            (read.changed.wrapping_nanoseconds(), read.created.wrapping_nanoseconds()),
            (i64::MIN, i64::MAX)
        );
        assert_eq!((read.target, read.parent), (inode.target, inode.parent));
    }

    #[test]
    fn times_have_the_range_of_the_kernels() {
        let year = Duration::from_secs(365 * 24 * 3600);
        let of = |time: SystemTime| (Time::from(time).seconds(), Time::from(time).nanoseconds());
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(of(epoch - Duration::from_nanos(5)), (-1, 999_999_995));
        assert_eq!(of(epoch - year * 1000), (-1000 * 365 * 24 * 3600, 0));
        assert_eq!(of(epoch + year * 1000), (1000 * 365 * 24 * 3600, 0));
        for (seconds, nanoseconds) in [(i64::MIN, 0), (i64::MAX, 999_999_999), (-1, 5), (0, 1)] {
            let time = Time::new(seconds, nanoseconds).unwrap();
            assert_eq!(Time::from(SystemTime::from(time)), time);
        }
        assert_eq!(Time::new(0, 1_000_000_000), None);
        assert!(Time::from_nanoseconds(-1) < Time::default());
        assert!(Time::new(5, 1) < Time::new(5, 2));
    }
}
