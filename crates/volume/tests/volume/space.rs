//! The space of one file, compared with a plain model: writes, truncation, growth, preallocation,
//! punched holes and zeroing, on blocks with foreign bytes.

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{FallocateSize, File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{CheckOptions, FormatOptions, OpenOptions, Volume};

use crate::random::{self, Random};

const SIZE: u64 = 16 << 20;
const BLOCK: u64 = 4096;
/// The end of the longest file.
const MAX_SIZE: u64 = i64::MAX as u64;

struct Machine {
    sim: Sim,
    reactor: Reactor,
}

impl Machine {
    /// A volume whose free blocks hold foreign bytes.
    fn new(options: SimOptions) -> Machine {
        let sim = Sim::new(options);
        let machine = Machine { sim, reactor: Reactor::new(ReactorOptions::default()).unwrap() };
        let device = Device::new(machine.sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let file = volume.open_with("/foreign", create()).unwrap();
        for offset in (0..SIZE / 2).step_by(1 << 20) {
            machine.write(&file, &[0xee; 1 << 20], offset);
        }
        drop(file);
        volume.remove_file("/foreign").unwrap();
        volume.sync().unwrap();
        drop(volume);
        machine
    }

    fn volume(&self) -> Volume {
        Volume::open_on(Device::new(self.sim.clone()).unwrap()).unwrap()
    }

    fn write(&self, file: &File, bytes: &[u8], offset: u64) {
        let (written, _) = self.reactor.block_on(file.write_at(Buffer::copy_of(bytes), offset));
        assert_eq!(written, Ok(bytes.len()));
    }

    fn done(&self, operation: impl Future<Output = Result<(), Errno>>) {
        assert_eq!(self.reactor.block_on(operation), Ok(()));
    }

    fn refused(&self, operation: impl Future<Output = Result<(), Errno>>) -> Errno {
        self.reactor.block_on(operation).unwrap_err()
    }

    fn read(&self, file: &File) -> Vec<u8> {
        let buffer = Buffer::zeroed(file.len() as usize + 100);
        let (read, buffer) = self.reactor.block_on(file.read_at(buffer, 0));
        buffer[..read.unwrap()].to_vec()
    }
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).direct(true)
}

/// Blocks available to files, including those that the catalog has taken since.
fn free_blocks(volume: &Volume) -> u64 {
    let statistics = volume.statistics();
    statistics.free_blocks + statistics.catalog_blocks
}

/// The ranges between the holes that a file reports.
fn data(file: &File) -> Vec<std::ops::Range<u64>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Ok(start) = file.seek_data(at) {
        at = file.seek_hole(start).unwrap();
        ranges.push(start..at);
    }
    ranges
}

/// Changes a file and its model. Returns a description for the report of a failure.
fn step(machine: &Machine, file: &File, model: &mut Vec<u8>, random: &mut Random) -> String {
    const REACH: u64 = 40 * BLOCK;
    let mut place = || match random.below(3) {
        0 => random.below(REACH / BLOCK) * BLOCK,
        1 => random.below(REACH / 512) * 512,
        _ => random.below(REACH),
    };
    let (one, other) = (place(), place());
    let (start, end) = (one.min(other), one.max(other).max(one.min(other) + 1));
    let (from, to) = (start as usize, end as usize);
    let longer = |model: &mut Vec<u8>, size: FallocateSize| {
        if size == FallocateSize::Extend && model.len() < to {
            model.resize(to, 0);
        }
    };
    let clear = |model: &mut Vec<u8>| {
        let size = model.len();
        model[from.min(size)..to.min(size)].fill(0);
    };
    let size = if random.below(2) == 0 { FallocateSize::Keep } else { FallocateSize::Extend };
    match random.below(9) {
        0..3 => {
            let byte = 1 + random.below(200) as u8;
            machine.write(file, &vec![byte; to - from], start);
            longer(model, FallocateSize::Extend);
            model[from..to].fill(byte);
            format!("write {start}..{end}")
        }
        3 => {
            machine.done(file.set_len(start));
            model.resize(from, 0);
            format!("size {start}")
        }
        4 => {
            machine.done(file.allocate(start, end - start, size));
            longer(model, size);
            assert!(file.allocated() >= end - start);
            format!("allocate {start}..{end} {size:?}")
        }
        5 => {
            machine.done(file.punch_hole(start, end - start));
            clear(model);
            let whole = start.next_multiple_of(BLOCK)..(end / BLOCK * BLOCK).min(file.len());
            assert!(
                whole.is_empty() || file.seek_data(whole.start).unwrap_or(u64::MAX) >= whole.end
            );
            format!("punch {start}..{end}")
        }
        6 => {
            machine.done(file.zero_range(start, end - start, size));
            clear(model);
            longer(model, size);
            assert!(file.allocated() >= end - start);
            format!("zero {start}..{end} {size:?}")
        }
        7 => {
            machine.done(file.write_zeroes(start, end - start));
            clear(model);
            format!("zeroes {start}..{end}")
        }
        _ => {
            machine.done(file.sync_all());
            "sync".into()
        }
    }
}

