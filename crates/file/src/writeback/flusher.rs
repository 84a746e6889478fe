//! The flusher of a file: writes its dirty folios back at intervals, when they are many, when a writer is throttled,
//! and when a handle closes. It runs on a background reactor.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use uringfs_cache::FileFolios;
use uringfs_device::{DeviceInner, Errno, Payload};
use uringfs_reactor::{Operation, Requester, background_reactor};

use crate::state::file::File;
use crate::state::file_cache::FileCache;
use crate::state::file_state::FileState;
use crate::writeback::runs::write_back;

/// Longest time between two passes; each writes all dirty folios.
const WRITEBACK_INTERVAL: Duration = Duration::from_secs(5);

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

    /// Gives up before its start. The folios stay dirty. The next write or close tries to start a flusher again.
    fn give_up_start(mut self) {
        self.is_stopped = true;
        self.state.dirty().flusher_stopped();
    }

    fn file_folios(&self) -> &FileFolios {
        self.state.existing_cache().map(FileCache::file_folios).expect("a dirty file is in a cache")
    }

    /// Waits until a write-back is requested or many folios are dirty. After a failed write-back, many dirty folios
    /// are no reason to try at once.
    async fn wait_until_due(&self, has_failed: bool) {
        let file_folios = self.file_folios();
        let (mut many_dirty, mut requested) =
            (pin!(file_folios.writeback_due()), pin!(self.state.dirty().writeback_requested()));
        // The request is polled first, because this clears it. A request that stays set keeps the flusher alive.
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
            // Its device or its reactor is gone.
            self.state.dirty().drop_dirty(self.file_folios());
        }
    }
}

/// Writes a file's dirty folios back until none is left. See the head of this file for when.
pub(crate) async fn run_flusher(mut operation: Operation, mut flusher: Flusher) {
    let mut written = Ok(());
    let ended = loop {
        let due = flusher.wait_until_due(written.is_err());
        if let Err(stopped) = operation.wait_outside_epoch_timeout(due, WRITEBACK_INTERVAL).await {
            break Err(stopped);
        }
        let (dirty, file_folios) = (flusher.state.dirty(), flusher.file_folios());
        written = match dirty.file() {
            Some(file) if !dirty.drop_if_unlinked(&file, file_folios) => {
                let file = File::from_dirty(file);
                write_back(&mut operation, &file.handle, 0..u64::MAX).await
            }
            _ => Ok(()),
        };
        if written.is_err() {
            dirty.drop_dirty(file_folios);
        }
        if flusher.stop_if_clean() {
            break written;
        }
    };
    operation.end(Payload::Length(0), ended.map(|()| 0));
}

/// Starts the flusher of a file on the background reactor of this thread. Where there is none, as in the child of a fork,
/// nothing is written back until a sync or another operation on the file does it.
pub(crate) fn start_flusher(state: &Arc<FileState>, device_inner: &Arc<DeviceInner>) {
    let flusher = Flusher::new(state);
    let Ok(reactor) = background_reactor() else { return flusher.give_up_start() };
    let device_inner = device_inner.clone();
    reactor.run(move |reactor| match reactor.admit_detached(&device_inner) {
        Ok(permit) => {
            let body = |operation| run_flusher(operation, flusher);
            reactor.start_operation(permit, Requester::Detached, None, body);
        }
        // Its drop discards the folios, which nothing can write any more.
        Err(Errno::NODEV) => drop(flusher),
        Err(_) => flusher.give_up_start(),
    });
}
