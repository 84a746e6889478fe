//! Lookups, fills, waits, snapshots, writes and invalidation, through the public interface.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use uringfs_cache::{
    Cache, CacheFull, FOLIO, FileFolios, Fill, FolioWait, FolioWaitResult, LockForWrite, Lookup,
    SnapshotError, WRITER,
};
use uringfs_errno::Errno;

fn fill_with(file: &FileFolios, index: u64, byte: u8) {
    for mut fill in file.begin_fill(index..index + 1, 0).unwrap() {
        fill.bytes().fill(byte);
        fill.end(Ok(()));
    }
}

fn byte(file: &FileFolios, index: u64) -> Option<u8> {
    match file.lookup(index) {
        Lookup::Found(folio) => Some(folio[0]),
        Lookup::Locked { .. } | Lookup::Absent => None,
    }
}

fn begin_fill(file: &FileFolios, index: u64) -> Fill {
    let mut fills = file.begin_fill(index..index + 1, 77).unwrap();
    assert_eq!(fills.len(), 1);
    assert!(matches!(file.lookup(index), Lookup::Locked { holder: 77, .. }));
    fills.remove(0)
}

/// Whether the waker was called.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn poll(wait: std::pin::Pin<&mut FolioWait>) -> Poll<FolioWaitResult> {
    wait.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn one_folio_is_locked_to_be_filled_once() {
    let cache = Cache::new(2 * FOLIO);
    let file = cache.file_folios(0);
    let mut fill = file.begin_fill_one(5, 77).unwrap().unwrap();
    assert!(matches!(file.lookup(5), Lookup::Locked { holder: 77, is_marked: false }));
    assert!(file.lookup_lockless(5).is_none(), "it is locked");
    assert!(file.begin_fill_one(5, 78).unwrap().is_none(), "it is there");
    fill.bytes()[0] = 3;
    fill.end(Ok(()));
    assert_eq!(file.lookup_lockless(5).map(|folio| folio[0]), Some(3));
    assert!(file.lookup_lockless(6).is_none() && file.begin_fill_one(5, 78).unwrap().is_none());
    // Two more evict it. One takes over its frame, with flags of its own.
    let (other, third) = (file.begin_fill_one(6, 1).unwrap(), file.begin_fill_one(7, 2).unwrap());
    assert!(matches!(file.lookup(7), Lookup::Locked { holder: 2, is_marked: false }));
    assert!(file.lookup_lockless(5).is_none());
    assert!(matches!(file.begin_fill_one(8, 3), Err(CacheFull)));
    [other, third].into_iter().flatten().for_each(|fill| fill.end(Ok(())));
    let statistics = cache.statistics();
    assert_eq!((statistics.filled, statistics.evicted), (3, 1));
}

#[test]
fn a_fill_of_a_folio_that_is_there_evicts_nothing() {
    let cache = Cache::new(2 * FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 1, 1);
    let fill = file.begin_fill_one(2, 0).unwrap().unwrap();
    assert!(file.begin_fill_one(2, 0).unwrap().is_none(), "it is being filled");
    assert!(file.begin_fill_one(1, 0).unwrap().is_none(), "it is cached");
    fill.end(Ok(()));
    assert_eq!((byte(&file, 1), cache.statistics().evicted), (Some(1), 0));
}

#[test]
fn files_have_folios_of_their_own() {
    let cache = Cache::new(64 * FOLIO);
    let (one, other) = (cache.file_folios(0), cache.file_folios(0));
    fill_with(&one, 5, 1);
    fill_with(&other, 5, 2);
    assert_eq!((byte(&one, 5), byte(&other, 5), byte(&one, 6)), (Some(1), Some(2), None));
    assert_eq!(cache.statistics().used_bytes, 2 * FOLIO);
    drop(one);
    assert_eq!(cache.statistics().used_bytes, FOLIO);
    assert_eq!(byte(&other, 5), Some(2));
}

#[test]
fn a_fill_ends_before_the_first_cached_folio() {
    let cache = Cache::new(64 * FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 3, 3);
    let mut fills = file.begin_fill(0..8, 0).unwrap();
    assert_eq!((fills.len(), fills[0].range()), (1, 0..3 * FOLIO));
    let mut first = fills.remove(0);
    let mut buffer = first.lend();
    buffer.fill(9);
    first.take_back(buffer);
    let rest = first.split_off(FOLIO);
    first.end(Ok(()));
    assert!(matches!(file.lookup(1), Lookup::Locked { .. }));
    assert_eq!(file.cached(0..8 * FOLIO), [0..FOLIO, 3 * FOLIO..4 * FOLIO]);
    rest.end(Ok(()));
    assert_eq!(byte(&file, 2), Some(9));
    assert!(file.begin_fill(2..3, 0).unwrap().is_empty());
    assert_eq!(file.cached(100..8192).first(), Some(&(100..8192)));
}

