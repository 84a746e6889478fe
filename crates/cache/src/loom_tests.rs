//! Every interleaving of those who look, fill, wait, invalidate and evict. Loom sees who touches a frame's bytes
//! beside whom (see `uringfs_buffer::Slab`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::{Cache, FOLIO, Fill, Look, Pages, Taken, Told, WRITER, Wait};

/// Whether somebody was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn cache(folios: u64) -> (Cache, Arc<Pages>) {
    let cache = Cache::new(folios * FOLIO);
    let pages = Arc::new(cache.pages(0));
    (cache, pages)
}

fn fill(pages: &Pages, index: u64) -> Option<Fill> {
    pages.fill(index..index + 1, 0).ok()?.pop()
}

fn put(mut fill: Fill, byte: u8) {
    fill.bytes()[0] = byte;
    fill.end(Ok(()));
}

fn byte(pages: &Pages, index: u64) -> Option<u8> {
    match pages.look(index) {
        Look::Found(page) => Some(page[0]),
        Look::Busy { .. } | Look::Absent => None,
    }
}

/// Waits, and answers what it is told at once, or leaves what it takes to be told.
fn wait(pages: &Pages, index: u64) -> Result<Told, (Pin<Box<Wait>>, Arc<Flag>)> {
    let (mut wait, flag) = (Box::pin(pages.wait(index)), Arc::new(Flag::default()));
    match wait.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))) {
        Poll::Ready(told) => Ok(told),
        Poll::Pending => Err((wait, flag)),
    }
}

/// What it is told in the end: it has been woken for it.
fn told(waiting: Result<Told, (Pin<Box<Wait>>, Arc<Flag>)>) -> Told {
    match waiting {
        Ok(told) => told,
        Err((mut wait, flag)) => {
            assert!(flag.0.load(Ordering::SeqCst), "nobody woke it");
            match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(told) => told,
                Poll::Pending => panic!("it was woken for nothing"),
            }
        }
    }
}

#[test]
fn loom_who_waits_beside_who_fills_is_told() {
    loom::model(|| {
        let (_cache, pages) = cache(2);
        let duty = fill(&pages, 0).unwrap();
        let theirs = pages.clone();
        let reader = loom::thread::spawn(move || (byte(&theirs, 0), wait(&theirs, 0)));
        put(duty, 7);
        let (found, waiting) = reader.join().unwrap();
        assert!(found.is_none_or(|byte| byte == 7));
        match told(waiting) {
            Told::Page(page) => assert_eq!(page[0], 7),
            Told::Again => assert_eq!(byte(&pages, 0), Some(7)),
            Told::Failed(error) => panic!("{error}"),
        }
    });
}

/// A wait that is dropped beside the end of the fill: its snapshot, if it got one, is given back.
#[test]
fn loom_a_dropped_wait_keeps_no_frame() {
    loom::model(|| {
        let (cache, pages) = cache(2);
        let duty = fill(&pages, 0).unwrap();
        let waiting = wait(&pages, 0);
        let filler = loom::thread::spawn(move || put(duty, 7));
        drop(waiting);
        pages.invalidate(0..1);
        filler.join().unwrap();
        assert_eq!(cache.statistics().used_bytes, 0);
    });
}

#[test]
fn loom_one_of_two_who_miss_a_folio_fills_it() {
    loom::model(|| {
        let (cache, pages) = cache(2);
        let miss = |pages: &Pages| fill(pages, 0).map(|fill| put(fill, 3)).is_some();
        let theirs = pages.clone();
        let other = loom::thread::spawn(move || miss(&theirs));
        let mine = miss(&pages);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "one of them");
        assert_eq!(byte(&pages, 0), Some(3));
        assert_eq!(cache.statistics().used_bytes, FOLIO);
    });
}

/// Who fills it may be beside who takes it out: what it was filled with is not found after that.
#[test]
fn loom_what_was_invalidated_is_not_found() {
    loom::model(|| {
        let (cache, pages) = cache(2);
        let duty = fill(&pages, 0).unwrap();
        let theirs = pages.clone();
        let filler = loom::thread::spawn(move || {
            put(duty, 1);
            byte(&theirs, 0)
        });
        pages.invalidate(0..1);
        assert_eq!(byte(&pages, 0), None);
        filler.join().unwrap();
        assert!(matches!(pages.look(0), Look::Absent));
        assert_eq!(cache.statistics().used_bytes, 0);
    });
}

