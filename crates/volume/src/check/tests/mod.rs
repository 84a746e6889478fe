//! Checks of volumes with damage planted through the catalog: each kind is found, named and repaired, and a second
//! check finds nothing.

mod crafted;
mod log;
mod lost;
mod online;
mod pages;
mod planted;
mod space;
mod unread;

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_reactor::{Reactor, ReactorOptions};

use super::check::*;
use super::findings::*;
use super::opening::*;
use super::round::*;
use super::*;
use crate::blocks::{BLOCK, BlockIo};
use crate::catalog::{Batch, Catalog, Key, LostPages, Table};
use crate::error::{Error, ErrorKind};
use crate::namespace::directory::encode_entry;
use crate::namespace::open_options::OpenOptions;
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::space::extent::{Extent, ExtentRecord, ExtentState};
use crate::superblock::Superblock;
use crate::volume::open_catalog::open;
use crate::volume::options::FormatOptions;
use crate::volume::volume::Volume;

const SIZE: u64 = 64 << 20;
/// Small enough that a few inodes, and each region, are a window of their own.
const SMALL: Bounds = Bounds { inodes: 3, blocks: crate::space::allocator::REGION_BLOCKS };

const CHECK: CheckOptions = CheckOptions {
    repair: false,
    deep: false,
    accept_unreadable: false,
    overwrite_other_format: false,
};
const REPAIR: CheckOptions = CheckOptions {
    repair: true,
    deep: false,
    accept_unreadable: false,
    overwrite_other_format: false,
};

/// A closed volume with a file of each kind.
struct TestVolume {
    sim: Sim,
    device: Device,
    reactor: Reactor,
}

impl TestVolume {
    fn new() -> TestVolume {
        TestVolume::of_size(SIZE)
    }

    /// A volume on a device that may be larger.
    fn of_size(bytes: u64) -> TestVolume {
        let sim = Sim::new(SimOptions::new(SIZE));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::new().size(bytes)).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let fixture = TestVolume { sim, device, reactor };
        let volume = fixture.open();
        for directory in ["/a", "/a/b", "/a/b/c", "/d"] {
            volume.create_dir(directory).unwrap();
        }
        for path in ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"] {
            fixture.write(&volume, path, 0, 9000);
        }
        volume.hard_link("/one", "/d/one").unwrap();
        volume.symlink("../one", "/a/link").unwrap();
        volume.mknod("/a/pipe", &Inode::new(FileType::Fifo, 0o600)).unwrap();
        fixture.write(&volume, "/a/two", 40 * BLOCK, 5000);
        drop(volume);
        fixture
    }

    fn open(&self) -> Volume {
        Volume::open_on(self.device.clone()).unwrap()
    }

    fn write(&self, volume: &Volume, path: &str, offset: u64, length: usize) {
        let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
        let file = volume.open_with(path, create).unwrap();
        let bytes = Buffer::copy_of(&vec![path.len() as u8; length]);
        let (written, _) = self.reactor.block_on(file.write_at(bytes, offset));
        assert_eq!(written, Ok(length));
    }

    /// True if the first 9000 bytes of a file are those written to the path `was`.
    fn is_whole(&self, volume: &Volume, path: &str, was: &str) -> bool {
        let file =
            volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)).unwrap();
        let (read, bytes) = self.reactor.block_on(file.read_at(Buffer::zeroed(9000), 0));
        read == Ok(9000) && bytes.iter().all(|byte| *byte == was.len() as u8)
    }

    fn number(&self, path: &str) -> u64 {
        self.open().symlink_metadata(path).unwrap().ino()
    }

    fn superblock(&self) -> Superblock {
        Superblock::read(&BlockIo::new(&self.device)).unwrap().superblock
    }

    fn catalog(&self) -> Catalog {
        open_for_write(&BlockIo::new(&self.device), &self.superblock()).unwrap()
    }

    /// Changes records as no volume would.
    fn plant(&self, plant: impl FnOnce(&Catalog, &mut Batch)) {
        let catalog = self.catalog();
        let mut batch = Batch::default();
        plant(&catalog, &mut batch);
        catalog.checkpoint(&batch).unwrap();
        catalog.close().unwrap();
    }

    fn check(&self, options: CheckOptions) -> CheckReport {
        let usual =
            check_within(&self.device, CHECK, Bounds::default(), &mut |_, _| Ok(())).unwrap();
        let small = check_within(&self.device, CHECK, SMALL, &mut |_, _| Ok(())).unwrap();
        let mut lines = [&usual, &small]
            .map(|report| report.findings.iter().map(ToString::to_string).collect::<Vec<_>>());
        lines.iter_mut().for_each(|lines| lines.sort());
        assert_eq!(lines[0], lines[1], "windows change nothing");
        online::assert_same_online(self);
        check_within(&self.device, options, SMALL, &mut |_, _| Ok(())).unwrap()
    }

    fn assert_sound(&self) {
        let report = self.check(CHECK);
        assert!(report.is_sound(), "{}", text(&report));
    }

    /// Asserts that a check reports `line` and changes nothing, and that a repair leaves the volume consistent.
    fn assert_repairs(&self, line: &str) -> String {
        for _ in 0..2 {
            let found = text(&self.check(CHECK));
            assert!(found.contains(line), "{line:?} in {found}");
        }
        let repaired = self.check(REPAIR);
        assert!(repaired.is_repaired() && !repaired.is_sound(), "{}", text(&repaired));
        assert!(text(&repaired).contains(line), "{line:?} in {}", text(&repaired));
        self.assert_sound();
        text(&repaired)
    }
}

