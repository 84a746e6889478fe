//! Reads and writes of whole buffers, as far as there are bytes, in requests of at most 1 GiB.

use uringfs::{Errno, FileOp};

use crate::memory::Memory;
use crate::thread_reactor::wait;

/// Reads until the memory is full, or to the end of the file.
pub(crate) fn read_fully(
    file: &uringfs::File,
    memory: &Memory,
    offset: u64,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < memory.len() {
        let buffer = memory.lend(done, memory.len() - done);
        match wait(file.read_at(buffer, offset.saturating_add(done as u64))).0? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes all of the memory.
pub(crate) fn write_fully(
    file: &uringfs::File,
    memory: &Memory,
    offset: u64,
    durable: bool,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < memory.len() {
        match wait(write_op(file, memory, offset, done, durable)).0? {
            0 => return Err(Errno::IO),
            written => done += written,
        }
    }
    Ok(done)
}

/// The next write of the memory, of which `done` bytes are written.
pub(crate) fn write_op(
    file: &uringfs::File,
    memory: &Memory,
    offset: u64,
    done: usize,
    durable: bool,
) -> FileOp<(Result<usize, Errno>, uringfs::Buffer)> {
    let buffer = memory.lend(done, memory.len() - done);
    let at = offset.saturating_add(done as u64);
    if durable { file.write_durably(buffer, at) } else { file.write_at(buffer, at) }
}

/// Returns the offset, and the buffer.
pub(crate) type AppendOp = FileOp<(Result<u64, Errno>, uringfs::Buffer)>;

/// The append of memory of at most [`MAX_LENGTH`](uringfs::buffer::MAX_LENGTH) bytes.
pub(crate) fn append_op(file: &uringfs::File, memory: &Memory, durable: bool) -> AppendOp {
    let buffer = memory.lend(0, memory.len());
    if durable { file.append_durably(buffer) } else { file.append(buffer) }
}
