//! Counters that prove the mechanisms: each read and each refusal is counted exactly, and so are registered
//! memory and files, and where completions are finished.

mod harness;

use std::time::{Duration, Instant};

use harness::{file_over, join_all, reap};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::Cache;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Clock, Device, VirtualClock};
use uringfs_file::{Advice, File, FileOptions, Map, Mapping, MappingState, Tokens, WriteLocking};
use uringfs_reactor::{CompletionMode, Counter, Reactor, ReactorOptions, Token};

const SIZE: u64 = 1 << 20;
const READS: u64 = 96;

/// Each direct read counts in one of these, unless the file has dirty folios or an access time to update.
const READ_PATHS: [Counter; 9] = [
    Counter::FastPathTaken,
    Counter::FastPathOff,
    Counter::FastPathLength,
    Counter::FastPathAlignment,
    Counter::FastPathSize,
    Counter::FastPathExtent,
    Counter::FastPathVectored,
    Counter::FastPathDeadline,
    Counter::FastPathQueueFull,
];

fn null() -> File {
    File::from_device(Device::new(Null::new(SIZE)).unwrap(), FileOptions::default())
}

fn image() -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let made = ImageFile::create(&path, SIZE, Allocation::Written).unwrap();
    File::from_device(Device::new(made).unwrap(), FileOptions::default())
}

fn ring(change: impl FnOnce(&mut ReactorOptions)) -> Reactor {
    let mut options = ReactorOptions::new().queue(QueueKind::Ring);
    change(&mut options);
    Reactor::new(options).unwrap()
}

/// The increase of these counters during `act`.
fn added<const N: usize>(
    reactor: &Reactor,
    counters: [Counter; N],
    act: impl FnOnce(),
) -> [u64; N] {
    let now = || counters.map(|counter| reactor.counters().get(counter));
    let before = now();
    act();
    let after = now();
    std::array::from_fn(|place| after[place] - before[place])
}

/// Reads whole blocks into memory of a pool, in batches, by token.
fn read_blocks(reactor: &Reactor, file: &File, pool: &BufferPool) {
    for batch in 0..READS / 32 {
        for place in 0..32 {
            let offset = (batch * 32 + place) * 4096 % SIZE;
            let buffer = pool.get().expect("as many as in a batch");
            reactor.read_at(file, buffer, offset, Token::new(place)).unwrap();
        }
        for completed in reap(reactor, 32) {
            assert_eq!(completed.result(), Ok(4096));
        }
    }
}

#[test]
fn eligible_reads_take_the_fast_path_and_complete_inline() {
    let pool = BufferPool::new(4096, 32).unwrap();
    for file in [image(), null()] {
        let reactor = ring(|_| {});
        let counted = [
            Counter::FastPathTaken,
            Counter::SlowPath,
            Counter::CompletedInline,
            Counter::CompletedByWorker,
            Counter::Bounced,
        ];
        let counts = added(&reactor, counted, || read_blocks(&reactor, &file, &pool));
        assert_eq!(counts, [READS, 0, READS, 0, 0], "{file:?}");
        let all = added(&reactor, READ_PATHS, || read_blocks(&reactor, &file, &pool));
        assert_eq!(all.iter().sum::<u64>(), READS, "nothing is counted twice");
    }
}

