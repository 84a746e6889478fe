//! Buffered writes concurrent with a truncation, a sync or a read, and reads with a hole: each comes before or after the
//! other, and none is seen in part.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Clock, Device, Errno, Op, VirtualClock};
use uringfs_file::{Advice, FallocateSize, File, FileOptions, Map};
use uringfs_reactor::Reactor;

use crate::harness::block_map::{BLOCK, BlockMap, Layout};
use crate::harness::{join_all, reactor_by};

const LATENCY: Duration = Duration::from_millis(10);

/// Files on a device whose every request takes 10 ms of virtual time.
struct Made {
    sim: Sim,
    blocks: BlockMap,
    direct: File,
    file: File,
    cache: Cache,
    reactor: Reactor,
    clock: VirtualClock,
}

type Task<'m> = Pin<Box<dyn Future<Output = Vec<u8>> + 'm>>;

impl Made {
    fn new() -> Made {
        let clock = VirtualClock::default();
        let options = SimOptions::new(1 << 20).latency(LATENCY..=LATENCY).units(4096);
        let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
        let (blocks, cache) = (BlockMap::new(Layout::Identity), Cache::new(1 << 20));
        let (device, options) = (Device::new(sim.clone()).unwrap(), FileOptions::default());
        let direct = File::with_resizable_map(device, blocks.clone(), Arc::default(), options);
        let file = direct.buffered(&cache);
        Made { sim, blocks, direct, file, cache, reactor: reactor_by(&clock), clock }
    }

    /// Writes; the result is empty.
    fn write<'m>(&'m self, file: &'m File, byte: u8, length: usize, offset: u64) -> Task<'m> {
        Box::pin(async move {
            let write = file.write_at(Buffer::copy_of(&vec![byte; length]), offset);
            assert_eq!(write.await.0, Ok(length));
            Vec::new()
        })
    }

    /// Reads the whole file.
    fn read(&self) -> Task<'_> {
        self.read_at(0)
    }

    fn read_at(&self, offset: u64) -> Task<'_> {
        Box::pin(async move {
            let (read, found) = self.file.read_at(Buffer::zeroed(30_000), offset).await;
            found[..read.unwrap()].to_vec()
        })
    }

    fn dirty(&self) -> u64 {
        self.cache.statistics().dirty_bytes / FOLIO
    }
}

/// The moment of a truncation during a write of two folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The write waits for its lock.
    Locked,
    /// The write has done this many folios and waits for the next.
    Folio(u64),
}

#[test]
fn a_write_during_a_truncation_is_whole_or_absent() {
    for moment in [Moment::Locked, Moment::Folio(0), Moment::Folio(1)] {
        for is_read in [false, true] {
            let made = Made::new();
            made.reactor.block_on(made.write(&made.direct, 1, 3 * BLOCK as usize, 0));
            made.reactor.block_on(made.file.advise(Advice::Random, 0, 0)).unwrap();
            // From now on all writers take range locks.
            made.reactor.block_on(made.read_at(2 * BLOCK));
            let mut tasks = Vec::new();
            if moment == Moment::Locked {
                tasks.push(made.write(&made.direct, 3, BLOCK as usize, 0));
            }
            tasks.push(made.write(&made.file, 2, 5000, 100));
            tasks.push(Box::pin(async {
                while matches!(moment, Moment::Folio(folio) if made.dirty() < folio) {
                    made.reactor.sleep(LATENCY / 10).await;
                }
                made.blocks.truncate();
                // Later calls notice the truncation.
                if is_read { made.read().await } else { Vec::new() }
            }));
            made.reactor.block_on(join_all(tasks));
            let whole = [vec![0; 100], vec![2; 5000]].concat();
            let is_right = |found: &Vec<u8>| found.is_empty() || *found == whole;
            let found = made.reactor.block_on(made.read());
            assert!(is_right(&found), "{moment:?}, {is_read}: {} bytes", found.len());
            assert_eq!(made.reactor.block_on(made.file.sync_all()), Ok(()));
            assert_eq!(made.direct.len(), found.len() as u64);
            assert_eq!(made.reactor.block_on(made.read()), found);
        }
    }
}

/// A write begins before a truncation, and gets its lock later than a write that begins after the truncation.
#[test]
fn a_late_write_from_before_a_truncation_keeps_newer_writes() {
    let made = Made::new();
    made.reactor.block_on(made.write(&made.direct, 1, 2 * BLOCK as usize, 0));
    // From now on all writers take range locks.
    made.reactor.block_on(made.read());
    let tasks = vec![
        made.write(&made.direct, 1, BLOCK as usize, 2 * BLOCK),
        // Locks the bytes from the file's end on. The end has moved when it gets the lock.
        made.write(&made.file, 2, 100, 20_000),
        Box::pin(async {
            made.blocks.truncate();
            made.write(&made.file, 3, 100, 20_100).await
        }),
    ];
    made.reactor.block_on(join_all(tasks));
    let found = made.reactor.block_on(made.read_at(20_000));
    assert!(found[100..] == [3; 100], "{found:?}");
    assert!(found[..100] == [2; 100] || found[..100] == [0; 100], "{found:?}");
    assert_eq!(made.reactor.block_on(made.file.sync_all()), Ok(()));
    assert_eq!(made.direct.len(), 20_200);
}

