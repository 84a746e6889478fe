//! Reads and overwrites in batches: each slot of a [`Batch`] has a buffer, which stays with it from transfer to
//! transfer.
//!
//! Transfers that are one device request are pushed several at once. Every other one is started as by
//! [`Tokens`](crate::Tokens), and completes with the rest.

use std::fmt;
use std::io;
use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op};
use uringfs_reactor::{BatchCompletions, BatchTransfer, Counter, Reactor, RequestBatch};

use crate::api::tokens;
use crate::direct::fast_path::{LocateReads, LocateWrites};
use crate::state::file::File;

/// Reads and overwrites in batches, for programs that have many of one length in flight: the least work for each.
///
/// A batch has a slot for each of its buffers, which have one length. A transfer names its slot and an offset, and
/// moves the slot's whole buffer. Files and offsets change from transfer to transfer, the memory does not. Beside it
/// the reactor has other work as usual: tokens, tasks, timers, further batches.
///
/// A transfer that is not one for the fast path (not aligned, in several extents or a hole, through the page cache, on
/// a device whose requests do not go over io_uring) starts as by [`Tokens`](crate::Tokens), and is counted like there.
/// Transfers of the fast path do not count against [`ReactorOptions::depth`](uringfs_reactor::ReactorOptions::depth):
/// a batch has as many in flight as it has slots.
///
/// When the batch is dropped, transfers in flight go on. Their buffers return to their pool when they have ended.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_buffer::*;
/// #     pub use uringfs_file::*;
/// #     pub use uringfs_reactor::*;
/// #     pub use uringfs_device as device;
/// #     pub use uringfs_file as file;
/// #     pub use uringfs_reactor as reactor;
/// # }
/// use uringfs::device::Device;
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::file::FileOptions;
/// use uringfs::{Batch, BatchTransfer, BufferPool, File, Reactor, ReactorOptions};
///
/// const BLOCKS: u64 = 256;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::new(Memory::new(BLOCKS * 4096)?)?;
/// # let file = File::from_device(device, FileOptions::new());
/// let reactor = Reactor::new(ReactorOptions::new())?;
/// let pool = BufferPool::new(4096, 32)?;
/// let mut batch = Batch::new(&reactor, std::iter::from_fn(|| pool.get()))?;
/// let mut next: Vec<_> = (0..32).map(|slot| BatchTransfer { slot, offset: u64::from(slot) * 4096 }).collect();
/// let (mut begun, mut ended) = (32, 0);
/// while ended < BLOCKS {
///     let pushed = batch.read(&file, &next)?;
///     next.drain(..pushed);
///     for read in batch.completions(1, None)? {
///         assert_eq!(read.result()?, 4096);
///         assert!(read.bytes().iter().all(|byte| *byte == 0));
///         ended += 1;
///         if begun < BLOCKS {
///             next.push(BatchTransfer { slot: read.slot(), offset: begun * 4096 });
///             begun += 1;
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Batch {
    requests: RequestBatch,
}

impl fmt::Debug for Batch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.requests.fmt(out)
    }
}

impl Batch {
    /// A batch on this reactor, with a slot for each buffer. Take the buffers from one pool: then all of them are
    /// registered with the kernel at once.
    ///
    /// # Errors
    /// `InvalidInput` without buffers, and when they have no bytes, different lengths, or memory that others change
    /// ([`SharedMemory`](uringfs_buffer::SharedMemory)) or that must not be written.
    pub fn new(reactor: &Reactor, buffers: impl IntoIterator<Item = Buffer>) -> io::Result<Batch> {
        let buffers = buffers.into_iter().collect();
        Ok(Batch { requests: RequestBatch::new(reactor.inner(), buffers)? })
    }

    /// Begins to read into the buffers of these slots. Returns how many of `transfers`, from the first on, have begun:
    /// fewer than all of them when the next one was refused. They reach the device with the next
    /// [`Self::completions`], or with anything else that submits.
    ///
    /// # Errors
    /// The reason when the first was refused:
    /// - EINVAL: there is no such slot.
    /// - EBUSY: the slot's last transfer is in flight, or its completion is not taken.
    /// - EAGAIN: it is not one for the fast path, and as much is in flight as the reactor's depth allows.
    ///   Take completions first.
    /// - ENODEV: the device is gone. ESHUTDOWN: the reactor was dropped. ECHILD: this is the child of a fork.
    ///
    /// All other errors are those of completions.
    #[inline(always)]
    pub fn read(&mut self, file: &File, transfers: &[BatchTransfer]) -> Result<usize, Errno> {
        self.transfer(file, transfers, Op::Read)
    }