#[test]
fn registered_files_and_buffers_follow_their_switches() {
    let pool = BufferPool::new(4096, 32).unwrap();
    let counted =
        [Counter::FixedFiles, Counter::PlainFiles, Counter::FixedBuffers, Counter::PlainBuffers];
    let file = image();
    let run = |files: bool, buffers: bool| {
        let reactor = ring(|options| {
            (options.fixed_files, options.fixed_buffers) = (files, buffers);
        });
        added(&reactor, counted, || read_blocks(&reactor, &file, &pool))
    };
    assert_eq!(run(true, true), [READS, 0, READS, 0]);
    assert_eq!(run(false, true), [0, READS, READS, 0]);
    assert_eq!(run(true, false), [READS, 0, 0, READS]);
    assert_eq!(run(false, false), [0, READS, 0, READS]);

    // Memory outside a pool is not registered.
    let reactor = ring(|_| {});
    let counts = added(&reactor, counted, || {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
        reap(&reactor, 1);
    });
    assert_eq!(counts, [1, 0, 0, 1]);

    // Writes and the slow path use the same indexes.
    let counts = added(&reactor, counted, || {
        for place in 0..8 {
            let buffer = pool.get().unwrap();
            reactor.write_at(&file, buffer, place * 4096, Token::new(place)).unwrap();
        }
        reap(&reactor, 8);
    });
    assert_eq!(counts, [8, 0, 8, 0]);
}

#[test]
fn the_worker_finishes_all_completions() {
    let pool = BufferPool::new(4096, 32).unwrap();
    for file in [image(), null()] {
        let reactor = ring(|options| options.completion = CompletionMode::Worker);
        let counted =
            [Counter::CompletedByWorker, Counter::CompletedInline, Counter::FastPathTaken];
        let counts = added(&reactor, counted, || read_blocks(&reactor, &file, &pool));
        assert_eq!(counts, [READS, 0, READS], "{file:?}");
        let counts = added(&reactor, counted, || {
            for place in 0..8 {
                reactor
                    .write_at(&file, pool.get().unwrap(), place * 4096, Token::new(place))
                    .unwrap();
            }
            reap(&reactor, 8);
        });
        assert_eq!(counts, [8, 0, 0], "{file:?}");
    }
}

#[test]
fn plain_overwrites_complete_inline() {
    let pool = BufferPool::new(4096, 32).unwrap();
    let (file, reactor) = (image(), ring(|_| {}));
    let counted = [
        Counter::CompletedInline,
        Counter::CompletedByWorker,
        Counter::WriteUnlocked,
        Counter::WriteRangeLocked,
        Counter::WriteUnaligned,
        Counter::DeferredFlush,
    ];
    let counts = added(&reactor, counted, || {
        for place in 0..32 {
            reactor.write_at(&file, pool.get().unwrap(), place * 4096, Token::new(place)).unwrap();
        }
        reap(&reactor, 32);
    });
    assert_eq!(counts, [32, 0, 32, 0, 0, 0]);
    let counts = added(&reactor, counted, || {
        reactor.write_at(&file, Buffer::zeroed(100), 5, Token::new(1)).unwrap();
        reap(&reactor, 1);
    });
    assert_eq!(counts, [1, 0, 0, 0, 1, 0]);
}

#[test]
fn exclusive_write_lock_is_taken_by_all_writers() {
    const WRITES: u64 = 100;
    let device = image().device().clone();
    let options = FileOptions::new().write_lock(WriteLocking::Exclusive);
    let file = File::from_device(device, options);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let file = file.clone();
            scope.spawn(move || {
                let reactor = ring(|_| {});
                let counted =
                    [Counter::WriteAlways, Counter::WriteUnlocked, Counter::FastPathTaken];
                let counts = added(&reactor, counted, || {
                    for token in 0..WRITES {
                        let buffer = Buffer::copy_of(&[thread as u8 + 1; 4096]);
                        let offset = (2 * token + thread) % 256 * 4096;
                        reactor.write_at(&file, buffer, offset, Token::new(token)).unwrap();
                        reactor
                            .read_at(&file, Buffer::zeroed(4096), 0, Token::new(WRITES))
                            .unwrap();
                    }
                    reap(&reactor, 2 * WRITES as usize);
                });
                assert_eq!(counts, [WRITES, 0, WRITES]);
                let (read, bytes) =
                    reactor.block_on(file.read_at(Buffer::zeroed(4096), 4096 * thread));
                assert_eq!(read, Ok(4096));
                assert!(bytes.iter().all(|byte| *byte == thread as u8 + 1));
            });
        }
    });
}

