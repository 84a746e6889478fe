//! Consecutive writes of parts of blocks: the cached last block of the file, and the page cache's
//! folio of it, always match the device, whatever happens between two writes.

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Errno, Op};
use uringfs_file::{Advice, FallocateSize, File};
use uringfs_reactor::Reactor;
use uringfs_volume::{OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};
use crate::random::{Random, scaled};

const BLOCK: u64 = 4096;
/// The logical block of the device: aligned writes of this size go in place.
const SECTOR: u64 = 512;
/// Few blocks, so that the same ones are used repeatedly.
const MAX_LENGTH: u64 = 4 * BLOCK;

/// A file and its expected content.
struct Pair<'v> {
    volume: &'v Volume,
    reactor: &'v Reactor,
    /// Two handles of one file.
    files: [File; 2],
    /// Two buffered handles, or two more direct ones.
    cached: [File; 2],
    bytes: Vec<u8>,
}

impl Pair<'_> {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(bytes);
    }

    fn step(&mut self, random: &mut Random, byte: u8) {
        let files = [&self.files, &self.cached][random.below(2) as usize];
        let file = files[random.below(2) as usize].clone();
        let on = |future| self.reactor.block_on(future);
        let (start, blocks) = (random.below(4), 1 + random.below(2));
        let blocks = start * BLOCK..(start + blocks).min(4) * BLOCK;
        let length = blocks.end - blocks.start;
        let whole = vec![byte; length as usize];
        match random.below(14) {
            0..=3 => {
                let part = vec![byte; 1 + random.below(900) as usize];
                if self.bytes.len() as u64 + 900 < MAX_LENGTH {
                    let (offset, _) = self.reactor.block_on(file.append(Buffer::copy_of(&part)));
                    assert_eq!(offset, Ok(self.bytes.len() as u64));
                    self.put(self.bytes.len() as u64, &part);
                }
            }
            4..=6 => {
                let (offset, part) = (random.below(MAX_LENGTH - 900), 1 + random.below(900));
                let part = vec![byte; part as usize];
                let (written, _) =
                    self.reactor.block_on(file.write_at(Buffer::copy_of(&part), offset));
                assert_eq!(written, Ok(part.len()));
                self.put(offset, &part);
            }
            7 | 8 => {
                // Whole sectors of the device, or whole blocks.
                let unit = [SECTOR, BLOCK][random.below(2) as usize];
                let offset = random.below(MAX_LENGTH / unit) * unit;
                let length = (unit * (1 + random.below(2))).min(MAX_LENGTH - offset);
                let whole = vec![byte; length as usize];
                // Sometimes enough in a row to make overwriters lock-free again.
                for _ in 0..1 + random.below(12) {
                    let write = file.write_at(Buffer::copy_of(&whole), offset);
                    assert_eq!(self.reactor.block_on(write).0, Ok(whole.len()));
                }
                self.put(offset, &whole);
            }
            9 => {
                let write = file.write_atomic(Buffer::copy_of(&whole), blocks.start);
                assert_eq!(self.reactor.block_on(write).0, Ok(whole.len()));
                self.put(blocks.start, &whole);
            }
            10 => {
                let size = random.below(MAX_LENGTH);
                assert_eq!(on(file.set_len(size)), Ok(()));
                self.bytes.resize(size as usize, 0);
            }
            11 => match random.below(5) {
                0 => assert_eq!(on(file.sync_all()), Ok(())),
                1 => assert_eq!(on(file.sync_range(blocks.start, length)), Ok(())),
                2 => self.volume.sync().unwrap(),
                3 => assert_eq!(on(file.advise(Advice::DoNotNeed, blocks.start, length)), Ok(())),
                _ => {
                    let size = self.bytes.len() as u64;
                    assert_eq!((file.len(), self.files[1].len()), (size, size));
                    let inode = self.volume.metadata("/file").unwrap().into_inode();
                    assert_eq!(inode.size, size);
                }
            },
            12 => {
                let (offset, part) = (random.below(MAX_LENGTH - 900), 1 + random.below(900));
                let part = vec![byte; part as usize];
                let write = file.write_durably(Buffer::copy_of(&part), offset);
                assert_eq!(self.reactor.block_on(write).0, Ok(part.len()));
                self.put(offset, &part);
            }
            _ => match random.below(3) {
                0 => {
                    let options =
                        OpenOptions::new().read(true).write(true).truncate(true).direct(true);
                    self.files[0] = self.volume.open_with("/file", options).unwrap();
                    self.bytes.clear();
                }
                1 => {
                    assert_eq!(on(file.punch_hole(blocks.start, length)), Ok(()));
                    let end = self.bytes.len().min(blocks.end as usize);
                    self.bytes[(blocks.start as usize).min(end)..end].fill(0);
                }
                _ => {
                    assert_eq!(
                        on(file.zero_range(blocks.start, length, FallocateSize::Extend)),
                        Ok(())
                    );
                    self.put(blocks.start, &vec![0; length as usize]);
                }
            },
        }
    }

    /// Compares all of it direct, or buffered, or reads a part of it buffered, which others then
    /// find in the cache.
    fn is_right(&self, random: &mut Random) -> bool {
        let [file, ..] = &self.files;
        let file =
            [file, &self.files[1], &self.cached[0], &self.cached[1]][random.below(4) as usize];
        let (start, length) = match random.below(2) {
            0 => (0, MAX_LENGTH),
            _ => (random.below(MAX_LENGTH), 1 + random.below(MAX_LENGTH)),
        };
        let read = file.read_at(Buffer::zeroed(length as usize), start);
        let (read, found) = self.reactor.block_on(read);
        let inside = self.bytes.len() as u64;
        let expected =
            &self.bytes[start.min(inside) as usize..(start + length).min(inside) as usize];
        assert_eq!(read, Ok(expected.len()));
        found[..expected.len()] == *expected
    }
}

