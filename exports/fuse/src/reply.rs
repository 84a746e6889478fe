//! Replies: attributes, entries and listings as the kernel expects them, and the call that sends one.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use uringfs::Errno;
use uringfs::volume::{FileType, Metadata};
use zerocopy::IntoBytes;

use crate::abi::{Attr, AttrOut, Dirent, EntryOut, OutHeader};

/// How long the kernel may keep names without asking again. Only this mount changes the volume, so that they stay true until
/// a request of the kernel's changes them.
const NAME_VALID: Duration = Duration::from_secs(24 * 3600);
/// The same for attributes: the kernel drops those that its own requests change. It does not notice that a write ends set-ID
/// bits, so that the attributes of a file that has them are kept for a moment only.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(24 * 3600);
const SET_ID_VALID: Duration = Duration::from_secs(1);
/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID_BITS: u32 = 0o6000;

/// Sends a reply. Returns false if the kernel did not take it: the request was interrupted, or the file system is unmounted.
pub(crate) fn send(channel: &OwnedFd, unique: u64, result: Result<&[u8], Errno>) -> bool {
    let (error, payload) = match result {
        Ok(payload) => (0, payload),
        Err(errno) => (-errno.raw_os_error(), &[][..]),
    };
    let length = (size_of::<OutHeader>() + payload.len()) as u32;
    let header = OutHeader { length, error, unique };
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
    rustix::io::retry_on_intr(|| rustix::io::writev(channel, &parts)).is_ok()
}

/// The attributes of a file.
pub(crate) fn attributes(metadata: &Metadata) -> Attr {
    let [atime, mtime, ctime] =
        [metadata.accessed(), metadata.modified(), metadata.changed()].map(seconds);
    Attr {
        ino: metadata.ino(),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: atime.0,
        mtime: mtime.0,
        ctime: ctime.0,
        atime_nsec: atime.1,
        mtime_nsec: mtime.1,
        ctime_nsec: ctime.1,
        mode: metadata.mode(),
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: encode_device(metadata.rdev()),
        block_size: 4096,
        flags: 0,
    }
}

/// How long the kernel may keep the attributes of a file with this mode.
fn attributes_valid(mode: u32) -> Duration {
    match mode & SET_ID_BITS {
        0 => ATTRIBUTES_VALID,
        _ => SET_ID_VALID,
    }
}

/// The reply to GETATTR and SETATTR.
pub(crate) fn attributes_reply(metadata: &Metadata) -> AttrOut {
    AttrOut {
        attr_valid: attributes_valid(metadata.mode()).as_secs(),
        attr_valid_nsec: 0,
        padding: 0,
        attr: attributes(metadata),
    }
}

/// The reply to LOOKUP and to what creates a file.
pub(crate) fn entry(metadata: &Metadata) -> EntryOut {
    EntryOut {
        node: metadata.ino(),
        // Inode numbers are never reused.
        generation: 0,
        entry_valid: NAME_VALID.as_secs(),
        attr_valid: attributes_valid(metadata.mode()).as_secs(),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attributes(metadata),
    }
}

/// The reply to LOOKUP for a name that does not exist: the kernel keeps that, too.
pub(crate) fn no_entry() -> EntryOut {
    EntryOut { entry_valid: NAME_VALID.as_secs(), ..EntryOut::default() }
}

/// The entries of READDIR and READDIRPLUS, up to the size that the kernel asks for.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    limit: usize,
}

impl Listing {
    pub(crate) fn new(limit: u32) -> Listing {
        Listing { bytes: Vec::new(), limit: limit as usize }
    }

    /// The bytes that one more name takes, with its attributes or without.
    fn entry_bytes(name: &[u8], plus: bool) -> usize {
        let front = if plus { size_of::<EntryOut>() } else { 0 };
        front + (size_of::<Dirent>() + name.len()).next_multiple_of(8)
    }

    /// True if one more name has room.
    pub(crate) fn has_room(&self, name: &[u8], plus: bool) -> bool {
        self.bytes.len() + Listing::entry_bytes(name, plus) <= self.limit
    }

    /// Adds a name, which has room. `offset` is the position behind it.
    pub(crate) fn push(
        &mut self,
        entry: Option<EntryOut>,
        name: &[u8],
        (ino, offset): (u64, u64),
        kind: FileType,
    ) {
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let kind = u32::from(kind.mode_bits().0 >> 12);
        let dirent = Dirent { ino, offset, name_length: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Seconds since 1970, as two's complement, and nanoseconds.
fn seconds(time: SystemTime) -> (u64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (before.as_secs().wrapping_neg(), 0),
                part => ((!before.as_secs()), 1_000_000_000 - part),
            }
        }
    }
}

/// A device number as the kernel encodes it for user space (`new_encode_dev`).
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`encode_device`].
pub(crate) fn decode_device(device: u32) -> u64 {
    rustix::fs::makedev((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_kept_unless_a_write_changes_the_mode() {
        assert_eq!(attributes_valid(0o100_644), Duration::from_secs(24 * 3600));
        assert_eq!(
            attributes_valid(0o041_777),
            Duration::from_secs(24 * 3600),
            "a sticky directory"
        );
        assert_eq!(attributes_valid(0o104_755), Duration::from_secs(1), "a set-user-ID program");
        assert_eq!(attributes_valid(0o102_755), Duration::from_secs(1), "a set-group-ID program");
    }

    #[test]
    fn times_before_1970_count_down() {
        let before =
            |seconds, nanoseconds| SystemTime::UNIX_EPOCH - Duration::new(seconds, nanoseconds);
        assert_eq!(seconds(before(1, 0)), ((-1i64) as u64, 0));
        assert_eq!(seconds(before(0, 1)), ((-1i64) as u64, 999_999_999));
        assert_eq!(seconds(before(2, 500_000_000)), ((-3i64) as u64, 500_000_000));
    }

    #[test]
    fn device_numbers_survive_the_kernels_encoding() {
        for (major, minor) in [(8, 1), (259, 300), (4095, 1_048_575)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }

    #[test]
    fn entries_begin_at_multiples_of_eight_bytes_and_end_at_the_limit() {
        let mut listing = Listing::new(64);
        assert!(listing.has_room(b"name", false));
        listing.push(None, b"name", (7, 1), FileType::File);
        assert_eq!(listing.as_bytes().len(), 32);
        assert_eq!(listing.as_bytes()[20], 8, "DT_REG");
        assert!(listing.has_room(b"12345678", false));
        assert!(!listing.has_room(b"123456789", false));
        assert!(!listing.has_room(b"", true));
    }
}
