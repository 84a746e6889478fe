//! Another format that was made over a volume. Nothing writes a superblock then, until a forced repair.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use uringfs_device::{Access, Device};
use uringfs_volume::{CheckOptions, CheckReport, Error, ErrorKind, FormatOptions, Volume};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const SIZE: usize = 80 * MIB;

/// A format: its name in messages, how many of the first bytes it overwrites, and its signature.
struct Other {
    name: &'static str,
    overwritten: usize,
    signature: (usize, &'static [u8]),
}

const SWAP: Other =
    Other { name: "a swap area", overwritten: BLOCK, signature: (BLOCK - 10, b"SWAPSPACE2") };
const GPT: Other =
    Other { name: "a GPT partition table", overwritten: 17 << 10, signature: (512, b"EFI PART") };
const EXT4: Other = Other {
    name: "an ext2/3/4 file system",
    overwritten: 2 * MIB,
    signature: (1024 + 56, &[0x53, 0xef]),
};
/// Its signature is at the end.
const RAID: Other = Other {
    name: "an MD RAID member",
    overwritten: BLOCK,
    signature: (SIZE - 8192, &[0xfc, 0x4e, 0x2b, 0xa9]),
};

struct Image {
    _folder: TempDir,
    path: PathBuf,
}

impl Image {
    /// A volume with a file.
    fn new() -> Image {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let volume = Volume::create(&path, &FormatOptions::new().size(SIZE as u64)).unwrap();
        volume.write("/file", b"content").unwrap();
        volume.close().unwrap();
        Image { _folder: folder, path }
    }

    fn with(other: &Other) -> Image {
        let image = Image::new();
        let mut bytes = image.bytes();
        bytes[..other.overwritten].fill(0);
        let (at, signature) = other.signature;
        bytes[at..at + signature.len()].copy_from_slice(signature);
        fs::write(&image.path, bytes).unwrap();
        image
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn device(&self, access: Access) -> Device {
        Device::open(&self.path, access).unwrap()
    }

    fn open(&self, access: Access) -> Result<Volume, Error> {
        Volume::open_on(self.device(access))
    }

    fn check(&self, options: CheckOptions) -> Result<CheckReport, Error> {
        Volume::check(&self.device(Access::ReadWrite), options, &mut |_, _| {})
    }
}

fn assert_refused<T>(called: Result<T, Error>, other: &Other) {
    let error = called.err().expect("nothing is done to another format");
    assert_eq!(error.kind(), ErrorKind::OtherFormat, "{error}");
    let says =
        format!("holds {}, which was made over an old uringfs volume: uringfs wipe", other.name);
    assert!(error.to_string().starts_with(&says), "{error}");
    assert!(error.to_string().contains("uringfs check --repair --force"), "{error}");
}

#[test]
fn nothing_writes_to_a_device_on_which_another_format_was_made() {
    for other in [SWAP, GPT, EXT4, RAID] {
        let image = Image::with(&other);
        let before = image.bytes();
        assert_refused(image.open(Access::ReadWrite), &other);
        assert_refused(image.check(CheckOptions::new().repair(true)), &other);
        assert_refused(
            image.check(CheckOptions::new().repair(true).accept_unreadable(true)),
            &other,
        );
        assert_refused(image.check(CheckOptions::new()), &other);
        let device = image.device(Access::ReadWrite);
        assert_refused(Volume::upgrade(&device, &mut |_, _| {}), &other);
        assert_refused(Volume::set_label(&device, "new"), &other);
        assert_eq!(Volume::identify(&device).unwrap(), None, "{}", other.name);
        assert!(image.bytes() == before, "{}", other.name);
    }
}

#[test]
fn a_volume_under_another_format_is_read_with_a_warning_if_a_slot_is_left() {
    for other in [SWAP, GPT, RAID] {
        let volume = Image::with(&other).open(Access::Read).unwrap();
        assert_eq!(volume.read("/file").unwrap(), b"content");
        let warnings = volume.warnings();
        let begin = format!("holds {}, which was made over the volume: ", other.name);
        assert!(warnings.len() == 1 && warnings[0].starts_with(&begin), "{warnings:?}");
    }
    assert_refused(Image::with(&EXT4).open(Access::Read), &EXT4);
}

#[test]
fn a_damaged_catalog_under_another_format_is_no_reason_to_repair() {
    let image = Image::with(&SWAP);
    let mut bytes = image.bytes();
    bytes[4 * MIB..6 * MIB].fill(0);
    fs::write(&image.path, bytes).unwrap();
    assert_refused(image.open(Access::Read), &SWAP);
}

#[test]
fn a_forced_repair_restores_the_volume() {
    for other in [SWAP, GPT, EXT4, RAID] {
        let image = Image::with(&other);
        let forced = CheckOptions::new().repair(true).overwrite_other_format(true);
        assert!(image.check(forced).unwrap().is_repaired());
        let volume = image.open(Access::ReadWrite).unwrap();
        assert_eq!(volume.warnings(), Vec::<String>::new(), "{}", other.name);
        assert_eq!(volume.read("/file").unwrap(), b"content");
        volume.close().unwrap();
        assert!(image.check(CheckOptions::new()).unwrap().is_sound(), "{}", other.name);
    }
}

#[test]
fn wiping_erases_only_what_is_left_of_the_volume() {
    for other in [SWAP, GPT, EXT4] {
        let image = Image::with(&other);
        let mut expected = image.bytes();
        let wiped = Volume::wipe(&image.device(Access::ReadWrite)).unwrap();
        assert!(!wiped.is_empty() && !wiped.contains(&0), "{wiped:?}");
        for block in wiped {
            expected[block as usize * BLOCK..][..BLOCK].fill(0);
        }
        assert!(image.bytes() == expected, "{}", other.name);
        let error = image.open(Access::Read).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotAVolume);
        assert!(error.to_string().ends_with(&format!("but {}", other.name)), "{error}");
    }
}

/// The block of a slot is damaged, and there is a signature.
fn damaged(slot: usize, (at, signature): (usize, &[u8])) -> Image {
    let image = Image::new();
    let mut bytes = image.bytes();
    bytes[slot * BLOCK..][..BLOCK].fill(0);
    bytes[at..at + signature.len()].copy_from_slice(signature);
    fs::write(&image.path, bytes).unwrap();
    image
}

#[test]
fn a_signature_counts_only_if_it_may_be_newer_than_the_superblocks() {
    let opens = |image: &Image| image.open(Access::ReadWrite).map(|volume| volume.warnings());
    // With good superblocks it is from before the volume.
    let image = Image::new();
    let mut bytes = image.bytes();
    bytes[BLOCK..BLOCK + 4].copy_from_slice(RAID.signature.1);
    fs::write(&image.path, bytes).unwrap();
    assert_eq!(opens(&image).unwrap(), Vec::<String>::new());
    // Only a lost block 0 makes those at the end count: a file may have one.
    assert!(opens(&damaged(16, RAID.signature)).is_ok());
    assert_refused(opens(&damaged(0, RAID.signature)), &RAID);
    // As from ZFS, which may leave block 0.
    assert_refused(opens(&damaged(16, (BLOCK, RAID.signature.1))), &RAID);
}

#[test]
fn another_format_without_a_volume_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = &folder.path().join("image");
    let mut bytes = vec![0; SIZE];
    bytes[SWAP.signature.0..BLOCK].copy_from_slice(SWAP.signature.1);
    fs::write(path, bytes).unwrap();
    let error = Volume::open_on(Device::open(path, Access::Read).unwrap()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotAVolume);
    assert_eq!(error.to_string(), "this is not a uringfs volume, but a swap area");
}
