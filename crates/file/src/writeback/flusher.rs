//! The flusher of a file: writes its dirty folios back when they are old or many, or when a handle closes. It
//! runs on the process's background reactor.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use uringfs_cache::FileFolios;
use uringfs_device::{DeviceInner, Payload};
use uringfs_reactor::{Operation, Requester, background_reactor};

use crate::state::file::File;
use crate::state::file_cache::FileCache;
use crate::state::lock::FileState;
use crate::writeback::runs::write_back;

/// Age at which dirty folios are written back without a sync.
const DIRTY_EXPIRE: Duration = Duration::from_secs(5);

/// The flusher of a file. It holds no handle of the file.
pub(crate) struct Flusher {
    state: Arc<FileState>,
    is_stopped: bool,
}

impl Flusher {
    pub(crate) fn new(state: &Arc<FileState>) -> Flusher {
        Flusher { state: state.clone(), is_stopped: false }
    }

    /// Stops if nothing is dirty any more. Returns whether it did.
    fn stop_if_clean(&mut self) -> bool {
        self.is_stopped = self.state.dirty().stop_flusher_if_clean();
        self.is_stopped
    }

    fn pages(&self) -> &FileFolios {
        self.state.existing_cache().map(FileCache::pages).expect("a dirty file is in a cache")
    }

    /// Waits until a flush is requested or many folios are dirty. After a failed write-back, many dirty folios
    /// are no reason to try at once.
    async fn wait_until_due(&self, has_failed: bool) {
        let pages = self.pages();
        let (mut many_dirty, mut requested) =
            (pin!(pages.writeback_due()), pin!(self.state.dirty().flush_requested()));
        // The request is polled first, which clears it; otherwise it would stay set for ever.
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
            // The device is gone.
            self.state.dirty().drop_dirty(self.pages());
        }
    }
}

/// Writes a file's dirty folios back until none is left. See the head of this file for when.
pub(crate) async fn run_flusher(mut operation: Operation, mut flusher: Flusher) {
    let mut written = Ok(());
    let ended = loop {
        let due = flusher.wait_until_due(written.is_err());
        if let Err(stopped) = operation.wait_quiescent_timeout(due, DIRTY_EXPIRE).await {
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

/// Starts the flusher of a file on the process's background reactor.
pub(crate) fn start_flusher(state: &Arc<FileState>, core: &Arc<DeviceInner>) {
    let flusher = Flusher::new(state);
    if let Ok(remote) = background_reactor() {
        let core = core.clone();
        remote.run(move |inner| {
            if let Ok(permit) = inner.admit_detached(&core) {
                let flush = |operation| run_flusher(operation, flusher);
                inner.start_operation(permit, Requester::Detached, None, flush);
            }
        });
    }
}