fn compare(machine: &Machine, file: &File, model: &[u8]) {
    assert_eq!(file.len(), model.len() as u64);
    assert!(machine.read(file) == model, "the file differs from its model");
    let mut at = 0;
    let ends = (file.len(), file.len());
    for (start, end) in data(file).into_iter().map(|data| (data.start, data.end)).chain([ends]) {
        assert!(model[at..start as usize].iter().all(|byte| *byte == 0), "a hole holds data");
        at = end as usize;
    }
}

#[test]
fn a_file_equals_its_model_and_removal_frees_its_blocks() {
    for seed in 0..random::scaled(24) as u64 {
        let options = SimOptions::new(SIZE).block_size([512, 4096][seed as usize % 2]).seed(seed);
        let machine = Machine::new(options);
        machine.sim.inject(Rule::new(None, When::OneIn(20), Fault::Short));
        machine.sim.inject(Rule::new(None, When::OneIn(30), Fault::Error(Errno::INTR)));
        let free = free_blocks(&machine.volume());
        let (mut random, mut model, mut done) = (Random(seed), Vec::new(), Vec::new());
        for _ in 0..3 {
            let volume = machine.volume();
            let file = volume.open_with("/a", create()).unwrap();
            compare(&machine, &file, &model);
            for _ in 0..12 {
                done.push(step(&machine, &file, &mut model, &mut random));
                eprintln!("seed {seed}: {}", done.last().unwrap());
                compare(&machine, &file, &model);
            }
        }
        let volume = machine.volume();
        volume.remove_file("/a").unwrap();
        volume.sync().unwrap();
        drop(volume);
        assert_eq!(free_blocks(&machine.volume()), free, "seed {seed}: {done:?}");
    }
}

#[test]
fn truncated_bytes_do_not_reappear_when_the_file_grows() {
    let machine = Machine::new(SimOptions::new(SIZE).block_size(512));
    type How = fn(&Machine, &File);
    let longer: [(&str, How); 6] = [
        ("set_size", |machine, file| machine.done(file.set_len(5000))),
        ("a write far past the end", |machine, file| machine.write(file, &[7; 512], 8192)),
        ("a write of a block", |machine, file| machine.write(file, &[7; 4096], 4096)),
        ("a write in the same block", |machine, file| machine.write(file, &[7; 8], 3000)),
        ("allocate", |machine, file| machine.done(file.allocate(4000, 200, FallocateSize::Extend))),
        ("zero_range", |machine, file| {
            machine.done(file.zero_range(4096, 200, FallocateSize::Extend))
        }),
    ];
    for reopened in [false, true] {
        for (name, how) in longer {
            let volume = machine.volume();
            let mut file = volume.open_with(format!("/{name}{reopened}"), create()).unwrap();
            machine.write(&file, &[1; 5000], 0);
            machine.done(file.set_len(50));
            if reopened {
                drop(file);
                drop(volume);
                file = machine.volume().open_with(format!("/{name}{reopened}"), create()).unwrap();
            }
            how(&machine, &file);
            let found = machine.read(&file);
            assert!(found.len() > 4096 || name == "a write in the same block", "{name}");
            assert!(found[..50] == [1; 50], "{name}");
            assert!(found[50..].iter().all(|byte| *byte == 0 || *byte == 7), "{name}: {reopened}");
        }
    }
}

