//! What a block device or a file holds, by the magic numbers that file systems and their kin leave near the
//! beginning: so that a benchmark does not write over somebody's data.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Far enough for btrfs, whose superblock is the farthest.
const PROBED: usize = 68 << 10;

/// What is said to hold files of this format.
pub const VOLUME: &str = "a uringfs volume";

struct Magic {
    holder: &'static str,
    at: usize,
    bytes: &'static [u8],
}

const fn magic(holder: &'static str, at: usize, bytes: &'static [u8]) -> Magic {
    Magic { holder, at, bytes }
}

/// Offsets and bytes as libblkid has them.
const MAGICS: &[Magic] = &[
    magic(VOLUME, 0, b"uringfs\x1a"),
    magic("an ext2/3/4 file system", 1024 + 56, &[0x53, 0xef]),
    magic("an XFS file system", 0, b"XFSB"),
    magic("a btrfs file system", 65_536 + 64, b"_BHRfS_M"),
    magic("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    magic("a SquashFS file system", 0, b"hsqs"),
    magic("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("an ISO 9660 file system", 32_769, b"CD001"),
    magic("an NTFS file system", 3, b"NTFS    "),
    magic("an exFAT file system", 3, b"EXFAT   "),
    magic("a FAT file system", 54, b"FAT"),
    magic("a FAT file system", 82, b"FAT32"),
    magic("a swap area", 4096 - 10, b"SWAPSPACE2"),
    magic("a swap area", 16_384 - 10, b"SWAPSPACE2"),
    magic("a swap area", 65_536 - 10, b"SWAPSPACE2"),
    magic("a LUKS volume", 0, b"LUKS\xba\xbe"),
    magic("an LVM volume", 0, b"LABELONE"),
    magic("an LVM volume", 512, b"LABELONE"),
    magic("an LVM volume", 1024, b"LABELONE"),
    magic("an LVM volume", 1536, b"LABELONE"),
    magic("an MD RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    magic("a GPT partition table", 512, b"EFI PART"),
    magic("a GPT partition table", 4096, b"EFI PART"),
];

/// What a device or a file holds, if it is anything known.
///
/// # Errors
/// Those of reading it.
pub fn probe(device: &File) -> io::Result<Option<&'static str>> {
    let mut start = vec![0; PROBED];
    let mut filled = 0;
    while filled < start.len() {
        match device.read_at(&mut start[filled..], filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(holder(&start[..filled]))
}

fn holder(start: &[u8]) -> Option<&'static str> {
    let holds =
        |magic: &&Magic| start.get(magic.at..magic.at + magic.bytes.len()) == Some(magic.bytes);
    MAGICS.iter().find(holds).map(|magic| magic.holder).or_else(|| {
        // A boot sector is a partition table if one of its four entries has a type.
        let boot = start.get(510..512) == Some(&[0x55, 0xaa]);
        let partitioned = boot && (0..4).any(|entry| start[446 + entry * 16 + 4] != 0);
        partitioned.then_some("an MBR partition table")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_is_found_where_it_stands() {
        for magic in MAGICS {
            let mut start = vec![0; PROBED];
            start[magic.at..magic.at + magic.bytes.len()].copy_from_slice(magic.bytes);
            assert_eq!(holder(&start), Some(magic.holder));
        }
    }

    #[test]
    fn an_empty_or_tiny_device_holds_nothing() {
        assert_eq!(holder(&[0; PROBED]), None);
        assert_eq!(holder(&[0; 100]), None);
        let mut boot = [0; 512];
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(holder(&boot), None);
        boot[446 + 4] = 0x83;
        assert_eq!(holder(&boot), Some("an MBR partition table"));
    }
}
