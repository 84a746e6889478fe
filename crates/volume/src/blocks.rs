//! Synchronous reads and writes of whole blocks of the device, for the volume's own metadata, and
//! for file data in checks and upgrades. Other file data goes through the reactor.

use std::fmt;

use rustix::fs::FileType;
use uringfs_buffer::Buffer;
use uringfs_device::{
    Device, Durability, Errno, Failure, KernelTarget, Op, Payload, Progress, Request, Tag,
};

/// Size of a block, in bytes.
pub const BLOCK: u64 = 4096;

/// Adjacent blocks of the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// The first block, counted from the beginning of the device.
    pub start: u64,
    /// Number of blocks.
    pub length: u64,
}

impl Run {
    /// The block after the last.
    pub fn end(self) -> u64 {
        self.start + self.length
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}+{}", self.start, self.length)
    }
}

/// A device, accessed by blocks from any thread.
#[derive(Clone)]
pub(crate) struct BlockIo {
    device: Device,
}

impl BlockIo {
    pub(crate) fn new(device: &Device) -> BlockIo {
        BlockIo { device: device.clone() }
    }

    /// The durability of writes that are to be durable when they end: with [`Durability::Volatile`] a flush has to
    /// follow.
    pub(crate) fn fua(&self) -> Durability {
        match self.device.geometry().fua {
            true => Durability::Durable,
            false => Durability::Volatile,
        }
    }

    /// Number of whole blocks that the device has, as far as it was noticed.
    pub(crate) fn count(&self) -> u64 {
        self.device.size() / BLOCK
    }

    /// Reads `length` bytes, whole blocks, from block `start` on.
    ///
    /// # Errors
    /// The device's; EIO when the device ends before the last block.
    pub(crate) fn read(&self, start: u64, length: usize) -> Result<Buffer, Errno> {
        self.read_bytes(start * BLOCK, length)
    }

    /// Bytes of the device that requests can read: all, except the rest after the last whole unit of its requests.
    pub(crate) fn readable_bytes(&self) -> u64 {
        let unit = u64::from(self.device.geometry().block_size);
        self.device.size() / unit * unit
    }

