//! One flipped bit in a sector of metadata: every file stays as it was, the volume or its check says
//! which block it is in, and a repair leaves a volume that is sound.
//!
//! Of all sectors so many are tried as `PROPTEST_CASES` says, drawn from a seed that a failure prints; with
//! 1024 or more, all of them.

use std::collections::BTreeMap;

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    CheckOptions, CheckReport, FileKind, Follow, FormatOptions, OpenOptions, Volume,
};

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// The superblock's slots; what lies in them says where the catalog is.
const SLOTS: [u64; 2] = [0, 16];

/// Every path, and what is there.
type Tree = BTreeMap<Vec<u8>, (FileKind, u32, Vec<u8>)>;

fn write(reactor: &Reactor, file: &File, byte: usize, offset: u64, length: usize) {
    let bytes = Buffer::copy_of(&vec![byte as u8; length]);
    assert_eq!(reactor.block_on(file.write(bytes, offset)).1, Ok(length));
}

/// Many files, links, extents, and a file that was removed while it was open: as a kill leaves it.
fn population(reactor: &Reactor) -> Sim {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let create = OpenOptions { create: Some(0o640), ..OpenOptions::default() };
    for directory in 0..6 {
        volume.make_directory(format!("/{directory}"), 0o755).unwrap();
        for n in 0..60 {
            let path = format!("/{directory}/a file of some length {n}");
            let file = volume.open(&path, create).unwrap();
            write(reactor, &file, n, 0, 100 + 40 * n);
            if n % 10 == 0 {
                volume.link(&path, format!("/{directory}/link {n}")).unwrap();
                volume.make_symlink(path.as_bytes(), format!("/{directory}/to {n}")).unwrap();
            }
        }
    }
    let pieces = volume.open("/pieces", create).unwrap();
    for n in 0..300 {
        write(reactor, &pieces, n, (n as u64 * 7919 % 1000) * 2 * BLOCK, 3000);
    }
    let orphan = volume.open("/orphan", create).unwrap();
    write(reactor, &orphan, 1, 0, 9000);
    volume.remove("/orphan").unwrap();
    volume.sync().unwrap();
    sim.crash_image(Crash::KeepAll)
}

fn tree(volume: &Volume, reactor: &Reactor) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![Vec::new()];
    while let Some(directory) = left.pop() {
        let mut after = Vec::new();
        loop {
            let path = if directory.is_empty() { b"/".to_vec() } else { directory.clone() };
            let entries = volume.entries(&path, &after).unwrap();
            let Some(last) = entries.last() else { break };
            after = last.name.clone();
            for entry in entries {
                let path = [&directory[..], b"/", &entry.name].concat();
                let (_, inode) = volume.inode(&path, Follow::No).unwrap();
                let bytes = match inode.kind {
                    FileKind::File => {
                        let file = volume.open(&path, OpenOptions::default()).unwrap();
                        let buffer = Buffer::zeroed(file.size() as usize);
                        let (bytes, read) = reactor.block_on(file.read(buffer, 0));
                        assert_eq!(read, Ok(bytes.len()));
                        bytes.to_vec()
                    }
                    _ => inode.target.to_vec(),
                };
                if inode.kind == FileKind::Directory {
                    left.push(path.clone());
                }
                tree.insert(path, (inode.kind, inode.links, bytes));
            }
        }
    }
    tree
}

/// The sectors in which there is anything: of the superblock's slots, and of the catalog.
fn sectors(sim: &Sim) -> Vec<u64> {
    let mut slot = vec![0; BLOCK as usize];
    sim.peek(SLOTS[0] * BLOCK, &mut slot);
    let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
    let runs = u32::from_le_bytes(slot[132..136].try_into().unwrap()) as usize;
    let catalog = (0..runs).flat_map(|run| {
        let start = word(256 + 16 * run);
        start..start + word(264 + 16 * run)
    });
    let sectors = SLOTS
        .into_iter()
        .chain(catalog)
        .flat_map(|block| (0..BLOCK / SECTOR).map(move |sector| block * BLOCK + sector * SECTOR));
    let is_used = |address: &u64| {
        let mut bytes = [0; SECTOR as usize];
        sim.peek(*address, &mut bytes);
        bytes.iter().any(|byte| *byte != 0)
    };
    sectors.filter(is_used).collect()
}

/// SplitMix64.
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

fn check(device: &Device, repair: bool) -> CheckReport {
    Volume::check(device, CheckOptions { repair, deep: false }, &mut |_, _| {}).unwrap()
}

#[test]
fn a_flipped_bit_in_any_sector_of_metadata_costs_nothing_and_is_named() {
    let seed: u64 = 31;
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases: u64 = cases.unwrap_or(256);
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = population(&reactor);
    let image = || sim.crash_image(Crash::KeepAll);
    let right = tree(&Volume::open_on(Device::new(image()).unwrap()).unwrap(), &reactor);
    assert_eq!(right.len(), 6 * (1 + 60 + 6 + 6) + 1);
    let sectors = sectors(&sim);
    assert!(sectors.len() > 200, "{}", sectors.len());
    let every = if cases >= 1024 { 1 } else { sectors.len() as u64 / (cases / 4).max(1) + 1 };
    let (mut tried, mut named) = (0, 0);
    for (index, sector) in (0..).zip(&sectors) {
        if !mixed(seed + index).is_multiple_of(every) {
            continue;
        }
        let (byte, bit) = (mixed(seed ^ sector) % SECTOR, (mixed(seed ^ sector) >> 60) as u32 % 8);
        let (address, place) = (sector + byte, format!("seed {seed}, byte {}", sector + byte));
        let flipped = image();
        flipped.rot(address, bit);
        let device = Device::new(flipped).unwrap();
        let report = check(&device, false);
        let block = format!("block {}", address / BLOCK);
        let lines: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        // What the committed state does not use may be anything.
        named += usize::from(!report.is_sound());
        assert!(lines.iter().all(|line| line.contains(&block)), "{place}: {lines:?}");
        let is_superblock = SLOTS.contains(&(address / BLOCK));
        assert!(!is_superblock || lines.len() == 1, "{place}: {lines:?}");
        let volume = Volume::open_on(device.clone()).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert!(tree(&volume, &reactor) == right, "{place}");
        drop(volume);
        let repaired = check(&device, true);
        assert!(repaired.is_repaired(), "{place}: {:?}", repaired.findings);
        assert!(check(&device, false).is_sound(), "{place}");
        tried += 1;
    }
    assert!(tried > 0 && named > tried / 8, "{named} of {tried} named, seed {seed}");
}