#[test]
fn concurrent_changes_of_one_extent_are_all_kept() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.done(file.allocate(0, 100 * BLOCK, FallocateSize::Extend));
    machine.done(file.sync_all());
    for block in [0, 50, 70] {
        machine.write(&file, &[1; 4096], block * BLOCK);
    }
    let expected = machine.read(&file);
    drop((file, volume));
    let file = machine.volume().open_with("/a", create()).unwrap();
    assert!(machine.read(&file) == expected && expected[..4096] == [1; 4096]);
    assert_eq!(file.allocated(), 100 * BLOCK);
}

#[test]
fn holes_and_preallocation_take_the_expected_blocks() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.done(file.set_len(10 * BLOCK));
    assert_eq!((file.len(), file.allocated()), (10 * BLOCK, 0));
    assert_eq!(file.seek_data(0), Err(Errno::NXIO));
    assert_eq!(file.seek_hole(0), Ok(0));
    machine.write(&file, &[1; 4096], 3 * BLOCK);
    machine.done(file.allocate(4 * BLOCK, 2 * BLOCK, FallocateSize::Keep));
    assert_eq!(file.allocated(), 3 * BLOCK);
    assert_eq!((file.seek_data(0), file.seek_hole(3 * BLOCK)), (Ok(3 * BLOCK), Ok(4 * BLOCK)));
    machine.done(file.zero_range(3 * BLOCK, BLOCK, FallocateSize::Keep));
    assert_eq!((file.allocated(), file.seek_data(0)), (3 * BLOCK, Err(Errno::NXIO)));
    machine.done(file.allocate(20 * BLOCK, BLOCK, FallocateSize::Keep));
    assert_eq!((file.len(), file.allocated()), (10 * BLOCK, 4 * BLOCK));
    // Growing keeps preallocated blocks; truncation frees them.
    machine.done(file.set_len(11 * BLOCK));
    assert_eq!(file.allocated(), 4 * BLOCK);
    machine.done(file.punch_hole(0, 5 * BLOCK));
    assert_eq!(file.allocated(), 2 * BLOCK);
    machine.done(file.set_len(11 * BLOCK));
    assert_eq!(file.allocated(), BLOCK);
    machine.done(file.set_len(0));
    assert_eq!(file.allocated(), 0);
    assert_eq!(file.seek_hole(0), Err(Errno::NXIO));
}

#[test]
fn offsets_are_below_2_to_the_63() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.done(file.set_len(MAX_SIZE));
    assert_eq!(machine.refused(file.set_len(MAX_SIZE + 1)), Errno::FBIG);
    assert_eq!(machine.refused(file.allocate(MAX_SIZE, 1, FallocateSize::Keep)), Errno::FBIG);
    assert_eq!(machine.refused(file.punch_hole(1, u64::MAX)), Errno::FBIG);
    assert_eq!(machine.refused(file.allocate(0, 0, FallocateSize::Keep)), Errno::INVAL);
    machine.write(&file, &[1; 10], MAX_SIZE - 10);
    assert_eq!(file.seek_data(0), Ok(MAX_SIZE - (BLOCK - 1)));
    assert_eq!(file.seek_hole(MAX_SIZE - 1), Ok(MAX_SIZE));
    let (read, last) = machine.reactor.block_on(file.read_at(Buffer::zeroed(20), MAX_SIZE - 12));
    assert_eq!((read, &last[..12]), (Ok(12), &[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1][..]));
    machine.done(file.zero_range(MAX_SIZE - 1, 1, FallocateSize::Extend));
    machine.done(file.punch_hole(0, MAX_SIZE));
    assert_eq!((file.len(), file.allocated()), (MAX_SIZE, 0));
    // More than the volume has: refused at once, and nothing is allocated.
    let free = volume.statistics();
    assert_eq!(machine.refused(file.allocate(0, MAX_SIZE, FallocateSize::Keep)), Errno::NOSPC);
    assert_eq!(volume.statistics(), free);
    drop((file, volume));
    let file = machine.volume().open_with("/a", create()).unwrap();
    assert_eq!((file.len(), file.allocated()), (MAX_SIZE, 0));
}

