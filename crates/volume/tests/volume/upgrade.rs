//! Volumes of the previous version: opened read-only, and upgraded, also with a power cut or a
//! failed write. The program of that version made the images. An image is its length, then all
//! blocks that are not zeros, each after its number.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};
use uringfs_device::{Access, Device, Errno, Op};
use uringfs_file::{File, FileOptions};
use uringfs_volume::{
    AtimePolicy, CheckOptions, ErrorKind, FileType, Follow, Inode, OpenOptions, Time, Volume,
};

use crate::fixture::{create, reactor};

const BLOCK: u64 = 4096;

/// As a killed program left it: with records in its log, and with an open file that was removed.
const SMALL: (&str, &[u8]) = ("small", include_bytes!("../images/version2-small.gz"));
/// Nearly full, and a file has the last block.
const FULL: (&str, &[u8]) = ("full", include_bytes!("../images/version2-full.gz"));
/// 17 GiB, so that its catalog crosses 64 MiB.
const LARGE: (&str, &[u8]) = ("large", include_bytes!("../images/version2-large.gz"));

/// The length of an image, and its blocks.
fn blocks_of(image: &[u8]) -> (u64, Vec<(u64, Vec<u8>)>) {
    let mut bytes = Vec::new();
    GzDecoder::new(image).read_to_end(&mut bytes).unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let blocks = bytes[8..].chunks_exact(8 + BLOCK as usize);
    (number(&bytes), blocks.map(|block| (number(block), block[8..].to_vec())).collect())
}

fn device_of(image: &[u8]) -> (Sim, Device) {
    let (size, blocks) = blocks_of(image);
    let sim = Sim::new(SimOptions::new(size));
    let device = Device::new(sim.clone()).unwrap();
    let whole = File::from_device(device.clone(), FileOptions::default());
    let reactor = reactor();
    for (block, bytes) in blocks {
        let written = reactor.block_on(whole.write_at(Buffer::copy_of(&bytes), block * BLOCK)).0;
        assert_eq!(written, Ok(BLOCK as usize));
    }
    reactor.block_on(whole.sync_all()).unwrap();
    sim.restart_record();
    (sim, device)
}

fn findings(device: &Device, options: CheckOptions) -> Vec<String> {
    let report = Volume::check(device, options, &mut |_, _| {}).unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

fn assert_sound(device: &Device, place: &str) {
    let lines = findings(device, CheckOptions::new().deep(true));
    assert!(lines.is_empty(), "{place}: {lines:?}");
}

/// The volume opens for writing and has its content.
fn assert_whole(device: &Device, image: &str, place: &str) {
    let volume = Volume::open_on(device.clone()).unwrap_or_else(|e| panic!("{place}: {e}"));
    assert_eq!(volume.warnings(), Vec::<String>::new(), "{place}");
    assert_contents(&volume, image, place);
    let time = Time::new(1 << 40, 999_999_999).unwrap();
    volume.set_attributes("/one", Follow::No, |inode| inode.modified = time).unwrap();
    volume.create_dir("/new").unwrap();
    drop(volume);
    assert_sound(device, place);
    let volume = Volume::open_on(device.clone()).unwrap();
    assert_eq!(volume.symlink_metadata("/one").unwrap().inode().modified, time, "{place}");
    volume.remove_dir("/new").unwrap();
}

fn assert_contents(volume: &Volume, image: &str, place: &str) {
    assert_eq!(volume.label(), "of version 2", "{place}");
    let reactor = reactor();
    let kept = OpenOptions::new().read(true).access_time(AtimePolicy::Never).direct(true);
    let holds = |path: &str, offset: u64, length: usize| {
        let file = volume.open_with(path, kept).unwrap();
        let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
        let is_right = bytes.iter().all(|byte| usize::from(*byte) == path.len());
        assert!(read == Ok(length) && is_right, "{place}: {path}");
    };
    ["/one", "/a/two", "/a/b/three"].into_iter().for_each(|path| holds(path, 0, 9000));
    holds("/a/two", 40 * BLOCK, 5000);
    if image == SMALL.0 {
        holds("/a/logged", 0, 5000);
    }
    if image == FULL.0 {
        // The content of its last 200 blocks is their number.
        let file = volume.open_with("/last", kept).unwrap();
        let first = file.len() / BLOCK - 200;
        for block in 0..200 {
            let offset = (first + block) * BLOCK;
            let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(4096), offset));
            let is_right = bytes.iter().all(|byte| u64::from(*byte) == block + 1);
            assert!(read == Ok(4096) && is_right, "{place}: block {block}");
        }
    }
    let inode = |path: &str| -> Inode { volume.symlink_metadata(path).unwrap().into_inode() };
    let two = inode("/a/two");
    assert_eq!((two.user, two.group, two.permissions), (1000, 100, 0o4751), "{place}");
    assert_eq!(two.modified, Time::from_nanoseconds(-5), "{place}");
    assert_eq!(two.accessed, Time::from_nanoseconds(1_000_000_007), "{place}");
    assert_eq!(inode("/a/pipe").kind, FileType::Fifo, "{place}");
    assert_eq!(&inode("/a/link").target[..], b"../one", "{place}");
    assert_eq!(inode("/one").links, 2, "{place}");
    assert_eq!(volume.get_xattr("/one", Follow::No, b"user.colour").unwrap(), b"red", "{place}");
    assert_eq!(volume.symlink_metadata("/removed").is_ok(), image == LARGE.0, "{place}");
}

