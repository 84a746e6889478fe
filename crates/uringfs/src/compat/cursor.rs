//! The position of a file with a cursor, and the memory that its calls reuse.

use std::io::{self, SeekFrom};

use uringfs_buffer::Buffer;
use uringfs_device::Errno;
use uringfs_file::File;

/// The most bytes that one call moves.
pub(crate) const MAX_CALL_BYTES: usize = 1 << 20;

/// Where writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    AtCursor,
    Append,
}

/// The position of a seek.
///
/// # Errors
/// EINVAL for a negative position, and for one beyond the largest file.
pub(crate) fn seek_position(file: &File, current: u64, to: SeekFrom) -> io::Result<u64> {
    let position = match to {
        SeekFrom::Start(position) => Some(position),
        SeekFrom::Current(distance) => current.checked_add_signed(distance),
        SeekFrom::End(distance) => file.len().checked_add_signed(distance),
    };
    let position = position.filter(|position| i64::try_from(*position).is_ok());
    position.ok_or_else(|| Errno::INVAL.into())
}

/// `length` bytes, at most [`MAX_CALL_BYTES`], of `kept` if it has as many. Returns the rest, too.
pub(crate) fn take_buffer(kept: Option<Buffer>, length: usize) -> (Buffer, Option<Buffer>) {
    let length = length.min(MAX_CALL_BYTES);
    match kept {
        Some(mut buffer) if buffer.len() >= length => {
            let rest = buffer.split_off(length);
            (buffer, Some(rest))
        }
        _ => (Buffer::zeroed(length), None),
    }
}

/// The whole of what [`take_buffer`] divided.
pub(crate) fn join_buffer(mut buffer: Buffer, rest: Option<Buffer>) -> Buffer {
    if let Some(rest) = rest {
        // It is not the same memory if that was lost with an operation that was given up.
        let _ = buffer.join(rest);
    }
    buffer
}