fn text(report: &CheckReport) -> String {
    let lines = report.findings.iter().map(|finding| {
        let line = finding.to_string();
        assert!(!line.contains('\n'), "{line}");
        line + "\n"
    });
    lines.collect()
}

/// The first extent of a file.
fn first_extent(catalog: &Catalog, inode: u64) -> Extent {
    let found =
        catalog.scan(Table::Extents, Key::Extent(inode, 0).bytes(), Some(inode), 1).unwrap();
    ExtentRecord::parse(&found[0].1, SIZE / BLOCK).unwrap()
}

fn extent_record(extent: Extent) -> Vec<u8> {
    zerocopy::IntoBytes::as_bytes(&ExtentRecord::from(&extent)).to_vec()
}

fn inode_of(catalog: &Catalog, number: u64) -> Inode {
    Inode::from_record(&catalog.get(Key::Inode(number)).unwrap().unwrap()).unwrap()
}

#[test]
fn a_sound_volume_is_found_sound_and_counted() {
    let fixture = TestVolume::new();
    let report = fixture.check(CheckOptions { deep: true, ..CHECK });
    assert!(report.is_sound(), "{}", text(&report));
    assert_eq!((report.directories, report.files), (5, 7));
    assert_eq!(report.used_blocks, 5 * 3 + 2);
    assert_eq!(report.read_blocks, report.used_blocks);
    let before = fixture.sim.record().len();
    assert!(fixture.check(REPAIR).is_sound());
    assert_eq!(fixture.sim.record().len(), before, "nothing was written");
}

#[test]
fn an_open_volume_is_not_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v");
    std::fs::write(&path, vec![0; 16 << 20]).unwrap();
    let device = |access| Device::open(&path, access).unwrap();
    Volume::format(&device(uringfs_device::Access::ReadWrite), &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device(uringfs_device::Access::Read)).unwrap();
    let check = |access, options| Volume::check(&device(access), options, &mut |_, _| {});
    assert!(check(uringfs_device::Access::Read, CHECK).unwrap().is_sound());
    let error = check(uringfs_device::Access::ReadWrite, REPAIR).unwrap_err();
    assert!(error.to_string().contains("open"), "{error}");
    let error = check(uringfs_device::Access::Read, REPAIR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Input);
    drop(volume);
    let volume = Volume::open_on(device(uringfs_device::Access::ReadWrite)).unwrap();
    assert!(check(uringfs_device::Access::Read, CHECK).is_err());
    drop(volume);
    assert!(check(uringfs_device::Access::ReadWrite, REPAIR).unwrap().is_sound());
}