#[test]
fn two_handles_of_a_file_keep_each_others_bytes() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    let files: Vec<File> = (0..2).map(|_| volume.open_with("/a", create()).unwrap()).collect();
    for n in 0..200u64 {
        // Parts of one block: each write reads the block and writes it back.
        for (half, file) in files.iter().enumerate() {
            let (bytes, offset) = (Buffer::copy_of(&[n as u8; 16]), n * 32 + half as u64 * 16);
            machine.reactor.write_at(file, bytes, offset, Token::new(offset)).unwrap();
        }
        let mut completed = Vec::new();
        while completed.len() < 2 {
            machine.reactor.reap(1, None, &mut completed).unwrap();
        }
        assert!(completed.iter().all(|write| write.result() == Ok(16)));
    }
    let expected: Vec<u8> = (0..6400).map(|at| (at / 32) as u8).collect();
    assert!(machine.read(&files[0]) == expected);
}

#[test]
fn a_failed_write_exposes_no_old_bytes_of_its_blocks() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, &[1; 5000], 0);
    for (length, offset) in [(3 << 20, 4096), (100, 9000), (8192, 40 * BLOCK)] {
        machine.sim.fail_nth(Op::Write, 1, Errno::IO);
        let write = file.write_at(Buffer::zeroed(length), offset);
        assert_eq!(machine.reactor.block_on(write).0, Err(Errno::IO));
        machine.sim.clear_faults();
    }
    machine.done(file.set_len(60 * BLOCK));
    let found = machine.read(&file);
    assert!(found[..4096] == [1; 4096]);
    assert!(found.iter().all(|byte| *byte < 2));
}

/// The map does not know yet how long the file was.
#[test]
fn truncated_dirty_folios_have_no_blocks() {
    let machine = Machine::new(SimOptions::new(SIZE));
    let volume = machine.volume();
    for (number, size) in [BLOCK, 2 * BLOCK, 2 * BLOCK + 100].into_iter().enumerate() {
        let path = format!("/{number}");
        let direct = volume.open_with(&path, create()).unwrap();
        let file = direct.buffered(&Cache::new(SIZE));
        machine.write(&direct, &[1; 100], 0);
        machine.done(file.allocate(2 << 20, BLOCK, FallocateSize::Keep));
        machine.write(&file, &[2; 5000], 1 << 20);
        assert_eq!((file.len(), file.allocated()), ((1 << 20) + 5000, 4 * BLOCK));
        machine.done(file.set_len(size));
        assert_eq!((file.len(), direct.len()), (size, size));
        let inode = volume.metadata(&path).unwrap().into_inode();
        assert_eq!((file.allocated(), inode.blocks), (BLOCK, 1), "cut off at {size}");
        let mut expected = vec![0; size as usize];
        expected[..100].fill(1);
        assert_eq!((machine.read(&file), machine.read(&direct)), (expected.clone(), expected));
    }
    volume.sync().unwrap();
    drop(volume);
    let device = Device::new(machine.sim.clone()).unwrap();
    let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}