#[test]
fn waiters_receive_the_result_of_the_fill() {
    let cache = Cache::new(64 * FOLIO);
    let file = cache.file_folios(0);
    let mut fill = begin_fill(&file, 1);
    let (mut first, mut second) = (pin!(file.wait(1)), pin!(file.wait(1)));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    fill.bytes().fill(7);
    fill.end(Ok(()));
    for wait in [first, second] {
        let Poll::Ready(FolioWaitResult::Ready(folio)) = poll(wait) else {
            panic!("the folio is filled")
        };
        assert_eq!(folio[0], 7);
    }
    assert!(
        matches!(poll(pin!(file.wait(1))), Poll::Ready(FolioWaitResult::LookAgain)),
        "the folio is not locked"
    );
    for (index, error) in [(2, Some(Errno::NODATA)), (3, None)] {
        let fill = begin_fill(&file, index);
        let mut wait = pin!(file.wait(index));
        assert!(poll(wait.as_mut()).is_pending());
        match error {
            Some(error) => fill.end(Err(error)),
            None => drop(fill),
        }
        let Poll::Ready(FolioWaitResult::Failed(failure)) = poll(wait) else {
            panic!("the fill failed")
        };
        assert_eq!(failure, error.unwrap_or(Errno::IO));
        assert!(matches!(file.lookup(index), Lookup::Absent), "the next reader tries again");
    }
    assert_eq!(cache.statistics().used_bytes, FOLIO);
}

#[test]
fn a_dropped_wait_releases_its_snapshot() {
    let cache = Cache::new(8 * FOLIO);
    let file = cache.file_folios(0);
    for is_dropped_before in [true, false] {
        let fill = begin_fill(&file, 0);
        let mut wait = Box::pin(file.wait(0));
        assert!(poll(wait.as_mut()).is_pending());
        let wait = (!is_dropped_before).then_some(wait);
        fill.end(Ok(()));
        file.invalidate(0..1);
        let kept = if wait.is_some() { FOLIO } else { 0 };
        assert_eq!(cache.statistics().used_bytes, kept);
        drop(wait);
        assert_eq!(cache.statistics().used_bytes, 0);
    }
}

#[test]
fn a_fill_that_was_invalidated_is_dropped() {
    let cache = Cache::new(64 * FOLIO);
    let file = cache.file_folios(0);
    let mut fill = begin_fill(&file, 1);
    let mut wait = pin!(file.wait(1));
    assert!(poll(wait.as_mut()).is_pending());
    file.invalidate(0..2);
    assert!(matches!(file.lookup(1), Lookup::Locked { .. }), "invalidation does not wait");
    fill.bytes().fill(1);
    fill.end(Ok(()));
    assert!(matches!(poll(wait), Poll::Ready(FolioWaitResult::LookAgain)));
    assert!(matches!(file.lookup(1), Lookup::Absent));
    assert_eq!(cache.statistics().used_bytes, 0);
}

#[test]
fn a_snapshot_keeps_its_bytes_and_counts_until_dropped() {
    let cache = Cache::new(2 * FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 1, 1);
    let folio = file.snapshot(1).unwrap();
    file.invalidate(0..u64::MAX);
    assert!(matches!(file.lookup(1), Lookup::Absent));
    fill_with(&file, 1, 2);
    assert_eq!((folio[0], byte(&file, 1)), (1, Some(2)));
    assert_eq!(cache.statistics().used_bytes, 2 * FOLIO);
    fill_with(&file, 3, 3);
    assert_eq!(byte(&file, 1), None, "evicted for the third; the snapshot cannot be");
    assert_eq!(file.snapshot(3).err(), Some(SnapshotError::TooMany), "snapshots keep half of all");
    assert_eq!(file.snapshot(1).err(), Some(SnapshotError::Absent));
    drop(folio);
    let second = file.snapshot(3).unwrap();
    assert!(matches!(file.begin_fill(4..6, 0), Ok(fills) if fills.len() == 1), "one frame is left");
    fill_with(&file, 4, 4);
    assert_eq!((second[0], byte(&file, 4)), (3, Some(4)));
}

