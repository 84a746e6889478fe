//! Requests that failed, told to whoever listens: each once, wherever it was issued and whoever waited for
//! it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::request::{Op, Request};

/// A request that a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it was to do.
    pub op: Op,
    /// Where on the device it began, in bytes.
    pub address: u64,
    /// Bytes, those that were done before it failed included; 0 for a flush.
    pub length: u64,
    /// Why.
    pub errno: Errno,
}

/// Hears of failures, in whatever thread meets one: it has to be quick, and to issue nothing.
pub trait Listener: Send + Sync {
    /// One failed.
    fn failed(&self, failure: Failure);
}

/// Who listens to a device.
#[derive(Default)]
pub(crate) struct Listeners {
    list: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Failure {
    /// What there is to tell of a request that ended so. Nothing of one that was cancelled, or that the
    /// device does not know: it has not tried.
    pub fn of(request: &Request, errno: Errno) -> Option<Failure> {
        let is_told = !matches!(errno, Errno::CANCELED | Errno::OPNOTSUPP);
        let (op, address, length) = (request.op, request.address, request.length());
        is_told.then_some(Failure { op, address, length, errno })
    }
}

impl Listeners {
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) {
        let mut list = self.list.lock();
        list.retain(|listener| listener.strong_count() > 0);
        list.push(listener);
    }

    pub(crate) fn tell(&self, failure: Failure) {
        // Not with the lock held: a listener may be the last to hold what listens.
        let all: Vec<Arc<dyn Listener>> =
            self.list.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|listener| listener.failed(failure));
    }
}