/// Another thread punches a hole while a read that misses looks its address up: before it locks the folio, or after.
#[test]
fn a_hole_punched_during_a_miss_leaves_no_old_bytes_in_the_cache() {
    for lookups in [0, 1] {
        let made = Made::new();
        made.reactor.block_on(made.write(&made.direct, 1, 3 * BLOCK as usize, 0));
        made.reactor.block_on(made.file.advise(Advice::Random, 0, 0)).unwrap();
        // From now on all writers take range locks.
        made.reactor.block_on(made.read_at(2 * BLOCK));
        let (direct, clock) = (made.direct.clone(), made.clock.clone());
        made.blocks.call_in_lookup(lookups, move || {
            let punch = move || reactor_by(&clock).block_on(direct.punch_hole(BLOCK, BLOCK));
            assert_eq!(std::thread::spawn(punch).join().unwrap(), Ok(()));
        });
        let read = || made.reactor.block_on(made.file.read_at(Buffer::zeroed(10), BLOCK));
        let (during, found) = read();
        assert!(
            during == Ok(10) && (found[..] == [0; 10] || found[..] == [1; 10]),
            "{:?}",
            &found[..]
        );
        assert!(!made.blocks.has_hook(), "the hole was punched in look-up {lookups}");
        let (after, found) = read();
        assert!(after == Ok(10) && found[..] == [0; 10], "{lookups}: {:?}", &found[..]);
    }
}

/// The writer wakes first and changes a copy: the readers have the old folio of a file that has grown.
#[test]
fn a_reader_never_sees_the_new_size_with_the_old_folio() {
    let made = Made::new();
    made.reactor.block_on(made.write(&made.direct, 1, 100, 0));
    let tasks = vec![made.write(&made.file, 2, 100, 100), made.read(), made.read()];
    let ended = made.reactor.block_on(join_all(tasks));
    let whole = [[1; 100], [2; 100]].concat();
    for found in &ended[1..] {
        assert!([100, 200].contains(&found.len()) && *found == whole[..found.len()], "{found:?}");
    }
    assert_eq!(made.reactor.block_on(made.read()), whole);
}

#[test]
fn during_a_truncation_the_size_is_the_old_or_the_new() {
    for (size, seen) in [(0, [20_010, 0]), (BLOCK, [20_010, BLOCK]), (20_100, [20_010, 20_100])] {
        let made = Made::new();
        made.reactor.block_on(made.write(&made.direct, 1, 100, 0));
        made.reactor.block_on(made.write(&made.file, 2, 10, 20_000));
        made.blocks.observe(&made.direct.direct());
        assert_eq!(made.reactor.block_on(made.file.set_len(size)), Ok(()));
        let sizes = made.blocks.sizes_seen();
        assert!(sizes.iter().all(|found| seen.contains(found)), "{sizes:?} for {size}");
        assert_eq!((made.file.len(), sizes.len()), (size, 2));
    }
}

#[test]
fn zeroing_and_discarding_reach_bytes_that_are_only_dirty() {
    for is_direct in [false, true] {
        for is_discard in [false, true] {
            let made = Made::new();
            made.reactor.block_on(made.write(&made.file, 1, 2 * BLOCK as usize, 0));
            assert_eq!(made.blocks.size(), 0);
            let file = if is_direct { &made.direct } else { &made.file };
            let change = match is_discard {
                true => file.discard(0, 2 * BLOCK),
                false => file.write_zeroes(0, 2 * BLOCK),
            };
            assert_eq!(made.reactor.block_on(change), Ok(()));
            let found = made.reactor.block_on(made.read());
            assert_eq!(found, [0; 2 * BLOCK as usize], "direct {is_direct}, discard {is_discard}");
        }
    }
}

/// Starts an operation, and leaves it in flight.
fn begin<F: Future + Unpin>(reactor: &Reactor, operation: &mut F) {
    let once = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *operation).poll(context)));
    assert!(reactor.block_on(once).is_pending());
}

