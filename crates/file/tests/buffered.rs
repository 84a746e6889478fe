//! Buffered reads: their content, their waits, and their failures.

mod harness;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use harness::{BackEnd, Random, file_over, join_all, pattern, reactor_by, scaled};
use parking_lot::{Mutex, MutexGuard};
use uringfs_buffer::Buffer;
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Clock, Device, Errno, Op, VirtualClock};
use uringfs_file::{Advice, BufferedWait, File, FileOptions, FileState};
use uringfs_reactor::{Counter, Reactor, ReactorOptions};

const SIZE: u64 = 1 << 20;
const LATENCY: Duration = Duration::from_millis(10);

/// Virtual time does not wait for other reactors of the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A device whose every request takes 10 ms of virtual time, with content, and a file on it.
struct Slow {
    sim: Sim,
    direct: File,
    file: File,
    cache: Cache,
    reactor: Reactor,
    content: Buffer,
    _alone: MutexGuard<'static, ()>,
}

impl Slow {
    fn new(cache_bytes: u64) -> Slow {
        Slow::with_size(SIZE, cache_bytes)
    }

    fn with_size(size: u64, cache_bytes: u64) -> Slow {
        let _alone = ALONE.lock();
        let clock = VirtualClock::default();
        let options = SimOptions::new(size).latency(LATENCY..=LATENCY).units(4096);
        let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
        let direct = file_over(&sim);
        let clock = Clock::Virtual(clock);
        let options = ReactorOptions::new().clock(clock).depth(16384);
        let reactor = Reactor::new(options).unwrap();
        let (written, _) = reactor.block_on(direct.write_at(pattern(7, size as usize), 0));
        assert_eq!(written, Ok(size as usize));
        let cache = Cache::new(cache_bytes);
        let content = pattern(7, size as usize);
        Slow { sim, file: direct.buffered(&cache), direct, cache, reactor, content, _alone }
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let (read, buffer) =
            self.reactor.block_on(self.file.read_at(Buffer::zeroed(length), offset));
        read.map(|read| buffer[..read].to_vec())
    }

    fn count(&self, counter: Counter) -> u64 {
        self.reactor.counters().get(counter)
    }

    /// Folios requested from the device, by readers and by readahead.
    fn requested(&self) -> u64 {
        self.count(Counter::CacheFilled) + self.count(Counter::CacheReadahead)
    }

    /// Reads the file folio by folio, with a pause before each. Returns how many folios beyond it were requested when
    /// each was read.
    fn read_in_order(&self, pause: Duration) -> Vec<u64> {
        let folios = self.content.len() as u64 / FOLIO;
        let read = |index| {
            self.reactor.block_on(self.reactor.sleep(pause));
            let offset = index * FOLIO;
            assert_eq!(self.read(offset, FOLIO as usize), Ok(self.bytes(offset, FOLIO as usize)));
            self.requested() - (index + 1)
        };
        (0..folios).map(read).collect()
    }

    /// The file's content.
    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        self.content[offset as usize..][..length].to_vec()
    }
}

#[test]
fn cached_bytes_need_no_device() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.file.try_read_at(&mut [0; 10], 5000), Err(Errno::AGAIN));
    assert_eq!(slow.read(5000, 10), Ok(slow.bytes(5000, 10)));
    slow.sim.detach(Errno::NODEV);
    assert_eq!(slow.read(4096, 4096), Ok(slow.bytes(4096, 4096)));
    assert_eq!(slow.count(Counter::CacheHit), 1);
    let mut found = [0; 100];
    assert_eq!(slow.file.try_read_at(&mut found, 8000), Ok(100));
    assert_eq!(found[..], slow.bytes(8000, 100)[..]);
    assert_eq!(slow.file.try_read_at(&mut found, 8100), Err(Errno::AGAIN), "its end is not cached");
    assert_eq!(slow.file.cached(0..SIZE), vec![4096..8192]);
    assert_eq!(slow.read(8192, 1), Err(Errno::NODEV));
    assert_eq!(slow.file.page(4096).unwrap()[..], slow.bytes(4096, 4096)[..]);
    assert_eq!(
        (slow.file.page(0).err(), slow.direct.page(4096).err()),
        (Some(Errno::AGAIN), Some(Errno::AGAIN))
    );
}