/// The frame goes to another folio beside a reader of the first: it finds the first, or nothing.
#[test]
fn loom_nobody_reads_a_folio_that_has_left() {
    let mut builder = loom::model::Builder::new();
    // Each preemption more takes about ten times as long here.
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(2));
    builder.check(|| {
        let (cache, pages) = cache(1);
        put(fill(&pages, 0).unwrap(), 1);
        let theirs = pages.clone();
        let other =
            loom::thread::spawn(move || fill(&theirs, 1).map(|fill| put(fill, 2)).is_some());
        assert!(byte(&pages, 0).is_none_or(|byte| byte == 1));
        let has_come = other.join().unwrap();
        assert_eq!(byte(&pages, 1), has_come.then_some(2));
        assert_eq!(cache.statistics().used_bytes, FOLIO);
    });
}

/// A snapshot keeps the frame beside who takes the folio out, and the last one gives it back.
#[test]
fn loom_a_frame_comes_back_once_from_its_last_reader() {
    loom::model(|| {
        let (cache, pages) = cache(2);
        put(fill(&pages, 0).unwrap(), 5);
        let theirs = pages.clone();
        let reader = loom::thread::spawn(move || theirs.page(0).ok().map(|page| page[0]));
        pages.invalidate(0..1);
        assert!(reader.join().unwrap().is_none_or(|byte| byte == 5));
        assert_eq!(cache.statistics().used_bytes, 0);
        put(fill(&pages, 0).unwrap(), 6);
        assert_eq!(byte(&pages, 0), Some(6));
    });
}

fn change(pages: &Pages, index: u64, byte: u8) -> bool {
    match pages.change(index) {
        Ok(Taken::Held(mut fill)) => {
            fill.bytes()[0] = byte;
            fill.end_unsaved();
            true
        }
        Ok(Taken::Busy { .. } | Taken::Absent) | Err(_) => false,
    }
}

/// Who changes a folio beside who reads it: the reader finds it as it was or as it is, and who looks after finds it as
/// it is.
#[test]
fn loom_a_change_is_found_whole() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(3));
    builder.check(|| {
        let (cache, pages) = cache(2);
        put(fill(&pages, 0).unwrap(), 1);
        let theirs = pages.clone();
        let reader = loom::thread::spawn(move || byte(&theirs, 0));
        assert!(change(&pages, 0, 2), "nobody else holds it, and there is room for a copy");
        assert_eq!(byte(&pages, 0), Some(2));
        assert!(reader.join().unwrap().is_none_or(|byte| [1, 2].contains(&byte)));
        let statistics = cache.statistics();
        assert_eq!((statistics.used_bytes, statistics.unsaved_bytes), (FOLIO, FOLIO));
    });
}

/// Whoever meets a change finds a writer there, and waits for it: the device may be older.
#[test]
fn loom_who_meets_a_change_finds_its_writer() {
    loom::model(|| {
        let (_cache, pages) = cache(2);
        let by_reader = 7;
        put(pages.fill(0..1, by_reader).unwrap().pop().unwrap(), 1);
        assert!(change(&pages, 0, 2));
        let theirs = pages.clone();
        let writer = loom::thread::spawn(move || change(&theirs, 0, 3));
        match pages.look(0) {
            Look::Found(page) => assert!([2, 3].contains(&page[0])),
            Look::Busy { by, .. } => assert_eq!(by, WRITER),
            Look::Absent => panic!("it is there"),
        }
        writer.join().unwrap();
    });
}

/// What was changed stays, whoever wants its frame, until it is saved.
#[test]
fn loom_what_is_unsaved_is_not_evicted() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(1));
    builder.check(|| {
        let (cache, pages) = cache(1);
        put(fill(&pages, 0).unwrap(), 1);
        let theirs = pages.clone();
        let other =
            loom::thread::spawn(move || fill(&theirs, 1).map(|fill| put(fill, 2)).is_some());
        let is_changed = change(&pages, 0, 3);
        let has_come = other.join().unwrap();
        assert_eq!(cache.statistics().unsaved_bytes, if is_changed { FOLIO } else { 0 });
        if is_changed {
            assert!(!has_come && byte(&pages, 0) == Some(3));
            pages.saved(0);
            assert_eq!(cache.statistics().unsaved_bytes, 0);
        }
    });
}

/// Whoever waits for fewer is woken by whoever saves one.
#[test]
fn loom_who_waits_for_room_is_told() {
    loom::model(|| {
        let (_cache, pages) = cache(2);
        put(fill(&pages, 0).unwrap(), 1);
        assert!(change(&pages, 0, 2));
        let theirs = pages.clone();
        let saver = loom::thread::spawn(move || theirs.saved(0));
        let (mut fewer, flag) = (Box::pin(pages.may_change()), Arc::new(Flag::default()));
        let waker = Waker::from(flag.clone());
        let may = fewer.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        saver.join().unwrap();
        assert!(may || flag.0.load(Ordering::SeqCst), "nobody woke it");
        assert!(fewer.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    });
}