#[test]
fn a_full_cache_refuses_a_fill() {
    let cache = Cache::new(FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 1, 1);
    let folio = file.snapshot(1).unwrap();
    assert!(matches!(file.begin_fill(4..5, 0), Err(CacheFull)));
    drop(folio);
    fill_with(&file, 4, 4);
    assert_eq!(byte(&file, 4), Some(4));
}

#[test]
fn the_bound_holds_and_shrink_returns_memory() {
    let cache = Cache::new(1000 * FOLIO);
    let file = cache.file_folios(0);
    assert_eq!(cache.statistics().mapped_bytes, 0);
    for index in 0..5000 {
        fill_with(&file, index, index as u8);
        assert!(cache.statistics().used_bytes <= 1000 * FOLIO);
    }
    let statistics = cache.statistics();
    assert_eq!((statistics.filled, statistics.evicted), (5000, 4000));
    assert_eq!(statistics.mapped_bytes, 1000 * FOLIO);
    let cached = (0..5000).filter(|index| byte(&file, *index).is_some()).count();
    assert_eq!(cached, 1000);
    assert_eq!(cache.shrink(0), 1000 * FOLIO);
    assert_eq!((cache.statistics().mapped_bytes, byte(&file, 4999)), (0, None));
    fill_with(&file, 1, 1);
    assert_eq!(byte(&file, 1), Some(1));
}

#[test]
fn ten_thousand_waiters_share_one_fill() {
    let cache = Cache::new(64 * FOLIO);
    let file = cache.file_folios(0);
    let mut fill = begin_fill(&file, 0);
    let mut waits: Vec<_> = (0..10_000).map(|_| Box::pin(file.wait(0))).collect();
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    drop(waits.split_off(5000));
    fill.bytes().fill(5);
    fill.end(Ok(()));
    let snapshot_of = |wait: &mut std::pin::Pin<Box<FolioWait>>| match poll(wait.as_mut()) {
        Poll::Ready(FolioWaitResult::Ready(folio)) => folio,
        _ => panic!("each waiter receives a snapshot"),
    };
    let snapshots: Vec<_> = waits.iter_mut().map(snapshot_of).collect();
    assert!(snapshots.iter().all(|folio| folio[0] == 5));
    file.invalidate(0..1);
    assert_eq!(cache.statistics().used_bytes, FOLIO);
    drop(snapshots);
    assert_eq!(cache.statistics().used_bytes, 0, "dropped waits hold nothing");
}

