//! Buffered writes: when they reach the device, where they are visible until then, and their failures.

mod harness;

use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use harness::{Random, file_over, join_all, pattern, scaled};
use uringfs_buffer::Buffer;
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Clock, Errno, Op, VirtualClock};
use uringfs_file::{Advice, File};
use uringfs_reactor::{Counter, Reactor, ReactorOptions};

const SIZE: u64 = 1 << 20;
const LATENCY: Duration = Duration::from_millis(10);

/// A device whose every request takes 10 ms of virtual time, and a file on it.
struct Slow {
    sim: Sim,
    clock: VirtualClock,
    direct: File,
    file: File,
    cache: Cache,
    reactor: Reactor,
}

type Written<'s> = Pin<Box<dyn Future<Output = Result<usize, Errno>> + 's>>;

impl Slow {
    fn new(cache_bytes: u64) -> Slow {
        let clock = VirtualClock::default();
        let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY).units(4096);
        let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
        let direct = file_over(&sim);
        let options = ReactorOptions::new().clock(Clock::Virtual(clock.clone())).depth(16384);
        let reactor = Reactor::new(options).unwrap();
        let cache = Cache::new(cache_bytes);
        Slow { sim, clock, file: direct.buffered(&cache), direct, cache, reactor }
    }

    fn write(&self, offset: u64, byte: u8, length: usize) -> Written<'_> {
        let file = self.file.clone();
        Box::pin(async move { file.write_at(Buffer::copy_of(&vec![byte; length]), offset).await.0 })
    }

    fn put(&self, offset: u64, byte: u8, length: usize) -> Result<usize, Errno> {
        self.reactor.block_on(self.write(offset, byte, length))
    }

    fn get(&self, file: &File, offset: u64, length: usize) -> Vec<u8> {
        let (read, buffer) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
        assert_eq!(read, Ok(length));
        buffer.to_vec()
    }

    /// The byte on the device, read by a handle without the cache.
    fn on_device(&self, offset: u64) -> u8 {
        let other = file_over(&self.sim);
        self.get(&other, offset, 1)[0]
    }

    fn dirty(&self) -> u64 {
        self.cache.statistics().dirty_bytes / FOLIO
    }

    fn count(&self, counter: Counter) -> u64 {
        self.reactor.counters().get(counter)
    }

    /// Lets time pass, with the reactor running.
    fn wait(&self, time: Duration) {
        let clock = Clock::Virtual(self.clock.clone());
        let until = clock.now() + time;
        while clock.now() < until {
            // Each read takes some time.
            self.on_device(SIZE - 1);
        }
    }
}

#[test]
fn writes_stay_in_the_cache_until_a_sync() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(4096, 7, 8192), Ok(8192));
    // Part of a folio: its old content is read first.
    assert_eq!(slow.put(20_000, 8, 100), Ok(100));
    assert_eq!((slow.dirty(), slow.count(Counter::CacheFilled)), (3, 1));
    assert_eq!((slow.on_device(4096), slow.on_device(20_000)), (0, 0));
    assert_eq!(slow.get(&slow.file, 8000, 1000), [7; 1000]);
    let mut found = [0; 102];
    assert_eq!(slow.file.try_read_at(&mut found, 19_999), Ok(102));
    assert_eq!((found[0], found[1], found[100], found[101]), (0, 8, 8, 0));
    assert_eq!(slow.reactor.block_on(slow.file.sync_range(4096, 1)), Ok(()));
    // Adjacent dirty folios are written, too.
    assert_eq!((slow.dirty(), slow.on_device(4096), slow.on_device(20_000)), (2, 7, 0));
    assert_eq!(slow.reactor.block_on(slow.file.sync_data()), Ok(()));
    assert_eq!((slow.dirty(), slow.on_device(8192), slow.on_device(20_099)), (0, 7, 8));
    assert_eq!((slow.count(Counter::CacheDirtied), slow.count(Counter::CacheWrittenBack)), (3, 3));
}

