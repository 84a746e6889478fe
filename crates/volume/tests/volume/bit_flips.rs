//! Damage in one sector of metadata.
//!
//! - One flipped bit: every file keeps its content, the volume or its check names the block, and a
//!   repair leaves a sound volume.
//! - A whole sector of zeros or garbage: everything that can be read is right, and the rest is an
//!   error. The check names the block. A repair leaves a sound volume with all files whose records
//!   were elsewhere.
//!
//! `PROPTEST_CASES` sets how many sectors are tried, drawn from a seed that a failure prints; 1024
//! or more tries all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    CheckOptions, CheckReport, Error, ErrorKind, FileType, Follow, FormatOptions, Inode,
    OpenOptions, SetXattr, Volume,
};

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// The superblock's slots, whose content gives the position of the catalog.
const SLOTS: [u64; 2] = [0, 16];

/// The node at each path.
type Tree = BTreeMap<Vec<u8>, Node>;

/// The file, directory or link at a path.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    kind: FileType,
    links: u32,
    /// The target of a symbolic link.
    bytes: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

fn write(reactor: &Reactor, file: &File, byte: usize, offset: u64, length: usize) {
    let bytes = Buffer::copy_of(&vec![byte as u8; length]);
    assert_eq!(reactor.block_on(file.write_at(bytes, offset)).0, Ok(length));
}

/// Many files, links, extents, attributes, and a file that was removed while it was open, as a kill
/// leaves them.
fn population(reactor: &Reactor) -> Sim {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o640).direct(true);
    for directory in 0..6 {
        volume.create_dir(format!("/{directory}")).unwrap();
        for n in 0..60 {
            let path = format!("/{directory}/a file of some length {n}");
            let file = volume.open_with(&path, create).unwrap();
            write(reactor, &file, n, 0, 100 + 40 * n);
            if n % 10 == 0 {
                volume.hard_link(&path, format!("/{directory}/link {n}")).unwrap();
                volume.symlink(&path, format!("/{directory}/to {n}")).unwrap();
            }
        }
    }
    let other = |path: &str, kind| volume.mknod(path, &Inode::new(kind, 0o600)).unwrap();
    other("/pipe", FileType::Fifo);
    other("/socket", FileType::Socket);
    other("/block", FileType::BlockDevice(7 << 8 | 3));
    other("/character", FileType::CharacterDevice(1 << 8 | 9));
    for n in 0..8 {
        let target = char::from(b'a' + n).to_string().repeat(4000);
        volume.symlink(&target, format!("/to somewhere far {n}")).unwrap();
        let path = format!("/{}/a file of some length {n}", n % 6);
        let set = |name: &str, value: &[u8]| {
            volume.set_xattr(&path, Follow::No, name, value, SetXattr::Create).unwrap();
        };
        set("user.short", &[n]);
        set("user.long", &[n; 3000]);
        set("system.posix_acl_access", &access_list(u32::from(n)));
    }
    let pieces = volume.open_with("/pieces", create).unwrap();
    for n in 0..300 {
        write(reactor, &pieces, n, (n as u64 * 7919 % 1000) * 2 * BLOCK, 3000);
    }
    let orphan = volume.open_with("/orphan", create).unwrap();
    write(reactor, &orphan, 1, 0, 9000);
    volume.sync().unwrap();
    // These are only in the log.
    let before = volume.statistics();
    volume.remove_file("/orphan").unwrap();
    volume.sync().unwrap();
    volume.set_xattr("/pieces", Follow::No, "user.late", &[9; 5000], SetXattr::Create).unwrap();
    volume.sync().unwrap();
    write(reactor, &volume.open_with("/late", create).unwrap(), 7, 0, 700);
    volume.sync().unwrap();
    let after = volume.statistics();
    assert!(after.commits >= before.commits + 3 && after.checkpoints == before.checkpoints);
    sim.crash_image(Crash::KeepAll)
}

