//! The flusher of a file: writes dirty folios back when they have been dirty for long, when there are many_dirty, or when
//! an opening is closed, on the reactor that serves the process.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use uringfs_cache::Pages;
use uringfs_device::{Core, Payload};
use uringfs_reactor::{Asker, Operation, service};

use crate::state::file::File;
use crate::state::file_cache::FileCache;
use crate::state::lock::WriteLock;
use crate::writeback::runs::write_back;

/// How long bytes stay unsaved that nobody syncs.
const DIRTY_EXPIRE: Duration = Duration::from_secs(5);

/// A file that is watched, until this is dropped. Nobody has it open for that.
pub(crate) struct Flusher {
    state: Arc<WriteLock>,
    is_stopped: bool,
}

impl Flusher {
    pub(crate) fn new(state: &Arc<WriteLock>) -> Flusher {
        Flusher { state: state.clone(), is_stopped: false }
    }

    /// Whether it need not be watched any more; says so then.
    fn stop_if_clean(&mut self) -> bool {
        self.is_stopped = self.state.dirty().stop_flusher_if_clean();
        self.is_stopped
    }

    fn pages(&self) -> &Pages {
        self.state.existing_cache().map(FileCache::pages).expect("it was written through a cache")
    }

    /// Waits until something is to be written; not for long. After it could not be, that there is much is no reason to
    /// try at once.
    async fn wait_until_due(&self, has_failed: bool) {
        let pages = self.pages();
        let (mut many_dirty, mut requested) =
            (pin!(pages.many_unsaved()), pin!(self.state.dirty().flush_requested()));
        // That it was requested is taken note of first: else it would be so for ever.
        poll_fn(|context| match requested.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending if has_failed => Poll::Pending,
            Poll::Pending => many_dirty.as_mut().poll(context),
        })
        .await;
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if !self.is_stopped {
            self.state.dirty().flusher_stopped();
            // Its device is gone.
            self.state.dirty().drop_dirty(self.pages());
        }
    }
}

/// Saves what is written to a file through the page cache, when it has been unsaved for long, or there is much, or
/// an opening is closed; until there is nothing any more.
pub(crate) async fn run_flusher(mut operation: Operation, mut flusher: Flusher) {
    let mut written = Ok(());
    let ended = loop {
        let due = flusher.wait_until_due(written.is_err());
        if let Err(stopped) = operation.wait_uncounted_for(due, DIRTY_EXPIRE).await {
            break Err(stopped);
        }
        let (dirty, pages) = (flusher.state.dirty(), flusher.pages());
        written = match dirty.file() {
            Some(file) if !dirty.drop_if_unlinked(&file, pages) => {
                let file = File::from_dirty(file);
                write_back(&mut operation, &file.handle, 0..u64::MAX).await
            }
            _ => Ok(()),
        };
        if written.is_err() {
            dirty.drop_dirty(pages);
        }
        if flusher.stop_if_clean() {
            break written;
        }
    };
    operation.end(Payload::Length(0), ended.map(|()| 0));
}

/// Has a file watched on the reactor that serves the process.
pub(crate) fn start_flusher(state: &Arc<WriteLock>, core: &Arc<Core>) {
    let flusher = Flusher::new(state);
    if let Ok(remote) = service() {
        let core = core.clone();
        remote.run(move |inner| {
            if let Ok(admitted) = inner.admit_unasked(&core) {
                let flush = |operation| run_flusher(operation, flusher);
                inner.start_operation(admitted, Asker::Nobody, None, flush);
            }
        });
    }
}