#[test]
fn direct_reads_find_buffered_writes() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(0, 1, 3 * 4096), Ok(3 * 4096));
    assert_eq!(slow.get(&slow.direct, 4096, 4096), [1; 4096]);
    assert_eq!(slow.count(Counter::FastPathDirty), 1);
    assert_eq!((slow.dirty(), slow.on_device(0)), (2, 0), "folios outside the read stay dirty");
    let (written, _) = slow.reactor.block_on(slow.direct.write_at(pattern(3, 512), 512));
    assert_eq!(written, Ok(512));
    let expected = [&[1; 512][..], &pattern(3, 512), &[1; 3 * 4096 - 1024]].concat();
    assert_eq!(slow.get(&slow.file, 0, 3 * 4096), expected);
    assert_eq!(slow.get(&slow.direct, 0, 3 * 4096), expected);
}

#[test]
fn dirty_folios_are_written_back_by_age_and_on_close() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(0, 1, 100), Ok(100));
    slow.wait(Duration::from_secs(4));
    assert_eq!(slow.on_device(0), 0);
    slow.wait(Duration::from_secs(2));
    assert_eq!((slow.on_device(0), slow.dirty()), (1, 0));
    let other = slow.direct.buffered(&slow.cache);
    assert_eq!(slow.reactor.block_on(other.write_at(pattern(2, 100), 0)).0, Ok(100));
    drop(other);
    slow.wait(Duration::from_millis(100));
    assert_eq!((slow.on_device(0), slow.dirty()), (pattern(2, 1)[0], 0));
}

#[test]
fn fast_writers_wait_and_the_cache_keeps_its_limit() {
    const FOLIOS: u64 = 32;
    let slow = Slow::new(FOLIOS * FOLIO);
    let mut random = Random(5);
    for _ in 0..scaled(20) {
        let writers: Vec<Written<'_>> = (0..64)
            .map(|n| -> Written<'_> {
                let (offset, length) = (n * 16384 + random.below(9000), 1 + random.below(7000));
                let write = slow.write(offset, n as u8 + 1, length as usize);
                Box::pin(async move { write.await.map(|written| written + offset as usize) })
            })
            .collect();
        let most = std::cell::Cell::new(0);
        let ended = slow.reactor.block_on(async {
            let mut all = std::pin::pin!(join_all(writers));
            std::future::poll_fn(|context| {
                let statistics = slow.cache.statistics();
                assert!(statistics.used_bytes <= FOLIOS * FOLIO);
                most.set(most.get().max(statistics.dirty_bytes / FOLIO));
                all.as_mut().poll(context)
            })
            .await
        });
        for (n, end) in ended.into_iter().enumerate() {
            let byte = n as u8 + 1;
            assert_eq!(slow.get(&slow.file, end.unwrap() as u64 - 1, 1), [byte]);
        }
        assert!(most.get() > 0 && most.get() <= FOLIOS, "{} at once", most.get());
    }
    assert!(slow.count(Counter::CacheThrottled) > 0);
    assert_eq!(slow.reactor.block_on(slow.file.sync_all()), Ok(()));
    assert_eq!(slow.dirty(), 0);
}

#[test]
fn a_write_may_be_longer_than_the_cache() {
    for folios in [1, 2, 7] {
        let slow = Slow::new(folios * FOLIO);
        assert_eq!(slow.put(100, 9, 300_000), Ok(300_000));
        assert!(slow.cache.statistics().used_bytes <= folios * FOLIO);
        assert_eq!(slow.get(&slow.file, 100, 300_000), vec![9; 300_000]);
        assert_eq!(slow.reactor.block_on(slow.file.sync_all()), Ok(()));
        let found = [99, 100, 300_099, 300_100].map(|offset| slow.on_device(offset));
        assert_eq!(found, [0, 9, 9, 0], "{folios} folios");
    }
}