#[test]
fn a_batch_costs_one_system_call() {
    let pool = BufferPool::new(4096, 32).unwrap();
    let (file, reactor) = (null(), ring(|_| {}));
    read_blocks(&reactor, &file, &pool);
    let [enters] = added(&reactor, [Counter::Enters], || read_blocks(&reactor, &file, &pool));
    assert_eq!(enters, READS / 32);
}

/// One block is a hole, one is unwritten, and the rest is in extents of 6144 bytes.
struct Scattered;

impl Map for Scattered {
    fn map(&self, offset: u64) -> Mapping {
        let (length, state) = match offset / 4096 {
            0 => (4096 - offset, MappingState::Hole),
            1 => (8192 - offset, MappingState::Unwritten(offset)),
            _ => {
                let into = (offset - 8192) % 6144;
                (6144 - into, MappingState::Written(offset))
            }
        };
        Mapping { length: length.min(self.size() - offset), state }
    }

    fn size(&self) -> u64 {
        SIZE
    }
}

#[test]
fn each_refusal_is_counted_by_its_reason() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let plain = file_over(&sim);
    let switched_off =
        File::from_device(plain.device().clone(), FileOptions::new().simple_read(false));
    let scattered = File::with_map(
        plain.device().clone(),
        Scattered,
        std::sync::Arc::default(),
        FileOptions::default(),
    );
    let skewed = || Buffer::zeroed(4096 + 7).split_off(7);
    let aligned = Buffer::zeroed;
    let cases: Vec<(Counter, &File, Buffer, u64)> = vec![
        (Counter::FastPathTaken, &plain, aligned(4096), 8192),
        (Counter::FastPathTaken, &plain, aligned(512), 512),
        (Counter::FastPathTaken, &plain, aligned(4096), SIZE - 4096),
        (Counter::FastPathOff, &switched_off, aligned(4096), 0),
        (Counter::FastPathLength, &plain, aligned(0), 0),
        (Counter::FastPathLength, &plain, aligned(8192), 0),
        (Counter::FastPathAlignment, &plain, aligned(4096), 1),
        (Counter::FastPathAlignment, &plain, aligned(100), 0),
        (Counter::FastPathAlignment, &plain, skewed(), 0),
        (Counter::FastPathSize, &plain, aligned(4096), SIZE - 512),
        (Counter::FastPathSize, &plain, aligned(4096), SIZE),
        (Counter::FastPathSize, &plain, aligned(4096), u64::MAX - 4095),
        (Counter::FastPathExtent, &scattered, aligned(4096), 0),
        (Counter::FastPathExtent, &scattered, aligned(4096), 4096),
        (Counter::FastPathExtent, &scattered, aligned(4096), 8192 + 4096),
        (Counter::FastPathTaken, &scattered, aligned(4096), 8192),
    ];
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    for (expected, file, buffer, offset) in cases {
        let copy = || {
            let skew = buffer.pointer().as_ptr() as usize % 4096;
            Buffer::zeroed(buffer.len() + skew).split_off(skew)
        };
        let what = format!("{} bytes at {offset}: {}", buffer.len(), expected.name());
        let only = READ_PATHS.map(|counter| (counter == expected) as u64);
        let counts = added(&reactor, READ_PATHS, || {
            reactor.read_at(file, copy(), offset, Token::new(1)).unwrap();
            reap(&reactor, 1);
        });
        assert_eq!(counts, only, "by token, {what}");
        let counts = added(&reactor, READ_PATHS, || {
            reactor.start(file.read_at(copy(), offset), Token::new(1)).unwrap();
            reap(&reactor, 1);
        });
        assert_eq!(counts, only, "started by token, {what}");
        let counts = added(&reactor, READ_PATHS, || {
            let _ = reactor.block_on(file.read_at(copy(), offset));
        });
        assert_eq!(counts, only, "awaited, {what}");
    }
}

