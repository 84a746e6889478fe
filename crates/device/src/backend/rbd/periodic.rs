//! [`Periodic`]: a thread that does the same again and again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uringfs_errno::Errno;
use uringfs_ring::ForkDetector;

/// A thread that makes a call after each period. Its drop ends the thread, and waits for a call in progress.
pub(super) struct Periodic {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    fork: ForkDetector,
}

impl Periodic {
    /// Begins a thread of this name.
    ///
    /// # Errors
    /// EAGAIN if the kernel has no more threads.
    pub(super) fn begin(
        name: &str,
        period: Duration,
        mut call: impl FnMut() + Send + 'static,
    ) -> Result<Periodic, Errno> {
        let (end, ended) = channel();
        let run = move || {
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                call();
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        let thread = Some(thread.map_err(|_| Errno::AGAIN)?);
        Ok(Periodic { end: Some(end), thread, fork: ForkDetector::default() })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.end.take());
        // In the child of a fork there is no such thread.
        if let Some(thread) = self.thread.take()
            && !self.fork.is_forked()
        {
            let _ = thread.join();
        }
    }
}
