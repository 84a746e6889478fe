//! [`Agreement`]: whether requests come over io_uring.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// The agreement of a mount's threads and the kernel: whether requests come over io_uring.
pub(crate) struct Agreement(Mutex<AgreementState>);

struct AgreementState {
    /// Threads that have not said whether they can.
    unprepared: usize,
    all_can: bool,
    agreed: Option<bool>,
    wakers: Vec<Waker>,
}

impl Agreement {
    pub(crate) fn new(threads: usize) -> Agreement {
        let (all_can, agreed, wakers) = (true, None, Vec::new());
        Agreement(Mutex::new(AgreementState { unprepared: threads, all_can, agreed, wakers }))
    }

    /// A thread says whether it can serve its queues. The kernel uses none unless all are served.
    pub(crate) fn prepared(&self, can_serve: bool) {
        let mut state = self.0.lock();
        state.unprepared -= 1;
        state.all_can &= can_serve;
        state.wake();
    }

    /// Whether all threads can.
    pub(crate) async fn all_can(&self) -> bool {
        self.wait(|state| (state.unprepared == 0).then_some(state.all_can)).await
    }

    /// Records what the kernel and the server have agreed on. Only the first call counts.
    pub(crate) fn decide(&self, agreed: bool) {
        let mut state = self.0.lock();
        state.agreed.get_or_insert(agreed);
        state.wake();
    }

    /// Their agreement, once it is known.
    pub(crate) async fn agreed(&self) -> bool {
        self.wait(|state| state.agreed).await
    }

    async fn wait(&self, known: impl Fn(&AgreementState) -> Option<bool>) -> bool {
        poll_fn(|context| {
            let mut state = self.0.lock();
            match known(&state) {
                Some(known) => Poll::Ready(known),
                None => {
                    state.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl AgreementState {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}