    /// Begins to write the buffers of these slots: see [`Self::buffer_mut`]. Overwrites of written blocks are its fast
    /// path. Otherwise as [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::read`].
    #[inline(always)]
    pub fn write(&mut self, file: &File, transfers: &[BatchTransfer]) -> Result<usize, Errno> {
        self.transfer(file, transfers, Op::Write)
    }

    #[inline(always)]
    fn transfer(
        &mut self,
        file: &File,
        transfers: &[BatchTransfer],
        op: Op,
    ) -> Result<usize, Errno> {
        match self.push(file, transfers, op) {
            all if all == transfers.len() => Ok(all),
            pushed => self.begin_rest(file, transfers, pushed, op),
        }
    }

    /// Pushes the first of `transfers`, as far as they are for the fast path. Returns their number. Inlined where the
    /// operation is known.
    #[inline(always)]
    fn push(&mut self, file: &File, transfers: &[BatchTransfer], op: Op) -> usize {
        let (handle, requests) = (&file.handle, &mut self.requests);
        let (pushed, counter) = match op {
            Op::Read => {
                let locate = LocateReads { handle };
                (requests.push_fast(handle.index, op, transfers, locate), Counter::FastPathTaken)
            }
            _ => {
                let locate = LocateWrites { handle };
                (requests.push_fast(handle.index, op, transfers, locate), Counter::WriteUnlocked)
            }
        };
        requests.reactor().count_many(counter, pushed as u64);
        pushed
    }

    /// Begins the transfers after the first `begun`. The next of them cannot be pushed with others.
    #[cold]
    #[inline(never)]
    fn begin_rest(
        &mut self,
        file: &File,
        transfers: &[BatchTransfer],
        mut begun: usize,
        op: Op,
    ) -> Result<usize, Errno> {
        while let Some(next) = transfers.get(begun) {
            match self.begin_alone(file, *next, op) {
                Ok(()) => begun += 1,
                Err(error) if begun == 0 => return Err(error),
                Err(_) => break,
            }
            begun += self.push(file, &transfers[begun..], op);
        }
        Ok(begun)
    }

    /// Begins one transfer as [`Tokens`](crate::Tokens) do. The completion returns its buffer to its slot.
    fn begin_alone(&mut self, file: &File, transfer: BatchTransfer, op: Op) -> Result<(), Errno> {
        let BatchTransfer { slot, offset } = transfer;
        let (buffer, token) = self.requests.begin(slot)?;
        let reactor = self.requests.reactor();
        let begun = match op {
            Op::Read => tokens::read(reactor, file, buffer, offset, token),
            _ => tokens::write(reactor, file, Durability::Volatile, buffer, offset, token),
        };
        begun.map_err(|refused| {
            let error = refused.error;
            self.requests.put_back(slot, refused.into_buffer());
            error
        })
    }

    /// Submits what has begun, waits until at least `min` completions of this batch are there or `timeout` has passed,
    /// and returns them. Waits for no more than are in flight. Completions that are not taken stay for the next call,
    /// with their bytes. No event reports these to a foreign loop ([`Reactor::fd`]), so such a loop takes all of them.
    ///
    /// # Errors
    /// Any error of the kernel when it takes no requests at all. ECHILD in the child of a fork. EDEADLK in code that
    /// the reactor runs. ESHUTDOWN when the reactor was dropped and fewer than `min` have completed.
    #[inline(always)]
    pub fn completions(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<BatchCompletions<'_>, Errno> {
        self.requests.completions(min, timeout)
    }

    /// The buffer of a slot, with the bytes of its last transfer. `None` while one is in flight, and when there is no
    /// such slot.
    #[inline]
    pub fn buffer(&self, slot: u32) -> Option<&[u8]> {
        self.requests.buffer(slot).map(|buffer| &buffer[..])
    }

    /// The same, to be filled for a write.
    #[inline]
    pub fn buffer_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        self.requests.buffer_mut(slot)
    }

    /// Requests cancellation of the transfer in flight of a slot, as [`Reactor::cancel`]. It still completes, once.
    pub fn cancel(&mut self, slot: u32) {
        self.requests.cancel(slot);
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.requests.slots()
    }

    /// The number of transfers that have begun and not completed.
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }
}