#[test]
fn a_failed_fill_fails_its_readers_and_the_next_read_retries() {
    let slow = Slow::new(SIZE);
    slow.sim
        .inject(Rule::new(Op::Read, When::Nth(1), Fault::Error(Errno::IO)).within(40960, 45056));
    let read = |offset| -> Pin<Box<dyn Future<Output = Result<usize, Errno>>>> {
        let file = slow.file.clone();
        Box::pin(async move { file.read_at(Buffer::zeroed(512), offset).await.0 })
    };
    let results = slow.reactor.block_on(join_all(vec![read(40960), read(41000), read(44000)]));
    assert_eq!(results, [Err(Errno::IO); 3]);
    assert_eq!(slow.read(40960, 4096), Ok(slow.bytes(40960, 4096)));
}

#[test]
fn only_the_bad_folio_of_a_window_is_an_error() {
    let slow = Slow::new(SIZE);
    let bad = || Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO)).within(12288, 16384);
    slow.sim.inject(bad());
    // The read covers three folios and a part of the bad one, and returns what it could read.
    assert_eq!(slow.read(0, 14000), Ok(slow.bytes(0, 12288)));
    assert_eq!(slow.read(12288, 100), Err(Errno::IO));
    assert_eq!(slow.read(16384, 8192), Ok(slow.bytes(16384, 8192)));
    slow.sim.clear_faults();
    assert_eq!(slow.read(12000, 1000), Ok(slow.bytes(12000, 1000)));
}

#[test]
fn a_random_miss_is_one_operation_that_fills_one_folio() {
    let slow = Slow::new(SIZE);
    // The first buffered operation of a file takes longer.
    assert!(slow.read(0, 1).is_ok());
    let (operations, requested) = (slow.count(Counter::SlowPath), slow.requested());
    for (index, (skip, length)) in [(50, (0, 4096)), (7, (100, 10)), (30, (4000, 96)), (90, (1, 1))]
    {
        let offset = index * FOLIO + skip;
        assert_eq!(slow.read(offset, length), Ok(slow.bytes(offset, length)));
    }
    assert_eq!((slow.count(Counter::SlowPath), slow.requested()), (operations + 4, requested + 4));
    // Across the border of two folios, and at the border of the file.
    assert_eq!(slow.read(200 * FOLIO - 5, 10), Ok(slow.bytes(200 * FOLIO - 5, 10)));
    assert_eq!(slow.read(SIZE - 5, 10), Ok(slow.bytes(SIZE - 5, 5)));
}