#[test]
fn vectored_reads_and_deadlines_take_the_slow_path() {
    let file = file_over(&Sim::new(SimOptions::new(SIZE)));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let pieces = || vec![Buffer::zeroed(2048), Buffer::zeroed(2048)];
    let later = || Instant::now() + Duration::from_secs(20);
    let only = |expected| READ_PATHS.map(|counter| (counter == expected) as u64);
    let counts = added(&reactor, READ_PATHS, || {
        reactor.start(file.read_vectored_at(pieces(), 0), Token::new(1)).unwrap();
        reap(&reactor, 1);
    });
    assert_eq!(counts, only(Counter::FastPathVectored));
    let counts = added(&reactor, READ_PATHS, || {
        let _ = reactor.block_on(file.read_vectored_at(pieces(), 0));
    });
    assert_eq!(counts, only(Counter::FastPathVectored));
    let counts = added(&reactor, READ_PATHS, || {
        let op = file.read_at(Buffer::zeroed(4096), 0).deadline(later());
        reactor.start(op, Token::new(1)).unwrap();
        reap(&reactor, 1);
    });
    assert_eq!(counts, only(Counter::FastPathDeadline));
    let counts = added(&reactor, READ_PATHS, || {
        let _ = reactor.block_on(file.read_at(Buffer::zeroed(4096), 0).deadline(later()));
    });
    assert_eq!(counts, only(Counter::FastPathDeadline));
}

#[test]
fn a_full_queue_refuses_tokens_and_delays_awaited_reads() {
    let clock = Clock::Virtual(VirtualClock::default());
    let second = Duration::from_secs(1);
    let options = SimOptions::new(SIZE).latency(second..=second).units(64).clock(clock.clone());
    let file = file_over(&Sim::new(options));
    const DEPTH: u32 = 16;
    let options = ReactorOptions::new().depth(DEPTH).clock(clock);
    let reactor = Reactor::new(options).unwrap();
    let counts = added(&reactor, READ_PATHS, || {
        for token in 0..DEPTH as u64 {
            reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
        }
        for token in 0..5 {
            let refused = reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token));
            assert_eq!(refused.unwrap_err().error, uringfs_device::Errno::AGAIN);
        }
        let reads: Vec<std::pin::Pin<Box<dyn Future<Output = _>>>> = (0..4)
            .map(|_| -> std::pin::Pin<Box<dyn Future<Output = _>>> {
                Box::pin(file.read_at(Buffer::zeroed(4096), 0))
            })
            .collect();
        for (read, _) in reactor.block_on(join_all(reads)) {
            assert_eq!(read, Ok(4096));
        }
        reap(&reactor, DEPTH as usize);
    });
    let mut expected = [0; READ_PATHS.len()];
    (expected[0], expected[8]) = (DEPTH as u64, 4);
    assert_eq!(counts, expected);
}

#[test]
fn fills_and_write_back_use_registered_memory() {
    // Large enough that the flusher does not start by itself: it does at an eighth of the cache.
    let file = image().buffered(&Cache::new(16 * SIZE));
    let (reactor, whole) = (ring(|_| {}), SIZE as usize);
    let buffers = [Counter::FixedBuffers, Counter::PlainBuffers];
    let written = added(&reactor, buffers, || {
        assert_eq!(reactor.block_on(file.write_at(Buffer::zeroed(whole), 0)).0, Ok(whole));
        reactor.block_on(file.sync_data()).unwrap();
    });
    assert_eq!(written, [1, 0]);
    assert_eq!(reactor.block_on(file.advise(Advice::DoNotNeed, 0, SIZE)), Ok(()));
    let read = added(&reactor, buffers, || {
        assert_eq!(reactor.block_on(file.read_at(Buffer::zeroed(whole), 0)).0, Ok(whole));
    });
    assert!(read[0] > 0 && read[1] == 0, "{read:?}");
}