    /// Whether the device is an ordinary file.
    pub(crate) fn is_file(&self) -> bool {
        match self.device.core().backend().kernel_target() {
            KernelTarget::Descriptor(descriptor) => rustix::fs::fstat(descriptor)
                .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile),
            _ => false,
        }
    }

    /// Reads bytes, whole units of the device's requests.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_bytes(&self, address: u64, length: usize) -> Result<Buffer, Errno> {
        let payload = Payload::Buffer(Buffer::zeroed(length));
        match self.perform(self.request(Op::Read, address, payload))? {
            (Payload::Buffer(buffer), done) if done == length as u64 => Ok(buffer),
            // The device ends before the last block.
            _ => Err(Errno::IO),
        }
    }

    /// Writes whole blocks from block `start` on. They are durable after the next [`Self::flush`].
    ///
    /// # Errors
    /// The device's; EIO when the device ends before the last block.
    pub(crate) fn write(&self, start: u64, bytes: Buffer) -> Result<(), Errno> {
        self.write_with(start, bytes, Durability::Volatile)
    }

    /// [`Self::write`] with this durability: [`Durability::Durable`] only for a device with FUA.
    pub(crate) fn write_with(
        &self,
        start: u64,
        bytes: Buffer,
        durability: Durability,
    ) -> Result<(), Errno> {
        let request = self.write_request(start, bytes, durability)?;
        let length = request.length();
        let (_, done) = self.perform(request)?;
        if done == length { Ok(()) } else { Err(Errno::IO) }
    }

    /// Writes whole blocks, each buffer from its block on, all at once if the device can, and in any order.
    ///
    /// # Errors
    /// As [`Self::write_with`], with the first block of a write that failed; others may have been written.
    pub(crate) fn write_each(
        &self,
        writes: Vec<(u64, Buffer)>,
        durability: Durability,
    ) -> Result<(), (u64, Errno)> {
        let mut requests = Vec::with_capacity(writes.len());
        for (start, bytes) in writes {
            let request = self.write_request(start, bytes, durability);
            requests.push(request.map_err(|errno| (start, errno))?);
        }
        let core = self.device.core();
        let mut results = vec![Err(Errno::NODEV); requests.len()];
        if !core.is_closed() {
            core.backend().perform_each(&mut requests, &mut |index, moved| results[index] = moved);
        }
        for (request, moved) in requests.into_iter().zip(results) {
            let (start, length) = (request.address / BLOCK, request.length());
            match self.go_on(request, moved) {
                Ok((_, done)) if done == length => {}
                Ok(_) => return Err((start, Errno::IO)),
                Err(errno) => return Err((start, errno)),
            }
        }
        Ok(())
    }

    fn write_request(
        &self,
        start: u64,
        bytes: Buffer,
        durability: Durability,
    ) -> Result<Request, Errno> {
        if start * BLOCK + bytes.len() as u64 > self.device.size() {
            // It would make a file longer.
            return Err(Errno::IO);
        }
        let mut request = self.request(Op::Write, start * BLOCK, Payload::Buffer(bytes));
        request.durability = durability;
        Ok(request)
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The device's. Writes since the last successful flush may be lost then.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        self.device.core().count_flush();
        self.perform(self.request(Op::Flush, 0, Payload::Length(0))).map(drop)
    }

    /// Discards blocks. Their content is undefined afterwards.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device has no discard; others of the device.
    pub(crate) fn discard(&self, run: Run) -> Result<(), Errno> {
        let limits = self.device.geometry().discard.ok_or(Errno::OPNOTSUPP)?;
        let max_blocks = (limits.max_bytes / BLOCK).max(1);
        let mut start = run.start;
        while start < run.end() {
            let length = max_blocks.min(run.end() - start);
            let payload = Payload::Length(length * BLOCK);
            self.perform(self.request(Op::Discard, start * BLOCK, payload))?;
            start += length;
        }
        Ok(())
    }

    fn request(&self, op: Op, address: u64, payload: Payload) -> Request {
        Request::new(self.device.index(), op, address, payload, Tag(0))
    }

    /// Performs a request to its end. Returns its memory and the bytes done.
    fn perform(&self, mut request: Request) -> Result<(Payload, u64), Errno> {
        let moved = self.perform_step(&mut request);
        self.go_on(request, moved)
    }

    fn perform_step(&self, request: &mut Request) -> Result<u32, Errno> {
        let core = self.device.core();
        match core.is_closed() {
            true => Err(Errno::NODEV),
            false => core.backend().perform(request),
        }
    }

    /// Performs the rest of a request, of which one step has ended with this result.
    fn go_on(
        &self,
        mut request: Request,
        mut moved: Result<u32, Errno>,
    ) -> Result<(Payload, u64), Errno> {
        let core = self.device.core();
        loop {
            match request.advance(moved, core.bounds()) {
                Progress::Again => moved = self.perform_step(&mut request),
                Progress::Done(Ok(done)) => return Ok((request.payload, done)),
                Progress::Done(Err(errno)) => {
                    Failure::from_request(&request, errno)
                        .inspect(|failure| core.report_failure(*failure));
                    return Err(errno);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
    use uringfs_device::{Access, FailureListener};

    #[derive(Default)]
    struct FailureCounter(AtomicU32);

    impl FailureListener for FailureCounter {
        fn on_failure(&self, _: Failure) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn short_and_interrupted_transfers_are_completed() {
        let sim = Sim::new(SimOptions::new(1 << 20).seed(3));
        sim.inject(Rule::new(None, When::OneIn(3), Fault::Short));
        sim.inject(Rule::new(None, When::OneIn(4), Fault::Error(Errno::INTR)));
        let blocks = BlockIo::new(&Device::new(sim).unwrap());
        assert_eq!(blocks.count(), 256);
        for start in 0..64 {
            blocks.write(start * 4, Buffer::copy_of(&[start as u8 + 1; 4 * 4096])).unwrap();
        }
        blocks.flush().unwrap();
        for start in 0..64 {
            let found = blocks.read(start * 4, 4 * 4096).unwrap();
            assert!(found.iter().all(|byte| *byte == start as u8 + 1));
        }
    }

    #[test]
    fn a_read_past_the_end_fails_and_notifies_listeners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let device = Device::open(&path, Access::Read).unwrap();
        let counter = Arc::new(FailureCounter::default());
        let listener: Arc<dyn FailureListener> = counter.clone();
        device.core().add_listener(Arc::downgrade(&listener));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(6000).unwrap();
        let blocks = BlockIo::new(&device);
        assert!(blocks.read(0, 4096).unwrap().iter().all(|byte| *byte == 7));
        for (start, length) in [(1, 4096), (0, 8192), (255, 4096)] {
            assert_eq!(blocks.read(start, length).err(), Some(Errno::IO), "{length} at {start}");
        }
        assert_eq!(counter.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn blocks_past_the_end_are_neither_read_nor_written() {
        let device = Device::new(Sim::new(SimOptions::new(1 << 20))).unwrap();
        let blocks = BlockIo::new(&device);
        assert!(blocks.read(256, 4096).is_err());
        assert!(blocks.write(256, Buffer::zeroed(4096)).is_err());
    }
}
