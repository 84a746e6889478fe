//! Detects the format of a block device or file by the magic numbers that file systems, RAID members and
//! the like keep near its beginning and end, so that a run does not overwrite data.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Bytes read at the beginning and at the end: ZFS labels reach this far.
const PROBED_BYTES: u64 = 512 << 10;

/// The text for a volume of this file system.
pub const VOLUME: &str = "a uringfs volume";
/// The text for a volume that has lost both primary superblocks. The backup is at 64 MiB, or in the last
/// block.
const VOLUME_BACKUP: &str =
    "a uringfs volume without good superblocks except the backup (repair: uringfs check --repair)";
const VOLUME_MAGIC: &[u8] = b"uringfs\x1a";
const BACKUP_OFFSET: u64 = 64 << 20;

struct Magic {
    content: &'static str,
    at: Position,
    bytes: &'static [u8],
}

/// The position of a magic number.
#[derive(Clone, Copy)]
enum Position {
    /// Bytes from the beginning.
    Start(u64),
    /// `back` bytes before the end, which is rounded down to a multiple of `unit`.
    End { unit: u64, back: u64 },
}

impl Position {
    fn offset_in(self, size: u64) -> Option<u64> {
        match self {
            Position::Start(at) => Some(at),
            Position::End { unit, back } => (size / unit * unit).checked_sub(back),
        }
    }
}

const fn magic(content: &'static str, at: u64, bytes: &'static [u8]) -> Magic {
    Magic { content, at: Position::Start(at), bytes }
}

const fn at_end(content: &'static str, unit: u64, back: u64, bytes: &'static [u8]) -> Magic {
    Magic { content, at: Position::End { unit, back }, bytes }
}

const MD: &str = "an MD RAID member";
/// The magic number in both byte orders.
const MD_MAGIC: [&[u8]; 2] = [&[0xfc, 0x4e, 0x2b, 0xa9], &[0xa9, 0x2b, 0x4e, 0xfc]];
const LUKS: &str = "a LUKS volume";
const REISER: &str = "a ReiserFS file system";
const NILFS: &str = "a NILFS2 file system";
/// The revision, then the magic number.
const NILFS_MAGIC: &[u8] = &[2, 0, 0, 0, 0, 0, 0x34, 0x34];
const GPT: &str = "a GPT partition table";