/// A POSIX ACL as the kernel encodes it, with an entry for a user.
fn access_list(user: u32) -> Vec<u8> {
    let entries = [
        (1u16, 6u16, u32::MAX),
        (2, 4, user),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Everything in the volume.
fn tree(volume: &Volume, reactor: &Reactor) -> Tree {
    readable(volume, reactor, |path, error| panic!("{}: {error}", path.escape_ascii()))
}

/// Everything that can be read. Passes the errors of the rest to `failed`.
fn readable(volume: &Volume, reactor: &Reactor, mut failed: impl FnMut(&[u8], Error)) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![Vec::new()];
    while let Some(directory) = left.pop() {
        let path = if directory.is_empty() { b"/".to_vec() } else { directory.clone() };
        let entries = match volume.read_dir(OsStr::from_bytes(&path)) {
            Ok(entries) => entries,
            Err(error) => {
                failed(&path, error);
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    failed(&path, error);
                    continue;
                }
            };
            let path = [&directory[..], b"/", entry.name().as_bytes()].concat();
            if entry.file_type().is_dir() {
                left.push(path.clone());
            }
            match node(volume, reactor, &path) {
                Ok(node) => drop(tree.insert(path, node)),
                Err(error) => failed(&path, error),
            }
        }
    }
    tree
}

fn node(volume: &Volume, reactor: &Reactor, path: &[u8]) -> Result<Node, Error> {
    let path = OsStr::from_bytes(path);
    let inode = volume.symlink_metadata(path)?.into_inode();
    let bytes = match inode.kind {
        FileType::File => {
            let file =
                volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true))?;
            let buffer = Buffer::zeroed(file.len() as usize);
            let (read, bytes) = reactor.block_on(file.read_at(buffer, 0));
            assert_eq!(read, Ok(bytes.len()));
            bytes.to_vec()
        }
        _ => inode.target.to_vec(),
    };
    let names = volume.list_xattrs(path, Follow::No)?.into_iter();
    let xattrs = names.map(|name| {
        let value = volume.get_xattr(path, Follow::No, &name)?;
        Ok((name, value))
    });
    let xattrs = xattrs.collect::<Result<_, Error>>()?;
    Ok(Node { kind: inode.kind, links: inode.links, bytes, xattrs })
}

fn block(sim: &Sim, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    sim.peek(block * BLOCK, &mut bytes);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half_word(bytes: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()).into()
}

/// The catalog's log.
struct Log {
    start: u64,
    /// Blocks of each half.
    half: u64,
    /// Byte range of each record, counted from the beginning of a half.
    records: Vec<Range<u64>>,
}

impl Log {
    fn of(sim: &Sim) -> Log {
        let slot = block(sim, SLOTS[0]);
        let (start, half) = (word(&slot, 152), word(&slot, 160) / 2);
        let (mut records, mut at) = (Vec::new(), 0);
        while at < half {
            let header = block(sim, start + at);
            if !header.starts_with(b"urlogrec") || word(&header, 16) != 1 + records.len() as u64 {
                break;
            }
            // Each block begins with a mark of 8 bytes.
            let length = 16 + half_word(&header, 12);
            let blocks = length.div_ceil(BLOCK - 8);
            records.push(at * BLOCK..at * BLOCK + length + 8 * blocks);
            at += blocks;
        }
        assert!(records.len() == 3, "{records:?}");
        Log { start, half, records }
    }

    fn has(&self, address: u64) -> bool {
        (self.start..self.start + 2 * self.half).contains(&(address / BLOCK))
    }

    /// The record that holds a byte.
    fn record(&self, address: u64) -> Option<usize> {
        let at = (address - self.start * BLOCK) % (self.half * BLOCK);
        self.records.iter().position(|record| record.contains(&at))
    }

    /// The block that is reported for damage at an address: the first block of the record.
    fn named(&self, address: u64) -> u64 {
        match self.has(address).then(|| self.record(address)).flatten() {
            Some(record) => {
                let half = (address / BLOCK - self.start) / self.half;
                self.start + half * self.half + self.records[record].start / BLOCK
            }
            None => address / BLOCK,
        }
    }