#[test]
fn a_cancelled_reader_does_not_affect_others() {
    let slow = Slow::new(SIZE);
    let (first, second) = slow.reactor.block_on(async {
        let mut first = slow.file.read_at(Buffer::zeroed(4096), 0);
        let mut second = Box::pin(slow.file.read_at(Buffer::zeroed(4096), 0));
        std::future::poll_fn(|context| {
            assert!(Pin::new(&mut first).poll(context).is_pending());
            assert!(second.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        first.cancel();
        (first.outcome().await, second.await)
    });
    assert_eq!(first.result, Err(Errno::CANCELED));
    assert_eq!((second.0, &second.1[..]), (Ok(4096), &slow.bytes(0, 4096)[..]));
    // A cancelled fill still ends in the cache.
    slow.reactor.block_on(async {
        let mut read = slow.file.read_at(Buffer::zeroed(1), 40960);
        std::future::poll_fn(|context| {
            assert!(Pin::new(&mut read).poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        read.cancel();
        assert_eq!(read.outcome().await.result, Err(Errno::CANCELED));
        assert!(slow.direct.read_at(Buffer::zeroed(4096), 65536).await.0.is_ok());
    });
    assert_eq!(slow.file.cached(40960..45056), vec![40960..45056]);
}

#[test]
fn a_reader_does_not_wait_for_a_stuck_reactor() {
    let _alone = ALONE.lock();
    let device = Device::new(Memory::new(SIZE).unwrap()).unwrap();
    let file = File::from_device(device, FileOptions::default()).buffered(&Cache::new(SIZE));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let file = &file;
        scope.spawn(move || {
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            reactor.block_on(async {
                let mut read = file.read_at(Buffer::zeroed(4096), 0);
                std::future::poll_fn(|context| {
                    assert!(Pin::new(&mut read).poll(context).is_pending());
                    std::task::Poll::Ready(())
                })
                .await;
                begun.send(()).unwrap();
                // It does not turn now, whatever completes.
                assert!(is_over.recv().is_err());
                assert_eq!(read.await.0, Ok(4096));
            });
        });
        has_begun.recv().unwrap();
        let (read, _) = reactor.block_on(file.read_at(Buffer::zeroed(100), 0));
        assert_eq!(read, Ok(100));
        assert_eq!(reactor.counters().get(Counter::CacheWaitTimeout), 1);
        drop(over);
    });
    let (read, _) = reactor.block_on(file.read_at(Buffer::zeroed(100), 0));
    assert_eq!((read, reactor.counters().get(Counter::CacheHit)), (Ok(100), 1));
}

#[test]
fn a_cache_smaller_than_a_request_serves_it() {
    for folios in [1, 2, 7] {
        let slow = Slow::new(folios * FOLIO);
        assert_eq!(slow.read(100, 300_000), Ok(slow.bytes(100, 300_000)));
        let many = (0..64_u64).map(|n| -> Pin<Box<dyn Future<Output = bool>>> {
            let (file, offset) = (slow.file.clone(), n % 16 * 5000);
            let expected = slow.bytes(offset, 9000);
            Box::pin(async move {
                let (read, buffer) = file.read_at(Buffer::zeroed(9000), offset).await;
                read == Ok(9000) && buffer[..] == expected[..]
            })
        });
        let all = slow.reactor.block_on(join_all(many.collect()));
        assert!(all.into_iter().all(|is_right| is_right), "{folios} folios");
        assert!(slow.cache.statistics().used_bytes <= folios * FOLIO);
    }
}

#[test]
fn sequential_reads_cause_readahead_and_random_reads_do_not() {
    let slow = Slow::new(SIZE);
    for offset in (0..SIZE).step_by(4096) {
        assert_eq!(slow.read(offset, 4096), Ok(slow.bytes(offset, 4096)));
    }
    let (filled, ahead) = (slow.count(Counter::CacheFilled), slow.count(Counter::CacheReadahead));
    assert_eq!(filled + ahead, SIZE / FOLIO, "each once, and nothing beyond the end");
    assert!(filled < 4, "{filled} misses before readahead");
    slow.cache.shrink(0);
    for index in [50, 7, 30, 90, 12] {
        assert_eq!(slow.read(index * 8192, 100), Ok(slow.bytes(index * 8192, 100)));
    }
    assert_eq!(slow.count(Counter::CacheFilled) - filled, 5);
    assert_eq!(slow.count(Counter::CacheReadahead), ahead);
}

#[test]
fn readers_that_wait_for_a_fill_leave_the_streams_of_others() {
    let slow = Slow::new(SIZE);
    let read_on = |folios: std::ops::Range<u64>| {
        for offset in folios.map(|index| index * FOLIO) {
            assert_eq!(slow.read(offset, 4096), Ok(slow.bytes(offset, 4096)));
        }
    };
    read_on(0..20);
    let (filled, waits) = (slow.count(Counter::CacheFilled), slow.count(Counter::CacheWaits));
    let reads = (0..16).map(|_| -> Pin<Box<dyn Future<Output = _>>> {
        Box::pin(slow.file.read_at(Buffer::zeroed(100), 200 * FOLIO))
    });
    for (read, found) in slow.reactor.block_on(join_all(Vec::from_iter(reads))) {
        assert!(read == Ok(100) && found[..] == slow.bytes(200 * FOLIO, 100));
    }
    assert_eq!(
        (slow.count(Counter::CacheFilled), slow.count(Counter::CacheWaits)),
        (filled + 1, waits + 15)
    );
    read_on(20..150);
    assert_eq!(slow.count(Counter::CacheFilled), filled + 1, "the sequential reader goes on");
}

#[test]
fn the_switch_limits_readahead() {
    // Large enough for windows of any length.
    let slow = Slow::new(32 * SIZE);
    for longest in [0, 8, 32, 128] {
        slow.cache.shrink(0);
        let options = FileOptions::new().readahead(longest);
        let file = File::from_device(Device::new(slow.sim.clone()).unwrap(), options);
        let file = file.buffered(&slow.cache);
        let mut furthest = 0;
        for offset in (0..SIZE).step_by(4096) {
            let (read, found) = slow.reactor.block_on(file.read_at(Buffer::zeroed(4096), offset));
            assert!(read == Ok(4096) && found[..] == slow.bytes(offset, 4096));
            let end = file.cached(offset..SIZE).last().map_or(0, |cached| cached.end);
            furthest = furthest.max(end.saturating_sub(offset + FOLIO) / FOLIO);
        }
        let longest = u64::from(longest);
        assert!(
            (longest.saturating_sub(1)..=2 * longest).contains(&furthest),
            "{longest}: {furthest}"
        );
    }
}

#[test]
fn a_whole_window_is_in_flight_while_the_one_before_is_used() {
    let slow = Slow::with_size(8 * SIZE, 32 * SIZE);
    let ahead = slow.read_in_order(Duration::ZERO);
    let (folios, longest) = (ahead.len() as u64, u64::from(FileOptions::new().readahead));
    assert_eq!(slow.requested(), folios, "each once, and nothing beyond the end");
    assert!(slow.count(Counter::CacheFilled) < 4);
    for (index, ahead) in (0..).zip(ahead) {
        let rest = folios - (index + 1);
        let window = match index {
            0..12 => 1,
            _ if index < folios / 2 => 32,
            _ => longest,
        };
        assert!(ahead >= window.min(rest), "{ahead} folios beyond {index}");
        assert!(ahead <= 2 * longest, "{ahead} folios beyond {index}");
    }
}

#[test]
fn a_reader_that_never_waits_has_the_windows_of_the_kernel() {
    let slow = Slow::with_size(4 * SIZE, 32 * SIZE);
    let ahead = slow.read_in_order(2 * LATENCY);
    assert_eq!(slow.count(Counter::CacheWaits), 0);
    assert_eq!(ahead.into_iter().max(), Some(32 + 31));
}

#[test]
fn windows_in_a_small_cache_do_not_evict_each_other() {
    let advices = [Advice::Normal, Advice::Sequential];
    for (share, advice) in [1, 4, 16].into_iter().flat_map(|share| advices.map(|it| (share, it))) {
        let slow = Slow::with_size(4 * SIZE, 4 * SIZE / share);
        assert_eq!(slow.reactor.block_on(slow.file.advise(advice, 0, 0)), Ok(()));
        let ahead = slow.read_in_order(Duration::ZERO);
        assert_eq!(slow.requested(), 4 * SIZE / FOLIO, "each once");
        let longest = 4 * SIZE / FOLIO / share / 32;
        let furthest = ahead.into_iter().max();
        assert!(
            furthest.is_some_and(|furthest| furthest < 2 * longest),
            "{advice:?}: {furthest:?}"
        );
    }
}

#[test]
fn advice_is_followed() {
    let slow = Slow::new(SIZE);
    let advise = |advice, offset, length| {
        let result = slow.reactor.block_on(slow.file.advise(advice, offset, length));
        assert_eq!(result, Ok(()));
    };
    advise(Advice::Random, 0, 0);
    for offset in (0..10 * FOLIO).step_by(4096) {
        assert!(slow.read(offset, 4096).is_ok());
    }
    assert_eq!((slow.count(Counter::CacheFilled), slow.count(Counter::CacheReadahead)), (10, 0));
    advise(Advice::WillNeed, 100_000, 300_000);
    // A read of the last folio waits for all fills before it.
    assert_eq!(slow.read(399_999, 1), Ok(slow.bytes(399_999, 1)));
    assert_eq!(slow.file.cached(10 * FOLIO..SIZE), vec![24 * FOLIO..98 * FOLIO]);
    assert_eq!((slow.count(Counter::CacheFilled), slow.count(Counter::CacheReadahead)), (10, 74));
    advise(Advice::DoNotNeed, 24 * FOLIO + 1, 9 * FOLIO);
    assert_eq!(slow.file.cached(20 * FOLIO..40 * FOLIO)[1], 33 * FOLIO..40 * FOLIO);
    advise(Advice::Sequential, 0, 0);
    for offset in (400 * 1024..SIZE).step_by(4096) {
        assert!(slow.read(offset, 4096).is_ok());
    }
    assert!(slow.count(Counter::CacheFilled) < 14);
    assert_eq!(slow.reactor.block_on(slow.direct.advise(Advice::WillNeed, 0, SIZE)), Ok(()));
}

#[test]
fn bytes_beyond_the_end_are_never_read() {
    let _alone = ALONE.lock();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    for size in [512, 5 * 512, 4096, 9 * 512] {
        let device = Device::new(Sim::new(SimOptions::new(size))).unwrap();
        let direct = File::from_device(device, FileOptions::default());
        let file = direct.buffered(&Cache::new(SIZE));
        let expected = pattern(3, size as usize);
        assert!(reactor.block_on(direct.write_at(pattern(3, size as usize), 0)).0.is_ok());
        for _ in 0..2 {
            let (read, buffer) = reactor.block_on(file.read_at(Buffer::zeroed(10_000), 0));
            assert_eq!((read, &buffer[..size as usize]), (Ok(size as usize), &expected[..]));
            for past in [size, size + 1, size + 8192, u64::MAX] {
                let (read, _) = reactor.block_on(file.read_at(Buffer::zeroed(10), past));
                assert_eq!(read, Ok(0), "at {past} of {size}");
            }
        }
    }
}

/// Buffered reads, direct reads, and writes of all sizes, one after the other.
#[test]
fn buffered_and_direct_io_agree() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let _alone = ALONE.lock();
    for back_end in [BackEnd::Image, BackEnd::Memory, BackEnd::SlowSim, BackEnd::ShakySim] {
        let clock = VirtualClock::default();
        let made = back_end.make(folder.path(), SIZE, &clock);
        let reactor = match back_end {
            BackEnd::SlowSim => reactor_by(&clock),
            _ => Reactor::new(ReactorOptions::default()).unwrap(),
        };
        let lock = Arc::<FileState>::default();
        let file =
            |options| File::from_device_with_state(made.device.clone(), lock.clone(), options);
        let direct = file(FileOptions::default());
        let cache = Cache::new(20 * FOLIO);
        // The blocking pool knows nothing of virtual time.
        let buffered_wait = match back_end {
            BackEnd::SlowSim => BufferedWait::Callback,
            _ => BufferedWait::Thread,
        };
        let in_threads = file(FileOptions::new().buffered_wait(buffered_wait));
        let files = [direct.clone(), direct.buffered(&cache), in_threads.buffered(&cache)];
        let mut model = vec![0_u8; SIZE as usize];
        let mut random = Random(11);
        for round in 0..scaled(600) as u64 {
            let file = &files[random.below(3) as usize];
            let offset = random.below(SIZE / 4);
            let longest = [10, 5000, 70_000][random.below(3) as usize];
            let length = 1 + random.below(longest) as usize;
            let aligned = random.below(2) == 0;
            let (offset, length) = match aligned {
                true => (offset / 4096 * 4096, length.next_multiple_of(4096)),
                false => (offset, length),
            };
            let place = offset as usize..offset as usize + length;
            match random.below(5) {
                0 => {
                    let bytes = pattern(round, length);
                    model[place].copy_from_slice(&bytes);
                    assert_eq!(reactor.block_on(file.write_at(bytes, offset)).0, Ok(length));
                }
                1 => {
                    model[place].fill(0);
                    let zeroed = reactor.block_on(file.write_zeroes(offset, length as u64));
                    assert_eq!(zeroed, Ok(()));
                }
                _ => {
                    let (read, buffer) =
                        reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
                    assert_eq!(read, Ok(length), "{back_end:?}, round {round}");
                    assert!(buffer[..] == model[place], "{back_end:?}, round {round}: {offset}");
                }
            }
        }
        assert!(cache.statistics().filled > 0);
        let in_threads = reactor.counters().get(Counter::CacheThreads) > 0;
        assert_eq!(in_threads, buffered_wait == BufferedWait::Thread);
    }
}

/// Each block holds the number of its last write. A buffered read of a block after an acknowledged write finds
/// that write or a later one, in any thread.
#[test]
fn acknowledged_writes_are_visible_in_every_thread() {
    const BLOCKS: u64 = 64;
    let _alone = ALONE.lock();
    let device = Device::new(Memory::new(BLOCKS * FOLIO).unwrap()).unwrap();
    let direct = File::from_device(device, FileOptions::default());
    let cache = Cache::new(BLOCKS / 2 * FOLIO);
    let acknowledged: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let rounds = scaled(4000) as u64;
    let reads = std::thread::scope(|scope| {
        let readers = [1, 2].map(|seed| {
            let (file, acknowledged, is_over) = (direct.buffered(&cache), &acknowledged, &is_over);
            scope.spawn(move || {
                let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                let mut random = Random(seed);
                let mut reads = 0;
                while !is_over.load(Ordering::Relaxed) || reads < 100 {
                    let block = random.below(BLOCKS);
                    let least = acknowledged[block as usize].load(Ordering::SeqCst);
                    let read = file.read_at(Buffer::zeroed(4096), block * 4096);
                    let (read, buffer) = reactor.block_on(read);
                    assert_eq!(read, Ok(4096));
                    let word = |at: usize| {
                        u64::from_le_bytes(buffer[8 * at..8 * at + 8].try_into().unwrap())
                    };
                    assert!(word(0) >= least, "block {block}: {} after {least}", word(0));
                    reads += 1;
                }
                reads
            })
        });
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let mut random = Random(9);
        for round in 1..=rounds {
            let block = random.below(BLOCKS);
            // The whole block, or its first half.
            let length = if random.below(3) == 0 { 2048 } else { 4096 };
            let mut bytes = Buffer::zeroed(length);
            bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&round.to_le_bytes()));
            assert_eq!(reactor.block_on(direct.write_at(bytes, block * 4096)).0, Ok(length));
            acknowledged[block as usize].store(round, Ordering::SeqCst);
        }
        is_over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(reads.iter().all(|reads| *reads >= 100));
}
