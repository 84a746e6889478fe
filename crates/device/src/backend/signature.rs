//! Detects the format of a device by the magic numbers that file systems, partition tables, RAID members and the like
//! keep near its beginning and end, so that nothing overwrites data by mistake. Does no I/O, and does not know volumes of
//! uringfs.

/// Bytes to read at the beginning and at the end: ZFS labels reach this far.
pub const PROBED_BYTES: u64 = 512 << 10;

/// The first and the last bytes of a device.
#[derive(Debug)]
pub struct DeviceEnds {
    /// The size of the device in bytes.
    pub size: u64,
    /// The first [`PROBED_BYTES`] bytes, or all of a smaller device.
    pub start: Vec<u8>,
    /// The last bytes, likewise. Signatures at the end are not looked for in an empty one.
    pub end: Vec<u8>,
}

impl DeviceEnds {
    /// The format of the device as words for messages, such as `a swap area`; `None` if it is not known.
    pub fn format(&self) -> Option<&'static str> {
        let holds =
            |magic: &&Magic| self.at(magic.at, magic.bytes.len() as u64) == Some(magic.bytes);
        let known = MAGICS.iter().find(holds).map(|magic| magic.content);
        known
            .or_else(|| self.is_zfs().then_some(ZFS))
            .or_else(|| self.has_mbr().then_some("an MBR partition table"))
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

    /// Whether the boot sector has a partition table: four entries, each bootable or not, and one of them with a type.
    fn has_mbr(&self) -> bool {
        let Some(sector) = self.start.get(..512) else { return false };
        let entries = || sector[446..510].chunks(16);
        sector.ends_with(&[0x55, 0xaa])
            && entries().all(|entry| matches!(entry[0], 0 | 0x80))
            && entries().any(|entry| entry[4] != 0)
    }
}

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
const OCFS2: &str = "an OCFS2 file system";
const GPT: &str = "a GPT partition table";

/// Offsets and bytes from libblkid.
const MAGICS: &[Magic] = &[
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
    magic(OCFS2, 1024, b"OCFSV2"),
    magic(OCFS2, 2048, b"OCFSV2"),
    magic(OCFS2, 4096, b"OCFSV2"),
    magic("a UFS file system", 65_536 + 1372, &[0x19, 0x01, 0x54, 0x19]),
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
    magic("a swap area", 4096 - 10, b"SWAP-SPACE"),
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
    magic("a VDO volume", 0, b"dmvdo001"),
    magic("a Ceph BlueStore device", 0, b"bluestore block device"),
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
];

const ZFS: &str = "a ZFS pool's member";
/// ZFS has four labels of 256 KiB. These are the upper halves of the first and the last one, in which ZFS
/// writes its number to places that rotate, `ZFS_STEP` bytes apart.
const ZFS_LABELS: [Position; 2] =
    [Position::Start(128 << 10), Position::End { unit: 256 << 10, back: 128 << 10 }];
const ZFS_STEP: usize = 1 << 10;
const ZFS_LENGTH: u64 = 128 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

#[cfg(test)]
mod tests {
    use super::*;

    /// A multiple of 512, and of no larger unit.
    const SIZE: u64 = (8 << 20) + 3 * 512;

    /// The format of a device that has these bytes at this offset.
    fn format(size: u64, at: u64, bytes: &[u8]) -> Option<&'static str> {
        let mut whole = vec![0; size as usize];
        whole[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        let length = size.min(PROBED_BYTES) as usize;
        let (start, end) = (&whole[..length], &whole[whole.len() - length..]);
        DeviceEnds { size, start: start.to_vec(), end: end.to_vec() }.format()
    }

    #[test]
    fn each_magic_number_is_found_at_its_offset() {
        for magic in MAGICS {
            let at = magic.at.offset_in(SIZE).unwrap();
            assert_eq!(format(SIZE, at, magic.bytes), Some(magic.content), "at {at}");
            if at + (magic.bytes.len() as u64) < SIZE {
                assert_eq!(format(SIZE, at + 1, magic.bytes), None, "at {}", at + 1);
            }
        }
    }

    #[test]
    fn magic_numbers_at_the_end_are_where_tools_write_them() {
        // As mdadm writes them to a device of 1 MiB: versions 1.0 and 0.90.
        let size = 1 << 20;
        assert_eq!(format(size, size - 8192, MD_MAGIC[0]), Some(MD));
        assert_eq!(format(size, size - 65_536, MD_MAGIC[0]), Some(MD));
        assert_eq!(format(size + 60_000, size - 65_536, MD_MAGIC[1]), Some(MD));
        for sector in [512, 4096] {
            assert_eq!(format(size, size - sector, b"EFI PART"), Some(GPT));
        }
    }

    #[test]
    fn a_zfs_label_is_found_at_all_its_places() {
        for number in [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()] {
            for slot in [0, 5, 127] {
                for begin in [128 << 10, (8 << 20) - (128 << 10)] {
                    assert_eq!(format(SIZE, begin + slot * 1024, &number), Some(ZFS));
                }
            }
            assert_eq!(format(SIZE, (128 << 10) + 8, &number), None);
        }
    }

    #[test]
    fn an_empty_or_tiny_device_has_no_format() {
        for size in [0, 1, 100, 512, 4096, 70_000, PROBED_BYTES, SIZE] {
            assert_eq!(format(size, 0, &[]), None, "{size}");
        }
    }

    #[test]
    fn a_boot_sector_has_a_partition_table_if_an_entry_has_a_type() {
        let mut boot = [0; 512];
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(format(SIZE, 0, &boot), None);
        boot[446 + 4] = 0x83;
        assert_eq!(format(SIZE, 0, &boot), Some("an MBR partition table"));
        boot[446 + 16] = 0x7f;
        assert_eq!(format(SIZE, 0, &boot), None, "an entry is bootable or not");
    }

    #[test]
    fn without_the_last_bytes_only_the_beginning_counts() {
        for magic in MAGICS {
            let at = magic.at.offset_in(SIZE).unwrap();
            let mut start = vec![0; PROBED_BYTES as usize];
            if let Position::Start(at) = magic.at {
                start[at as usize..at as usize + magic.bytes.len()].copy_from_slice(magic.bytes);
            }
            let found = DeviceEnds { size: SIZE, start, end: Vec::new() }.format();
            assert_eq!(found.is_some(), matches!(magic.at, Position::Start(_)), "at {at}");
        }
    }
}