    /// Whether damage at the address is reported. The last record may also have been torn by a
    /// power cut, which is no damage.
    fn reports(&self, address: u64) -> bool {
        self.record(address).is_some_and(|record| record + 1 < self.records.len())
    }
}

/// The non-zero sectors of the superblock's slots, the catalog and its log.
fn sectors(sim: &Sim) -> Vec<u64> {
    let slot = block(sim, SLOTS[0]);
    let runs = half_word(&slot, 132) as usize;
    let catalog = (0..runs).flat_map(|run| {
        let start = word(&slot, 256 + 16 * run);
        start..start + word(&slot, 264 + 16 * run)
    });
    let log = Log::of(sim);
    let sectors =
        SLOTS.into_iter().chain(catalog).chain(log.start..log.start + 2 * log.half).flat_map(
            |block| (0..BLOCK / SECTOR).map(move |sector| block * BLOCK + sector * SECTOR),
        );
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

/// The sectors to try.
fn drawn(sim: &Sim, seed: u64) -> Vec<u64> {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases: u64 = cases.unwrap_or(256);
    let sectors = sectors(sim);
    assert!(sectors.len() > 200, "{}", sectors.len());
    let every = if cases >= 1024 { 1 } else { sectors.len() as u64 / (cases / 4).max(1) + 1 };
    let log = Log::of(sim);
    // The log is small: all of its sectors.
    let drawn = (0..)
        .zip(sectors)
        .filter(|(index, sector)| log.has(*sector) || mixed(seed + index).is_multiple_of(every));
    drawn.map(|(_, sector)| sector).collect()
}

fn try_check(device: &Device, repair: bool) -> Result<CheckReport, Error> {
    Volume::check(device, CheckOptions::new().repair(repair), &mut |_, _| {})
}

fn check(device: &Device, repair: bool) -> CheckReport {
    try_check(device, repair).unwrap()
}

/// Overwrites a sector.
fn spoil(device: &Device, reactor: &Reactor, sector: u64, spoilt: Spoilt) {
    let (read, mut bytes) = reactor.block_on(async {
        let whole = File::from_device(device.clone(), FileOptions::default());
        whole.read_at(Buffer::zeroed(SECTOR as usize), sector).await
    });
    assert_eq!(read, Ok(bytes.len()));
    match spoilt {
        Spoilt::Zeros => bytes.fill(0),
        Spoilt::Garbage => {
            for (at, byte) in (0..).zip(bytes.iter_mut()) {
                *byte ^= mixed(sector + at) as u8 | 1;
            }
        }
    }
    let (written, _) = reactor.block_on(async {
        let whole = File::from_device(device.clone(), FileOptions::default());
        whole.write_at(bytes, sector).await
    });
    assert_eq!(written, Ok(SECTOR as usize));
}

/// The way in which a sector is lost.
#[derive(Clone, Copy, Debug)]
enum Spoilt {
    Zeros,
    Garbage,
}

#[test]
fn a_flipped_bit_in_metadata_loses_nothing_and_is_reported() {
    let seed: u64 = 31;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = population(&reactor);
    let image = || sim.crash_image(Crash::KeepAll);
    let right = tree(&Volume::open_on(Device::new(image()).unwrap()).unwrap(), &reactor);
    assert_eq!(right.len(), 6 * (1 + 60 + 6 + 6) + 4 + 8 + 2);
    let (log, mut tried, mut named, mut logged) = (Log::of(&sim), 0, 0, 0);
    for sector in drawn(&sim, seed) {
        let (byte, bit) = (mixed(seed ^ sector) % SECTOR, (mixed(seed ^ sector) >> 60) as u32 % 8);
        let (address, place) = (sector + byte, format!("seed {seed}, byte {}", sector + byte));
        let flipped = image();
        flipped.flip_bit(address, bit);
        let device = Device::new(flipped).unwrap();
        let report = check(&device, false);
        let block = format!("block {}", log.named(address));
        let lines: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        // Unused parts of the metadata may hold anything.
        named += usize::from(!report.is_sound());
        assert!(lines.iter().all(|line| line.contains(&block)), "{place}: {lines:?}");
        let is_superblock = SLOTS.contains(&(address / BLOCK));
        assert!(!is_superblock || lines.len() == 1, "{place}: {lines:?}");
        if log.has(address) {
            assert_eq!(lines.len(), usize::from(log.reports(address)), "{place}: {lines:?}");
            logged += 1;
        }
        let volume = Volume::open_on(device.clone()).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert!(tree(&volume, &reactor) == right, "{place}");
        drop(volume);
        let repaired = check(&device, true);
        assert!(repaired.is_repaired(), "{place}: {:?}", repaired.findings);
        assert!(check(&device, false).is_sound(), "{place}");
        tried += 1;
    }
    assert!(tried > 0 && named > tried / 8, "{named} of {tried} named, seed {seed}");
    assert!(logged > 20, "{logged} in the log, seed {seed}");
}

#[test]
fn a_lost_metadata_sector_loses_only_its_content() {
    let seed: u64 = 37;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = population(&reactor);
    let image = || sim.crash_image(Crash::KeepAll);
    let right = tree(&Volume::open_on(Device::new(image()).unwrap()).unwrap(), &reactor);
    let (mut tried, mut named, mut whole, mut unrepaired) = (0, 0, 0, BTreeSet::new());
    let log = Log::of(&sim);
    for sector in drawn(&sim, seed) {
        for spoilt in [Spoilt::Zeros, Spoilt::Garbage] {
            let place = format!("seed {seed}, {spoilt:?} at byte {sector}");
            let device = Device::new(image()).unwrap();
            spoil(&device, &reactor, sector, spoilt);
            let damaged = |_: &[u8], error: Error| {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}");
                // Reads that do not need the sector succeed.
                assert!(!error.to_string().contains("stopped"), "{place}: {error}");
            };
            let block = format!("block {}", log.named(sector));
            match Volume::open_on(device.clone()) {
                Ok(volume) => {
                    // Closing moved the log's records into the catalog's pages, so the check finds
                    // nothing.
                    let is_told = volume.warnings().iter().any(|line| line.contains(&block));
                    assert!(!log.has(sector) || is_told == log.reports(sector), "{place}");
                    for (path, node) in readable(&volume, &reactor, damaged) {
                        assert_eq!(Some(&node), right.get(&path), "{place}: {path:?}");
                    }
                }
                Err(error) => damaged(b"", error),
            }
            tried += 1;
            let said = match try_check(&device, false) {
                Ok(report) => report.findings.iter().map(|line| format!("{line}\n")).collect(),
                Err(error) => error.to_string(),
            };
            named += usize::from(said.contains(&block));
            match try_check(&device, true) {
                Ok(report) => {
                    assert!(said.is_empty() || said.contains(&block), "{place}: {said}");
                    assert!(report.is_repaired(), "{place}: {:?}", report.findings);
                    assert!(check(&device, false).is_sound(), "{place}");
                    let volume = Volume::open_on(device.clone()).unwrap();
                    let left = tree(&volume, &reactor);
                    assert!(!log.has(sector) || left == right, "{place}: the log has two copies");
                    whole +=
                        right.iter().filter(|(path, node)| left.get(*path) == Some(*node)).count();
                }
                // The root of all metadata exists once.
                Err(error) => {
                    assert!(error.to_string().contains(&block), "{place}: {error}");
                    unrepaired.insert(sector / BLOCK);
                }
            }
        }
    }
    assert!(named > tried / 8, "{named} of {tried} named, seed {seed}");
    assert!(whole > tried * right.len() * 3 / 4, "{whole} of {tried}, seed {seed}");
    assert!(unrepaired.len() <= 1, "{unrepaired:?}, seed {seed}");
}
