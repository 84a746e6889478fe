//! Blocks a thread until a future completes.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// Polls what a thread waits for. True when it has ended.
pub type PollWait<'a> = &'a mut dyn FnMut(&mut Context<'_>) -> bool;

/// Calls the wait's poll, again after each wake, until it has ended or until the time.
pub type BlockThread = fn(PollWait<'_>, Option<Instant>);

thread_local! {
    static BLOCK: Cell<BlockThread> = const { Cell::new(park_thread) };
}

/// Sets how this thread blocks: [`park_thread`], or a function that does other work of the thread meanwhile.
pub fn set_block_thread(block: BlockThread) {
    BLOCK.set(block);
}

/// Blocks the calling thread until `future`, which other threads complete, has ended.
pub fn park_on<T>(future: impl Future<Output = T>) -> T {
    park_on_until(future, None).expect("without a time the wait ends only with the future")
}

/// [`park_on`] until `until` at the latest. `None` when that has come first.
pub fn park_on_until<T>(future: impl Future<Output = T>, until: Option<Instant>) -> Option<T> {
    let mut future = pin!(future);
    let mut output = None;
    let mut poll = |context: &mut Context<'_>| {
        if let Poll::Ready(ended) = future.as_mut().poll(context) {
            output = Some(ended);
        }
        output.is_some()
    };
    BLOCK.get()(&mut poll, until);
    output
}

/// Parks the thread, which does nothing else meanwhile.
pub fn park_thread(poll: PollWait<'_>, until: Option<Instant>) {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    while !poll(&mut Context::from_waker(&waker)) {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(left) if left.is_zero() => return,
            Some(left) => thread::park_timeout(left),
        }
    }
}

/// Unparks a blocked thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;
    use crate::Oneshot;

    #[test]
    fn a_wait_ends_with_the_future_or_at_its_time() {
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(park_on_until(pending::<()>(), Some(soon)), None);
        let value = Oneshot::default();
        let sender = value.clone();
        let setter = thread::spawn(move || sender.set(7));
        let waited = park_on_until(std::future::poll_fn(|context| value.poll(context)), None);
        assert_eq!(waited, Some(7));
        setter.join().unwrap();
    }
}