#[test]
fn a_volume_of_the_previous_version_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    for (name, image) in [SMALL, FULL, LARGE] {
        let path = folder.path().join(name);
        let (size, blocks) = blocks_of(image);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        for (block, bytes) in blocks {
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, block * BLOCK).unwrap();
        }
        let open = |access| Device::open(Path::new(&path), access).unwrap();
        assert_contents(&Volume::open_on(open(Access::Read)).unwrap(), name, name);
        assert_sound(&open(Access::Read), name);
        let repair = CheckOptions::new().repair(true);
        let device = open(Access::ReadWrite);
        let refusals = [
            Volume::open_on(device.clone()).map(drop),
            Volume::check(&device, repair, &mut |_, _| {}).map(drop),
        ];
        for refused in refusals {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("run uringfs check --upgrade"), "{error}");
        }
    }
}

#[test]
fn an_upgraded_volume_keeps_its_content_and_gets_a_backup_superblock() {
    for (name, image) in [SMALL, FULL, LARGE] {
        let (sim, device) = device_of(image);
        assert!(Volume::upgrade(&device, &mut |_, _| {}).unwrap(), "{name}");
        assert_sound(&device, name);
        assert!(!Volume::upgrade(&device, &mut |_, _| {}).unwrap(), "{name}");
        assert_whole(&device, name, name);
        // With both slots lost, the backup superblock restores them.
        for block in [0, 16] {
            sim.flip_bit(block * BLOCK, 3);
        }
        let repair = CheckOptions::new().repair(true);
        assert_eq!(findings(&device, repair).len(), 2, "{name}");
        assert_whole(&device, name, name);
        // Nothing else uses the block of the backup.
        let volume = Volume::open_on(device.clone()).unwrap();
        let (file, free) = (create(&volume, "/rest"), volume.statistics().free_blocks);
        let allocated =
            file.allocate(0, free.min(1 << 15) * BLOCK, uringfs_file::FallocateSize::Extend);
        assert_eq!(reactor().block_on(allocated), Ok(()), "{name}");
        drop((file, volume));
        assert_sound(&device, name);
    }
}

#[test]
fn a_power_cut_leaves_a_volume_of_either_version() {
    for (name, image) in [SMALL, FULL, LARGE] {
        let (sim, device) = device_of(image);
        Volume::upgrade(&device, &mut |_, _| {}).unwrap();
        // Checking a large volume is slow.
        let (exhaustive_up_to, samples) = if name == LARGE.0 { (0, 1) } else { (2, 3) };
        let plan = CrashPlan { exhaustive_up_to, samples, seed: 5 };
        let (mut old, mut new) = (0, 0);
        for image in sim.crash_images(plan) {
            let place = format!("{name}, seed 5, cut {}, {:?}", image.cut, image.crash);
            let device = Device::new(image.sim.clone()).unwrap();
            let lines = findings(&device, CheckOptions::default());
            let is_older = |line: &String| line.ends_with("older than the newest");
            let is_missing = |line: &String| line.ends_with("no superblock");
            let others = lines.iter().filter(|line| !is_older(line) && !is_missing(line));
            assert_eq!(others.count(), 0, "{place}: {lines:?}");
            match Volume::upgrade(&device, &mut |_, _| {}).unwrap() {
                true => old += 1,
                false => new += 1,
            }
            // Opening writes the backup, if the cut came before that.
            drop(Volume::open_on(device.clone()).unwrap());
            assert_whole(&device, name, &place);
        }
        assert!(old > 2 && new > 2, "{name}: {old} old, {new} new");
    }
}

#[test]
fn a_volume_can_be_upgraded_after_a_failed_write() {
    for (name, image) in [SMALL, FULL, LARGE] {
        for op in [Op::Write, Op::Flush] {
            for nth in 1.. {
                let (sim, device) = device_of(image);
                sim.fail_nth(op, nth, Errno::IO);
                let place = format!("{name}, {op:?} {nth}");
                if Volume::upgrade(&device, &mut |_, _| {}).is_ok() {
                    assert!(nth > 2, "{place}");
                    break;
                }
                sim.clear_faults();
                Volume::upgrade(&device, &mut |_, _| {}).unwrap();
                // Opening writes the backup, if the failure came before that.
                drop(Volume::open_on(device.clone()).unwrap());
                assert_whole(&device, name, &place);
            }
        }
    }
}
