//! A number for each thread that uses devices without a reactor, by which such threads are spread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of this thread, in the order of their first use.
#[inline]
pub(crate) fn number_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        let found = number.get().unwrap_or_else(|| THREADS.fetch_add(1, Ordering::Relaxed));
        number.set(Some(found));
        found
    })
}
