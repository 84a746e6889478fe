//! The entries of a queue, each served by a task of the queue's thread.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use uringfs::{BufferPool, Errno, Reactor};

use crate::channel::{CopiedBy, Descriptors, Entry};
use crate::operations::ServedFile;
use crate::request::{Bounds, Request};

/// What a queue serves, and by which channel.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) number: u16,
    /// The requests that may be under way at once.
    pub(crate) depth: u16,
    pub(crate) channel: Arc<OwnedFd>,
    pub(crate) copied_by: CopiedBy,
    pub(crate) file: Arc<ServedFile>,
    pub(crate) bounds: Bounds,
}

/// The tasks of a queue's entries. Their output is why the kernel gave the entry back without a request.
pub(crate) type EntryTasks = Vec<uringfs::reactor::JoinHandle<Errno>>;

impl Queue {
    /// Gives all entries to the kernel, and serves their requests in tasks of this thread's reactor. The first task
    /// that ends calls `on_end`; the others do so, too.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn serve(
        self,
        reactor: &Reactor,
        on_end: impl Fn() + 'static,
    ) -> std::io::Result<EntryTasks> {
        let descriptors = Descriptors::map(&self.channel, self.number, self.depth)?;
        let payloads = BufferPool::new(self.bounds.max_io_bytes as usize, self.depth.into())?;
        let shared = Rc::new((self, descriptors, on_end));
        let (queue, ..) = &*shared;
        let entry = |tag| {
            let payload = payloads.get().expect("the pool has one for each entry");
            let entry = Entry::new(&queue.channel, (queue.number, tag), payload, queue.copied_by);
            let shared = shared.clone();
            reactor.spawn(async move {
                let (queue, descriptors, on_end) = &*shared;
                let ended = queue.serve_entry(descriptors, entry).await;
                on_end();
                ended
            })
        };
        Ok((0..queue.depth).map(entry).collect())
    }

    async fn serve_entry(&self, descriptors: &Descriptors, entry: Entry) -> Errno {
        let (mut fetched, mut entry) = entry.fetch().await;
        loop {
            if let Err(errno) = fetched {
                return errno;
            }
            let request = Request::parse(descriptors.get(entry.tag()), self.bounds);
            let result = match request {
                Ok(request) => self.file.run(&mut entry, request).await,
                Err(errno) => Err(errno),
            };
            let result = result.map_or_else(|errno| -errno.raw_os_error(), |moved| moved as i32);
            (fetched, entry) = entry.commit(result).await;
        }
    }
}