#[test]
fn a_write_bypasses_a_cache_full_of_snapshots() {
    // Half of one folio, rounded up: the snapshot is all that the cache holds.
    let slow = Slow::new(FOLIO);
    slow.get(&slow.file, 0, 1);
    let kept = slow.file.page(0).unwrap();
    assert_eq!(slow.put(8192, 5, 10), Ok(10));
    assert_eq!(slow.put(0, 6, 10), Ok(10));
    assert_eq!(slow.count(Counter::CacheWriteBypassed), 2);
    assert_eq!(kept[0], 0, "the snapshot does not change");
    drop(kept);
    assert_eq!((slow.get(&slow.file, 0, 1), slow.get(&slow.file, 8192, 1)), (vec![6], vec![5]));
}

#[test]
fn each_handle_reports_a_failed_write_back_once_and_nothing_is_lost() {
    let slow = Slow::new(SIZE);
    let other = slow.direct.buffered(&slow.cache);
    let fails = Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)).within(4096, 8192);
    slow.sim.inject(fails);
    assert_eq!(slow.put(4096, 1, 4096), Ok(4096));
    assert_eq!(slow.put(40_960, 2, 4096), Ok(4096));
    // Only the flusher has tried to write the folio back, and failed.
    slow.wait(Duration::from_secs(12));
    assert_eq!((slow.on_device(4096), slow.dirty()), (0, 1));
    assert_eq!(slow.on_device(40_960), 2, "the flusher goes on behind the folio");
    assert_eq!(slow.get(&slow.file, 4096, 4096), [1; 4096]);
    slow.sim.clear_faults();
    let sync = |file: &File| slow.reactor.block_on(file.sync_all());
    assert_eq!([sync(&slow.file), sync(&slow.file)], [Err(Errno::IO), Ok(())]);
    assert_eq!([sync(&other), sync(&other)], [Err(Errno::IO), Ok(())]);
    // A handle opened now has written nothing that was lost.
    assert_eq!(sync(&slow.direct.buffered(&slow.cache)), Ok(()));
    assert_eq!((slow.on_device(4096), slow.on_device(40_960), slow.dirty()), (1, 2, 0));
}

#[test]
fn a_throttled_writer_retries_failed_write_back() {
    let slow = Slow::new(16 * FOLIO);
    slow.sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(Errno::IO)));
    assert_eq!(slow.put(0, 1, 4 * 4096), Ok(4 * 4096));
    slow.wait(Duration::from_secs(1));
    assert_eq!((slow.sim.faults_hit(), slow.dirty()), (1, 4), "it is tried again later");
    for n in 1..10 {
        assert_eq!(slow.put(n * 16384, 2, 4096), Ok(4096));
    }
    assert_eq!(slow.count(Counter::CacheWriteBypassed), 0);
}

/// A device that fails every write, with as many dirty folios as the limit allows.
fn failing() -> Slow {
    let slow = Slow::new(64 * FOLIO);
    slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    for n in 0..16 {
        assert_eq!(slow.put(n * 8192, 1, 4096), Ok(4096));
    }
    assert_eq!((slow.dirty(), slow.count(Counter::CacheThrottled)), (16, 0));
    slow
}

#[test]
fn a_throttled_writer_fails_when_write_back_fails() {
    let slow = failing();
    for n in 16..20 {
        let begun = Clock::Virtual(slow.clock.clone()).now();
        assert_eq!(slow.put(n * 8192, 1, 4096), Err(Errno::IO));
        let waited = Clock::Virtual(slow.clock.clone()).now() - begun;
        assert!(waited < 10 * LATENCY, "{waited:?}");
    }
    assert_eq!(slow.count(Counter::CacheThrottled), 4);
}