#[test]
fn a_partial_write_keeps_the_rest_of_its_block() {
    let reactor = reactor();
    for seed in 0..scaled(24) as u64 {
        let volume = formatted(&Sim::new(SimOptions::new(16 << 20)));
        let files = [create(&volume, "/file"), create(&volume, "/file")];
        // The cache holds less than a file, or all of it.
        let cache = Cache::new([2, 8][seed as usize % 2] * BLOCK);
        // Buffered files lock whole folios; others lock the bytes that they write.
        let cached = match seed % 3 {
            0 => files.clone(),
            _ => [files[0].buffered(&cache), files[1].buffered(&cache)],
        };
        let mut pair =
            Pair { volume: &volume, reactor: &reactor, files, cached, bytes: Vec::new() };
        let mut random = Random(seed);
        for step in 0..400_u32 {
            let byte = (step % 251) as u8 + 1;
            pair.step(&mut random, byte);
            assert!(pair.is_right(&mut random), "seed {seed}, step {step}");
        }
    }
}

#[test]
fn an_append_keeps_overwritten_sectors_of_its_block() {
    const SIZE: usize = 4000;
    let (volume, reactor) = (formatted(&Sim::new(SimOptions::new(16 << 20))), reactor());
    for sector in 0..SIZE as u64 / SECTOR {
        let file = create(&volume, &format!("/{sector}"));
        assert_eq!(reactor.block_on(file.append(Buffer::copy_of(&[1; SIZE]))).0, Ok(0));
        let (start, end) = ((sector * SECTOR) as usize, ((sector + 1) * SECTOR) as usize);
        let overwrite = file.write_durably(Buffer::copy_of(&[2; SECTOR as usize]), start as u64);
        assert_eq!(reactor.block_on(overwrite).0, Ok(SECTOR as usize));
        assert_eq!(reactor.block_on(file.append(Buffer::copy_of(&[3; 50]))).0, Ok(SIZE as u64));
        let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(SIZE + 50), 0));
        assert_eq!(read, Ok(SIZE + 50));
        let mut expected = vec![1; SIZE];
        expected[start..end].fill(2);
        expected.extend([3; 50]);
        assert!(found[..] == expected, "sector {sector}");
    }
}

