//! Detects the format of a block device or file, so that a run does not overwrite data: a volume, or another format.

use super::nvme_namespace::Namespace;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use uringfs::device::Device;
use uringfs::device::backend::signature::{DeviceEnds, PROBED_BYTES};
use uringfs::file::FileOptions;

/// The text for a volume of this file system.
pub const VOLUME: &str = "a uringfs volume";
/// The text for a volume that has lost both primary superblocks. The backup is at 64 MiB, or in the last
/// block.
const VOLUME_BACKUP: &str =
    "a uringfs volume without good superblocks except the backup (repair: uringfs check --repair)";
const VOLUME_MAGIC: &[u8] = b"uringfs\x1a";
const BACKUP_OFFSET: u64 = 64 << 20;
/// Offset of the second slot of the superblock.
const SLOT_OFFSET: usize = 64 << 10;

/// The format of a device or file, if it is known. A format that was made over a volume counts, and not what it has left
/// of the volume.
///
/// # Errors
/// It cannot be read.
pub fn probe(device: &File) -> io::Result<Option<&'static str>> {
    let mut whole = device;
    let size = whole.seek(SeekFrom::End(0))?;
    probe_bytes(size, |at, length| read(device, at, length))
}

/// The same of an open device.
///
/// # Errors
/// It cannot be read.
pub fn probe_device(device: &Device) -> io::Result<Option<&'static str>> {
    let whole = uringfs::File::from_device(device.clone(), FileOptions::default());
    probe_bytes(device.geometry().size, |at, length| {
        let (result, bytes) = whole.read_exact_at(vec![0; length as usize], at).wait();
        result.map(|()| bytes)
    })
}

/// The same of an NVMe namespace.
///
/// # Errors
/// It cannot be read.
pub fn probe_namespace(namespace: &Namespace) -> io::Result<Option<&'static str>> {
    probe_bytes(namespace.size(), |at, length| namespace.read(at, length))
}

fn probe_bytes(
    size: u64,
    read: impl Fn(u64, u64) -> io::Result<Vec<u8>>,
) -> io::Result<Option<&'static str>> {
    let length = size.min(PROBED_BYTES);
    let start = read(0, length)?;
    if start.starts_with(VOLUME_MAGIC) {
        return Ok(Some(VOLUME));
    }
    let ends = DeviceEnds { size, start, end: read(size - length, length)? };
    if let Some(format) = ends.format() {
        return Ok(Some(format));
    }
    let holds = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.starts_with(VOLUME_MAGIC));
    if holds(ends.start.get(SLOT_OFFSET..)) {
        return Ok(Some(VOLUME));
    }
    let last = ((size / 4096).saturating_sub(1) * 4096).saturating_sub(size - length);
    let is_backup = holds(ends.end.get(last as usize..))
        || size > BACKUP_OFFSET && read(BACKUP_OFFSET, VOLUME_MAGIC.len() as u64)? == VOLUME_MAGIC;
    Ok(is_backup.then_some(VOLUME_BACKUP))
}

fn read(device: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match device.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = (128 << 20) + 3 * 512;
    const SWAP: (u64, &[u8]) = (4096 - 10, b"SWAPSPACE2");

    /// The format of a device that has these bytes at these offsets.
    fn content(size: u64, written: &[(u64, &[u8])]) -> Option<&'static str> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (at, bytes) in written {
            file.write_all_at(bytes, *at).unwrap();
        }
        probe(&file).unwrap()
    }

    #[test]
    fn a_volume_is_found_by_any_of_its_superblocks() {
        let last = SIZE / 4096 * 4096 - 4096;
        for (at, expected) in [
            (0, VOLUME),
            (SLOT_OFFSET as u64, VOLUME),
            (BACKUP_OFFSET, VOLUME_BACKUP),
            (last, VOLUME_BACKUP),
        ] {
            assert_eq!(content(SIZE, &[(at, VOLUME_MAGIC)]), Some(expected), "at {at}");
            assert_eq!(content(SIZE, &[(at + 1, VOLUME_MAGIC)]), None, "at {}", at + 1);
        }
        for size in [0, 1, 512, 4096, 70_000, SIZE] {
            assert_eq!(content(size, &[]), None, "{size}");
        }
    }

    #[test]
    fn a_format_over_a_volume_counts_unless_the_first_superblock_is_left() {
        for at in [SLOT_OFFSET as u64, BACKUP_OFFSET] {
            let found = content(SIZE, &[SWAP, (at, VOLUME_MAGIC)]);
            assert_eq!(found, Some("a swap area"), "at {at}");
        }
        assert_eq!(content(SIZE, &[SWAP, (0, VOLUME_MAGIC)]), Some(VOLUME));
    }
}