#[test]
fn a_failing_device_does_not_throttle_another() {
    let slow = failing();
    let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY);
    let sim = Sim::new(options.clock(Clock::Virtual(slow.clock.clone())));
    let other = file_over(&sim).buffered(&slow.cache);
    let begun = Clock::Virtual(slow.clock.clone()).now();
    for n in 0..100 {
        let write = other.write_at(Buffer::copy_of(&[2; 4096]), n * 8192 % SIZE);
        assert_eq!(slow.reactor.block_on(write).0, Ok(4096));
    }
    // The other device writes its folios back one by one.
    let took = Clock::Virtual(slow.clock.clone()).now() - begun;
    assert!(took < 200 * LATENCY, "{took:?}");
    assert_eq!(slow.count(Counter::CacheWriteBypassed), 0);
    assert_eq!(slow.reactor.block_on(other.sync_all()), Ok(()));
    assert_eq!(slow.dirty(), 16);
}

#[test]
fn a_failed_sync_reports_it_and_the_next_one_writes() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(4096, 1, 100), Ok(100));
    slow.sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Error(Errno::NOSPC)));
    assert_eq!(slow.reactor.block_on(slow.file.sync_all()), Err(Errno::NOSPC));
    assert_eq!((slow.on_device(4096), slow.dirty()), (0, 1));
    assert_eq!(slow.reactor.block_on(slow.file.sync_all()), Ok(()));
    assert_eq!((slow.on_device(4096), slow.dirty()), (1, 0));
}

#[test]
fn a_snapshot_does_not_change() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(0, 1, 4096), Ok(4096));
    let page = slow.file.page(0).unwrap();
    assert_eq!(slow.put(0, 2, 4096), Ok(4096));
    let sync = slow.file.sync_all();
    assert_eq!((page[0], slow.get(&slow.file, 0, 1)), (1, vec![2]));
    assert_eq!(slow.reactor.block_on(sync), Ok(()));
    assert_eq!((page[4095], slow.on_device(0)), (1, 2));
}

#[test]
fn a_throttled_write_can_be_cancelled() {
    let slow = Slow::new(8 * FOLIO);
    slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Late(Duration::from_secs(600))));
    assert_eq!(slow.put(0, 1, 2 * 4096), Ok(2 * 4096));
    let mut write = slow.file.write_at(pattern(1, 8192), 65536);
    let stopped = slow.reactor.block_on(async {
        let begun = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut write).poll(context)));
        assert!(begun.await.is_pending());
        write.cancel();
        write.await
    });
    assert_eq!(stopped.0, Err(Errno::CANCELED));
    assert_eq!(slow.dirty(), 2);
}

/// Dirty folios that cannot be written back stay while a handle may report them.
#[test]
fn a_file_with_failed_write_back_can_be_closed() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (direct, cache) = (file_over(&sim), Cache::new(SIZE));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let files = [direct.buffered(&cache), direct.buffered(&cache)];
    sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    let dirty = || cache.statistics().dirty_bytes;
    for file in files {
        assert_eq!(reactor.block_on(file.write_at(pattern(2, 4096), 8192)).0, Ok(4096));
        assert_eq!(reactor.block_on(file.sync_all()), Err(Errno::IO));
        assert_eq!(dirty(), 4096);
        drop(file);
    }
    while dirty() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(reactor.block_on(direct.sync_all()), Err(Errno::IO));
    let (read, found) = reactor.block_on(direct.read_at(Buffer::zeroed(4096), 8192));
    assert!(read == Ok(4096) && found.iter().all(|byte| *byte == 0));
}

#[test]
fn closing_a_file_loses_only_the_folios_that_cannot_be_written() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (direct, cache) = (file_over(&sim), Cache::new(SIZE));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let file = direct.buffered(&cache);
    let fails = Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)).within(4096, 8192);
    sim.inject(fails);
    for offset in [4096, 40_960] {
        assert_eq!(reactor.block_on(file.write_at(pattern(2, 4096), offset)).0, Ok(4096));
    }
    drop(file);
    while cache.statistics().dirty_bytes > 0 {
        std::thread::yield_now();
    }
    let (mut lost, mut kept) = ([0; 4096], [0; 4096]);
    sim.peek(4096, &mut lost);
    sim.peek(40_960, &mut kept);
    assert_eq!((&lost[..], &kept[..]), (&[0; 4096][..], &pattern(2, 4096)[..]));
    assert_eq!(reactor.block_on(direct.sync_all()), Err(Errno::IO));
}