#[test]
fn a_failed_partial_write_is_not_cached() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let (volume, reactor) = (formatted(&sim), reactor());
    let file = create(&volume, "/file");
    let append = |byte| reactor.block_on(file.append(Buffer::copy_of(&[byte; 100]))).0;
    assert_eq!(append(1), Ok(0));
    sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(Errno::IO)));
    assert!(append(2).is_err());
    sim.clear_faults();
    assert_eq!(append(3), Ok(100));
    let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(4096), 0));
    assert_eq!(read, Ok(200));
    assert!(found[..100] == [1; 100] && found[100..200] == [3; 100]);
}

#[test]
fn small_appends_read_nothing() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let (volume, reactor) = (formatted(&sim), reactor());
    let file = create(&volume, "/file");
    sim.inject(Rule::new(Op::Read, When::From(1), Fault::Error(Errno::IO)));
    for n in 0..100 {
        assert_eq!(
            reactor.block_on(file.append(Buffer::copy_of(&[n; 100]))).0,
            Ok(u64::from(n) * 100)
        );
    }
    assert_eq!(sim.faults_hit(), 0);
}

/// The device has bytes past the end of a truncated file, and folios hold whole blocks of it.
#[test]
fn truncated_bytes_never_reappear_in_the_cache() {
    let reactor = reactor();
    for block_size in [512, 4096] {
        let volume = formatted(&Sim::new(SimOptions::new(16 << 20).block_size(block_size)));
        for (way, size) in (0..9).flat_map(|way| [100, 600, 5000].map(|size| (way, size))) {
            let direct = create(&volume, &format!("/{way}/{size}").replace('/', "-"));
            let on = |operation| assert_eq!(reactor.block_on(operation), Ok(()));
            let write = |file: &File, length: usize, offset| {
                let bytes = Buffer::copy_of(&vec![7; length]);
                assert_eq!(reactor.block_on(file.write_at(bytes, offset)).0, Ok(length));
            };
            on(direct.allocate(0, 16 * BLOCK, FallocateSize::Keep));
            write(&direct, 4 * BLOCK as usize, 0);
            on(direct.set_len(size));
            let cache = Cache::new(64 * BLOCK);
            let file = direct.buffered(&cache);
            let read = reactor.block_on(file.read_at(Buffer::zeroed(10_000), 0)).0;
            assert_eq!(read, Ok(size as usize));
            // A snapshot of the folio shows no truncated bytes, even past the file's end.
            let page = file.page(size).unwrap();
            let behind = &page[(size % BLOCK) as usize..];
            assert!(
                behind.iter().all(|byte| *byte == 0),
                "{block_size}, {way}, {size}: {behind:?}"
            );
            drop(page);
            match way {
                0 => write(&file, 10, size + 20),
                1 => write(&file, 10, 3 * BLOCK),
                2 => on(file.set_len(size + 700)),
                3 => on(direct.set_len(3 * BLOCK)),
                4 => write(&direct, 10, size + 20),
                5 => write(&direct, BLOCK as usize, 3 * BLOCK),
                6 => on(file.allocate(size, BLOCK, FallocateSize::Extend)),
                7 => on(file.zero_range(2 * BLOCK, BLOCK, FallocateSize::Extend)),
                _ => {
                    let operation =
                        direct.write_atomic(Buffer::copy_of(&[7; BLOCK as usize]), 3 * BLOCK);
                    assert_eq!(reactor.block_on(operation).0, Ok(BLOCK as usize));
                }
            }
            for file in [&file, &direct] {
                let read = reactor.block_on(file.read_at(Buffer::zeroed(20_000), 0));
                let (found, length) = (read.1, read.0.unwrap());
                assert!(length > size as usize);
                let gap = &found[size as usize..(size as usize + 20).min(length)];
                assert!(gap.iter().all(|byte| *byte == 0), "{block_size}, {way}, {size}: {gap:?}");
            }
        }
    }
}
