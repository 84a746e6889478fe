//! All interleavings of lookups, fills, waits, invalidations and evictions. Loom detects conflicting accesses to a
//! frame's bytes (see `uringfs_buffer::Slab`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::{
    Cache, FOLIO, FileFolios, Fill, FolioWait, FolioWaitResult, LockForWrite, Lookup, WRITER,
};

/// Whether the waker was called.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn cache(folios: u64) -> (Cache, Arc<FileFolios>) {
    let cache = Cache::new(folios * FOLIO);
    let file = Arc::new(cache.file_folios(0));
    (cache, file)
}

fn fill(file: &FileFolios, index: u64) -> Option<Fill> {
    file.begin_fill(index..index + 1, 0).ok()?.pop()
}

fn put(mut fill: Fill, byte: u8) {
    fill.bytes()[0] = byte;
    fill.end(Ok(()));
}

fn byte(file: &FileFolios, index: u64) -> Option<u8> {
    match file.lookup(index) {
        Lookup::Found(folio) => Some(folio[0]),
        Lookup::Locked { .. } | Lookup::Absent => None,
    }
}

/// Polls a wait once: the result if there is one, or the pending wait and its waker's flag.
fn wait(
    file: &FileFolios,
    index: u64,
) -> Result<FolioWaitResult, (Pin<Box<FolioWait>>, Arc<Flag>)> {
    let (mut wait, flag) = (Box::pin(file.wait(index)), Arc::new(Flag::default()));
    match wait.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))) {
        Poll::Ready(result) => Ok(result),
        Poll::Pending => Err((wait, flag)),
    }
}

/// The result of a wait. If the wait was pending, its waker must have been called.
fn result_of(
    waiting: Result<FolioWaitResult, (Pin<Box<FolioWait>>, Arc<Flag>)>,
) -> FolioWaitResult {
    match waiting {
        Ok(result) => result,
        Err((mut wait, flag)) => {
            assert!(flag.0.load(Ordering::SeqCst), "no wake");
            match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => result,
                Poll::Pending => panic!("woken without a result"),
            }
        }
    }
}

#[test]
fn loom_a_waiter_receives_the_result_of_a_concurrent_fill() {
    loom::model(|| {
        let (_cache, file) = cache(2);
        let filling = fill(&file, 0).unwrap();
        let other_file = file.clone();
        let reader = loom::thread::spawn(move || (byte(&other_file, 0), wait(&other_file, 0)));
        put(filling, 7);
        let (found, waiting) = reader.join().unwrap();
        assert!(found.is_none_or(|byte| byte == 7));
        match result_of(waiting) {
            FolioWaitResult::Ready(folio) => assert_eq!(folio[0], 7),
            FolioWaitResult::LookAgain => assert_eq!(byte(&file, 0), Some(7)),
            FolioWaitResult::Failed(error) => panic!("{error}"),
        }
    });
}

/// A wait is dropped while the fill ends. If it has received a snapshot, the drop releases it.
#[test]
fn loom_a_dropped_wait_keeps_no_frame() {
    loom::model(|| {
        let (cache, file) = cache(2);
        let filling = fill(&file, 0).unwrap();
        let waiting = wait(&file, 0);
        let filler = loom::thread::spawn(move || put(filling, 7));
        drop(waiting);
        file.invalidate(0..1);
        filler.join().unwrap();
        assert_eq!(cache.statistics().used_bytes, 0);
    });
}

#[test]
fn loom_one_of_two_misses_fills_the_folio() {
    loom::model(|| {
        let (cache, file) = cache(2);
        let miss = |file: &FileFolios| fill(file, 0).map(|fill| put(fill, 3)).is_some();
        let other_file = file.clone();
        let other = loom::thread::spawn(move || miss(&other_file));
        let is_filled_here = miss(&file);
        let is_filled_there = other.join().unwrap();
        assert!(is_filled_here != is_filled_there, "exactly one fills it");
        assert_eq!(byte(&file, 0), Some(3));
        assert_eq!(cache.statistics().used_bytes, FOLIO);
    });
}

/// An invalidation runs beside a fill. Once it has returned, the filled bytes are not found.
#[test]
fn loom_invalidated_bytes_are_not_found() {
    loom::model(|| {
        let (cache, file) = cache(2);
        let filling = fill(&file, 0).unwrap();
        let other_file = file.clone();
        let filler = loom::thread::spawn(move || {
            put(filling, 1);
            byte(&other_file, 0)
        });
        file.invalidate(0..1);
        assert_eq!(byte(&file, 0), None);
        filler.join().unwrap();
        assert!(matches!(file.lookup(0), Lookup::Absent));
        assert_eq!(cache.statistics().used_bytes, 0);
    });
}

/// A frame moves to another folio during a lookup of the first. The lookup finds the first folio, or nothing.
#[test]
fn loom_a_lookup_finds_no_other_folio_in_an_evicted_frame() {
    let mut builder = loom::model::Builder::new();
    // Each further preemption takes about ten times as long here.
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(2));
    builder.check(|| {
        let (cache, file) = cache(1);
        put(fill(&file, 0).unwrap(), 1);
        let other_file = file.clone();
        let other =
            loom::thread::spawn(move || fill(&other_file, 1).map(|fill| put(fill, 2)).is_some());
        assert!(byte(&file, 0).is_none_or(|byte| byte == 1));
        let is_filled = other.join().unwrap();
        assert_eq!(byte(&file, 1), is_filled.then_some(2));
        assert_eq!(cache.statistics().used_bytes, FOLIO);
    });
}

