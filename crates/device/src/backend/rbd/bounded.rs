//! Bounds the wait for a cluster.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use uringfs_rbd::Library;

use super::target::RbdTarget;

/// The most abandoned threads.
const MAX_ABANDONED: usize = 8;
static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// How much longer the thread is waited for than it waits for monitors, of whose silence it says more.
const MARGIN: Duration = Duration::from_secs(2);

/// Set by the first of the two: the thread that has done its work, or the caller that abandons it.
#[derive(Clone, Default)]
pub(super) struct IsOver(Arc<AtomicBool>);

impl IsOver {
    /// Ends abandoned work before it changes a lock.
    pub(super) fn require_wanted(&self, target: &RbdTarget) -> io::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(target.refuse(ErrorKind::TimedOut, "it was abandoned".into())),
            false => Ok(()),
        }
    }

    /// Whether the other side was first.
    fn end(&self) -> bool {
        self.0.swap(true, Ordering::Relaxed)
    }
}

/// The result of `work`. A thread does it, since some calls of the library wait for storage daemons for as long as
/// these are away. After the target's timeout it is abandoned, and ends as soon as they answer.
pub(super) fn within_timeout<T: Send + 'static>(
    target: &RbdTarget,
    work: impl FnOnce(Library, &IsOver) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let library =
        Library::load().map_err(|error| target.refuse(ErrorKind::NotFound, error.to_string()))?;
    if ABANDONED.load(Ordering::Relaxed) >= MAX_ABANDONED {
        let waiting = "earlier openings still wait for the cluster; see `ceph -s`";
        return Err(target.refuse(ErrorKind::TimedOut, format!("{MAX_ABANDONED} {waiting}")));
    }
    let (sender, receiver) = channel();
    let is_over = IsOver::default();
    let of_thread = is_over.clone();
    let work = move || {
        let done = work(library, &of_thread);
        if of_thread.end() {
            drop(done);
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        } else {
            // The other side waits for it.
            let _ = sender.send(done);
        }
    };
    let lost = || Err(io::Error::other(format!("{target}: opening the image has failed")));
    thread::Builder::new().name("uringfs-rbd-open".into()).spawn(work)?;
    match receiver.recv_timeout(target.timeout + MARGIN) {
        Ok(done) => done,
        Err(RecvTimeoutError::Timeout) => {
            // Before the thread can subtract it.
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            if is_over.end() {
                // The thread has ended in time after all, and sends.
                ABANDONED.fetch_sub(1, Ordering::Relaxed);
                return receiver.recv().unwrap_or_else(|_| lost());
            }
            Err(target.refuse(
                ErrorKind::TimedOut,
                format!(
                    "the cluster does not answer within {} s; see `ceph -s`, or give more time by timeout=SECONDS",
                    target.timeout.as_secs()
                ),
            ))
        }
        Err(RecvTimeoutError::Disconnected) => lost(),
    }
}
