//! What the kernel is given for a transfer's next step: the entry, which names
//! file and memory by index where they are registered.

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use uringfs_buffer::Buffer;

use crate::register::{FileName, Regions};
use crate::ring::{Memory, RingCounters, Step};

/// Memory as an entry names it.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pointer: *mut u8,
    pub(crate) length: u32,
}

impl Place {
    #[inline(always)]
    pub(crate) fn of(buffer: &Buffer, skip: u32) -> Place {
        if skip == 0 {
            return Place { pointer: buffer.pointer().as_ptr(), length: buffer.len() as u32 };
        }
        let rest = &buffer[skip as usize..];
        Place { pointer: rest.as_ptr().cast_mut(), length: rest.len() as u32 }
    }

    #[inline(always)]
    pub(crate) fn read_fixed(self, file: FileName, offset: u64, index: u16) -> Entry {
        let Place { pointer, length } = self;
        file.with(
            |file| opcode::ReadFixed::new(file, pointer, length, index).offset(offset).build(),
            |file| opcode::ReadFixed::new(file, pointer, length, index).offset(offset).build(),
        )
    }

    #[inline(always)]
    pub(crate) fn read(self, file: FileName, offset: u64) -> Entry {
        let Place { pointer, length } = self;
        file.with(
            |file| opcode::Read::new(file, pointer, length).offset(offset).build(),
            |file| opcode::Read::new(file, pointer, length).offset(offset).build(),
        )
    }

    #[inline(always)]
    pub(crate) fn write_fixed(self, file: FileName, offset: u64, index: u16, flags: i32) -> Entry {
        let Place { pointer, length } = self;
        let fixed = |file| opcode::WriteFixed::new(file, pointer, length, index).offset(offset);
        let plain = |file| opcode::WriteFixed::new(file, pointer, length, index).offset(offset);
        file.with(
            |file: types::Fixed| fixed(file).rw_flags(flags).build(),
            |file: types::Fd| plain(file).rw_flags(flags).build(),
        )
    }

    #[inline(always)]
    pub(crate) fn write(self, file: FileName, offset: u64, flags: i32) -> Entry {
        let Place { pointer, length } = self;
        let fixed = |file| opcode::Write::new(file, pointer, length).offset(offset);
        let plain = |file| opcode::Write::new(file, pointer, length).offset(offset);
        file.with(
            |file: types::Fixed| fixed(file).rw_flags(flags).build(),
            |file: types::Fd| plain(file).rw_flags(flags).build(),
        )
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
            file.with(
                |file| opcode::Fsync::new(file).flags(flags).build(),
                |file| opcode::Fsync::new(file).flags(flags).build(),
            )
        }
        Step::Read(offset, Memory::One { buffer, skip }) => {
            counters.count(file, false);
            Place::of(buffer, skip).read(file, offset)
        }
        Step::Write(offset, Memory::One { buffer, skip })
        | Step::WriteDurably(offset, Memory::One { buffer, skip }) => {
            let place = Place::of(buffer, skip);
            match regions.index_of(io, buffer.region_id(), buffer.region()) {
                Some(index) => {
                    counters.count(file, true);
                    place.write_fixed(file, offset, index, flags)
                }
                None => {
                    counters.count(file, false);
                    place.write(file, offset, flags)
                }
            }
        }
        Step::Read(offset, Memory::Many { buffers, skip, length }) => {
            counters.count(file, false);
            let (pointer, count) = keep_vector(vectors, buffers, skip, length);
            file.with(
                |file| opcode::Readv::new(file, pointer, count).offset(offset).build(),
                |file| opcode::Readv::new(file, pointer, count).offset(offset).build(),
            )
        }
        Step::Write(offset, Memory::Many { buffers, skip, length })
        | Step::WriteDurably(offset, Memory::Many { buffers, skip, length }) => {
            counters.count(file, false);
            let (pointer, count) = keep_vector(vectors, buffers, skip, length);
            let fixed = |file| opcode::Writev::new(file, pointer, count).offset(offset);
            let plain = |file| opcode::Writev::new(file, pointer, count).offset(offset);
            file.with(
                |file: types::Fixed| fixed(file).rw_flags(flags).build(),
                |file: types::Fd| plain(file).rw_flags(flags).build(),
            )
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
        let start = buffer[skip as usize..].as_ptr().cast_mut();
        pieces.push(libc::iovec { iov_base: start.cast(), iov_len: take as usize });
        skip = 0;
        length -= take;
    }
    let pieces = pieces.into_boxed_slice();
    let place = (pieces.as_ptr(), pieces.len() as u32);
    vectors.push(pieces);
    place
}