/// A sync of the last folio waits for a truncation, after which the folio is written again. The reactor of the truncation
/// writes nothing back until the sync has ended, and then the power is cut.
#[test]
fn a_sync_that_waited_for_a_truncation_grows_the_file_in_order() {
    let made = Made::new();
    made.reactor.block_on(made.write(&made.direct, 1, 9 * BLOCK as usize, 0));
    for block in [0, 8] {
        made.reactor.block_on(made.write(&made.file, 2, BLOCK as usize, block * BLOCK));
    }
    let mut truncation = made.file.set_len(100);
    begin(&made.reactor, &mut truncation);
    // It holds its lock, and writes the first folio back.
    made.reactor.block_on(made.reactor.sleep(LATENCY / 2));
    let other = reactor_by(&made.clock);
    let mut sync = made.file.sync_range(8 * BLOCK, BLOCK);
    begin(&other, &mut sync);
    assert_eq!(made.reactor.block_on(truncation), Ok(()));
    made.reactor.block_on(made.write(&made.file, 3, BLOCK as usize, 8 * BLOCK));
    assert_eq!(made.dirty(), 2);
    assert_eq!(other.block_on(sync), Ok(()));
    assert_eq!(made.blocks.size(), 9 * BLOCK);
    let mut beyond_old_end = [9; BLOCK as usize - 100];
    made.sim.peek(100, &mut beyond_old_end);
    assert_eq!(beyond_old_end, [0; BLOCK as usize - 100]);
}

#[test]
fn the_file_on_disk_does_not_grow_past_a_block_that_cannot_be_written() {
    let made = Made::new();
    made.reactor.block_on(made.write(&made.direct, 1, 3 * BLOCK as usize, 0));
    assert_eq!(made.reactor.block_on(made.direct.set_len(2 * BLOCK + 100)), Ok(()));
    for block in [0, 5] {
        made.reactor.block_on(made.write(&made.file, 2, BLOCK as usize, block * BLOCK));
    }
    let fault = Rule::new(Op::Write, When::From(1), Fault::Error(Errno::IO));
    made.sim.inject(fault.within(2 * BLOCK, 3 * BLOCK));
    let sync = || made.reactor.block_on(made.file.sync_all());
    assert_eq!((sync(), made.blocks.size()), (Err(Errno::IO), 2 * BLOCK + 100));
    // The first block was written all the same.
    assert_eq!(made.dirty(), 2);
    made.sim.clear_faults();
    assert_eq!((sync(), made.blocks.size()), (Ok(()), 6 * BLOCK));
    const WHOLE: usize = BLOCK as usize;
    let (two, one, zeros) = ([2; WHOLE], [1; WHOLE + 100], [0; 3 * WHOLE - 100]);
    let whole = [&two[..], &one, &zeros, &two].concat();
    assert_eq!(made.reactor.block_on(made.read()), whole);
}

/// A thread that reads what is cached of a file's first 200 bytes, once the file is longer than 100.
struct CachedReader {
    thread: JoinHandle<Result<usize, Errno>>,
    begun: Receiver<std::path::PathBuf>,
}

impl CachedReader {
    fn new(file: File) -> CachedReader {
        let (begin, begun) = channel();
        let thread = std::thread::spawn(move || {
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            begin.send(std::path::Path::new("/proc").join(thread).join("stat")).unwrap();
            while file.len() == 100 {
                std::hint::spin_loop();
            }
            file.try_read_at(&mut [9; 200], 0)
        });
        CachedReader { thread, begun }
    }
}

/// Whether a thread sleeps.
fn is_asleep(stat: &std::path::Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// A folio that is being filled may have stale bytes beyond the end, so a reader that finds the new size has to wait until
/// the old folios are gone.
#[test]
fn a_reader_of_the_new_size_waits_for_the_change_of_the_size() {
    for is_set_len in [true, false] {
        let made = Made::new();
        made.reactor.block_on(made.write(&made.direct, 1, 100, 0));
        made.reactor.block_on(made.read());
        let CachedReader { thread, begun } = CachedReader::new(made.file.clone());
        let stat = begun.recv().unwrap();
        let (ended, has_ended) = channel();
        made.blocks.call_when_resized(move || {
            while !thread.is_finished() && !is_asleep(&stat) {
                std::thread::yield_now();
            }
            ended.send((thread.is_finished(), thread)).unwrap();
        });
        let change = match is_set_len {
            true => made.file.set_len(200),
            false => made.file.allocate(0, 200, FallocateSize::Extend),
        };
        assert_eq!(made.reactor.block_on(change), Ok(()));
        let (has_read, thread) = has_ended.recv().unwrap();
        assert!(!has_read, "it has read the old folio, set_len {is_set_len}");
        assert_eq!(thread.join().unwrap(), Err(Errno::AGAIN), "set_len {is_set_len}");
    }
}

/// The folio is written back while a search looks its block up: the search finds the block as it was before.
#[test]
fn a_search_finds_no_hole_where_bytes_are_written_back() {
    let made = Made::new();
    made.reactor.block_on(made.write(&made.file, 1, BLOCK as usize, 0));
    let (file, clock) = (made.file.clone(), made.clock.clone());
    made.blocks.call_in_lookup(0, move || {
        let sync = move || reactor_by(&clock).block_on(file.sync_all());
        assert_eq!(std::thread::spawn(sync).join().unwrap(), Ok(()));
    });
    assert_eq!((made.file.find_hole(0..BLOCK), made.file.seek_hole(0)), (None, Ok(BLOCK)));
    assert_eq!((made.blocks.has_hook(), made.dirty()), (false, 0));
}