/// Each word of a folio holds the folio's number and version. So the test detects torn folios, wrong folios, and
/// versions that had been invalidated before the look-up began.
#[test]
fn threads_find_whole_and_current_folios() {
    const FOLIOS: u64 = 100;
    const ROUNDS: u64 = 20_000;
    let cache = Cache::new(64 * FOLIO);
    let files = [cache.file_folios(0), cache.file_folios(0)];
    let versions: Vec<AtomicU64> = (0..2 * FOLIOS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let work = |seed: u64| {
        let (mut state, mut found) = (seed, 0_u64);
        let mut kept = Vec::new();
        for round in 0.. {
            if round >= ROUNDS && is_over.load(Ordering::Relaxed) {
                break;
            }
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let name = (state >> 33) % (2 * FOLIOS);
            let (file, index) = (&files[(name / FOLIOS) as usize], name % FOLIOS);
            if seed == 1 && state >> 60 == 0 {
                versions[name as usize].fetch_add(1, Ordering::SeqCst);
                file.invalidate(index..index + 1);
            }
            let min_version = versions[name as usize].load(Ordering::SeqCst);
            let check = |bytes: &[u8]| {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(word(0) & 0xFFFF, name, "wrong folio");
                // During an invalidation either version may be found.
                assert!(
                    word(0) >> 16 >= min_version.saturating_sub(u64::from(seed != 1)),
                    "invalidated version"
                );
                assert!((0..512).all(|at| word(8 * at) == word(0)), "torn");
            };
            match file.lookup(index) {
                Lookup::Found(folio) => {
                    check(&folio);
                    found += 1;
                    if state >> 59 == 1 {
                        kept.extend(file.snapshot(index).map(|folio| (folio, name)));
                    }
                }
                Lookup::Absent => {
                    for mut fill in file.begin_fill(index..index + 1, 0).into_iter().flatten() {
                        let version = versions[name as usize].load(Ordering::SeqCst);
                        let word = (version << 16 | name).to_le_bytes();
                        fill.bytes().chunks_exact_mut(8).for_each(|at| at.copy_from_slice(&word));
                        fill.end(Ok(()));
                    }
                }
                Lookup::Locked { .. } => drop(file.wait(index)),
            }
            if kept.len() > 8 {
                for (folio, name) in kept.drain(..) {
                    assert_eq!(
                        u64::from(folio[0]) | u64::from(folio[1]) << 8,
                        name,
                        "the snapshot changed"
                    );
                }
            }
        }
        found
    };
    std::thread::scope(|scope| {
        let work = &work;
        let others = [2, 3].map(|seed| scope.spawn(move || work(seed)));
        is_over.store(true, Ordering::Relaxed);
        assert!(work(1) > ROUNDS / 10);
        others.into_iter().for_each(|other| assert!(other.join().unwrap() > ROUNDS / 10));
    });
    drop(files);
    assert_eq!(cache.statistics().used_bytes, 0);
}

fn change_to(file: &FileFolios, index: u64, byte: u8) {
    let Ok(LockForWrite::Acquired(mut fill)) = file.lock_for_write(index) else {
        panic!("the folio is cached")
    };
    fill.bytes().fill(byte);
    fill.end_dirty();
}

#[test]
fn dirty_folios_stay_until_written_back() {
    let cache = Cache::new(8 * FOLIO);
    let file = cache.file_folios(0);
    assert!(matches!(file.lock_for_write(0), Ok(LockForWrite::Absent)));
    for index in 0..2 {
        fill_with(&file, index, 1);
        change_to(&file, index, 2);
        change_to(&file, index, 3);
    }
    assert_eq!(cache.statistics().dirty_bytes, 2 * FOLIO);
    (10..100).for_each(|index| fill_with(&file, index, 9));
    file.invalidate_clean(0..u64::MAX);
    assert_eq!((byte(&file, 0), byte(&file, 1), byte(&file, 99)), (Some(3), Some(3), None));
    file.mark_clean(0);
    assert_eq!(cache.statistics().dirty_bytes, FOLIO);
    (10..100).for_each(|index| fill_with(&file, index, 9));
    assert_eq!((byte(&file, 0), byte(&file, 1)), (None, Some(3)));
    file.invalidate(0..2);
    assert_eq!((cache.statistics().dirty_bytes, byte(&file, 1)), (0, None));
}

#[test]
fn a_write_to_a_shared_folio_goes_to_a_copy() {
    let cache = Cache::new(4 * FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 0, 1);
    let before = file.snapshot(0).unwrap();
    change_to(&file, 0, 2);
    let between = file.snapshot(0).unwrap();
    let Ok(LockForWrite::Acquired(mut fill)) = file.lock_for_write(0) else {
        panic!("the folio is cached")
    };
    assert!(fill.bytes().iter().all(|byte| *byte == 2), "the copy begins with the old bytes");
    assert!(matches!(file.lookup(0), Lookup::Locked { holder: WRITER, .. }));
    assert!(matches!(file.lock_for_write(0), Ok(LockForWrite::Locked { holder: WRITER })));
    let mut wait = pin!(file.wait(0));
    assert!(poll(wait.as_mut()).is_pending());
    fill.bytes().fill(3);
    fill.end_dirty();
    let Poll::Ready(FolioWaitResult::Ready(after)) = poll(wait) else {
        panic!("the folio is filled")
    };
    assert_eq!([&before, &between, &after].map(|folio| folio[0]), [1, 2, 3]);
    assert_eq!(cache.statistics().dirty_bytes, FOLIO);
    // The snapshots and this fill use all frames, so there is none for another copy.
    let _fills = file.begin_fill(8..9, 0).unwrap();
    assert!(matches!(file.lock_for_write(0), Err(CacheFull)));
    drop((before, between, after));
    change_to(&file, 0, 4);
    assert_eq!((byte(&file, 0), cache.statistics().used_bytes), (Some(4), 2 * FOLIO));
}

#[test]
fn writers_wait_at_the_dirty_limit_and_flushers_wake() {
    let cache = Cache::new(16 * FOLIO);
    let file = cache.file_folios(0);
    let context = &mut Context::from_waker(Waker::noop());
    let mut many = pin!(file.writeback_due());
    for index in 0..4 {
        assert!(pin!(file.wait_below_dirty_limit()).poll(context).is_ready());
        assert_eq!(many.as_mut().poll(context).is_ready(), index >= 2, "{index}");
        fill_with(&file, index, 1);
        change_to(&file, index, 2);
    }
    let mut may = pin!(file.wait_below_dirty_limit());
    assert!(may.as_mut().poll(context).is_pending());
    file.mark_clean(3);
    assert!(may.poll(context).is_ready());
    let mut fewer = pin!(file.wait_one_cleaned().unwrap());
    assert!(fewer.as_mut().poll(context).is_pending());
    file.invalidate(0..1);
    assert!(fewer.poll(context).is_ready());
    file.invalidate(0..3);
    assert!(file.wait_one_cleaned().is_none());
}

#[test]
fn a_dropped_dirty_limit_wait_is_removed() {
    let cache = Cache::new(64 * FOLIO);
    let file = cache.file_folios(0);
    fill_with(&file, 0, 1);
    change_to(&file, 0, 2);
    let flags = [(); 3].map(|()| Arc::new(Flag::default()));
    let wakers = flags.each_ref().map(|flag| Waker::from(flag.clone()));
    let poll = |mut wait: std::pin::Pin<&mut dyn Future<Output = ()>>, waker: &Waker| {
        wait.as_mut().poll(&mut Context::from_waker(waker))
    };
    let mut many = Box::pin(file.writeback_due());
    let (mut fewer, mut stays) =
        (Box::pin(file.wait_one_cleaned().unwrap()), Box::pin(file.wait_one_cleaned().unwrap()));
    assert!(poll(fewer.as_mut(), &wakers[0]).is_pending());
    assert!(poll(many.as_mut(), Waker::noop()).is_ready(), "a writer waits");
    drop(fewer);
    assert!(poll(many.as_mut(), &wakers[0]).is_pending(), "no writer waits");
    drop(many);
    // After two polls, only the last waker is called.
    assert!(poll(stays.as_mut(), &wakers[1]).is_pending());
    assert!(poll(stays.as_mut(), &wakers[2]).is_pending());
    file.mark_clean(0);
    let is_woken = flags.each_ref().map(|flag| flag.0.load(Ordering::SeqCst));
    assert_eq!(is_woken, [false, false, true]);
    drop((wakers, stays));
    assert_eq!(flags.each_ref().map(Arc::strong_count), [1; 3], "wakers are left");
}

#[test]
fn a_stuck_device_leaves_room_for_other_devices() {
    let cache = Cache::new(256 * FOLIO);
    let files = [0, 1, 2].map(|device| cache.file_folios(device));
    let dirty = files.each_ref().map(|file| {
        let mut count = 0;
        while !file.is_at_dirty_limit() {
            fill_with(file, count, 1);
            change_to(file, count, 2);
            count += 1;
        }
        count
    });
    // The first device takes a quarter of all folios. All devices together may take half of them, and each further
    // device takes half of what is left of that.
    assert_eq!(dirty, [64, 32, 16]);
    let context = &mut Context::from_waker(Waker::noop());
    let mut room = files.each_ref().map(|file| Box::pin(file.wait_below_dirty_limit()));
    assert!(room.iter_mut().all(|room| room.as_mut().poll(context).is_pending()));
    files[2].mark_clean(0);
    let ready = room.each_mut().map(|room| room.as_mut().poll(context).is_ready());
    assert_eq!(ready, [false, false, true], "devices with more than is left wait");
    (0..64).for_each(|index| files[0].mark_clean(index));
    assert!(room[0].as_mut().poll(context).is_ready() && room[1].as_mut().poll(context).is_ready());
}

#[test]
fn a_failed_write_back_wakes_waiting_writers() {
    let cache = Cache::new(8 * FOLIO);
    let (failing, other) = (cache.file_folios(0), cache.file_folios(1));
    for file in [&failing, &other] {
        let mut index = 0;
        while !file.is_at_dirty_limit() {
            fill_with(file, index, 1);
            change_to(file, index, 2);
            index += 1;
        }
    }
    let wakers = [&failing, &other].map(|_| Arc::new(Flag::default()));
    let mut room = [&failing, &other].map(|file| Box::pin(file.wait_below_dirty_limit()));
    for (room, woken) in room.iter_mut().zip(&wakers) {
        let waker = Waker::from(woken.clone());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    failing.report_writeback_failure();
    assert_eq!((failing.writeback_failures(), other.writeback_failures()), (1, 0));
    assert_eq!(wakers.each_ref().map(|woken| woken.0.load(Ordering::SeqCst)), [true, false]);
    // A wait that begins now does not end by the earlier failure.
    let context = &mut Context::from_waker(Waker::noop());
    assert!(pin!(failing.wait_below_dirty_limit()).poll(context).is_pending());
}
