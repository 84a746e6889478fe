//! A `Send` handle, by which other threads run work on a reactor.

use std::rc::Rc;
use std::sync::Arc;

use uringfs_ring::fork_count;

use crate::event_loop::core::{Message, ReactorCore, ReactorMailbox};
use crate::event_loop::waker::notify;

/// Runs work on a reactor, from any thread.
#[derive(Clone)]
pub struct ReactorHandle {
    mailbox: Arc<ReactorMailbox>,
    forks: u32,
}

impl std::fmt::Debug for ReactorHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ReactorHandle")
    }
}

impl ReactorHandle {
    /// True in the child of a fork: the reactor belongs to the parent.
    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// True when the reactor is dropped or being dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.mailbox.is_closing()
    }

    /// Runs `job` on the reactor's thread. False when the reactor is dropped or being dropped.
    #[doc(hidden)]
    pub fn run(&self, job: impl FnOnce(&Rc<ReactorCore>) + Send + 'static) -> bool {
        let message = Message::Run(Box::new(job));
        self.mailbox.offer(message, notify).is_ok()
    }
}

impl ReactorCore {
    /// A handle for other threads.
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle { mailbox: self.mailbox.clone(), forks: self.io.borrow().forks }
    }
}
