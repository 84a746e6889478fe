//! Encodes the submission entry (SQE) of a transfer's next step. The entry names file
//! and memory by index if they are registered.

use std::mem;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use uringfs_buffer::{Buffer, RegionId};

use crate::counters::RawCounters;
use crate::in_flight::RequestId;
use crate::queues::AnyQueues;
use crate::registered::{FileSlot, MemoryName, RegionTable};
use crate::segment::IoSegment;
use crate::transfer::{NextOp, TransferMemory};

/// The kernel's operation codes for one direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Direction {
    /// From or to one segment of memory.
    plain: u8,
    /// The same, in a registered region.
    fixed: u8,
    /// From or to several segments.
    vectored: u8,
}

impl Direction {
    pub(crate) const READ: Direction = Direction {
        plain: opcode::Read::CODE,
        fixed: opcode::ReadFixed::CODE,
        vectored: opcode::Readv::CODE,
    };
    pub(crate) const WRITE: Direction = Direction {
        plain: opcode::Write::CODE,
        fixed: opcode::WriteFixed::CODE,
        vectored: opcode::Writev::CODE,
    };
}

/// A transfer in the kernel's format: `struct io_uring_sqe` of `<linux/io_uring.h>`
/// as words, so that each word is written once, directly into the queue. The builders
/// of the crate `io-uring` assemble the entry on the stack first.
#[repr(C)]
pub(crate) struct Sqe {
    /// Operation, flags, priority, file.
    head: u64,
    offset: u64,
    address: u64,
    /// Low half: length. High half: `rw_flags`.
    length: u64,
    user_data: u64,
    /// Lowest 16 bits: the registered buffer's index. The rest is not used here.
    buffer: u64,
    address3: u64,
    unused: u64,
}

const _: () =
    assert!(cfg!(target_endian = "little"), "the layout of the words assumes little endian");

impl Sqe {
    #[inline(always)]
    fn new(operation: u8, file: FileSlot, offset: u64, address: u64, length: u32) -> Sqe {
        Sqe {
            head: file.with_operation(operation),
            offset,
            address,
            length: length as u64,
            user_data: 0,
            buffer: 0,
            address3: 0,
            unused: 0,
        }
    }

    /// For one segment of memory.
    #[inline(always)]
    pub(crate) fn plain(
        direction: Direction,
        file: FileSlot,
        offset: u64,
        segment: &IoSegment,
    ) -> Sqe {
        let address = segment.pointer.as_ptr() as u64;
        Sqe::new(direction.plain, file, offset, address, segment.length)
    }

    /// For one segment of memory in the registered region at `index`.
    #[inline(always)]
    pub(crate) fn fixed(
        direction: Direction,
        file: FileSlot,
        offset: u64,
        segment: &IoSegment,
        index: u16,
    ) -> Sqe {
        let address = segment.pointer.as_ptr() as u64;
        let entry = Sqe::new(direction.fixed, file, offset, address, segment.length);
        Sqe { buffer: index as u64, ..entry }
    }

    /// With `rw_flags`.
    fn with_flags(self, flags: i32) -> Sqe {
        Sqe { length: self.length | (flags as u32 as u64) << 32, ..self }
    }

    /// The entry, with `id` as its `user_data`.
    #[inline(always)]
    pub(crate) fn with_id(self, id: RequestId) -> Entry {
        let sqe = Sqe { user_data: id.0, ..self };
        // SAFETY: an `Entry` is the kernel's structure (`repr(C)`) of integers
        // only, and this one has the same size.
        unsafe { mem::transmute::<Sqe, Entry>(sqe) }
    }
}

/// The words of an entry that transfers of one batch share: operation and file, for both directions, and the
/// registered buffer.
pub(crate) struct SqeHead {
    read: u64,
    write: u64,
    /// The index of the registered region, if it is.
    index: Option<u16>,
}

impl SqeHead {
    pub(crate) fn new(file: FileSlot, index: Option<u16>) -> SqeHead {
        // The kernel does not read the other words of a NOP.
        let head = |direction: Direction| match index {
            _ if file == FileSlot::NOP => FileSlot::ABSENT.with_operation(opcode::Nop::CODE),
            Some(_) => file.with_operation(direction.fixed),
            None => file.with_operation(direction.plain),
        };
        SqeHead { read: head(Direction::READ), write: head(Direction::WRITE), index }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.index.is_some()
    }

