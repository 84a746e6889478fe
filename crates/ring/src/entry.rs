//! What the kernel is given for a transfer's next step: the entry, which names
//! file and memory by index where they are registered.

use std::ptr::NonNull;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use uringfs_buffer::{Buffer, Region, RegionId};

use crate::register::{FileName, Regions};
use crate::ring::RingCounters;
use crate::transfer::{Memory, Step};

/// One piece of memory, as an entry names it. Valid while the buffer is that it is of.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub(crate) pointer: NonNull<u8>,
    /// Bytes.
    pub(crate) length: u32,
    pub(crate) region_id: RegionId,
    pub(crate) region: NonNull<Region>,
}

impl Piece {
    /// The bytes of `buffer` after the first `skip`.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    pub fn of(buffer: &Buffer, skip: u32) -> Piece {
        let length = buffer.len() as u32;
        assert!(skip <= length, "{skip} of {length} bytes are done");
        // SAFETY: inside the buffer, as asserted.
        let pointer = unsafe { buffer.pointer().add(skip as usize) };
        let (length, region) = (length - skip, NonNull::from(buffer.region()));
        Piece { pointer, length, region_id: buffer.region_id(), region }
    }

    #[inline(always)]
    pub(crate) fn read_fixed(self, file: FileName, offset: u64, index: u16) -> Entry {
        let (pointer, length) = (self.pointer.as_ptr(), self.length);
        file.entry(|file| {
            opcode::ReadFixed::new(file, pointer, length, index).offset(offset).build()
        })
    }

    #[inline(always)]
    pub(crate) fn read(self, file: FileName, offset: u64) -> Entry {
        let (pointer, length) = (self.pointer.as_ptr(), self.length);
        file.entry(|file| opcode::Read::new(file, pointer, length).offset(offset).build())
    }

    #[inline(always)]
    pub(crate) fn write_fixed(self, file: FileName, offset: u64, index: u16, flags: i32) -> Entry {
        let (pointer, length) = (self.pointer.as_ptr(), self.length);
        file.entry(|file| {
            let write = opcode::WriteFixed::new(file, pointer, length, index);
            write.offset(offset).rw_flags(flags).build()
        })
    }

    #[inline(always)]
    pub(crate) fn write(self, file: FileName, offset: u64, flags: i32) -> Entry {
        let (pointer, length) = (self.pointer.as_ptr(), self.length);
        file.entry(|file| {
            let write = opcode::Write::new(file, pointer, length);
            write.offset(offset).rw_flags(flags).build()
        })
    }
}

/// The entry of what is not a plain transfer of one buffer.
#[cold]
#[inline(never)]
pub(crate) fn rare_entry(
    io: &IoUring,
    regions: &mut Regions,
    vectors: &mut Vec<Box<[libc::iovec]>>,
    counters: &mut RingCounters,
    file: FileName,
    step: Step<'_>,
) -> Entry {
    let flags = if matches!(step, Step::WriteDurably(..)) { libc::RWF_DSYNC } else { 0 };
    match step {
        Step::Flush => {
            let flags = types::FsyncFlags::DATASYNC;
            file.entry(|file| opcode::Fsync::new(file).flags(flags).build())
        }
        Step::Read(offset, Memory::One(piece)) => {
            counters.count(file, false);
            piece.read(file, offset)
        }
        Step::Write(offset, Memory::One(piece))
        | Step::WriteDurably(offset, Memory::One(piece)) => {
            let index = regions.index_of(io, piece);
            counters.count(file, index.is_some());
            match index {
                Some(index) => piece.write_fixed(file, offset, index, flags),
                None => piece.write(file, offset, flags),
            }
        }
        Step::Read(offset, Memory::Many { buffers, skip, length }) => {
            counters.count(file, false);
            let (pointer, count) = keep_vector(vectors, buffers, skip, length);
            file.entry(|file| opcode::Readv::new(file, pointer, count).offset(offset).build())
        }
        Step::Write(offset, Memory::Many { buffers, skip, length })
        | Step::WriteDurably(offset, Memory::Many { buffers, skip, length }) => {
            counters.count(file, false);
            let (pointer, count) = keep_vector(vectors, buffers, skip, length);
            file.entry(|file| {
                let write = opcode::Writev::new(file, pointer, count);
                write.offset(offset).rw_flags(flags).build()
            })
        }
    }
}

/// Lists the pieces of `buffers` between `skip` and `skip + length`, and keeps
/// the list until the kernel has read it.
fn keep_vector(
    vectors: &mut Vec<Box<[libc::iovec]>>,
    buffers: &[Buffer],
    mut skip: u64,
    mut length: u64,
) -> (*const libc::iovec, u32) {
    let mut pieces = Vec::with_capacity(buffers.len());
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
        pieces.push(libc::iovec { iov_base: start.cast(), iov_len: take as usize });
        skip = 0;
        length -= take;
    }
    let pieces = pieces.into_boxed_slice();
    let place = (pieces.as_ptr(), pieces.len() as u32);
    vectors.push(pieces);
    place
}