/// A snapshot keeps its frame during an invalidation. The last share frees the frame, once.
#[test]
fn loom_the_last_reader_frees_the_frame_once() {
    loom::model(|| {
        let (cache, file) = cache(2);
        put(fill(&file, 0).unwrap(), 5);
        let other_file = file.clone();
        let reader = loom::thread::spawn(move || other_file.snapshot(0).ok().map(|folio| folio[0]));
        file.invalidate(0..1);
        assert!(reader.join().unwrap().is_none_or(|byte| byte == 5));
        assert_eq!(cache.statistics().used_bytes, 0);
        put(fill(&file, 0).unwrap(), 6);
        assert_eq!(byte(&file, 0), Some(6));
    });
}

fn change(file: &FileFolios, index: u64, byte: u8) -> bool {
    match file.lock_for_write(index) {
        Ok(LockForWrite::Acquired(mut fill)) => {
            fill.bytes()[0] = byte;
            fill.end_dirty();
            true
        }
        Ok(LockForWrite::Locked { .. } | LockForWrite::Absent) | Err(_) => false,
    }
}

/// A reader during a change finds the old bytes or the new ones. A reader after the change finds the new ones.
#[test]
fn loom_a_change_is_found_whole() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(3));
    builder.check(|| {
        let (cache, file) = cache(2);
        put(fill(&file, 0).unwrap(), 1);
        let other_file = file.clone();
        let reader = loom::thread::spawn(move || byte(&other_file, 0));
        assert!(change(&file, 0, 2), "it is not locked, and there is room for a copy");
        assert_eq!(byte(&file, 0), Some(2));
        assert!(reader.join().unwrap().is_none_or(|byte| [1, 2].contains(&byte)));
        let statistics = cache.statistics();
        assert_eq!((statistics.used_bytes, statistics.dirty_bytes), (FOLIO, FOLIO));
    });
}

/// A lookup during a change reports a writer as the holder, so the reader waits for it: the device may have older
/// bytes.
#[test]
fn loom_a_lookup_during_a_change_reports_the_writer() {
    loom::model(|| {
        let (_cache, file) = cache(2);
        let reader_number = 7;
        put(file.begin_fill(0..1, reader_number).unwrap().pop().unwrap(), 1);
        assert!(change(&file, 0, 2));
        let other_file = file.clone();
        let writer = loom::thread::spawn(move || change(&other_file, 0, 3));
        match file.lookup(0) {
            Lookup::Found(folio) => assert!([2, 3].contains(&folio[0])),
            Lookup::Locked { holder, .. } => assert_eq!(holder, WRITER),
            Lookup::Absent => panic!("the folio is cached"),
        }
        writer.join().unwrap();
    });
}

/// A dirty folio stays until it is written back, even when another folio needs its frame.
#[test]
fn loom_a_dirty_folio_is_not_evicted() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(1));
    builder.check(|| {
        let (cache, file) = cache(1);
        put(fill(&file, 0).unwrap(), 1);
        let other_file = file.clone();
        let other =
            loom::thread::spawn(move || fill(&other_file, 1).map(|fill| put(fill, 2)).is_some());
        let is_changed = change(&file, 0, 3);
        let is_filled = other.join().unwrap();
        assert_eq!(cache.statistics().dirty_bytes, if is_changed { FOLIO } else { 0 });
        if is_changed {
            assert!(!is_filled && byte(&file, 0) == Some(3));
            file.mark_clean(0);
            assert_eq!(cache.statistics().dirty_bytes, 0);
        }
    });
}

/// A folio is invalidated while another one takes over its frame. The other one is not concerned.
#[test]
fn loom_the_invalidation_of_an_evicted_folio_spares_the_next_in_its_frame() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(2));
    builder.check(|| {
        let (cache, evicted) = cache(1);
        let file = cache.file_folios(0);
        put(fill(&evicted, 0).unwrap(), 1);
        let other = loom::thread::spawn(move || evicted.invalidate(0..1));
        let written = fill(&file, 0).map(|mut fill| {
            fill.bytes()[0] = 2;
            fill.end_dirty();
        });
        other.join().unwrap();
        let dirty = if written.is_some() { FOLIO } else { 0 };
        assert_eq!(byte(&file, 0), written.map(|()| 2));
        let statistics = cache.statistics();
        assert_eq!((statistics.used_bytes, statistics.dirty_bytes), (dirty, dirty));
    });
}

/// A writer that waits at the dirty limit is woken when a folio becomes clean.
#[test]
fn loom_a_writer_at_the_dirty_limit_is_woken() {
    loom::model(|| {
        let (_cache, file) = cache(2);
        put(fill(&file, 0).unwrap(), 1);
        assert!(change(&file, 0, 2));
        let other_file = file.clone();
        let flusher = loom::thread::spawn(move || other_file.mark_clean(0));
        let (mut room, flag) = (Box::pin(file.wait_below_dirty_limit()), Arc::new(Flag::default()));
        let waker = Waker::from(flag.clone());
        let has_room = room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        flusher.join().unwrap();
        assert!(has_room || flag.0.load(Ordering::SeqCst), "no wake");
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    });
}
