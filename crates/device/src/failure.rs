//! Reports failed requests to the listeners of a device. Each failure is reported once, whichever code
//! issued the request.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uringfs_errno::Errno;

use crate::request::{Op, Request};

/// A request that a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its operation.
    pub op: Op,
    /// Its first byte on the device.
    pub address: u64,
    /// Length in bytes, including those that were done before the failure; 0 for a flush.
    pub length: u64,
    /// The error.
    pub errno: Errno,
}

/// Receives reports of failures, in any thread.
pub trait FailureListener: Send + Sync {
    /// A request has failed. The implementer must be quick, and must not issue requests.
    fn on_failure(&self, failure: Failure);
}

/// The listeners of a device.
#[derive(Default)]
pub(crate) struct Listeners {
    list: Mutex<Vec<Weak<dyn FailureListener>>>,
}

impl Failure {
    /// The failure to report for a request that ended with `errno`. `None` for a request that was cancelled, whose
    /// operation the device does not support, or whose memory is not there (that of a guest may vanish): the device has
    /// not failed it.
    pub fn from_request(request: &Request, errno: Errno) -> Option<Failure> {
        let is_reported = !matches!(errno, Errno::CANCELED | Errno::OPNOTSUPP | Errno::FAULT);
        let (op, address, length) = (request.op, request.address, request.length());
        is_reported.then_some(Failure { op, address, length, errno })
    }
}

impl Listeners {
    pub(crate) fn add(&self, listener: Weak<dyn FailureListener>) {
        let mut list = self.list.lock();
        list.retain(|listener| listener.strong_count() > 0);
        list.push(listener);
    }

    pub(crate) fn report(&self, failure: Failure) {
        // Called without the lock: dropping one of these may drop the last reference to a listener.
        let all: Vec<Arc<dyn FailureListener>> =
            self.list.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|listener| listener.on_failure(failure));
    }
}
