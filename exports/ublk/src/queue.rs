//! The entries of a queue, each served by a task of the queue's thread.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use uringfs::reactor::RequestCounters;
use uringfs::{BufferPool, Errno, Reactor};

use crate::abi::IoDescriptor;
use crate::channel::{CopiedBy, Descriptors, Entry};
use crate::operations::ServedFile;
use crate::request::{Bounds, Request, kind};

/// The file that a queue serves, and its channel.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) number: u16,
    /// The requests that may be under way at once.
    pub(crate) depth: u16,
    pub(crate) channel: Arc<OwnedFd>,
    pub(crate) copied_by: CopiedBy,
    pub(crate) file: Arc<ServedFile>,
    pub(crate) bounds: Bounds,
    /// Those of all queues of the device.
    pub(crate) counters: Arc<[RequestCounters]>,
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
            let descriptor = descriptors.get(entry.tag());
            let result = self.answer(&mut entry, descriptor).await;
            (fetched, entry) = entry.commit(result).await;
        }
    }

    /// Carries out the request of an entry, and counts it. Returns the bytes that were moved, or the negative number of an error.
    async fn answer(&self, entry: &mut Entry, descriptor: IoDescriptor) -> i32 {
        let result = match Request::parse(descriptor, self.bounds) {
            Ok(request) => self.file.run(entry, request).await,
            Err(errno) => Err(errno),
        };
        let moved = result.as_ref().ok().map(|moved| u64::from(*moved));
        self.counters[usize::from(self.number)].count(kind(descriptor), moved);
        result.map_or_else(|errno| -errno.raw_os_error(), |moved| moved as i32)
    }
}

#[cfg(test)]
mod tests {
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::file::FileOptions;
    use uringfs::{Buffer, File, ReactorOptions};

    use super::*;
    use crate::abi::{flag, operation};

    #[test]
    fn requests_are_counted_by_kind_with_their_bytes() {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::from_device(device, FileOptions::new());
        // A sparse file in place of the channel.
        let channel = Arc::new(tempfile::tempfile().unwrap().into());
        let queue = Queue {
            number: 1,
            depth: 4,
            channel: Arc::clone(&channel),
            copied_by: CopiedBy::Kernel,
            file: Arc::new(ServedFile::new(file, false, false)),
            bounds: Bounds { capacity: 1 << 20, max_io_bytes: 65536, read_only: false },
            counters: Arc::new([RequestCounters::default(), RequestCounters::default()]),
        };
        let mut entry = Entry::new(&channel, (1, 0), Buffer::zeroed(65536), CopiedBy::Kernel);
        let reactor = Reactor::new(ReactorOptions::new()).unwrap();
        let mut answer = |operation, start_sector, sectors| {
            let descriptor = IoDescriptor { operation, sectors, start_sector, address: 0 };
            reactor.block_on(queue.answer(&mut entry, descriptor))
        };
        assert_eq!(answer(operation::WRITE | flag::FUA, 8, 16), 8192);
        assert_eq!(answer(operation::READ, 0, 8), 4096);
        assert_eq!(answer(operation::FLUSH, 0, 0), 0);
        assert_eq!(answer(operation::WRITE_ZEROES, 0, 8), 0);
        assert_eq!(answer(operation::READ, 2048, 8), -Errno::IO.raw_os_error());
        assert_eq!(answer(200, 0, 8), -Errno::OPNOTSUPP.raw_os_error());
        let counts = queue.counters[1].get();
        assert_eq!((counts.reads, counts.writes, counts.flushes, counts.others), (2, 1, 1, 2));
        assert_eq!((counts.read_bytes, counts.written_bytes, counts.errors), (4096, 8192, 2));
        assert_eq!(queue.counters[0].get(), Default::default());
    }
}
