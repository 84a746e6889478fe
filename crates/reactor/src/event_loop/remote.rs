//! A handle by which other threads give a reactor work.

use std::rc::Rc;
use std::sync::Arc;

use uringfs_ring::fork_count;

use crate::event_loop::core::{Inner, Letter, Letterbox};
use crate::event_loop::waker::ring_bell;

/// Sends work to a reactor from any thread.
#[derive(Clone)]
pub struct Remote {
    letterbox: Arc<Letterbox>,
    forks: u32,
}

impl Remote {
    /// True in the child of a fork, where the reactor is its parent's.
    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// True when the reactor is gone or about to go.
    pub(crate) fn is_gone(&self) -> bool {
        self.letterbox.is_leaving()
    }

    /// Has `act` run on the reactor's thread. False when the reactor is gone or about to go.
    pub fn run(&self, act: impl FnOnce(&Rc<Inner>) + Send + 'static) -> bool {
        let letter = Letter::Run(Box::new(act));
        self.letterbox.offer(letter, ring_bell).is_ok()
    }
}

impl Inner {
    /// A handle that other threads can send work by.
    pub fn remote(&self) -> Remote {
        Remote { letterbox: self.letterbox.clone(), forks: self.io.borrow().forks }
    }
}