/// Offsets and bytes from libblkid.
const MAGICS: &[Magic] = &[
    magic(VOLUME, 0, VOLUME_MAGIC),
    magic(VOLUME, 64 << 10, VOLUME_MAGIC),
    magic("an ext2/3/4 file system", 1024 + 56, &[0x53, 0xef]),
    magic("an XFS file system", 0, b"XFSB"),
    magic("a btrfs file system", 65_536 + 64, b"_BHRfS_M"),
    magic("a bcachefs file system", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    magic("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    magic("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    magic("a JFS file system", 32_768, b"JFS1"),
    magic(REISER, 8192 + 52, b"ReIsEr"),
    magic(REISER, 65_536 + 52, b"ReIsEr"),
    magic(REISER, 65_536, b"ReIsEr4"),
    magic(NILFS, 1024, NILFS_MAGIC),
    at_end(NILFS, 4096, 4096, NILFS_MAGIC),
    magic("a GFS2 file system", 65_536, &[0x01, 0x16, 0x19, 0x70]),
    magic("an HFS file system", 1024, b"BD"),
    magic("an HFS+ file system", 1024, b"H+\0\x04"),
    magic("an HFS+ file system", 1024, b"HX\0\x05"),
    magic("an APFS container", 32, b"NXSB"),
    magic("a SquashFS file system", 0, b"hsqs"),
    magic("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("an ISO 9660 file system", 32_769, b"CD001"),
    magic("a UDF file system", 32_769, b"BEA01"),
    magic("an NTFS file system", 3, b"NTFS    "),
    magic("a ReFS file system", 3, b"ReFS"),
    magic("a BitLocker volume", 3, b"-FVE-FS-"),
    magic("an exFAT file system", 3, b"EXFAT   "),
    magic("a FAT file system", 54, b"FAT"),
    magic("a FAT file system", 82, b"FAT32"),
    magic("a swap area", 4096 - 10, b"SWAPSPACE2"),
    magic("a swap area", 16_384 - 10, b"SWAPSPACE2"),
    magic("a swap area", 65_536 - 10, b"SWAPSPACE2"),
    magic("a hibernated system", 4096 - 10, b"S1SUSPEND"),
    magic(LUKS, 0, b"LUKS\xba\xbe"),
    // The second header. Headers have several sizes.
    magic(LUKS, 16 << 10, b"SKUL\xba\xbe"),
    magic(LUKS, 32 << 10, b"SKUL\xba\xbe"),
    magic(LUKS, 64 << 10, b"SKUL\xba\xbe"),
    magic(LUKS, 128 << 10, b"SKUL\xba\xbe"),
    magic(LUKS, 256 << 10, b"SKUL\xba\xbe"),
    magic("an LVM volume", 0, b"LABELONE"),
    magic("an LVM volume", 512, b"LABELONE"),
    magic("an LVM volume", 1024, b"LABELONE"),
    magic("an LVM volume", 1536, b"LABELONE"),
    // Versions 1.1, 1.2, 1.0 and 0.90.
    magic(MD, 0, MD_MAGIC[0]),
    magic(MD, 4096, MD_MAGIC[0]),
    at_end(MD, 4096, 8192, MD_MAGIC[0]),
    at_end(MD, 65_536, 65_536, MD_MAGIC[0]),
    at_end(MD, 65_536, 65_536, MD_MAGIC[1]),
    at_end("an Intel RAID member", 512, 1024, b"Intel Raid ISM Cfg Sig. "),
    at_end("a DDF RAID member", 512, 512, &[0xde, 0x11, 0xde, 0x11]),
    magic(GPT, 512, b"EFI PART"),
    magic(GPT, 4096, b"EFI PART"),
    at_end(GPT, 512, 512, b"EFI PART"),
    at_end(GPT, 4096, 4096, b"EFI PART"),
    at_end(VOLUME_BACKUP, 4096, 4096, VOLUME_MAGIC),
];

const ZFS: &str = "a ZFS pool's member";
/// ZFS has four labels of 256 KiB. These are the upper halves of the first and the last one, in which ZFS
/// writes its number to places that rotate, `ZFS_STEP` bytes apart.
const ZFS_LABELS: [Position; 2] =
    [Position::Start(128 << 10), Position::End { unit: 256 << 10, back: 128 << 10 }];
const ZFS_STEP: usize = 1 << 10;
const ZFS_LENGTH: u64 = 128 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// The format of a device or file, if it is known.
///
/// # Errors
/// It cannot be read.
pub fn probe(device: &File) -> io::Result<Option<&'static str>> {
    let mut whole = device;
    let size = whole.seek(SeekFrom::End(0))?;
    let length = size.min(PROBED_BYTES);
    let start = read(device, 0, length)?;
    let end = read(device, size - length, length)?;
    let content = ProbedEnds { size, start, end }.content();
    if content.is_none() && size > BACKUP_OFFSET {
        let backup = read(device, BACKUP_OFFSET, VOLUME_MAGIC.len() as u64)?;
        return Ok((backup == VOLUME_MAGIC).then_some(VOLUME_BACKUP));
    }
    Ok(content)
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

/// The first and the last bytes of a device or file, at most [`PROBED_BYTES`] each.
struct ProbedEnds {
    size: u64,
    start: Vec<u8>,
    end: Vec<u8>,
}

impl ProbedEnds {
    fn content(&self) -> Option<&'static str> {
        let holds =
            |magic: &&Magic| self.at(magic.at, magic.bytes.len() as u64) == Some(magic.bytes);
        let known = MAGICS.iter().find(holds).map(|magic| magic.content);
        known.or_else(|| self.is_zfs().then_some(ZFS)).or_else(|| {
            // A boot sector has a partition table if one of its four entries has a type.
            let boot = self.start.get(510..512) == Some(&[0x55, 0xaa]);
            let partitioned = boot && (0..4).any(|entry| self.start[446 + entry * 16 + 4] != 0);
            partitioned.then_some("an MBR partition table")
        })
    }

    fn at(&self, position: Position, length: u64) -> Option<&[u8]> {
        let begin = position.offset_in(self.size)?;
        let (bytes, from) = match position {
            Position::Start(_) => (&self.start, 0),
            Position::End { .. } => (&self.end, self.size - self.end.len() as u64),
        };
        let begin = begin.checked_sub(from)? as usize;
        bytes.get(begin..begin + length as usize)
    }

    fn is_zfs(&self) -> bool {
        let is_magic = |place: &[u8]| {
            let number = place.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            number.is_some_and(|it| it == ZFS_MAGIC || it == ZFS_MAGIC.swap_bytes())
        };
        let mut labels = ZFS_LABELS.into_iter().filter_map(|at| self.at(at, ZFS_LENGTH));
        labels.any(|labels| labels.chunks(ZFS_STEP).any(is_magic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A multiple of 512, and of no larger unit.
    const SIZE: u64 = (8 << 20) + 3 * 512;

    /// The format of a device that has these bytes at this offset.
    fn content(size: u64, at: u64, bytes: &[u8]) -> Option<&'static str> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(bytes, at).unwrap();
        probe(&file).unwrap()
    }

    #[test]
    fn each_magic_number_is_found_at_its_offset() {
        for magic in MAGICS {
            let at = magic.at.offset_in(SIZE).unwrap();
            assert_eq!(content(SIZE, at, magic.bytes), Some(magic.content), "at {at}");
            assert_eq!(content(SIZE, at + 1, magic.bytes), None, "at {}", at + 1);
        }
    }

    #[test]
    fn magic_numbers_at_the_end_are_where_tools_write_them() {
        // As mdadm writes them to a device of 1 MiB: versions 1.0 and 0.90.
        let size = 1 << 20;
        assert_eq!(content(size, size - 8192, MD_MAGIC[0]), Some(MD));
        assert_eq!(content(size, size - 65_536, MD_MAGIC[0]), Some(MD));
        assert_eq!(content(size + 60_000, size - 65_536, MD_MAGIC[1]), Some(MD));
        for sector in [512, 4096] {
            assert_eq!(content(size, size - sector, b"EFI PART"), Some(GPT));
        }
    }

    #[test]
    fn a_zfs_label_is_found_at_all_its_places() {
        for number in [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()] {
            for slot in [0, 5, 127] {
                for begin in [128 << 10, (8 << 20) - (128 << 10)] {
                    assert_eq!(content(SIZE, begin + slot * 1024, &number), Some(ZFS));
                }
            }
            assert_eq!(content(SIZE, (128 << 10) + 8, &number), None);
        }
    }

    #[test]
    fn an_empty_or_tiny_device_has_no_format() {
        for size in [0, 1, 100, 512, 4096, 70_000, PROBED_BYTES, SIZE] {
            assert_eq!(content(size, 0, &[]), None, "{size}");
        }
        let mut boot = [0; 512];
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(content(SIZE, 0, &boot), None);
        boot[446 + 4] = 0x83;
        assert_eq!(content(SIZE, 0, &boot), Some("an MBR partition table"));
    }
}
