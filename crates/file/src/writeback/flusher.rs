//! The flusher of a file: writes dirty folios back when they have been dirty for long, when there are many, or when
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
use crate::state::file_cache::Cached;
use crate::state::lock::WriteLock;
use crate::writeback::runs::save;

/// How long bytes stay unsaved that nobody syncs.
const AGE: Duration = Duration::from_secs(5);

/// A file that is watched, until this is dropped. Nobody has it open for that.
pub(crate) struct Watched {
    lock: Arc<WriteLock>,
    is_over: bool,
}

impl Watched {
    pub(crate) fn new(lock: &Arc<WriteLock>) -> Watched {
        Watched { lock: lock.clone(), is_over: false }
    }

    /// Whether it need not be watched any more; says so then.
    fn is_done(&mut self) -> bool {
        self.is_over = self.lock.unsaved().stop_watching();
        self.is_over
    }

    fn pages(&self) -> &Pages {
        self.lock.in_cache().map(Cached::pages).expect("it was written through a cache")
    }

    /// Waits until something is to be saved; not for long. After it could not be, that there is much is no reason to
    /// try at once.
    async fn is_due(&self, has_failed: bool) {
        let pages = self.pages();
        let (mut many, mut hurried) =
            (pin!(pages.many_unsaved()), pin!(self.lock.unsaved().hurried()));
        // That it was hurried is taken note of first: else it would be so for ever.
        poll_fn(|context| match hurried.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending if has_failed => Poll::Pending,
            Poll::Pending => many.as_mut().poll(context),
        })
        .await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_over {
            self.lock.unsaved().unwatch();
            // Its device is gone.
            self.lock.unsaved().give_up(self.pages());
        }
    }
}

/// Saves what is written to a file through the page cache, when it has been unsaved for long, or there is much, or
/// an opening is closed; until there is nothing any more.
pub(crate) async fn watch(mut operation: Operation, mut watched: Watched) {
    let mut saved = Ok(());
    let ended = loop {
        let is_due = watched.is_due(saved.is_err());
        if let Err(stopped) = operation.wait_uncounted_for(is_due, AGE).await {
            break Err(stopped);
        }
        let (unsaved, pages) = (watched.lock.unsaved(), watched.pages());
        saved = match unsaved.file() {
            Some(file) if !unsaved.abandon(&file, pages) => {
                let file = File::kept(file);
                save(&mut operation, &file.shared, 0..u64::MAX).await
            }
            _ => Ok(()),
        };
        if saved.is_err() {
            unsaved.give_up(pages);
        }
        if watched.is_done() {
            break saved;
        }
    };
    operation.end(Payload::Length(0), ended.map(|()| 0));
}

/// Has a file watched on the reactor that serves the process.
pub(crate) fn watch_over(lock: &Arc<WriteLock>, core: &Arc<Core>) {
    let watched = Watched::new(lock);
    if let Ok(remote) = service() {
        let core = core.clone();
        remote.run(move |inner| {
            if let Ok(admitted) = inner.admit_unasked(&core) {
                let watching = |operation| watch(operation, watched);
                inner.start_operation(admitted, Asker::Nobody, None, watching);
            }
        });
    }
}