#[test]
fn a_file_whose_device_was_removed_can_be_closed() {
    let Slow { sim, clock, direct, file, cache, reactor } = Slow::new(SIZE);
    let slow = Slow { file: direct.clone(), sim, clock, direct, cache, reactor };
    assert_eq!(slow.reactor.block_on(file.write_at(pattern(2, 4096), 8192)).0, Ok(4096));
    slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    // The flusher tries again after a while.
    slow.wait(Duration::from_secs(6));
    assert_eq!(slow.dirty(), 1);
    slow.direct.device().remove();
    drop(file);
    let begun = std::time::Instant::now();
    while slow.dirty() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the dirty folio is not discarded");
        slow.reactor.turn().unwrap();
    }
}

fn begin<F: Future + Unpin>(slow: &Slow, future: &mut F) {
    let once = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context)));
    assert!(slow.reactor.block_on(once).is_pending());
}

#[test]
fn a_sync_does_what_a_cancelled_one_leaves_undone() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(4096, 1, 4096), Ok(4096));
    let (mut first, mut second) = (slow.file.sync_all(), slow.file.sync_all());
    begin(&slow, &mut first);
    begin(&slow, &mut second);
    first.cancel();
    assert_eq!(slow.reactor.block_on(first), Err(Errno::CANCELED));
    assert_eq!(slow.reactor.block_on(second), Ok(()));
    assert_eq!((slow.on_device(4096), slow.dirty()), (1, 0));
}

/// The device returns an errno that looks like a cancel, but nothing was cancelled.
#[test]
fn any_errno_of_a_failed_write_back_is_reported() {
    for errno in [Errno::CANCELED, Errno::TIMEDOUT] {
        let slow = Slow::new(SIZE);
        assert_eq!(slow.put(4096, 1, 4096), Ok(4096));
        slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(errno)));
        slow.wait(Duration::from_secs(6));
        assert_eq!((slow.on_device(4096), slow.dirty()), (0, 1));
        slow.sim.clear_faults();
        let sync = |file: &File| slow.reactor.block_on(file.sync_all());
        let synced = [sync(&slow.file), sync(&slow.file), sync(&slow.direct), sync(&slow.direct)];
        assert_eq!(synced, [Err(Errno::IO), Ok(()), Err(Errno::IO), Ok(())], "{errno}");
        assert_eq!((slow.on_device(4096), slow.dirty()), (1, 0));
    }
}

#[test]
fn a_cancelled_write_back_is_no_failure() {
    let slow = Slow::new(SIZE);
    let now = || Clock::Virtual(slow.clock.clone()).now();
    assert_eq!(slow.put(4096, 1, 4096), Ok(4096));
    // The deadline passes before the request is issued, and while the request is in flight.
    for time in [Duration::ZERO, LATENCY / 2] {
        let sync = slow.file.sync_all().deadline(now() + time);
        assert_eq!(slow.reactor.block_on(sync), Err(Errno::TIMEDOUT));
    }
    let mut sync = slow.file.sync_all();
    begin(&slow, &mut sync);
    sync.cancel();
    assert_eq!(slow.reactor.block_on(sync), Err(Errno::CANCELED));
    assert_eq!(slow.dirty(), 1);
    let sync = |file: &File| slow.reactor.block_on(file.sync_all());
    assert_eq!([sync(&slow.direct), sync(&slow.file)], [Ok(()); 2]);
    assert_eq!((slow.on_device(4096), slow.dirty()), (1, 0));
}