    /// The entry for one segment of memory.
    #[inline(always)]
    pub(crate) fn sqe(&self, direction: Direction, offset: u64, segment: &IoSegment) -> Sqe {
        Sqe {
            head: if direction == Direction::READ { self.read } else { self.write },
            offset,
            address: segment.pointer.as_ptr() as u64,
            length: segment.length as u64,
            user_data: 0,
            buffer: self.index.unwrap_or(0).into(),
            address3: 0,
            unused: 0,
        }
    }
}

/// A NOP: the entry of a transfer whose file index is a NOP.
#[inline(always)]
pub(crate) fn nop_sqe(id: RequestId) -> Entry {
    Sqe::new(opcode::Nop::CODE, FileSlot::ABSENT, 0, 0, 0).with_id(id)
}

/// The file of a transfer with memory that must not be written. A read into it is the mistake of a back end that put
/// the memory of a write into a read: it gets no file, so the kernel returns EBADF.
#[cold]
pub(crate) fn file_for_read_only(direction: Direction, file: FileSlot) -> FileSlot {
    if direction == Direction::WRITE { file } else { FileSlot::ABSENT }
}

/// The entry of any transfer. Reads and volatile writes of one segment nearly always have a faster way.
#[cold]
#[inline(never)]
pub(crate) fn slow_sqe(
    io: &impl AnyQueues,
    regions: &mut RegionTable,
    iovec_lists: &mut Vec<Box<[libc::iovec]>>,
    counters: &mut RawCounters,
    file: FileSlot,
    step: NextOp<'_>,
    id: RequestId,
) -> Entry {
    if file == FileSlot::NOP {
        return nop_sqe(id);
    }
    let (direction, offset, memory, rw_flags) = match step {
        NextOp::Flush => {
            let flush = opcode::Fsync::new(types::Fd(file.number()));
            let flush = flush.flags(types::FsyncFlags::DATASYNC).build();
            return flush.flags(file.flags()).user_data(id.0);
        }
        NextOp::Read(offset, memory) => (Direction::READ, offset, memory, 0),
        NextOp::Write(offset, memory) => (Direction::WRITE, offset, memory, 0),
        NextOp::WriteDurably(offset, memory) => (Direction::WRITE, offset, memory, libc::RWF_DSYNC),
    };
    let name = match memory {
        TransferMemory::Single(segment) => regions.name_of(io, &segment),
        TransferMemory::Vectored { buffers, .. } => {
            let is_read_only = |buffer: &Buffer| buffer.region_id() == RegionId::READ_ONLY;
            match buffers.iter().any(is_read_only) {
                true => MemoryName::ReadOnlyAddress,
                false => MemoryName::Address,
            }
        }
    };
    let file = match name {
        MemoryName::ReadOnlyAddress => file_for_read_only(direction, file),
        MemoryName::Index(_) | MemoryName::Address => file,
    };
    counters.count(file, matches!(name, MemoryName::Index(_)));
    let entry = match (memory, name) {
        (TransferMemory::Single(segment), MemoryName::Index(index)) => {
            Sqe::fixed(direction, file, offset, &segment, index)
        }
        (TransferMemory::Single(segment), _) => Sqe::plain(direction, file, offset, &segment),
        (TransferMemory::Vectored { buffers, skip, length }, _) => {
            let iovecs = build_iovecs(buffers, skip, length);
            let (address, count) = (iovecs.as_ptr() as u64, iovecs.len() as u32);
            // Kept until the kernel has read it.
            iovec_lists.push(iovecs);
            Sqe::new(direction.vectored, file, offset, address, count)
        }
    };
    entry.with_flags(rw_flags).with_id(id)
}

/// The iovecs of bytes `skip` to `skip + length` of `buffers`.
pub(crate) fn build_iovecs(
    buffers: &[Buffer],
    mut skip: u64,
    mut length: u64,
) -> Box<[libc::iovec]> {
    let mut iovecs = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let size = buffer.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        let take = (size - skip).min(length);
        if take == 0 {
            break;
        }
        let start = buffer.pointer().as_ptr().wrapping_add(skip as usize);
        iovecs.push(libc::iovec { iov_base: start.cast(), iov_len: take as usize });
        skip = 0;
        length -= take;
    }
    iovecs.into_boxed_slice()
}