#[test]
fn a_cancelled_sync_leaves_an_earlier_failure_to_the_next() {
    let slow = Slow::new(SIZE);
    assert_eq!(slow.put(4096, 1, 4096), Ok(4096));
    slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO)));
    slow.wait(Duration::from_secs(6));
    slow.sim.clear_faults();
    let mut cancelled = slow.file.sync_all();
    begin(&slow, &mut cancelled);
    cancelled.cancel();
    assert_eq!(slow.reactor.block_on(cancelled), Err(Errno::CANCELED));
    let now = || Clock::Virtual(slow.clock.clone()).now();
    for time in [LATENCY / 2, Duration::ZERO] {
        let late = slow.file.sync_all().deadline(now() + time);
        assert_eq!(slow.reactor.block_on(late), Err(Errno::TIMEDOUT));
    }
    let sync = || slow.reactor.block_on(slow.file.sync_all());
    assert_eq!([sync(), sync()], [Err(Errno::IO), Ok(())]);
    assert_eq!((slow.on_device(4096), slow.dirty()), (1, 0));
}

/// Another file has many dirty folios, and their write-back takes long.
#[test]
fn the_flusher_of_a_closed_file_ends_when_it_is_clean() {
    let slow = Slow::new(64 * FOLIO);
    slow.sim.inject(Rule::new(Op::Write, When::From(1), Fault::Late(Duration::from_secs(600))));
    assert_eq!(slow.put(0, 1, 12 * 4096), Ok(12 * 4096));
    let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY).units(4096);
    let sim = Sim::new(options.clock(Clock::Virtual(slow.clock.clone())));
    let other = file_over(&sim).buffered(&slow.cache);
    assert_eq!(slow.reactor.block_on(other.write_at(pattern(2, 100), 0)).0, Ok(100));
    drop(other);
    slow.wait(Duration::from_secs(1));
    assert_eq!(slow.dirty(), 12);
    assert_eq!(slow.get(&file_over(&sim), 0, 100), pattern(2, 100)[..]);
}

#[test]
fn dropbehind_folios_leave_after_the_read_or_write_back() {
    let slow = Slow::new(SIZE);
    let block_on = |advice| slow.reactor.block_on(slow.file.advise(advice, 0, 0)).unwrap();
    let used = || slow.cache.statistics().used_bytes / FOLIO;
    let only = |range: Range<u64>| Vec::from_iter(std::iter::once(range));
    let normal = slow.direct.buffered(&slow.cache);
    assert_eq!(slow.get(&normal, 8 * FOLIO, 1), [0]);
    block_on(Advice::DontCache);
    for block in 0..64 {
        assert_eq!(slow.get(&slow.file, block * FOLIO, 4096), [0; 4096]);
    }
    // Folios read ahead stay until they are read, and folios cached before stay.
    let rest = slow.get(&slow.file, 64 * FOLIO, SIZE as usize - 64 * 4096);
    assert_eq!((rest.len() as u64, used()), (SIZE - 64 * FOLIO, 1));
    assert_eq!(slow.file.cached(0..SIZE), only(8 * FOLIO..9 * FOLIO));
    // A folio read in part stays until its end has been read.
    slow.get(&slow.file, 0, 100);
    assert_eq!(slow.file.cached(0..FOLIO), only(0..FOLIO));
    slow.get(&slow.file, 100, 3996);
    assert_eq!(slow.file.cached(0..FOLIO), []);

    assert_eq!(slow.put(16 * FOLIO, 7, 16 * 4096), Ok(16 * 4096));
    assert_eq!(slow.dirty(), 16);
    // Without a sync.
    slow.wait(3 * LATENCY);
    assert_eq!((slow.dirty(), slow.on_device(31 * FOLIO)), (0, 7));
    assert_eq!(slow.file.cached(16 * FOLIO..32 * FOLIO), []);
    // Folios used by another handle stay.
    assert_eq!(slow.put(16 * FOLIO, 8, 2 * 4096), Ok(2 * 4096));
    assert_eq!(slow.get(&normal, 17 * FOLIO, 1), [8]);
    slow.wait(3 * LATENCY);
    assert_eq!(slow.file.cached(16 * FOLIO..32 * FOLIO), only(17 * FOLIO..18 * FOLIO));
    block_on(Advice::Normal);
    slow.get(&slow.file, 0, 4096);
    assert_eq!(slow.file.cached(0..FOLIO), only(0..FOLIO));
}
