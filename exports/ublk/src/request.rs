//! A request, from its descriptor: what to do with the file, checked in full.

use uringfs::Errno;
use uringfs::reactor::RequestKind;

use crate::abi::{IoDescriptor, SECTOR_BYTES, flag, operation};

/// An operation on a range of the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// It is durable when it ends.
    pub(crate) is_durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    /// Of the whole file.
    Flush,
    Discard,
    /// `frees_blocks`: a hole reads as zeros, too.
    Zero {
        frees_blocks: bool,
    },
}

/// The bounds that a disk sets to its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// In bytes.
    pub(crate) capacity: u64,
    /// Of the data of one request, in bytes.
    pub(crate) max_io_bytes: u32,
    pub(crate) read_only: bool,
}

impl Request {
    /// The request in a descriptor.
    ///
    /// # Errors
    /// EOPNOTSUPP for an operation that is not offered; EROFS for a change of a read-only disk; EIO for a range beyond
    /// the end of the disk; EINVAL for data of no bytes, or of more than the entry has room for.
    pub(crate) fn parse(descriptor: IoDescriptor, bounds: Bounds) -> Result<Request, Errno> {
        let has = |flag| descriptor.operation & flag != 0;
        let operation = match descriptor.operation & operation::MASK {
            operation::READ => Operation::Read,
            operation::WRITE => Operation::Write,
            operation::FLUSH => Operation::Flush,
            operation::DISCARD => Operation::Discard,
            operation::WRITE_ZEROES => Operation::Zero { frees_blocks: !has(flag::KEEP_BLOCKS) },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let is_change = !matches!(operation, Operation::Read | Operation::Flush);
        if is_change && bounds.read_only {
            return Err(Errno::ROFS);
        }
        let (offset, length) = match operation {
            Operation::Flush => (0, 0),
            _ => range(descriptor, bounds.capacity)?,
        };
        let has_data = matches!(operation, Operation::Read | Operation::Write);
        if has_data && (length == 0 || length > bounds.max_io_bytes.into()) {
            return Err(Errno::INVAL);
        }
        let is_durable = is_change && has(flag::FUA);
        Ok(Request { operation, offset, length, is_durable })
    }
}

/// The kind as which a request counts, also if it is refused.
pub(crate) fn kind(descriptor: IoDescriptor) -> RequestKind {
    match descriptor.operation & operation::MASK {
        operation::READ => RequestKind::Read,
        operation::WRITE => RequestKind::Write,
        operation::FLUSH => RequestKind::Flush,
        _ => RequestKind::Other,
    }
}

/// Offset and length of a range that is inside the disk.
fn range(descriptor: IoDescriptor, capacity: u64) -> Result<(u64, u64), Errno> {
    let offset = descriptor.start_sector.checked_mul(SECTOR_BYTES).ok_or(Errno::IO)?;
    let length = u64::from(descriptor.sectors) * SECTOR_BYTES;
    match offset.checked_add(length) {
        Some(end) if end <= capacity => Ok((offset, length)),
        _ => Err(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { capacity: 1 << 20, max_io_bytes: 65536, read_only: false };

    fn parse(operation: u32, start_sector: u64, sectors: u32) -> Result<Request, Errno> {
        Request::parse(IoDescriptor { operation, sectors, start_sector, address: 0 }, BOUNDS)
    }

    fn is(operation: u32, expected: Operation, is_durable: bool) {
        let expected = Request { operation: expected, offset: 4096, length: 1024, is_durable };
        assert_eq!(parse(operation, 8, 2), Ok(expected));
    }

    #[test]
    fn operations_have_their_ranges_and_flags() {
        is(operation::READ, Operation::Read, false);
        is(operation::WRITE, Operation::Write, false);
        is(operation::WRITE | flag::FUA, Operation::Write, true);
        is(operation::DISCARD, Operation::Discard, false);
        let freeing = Operation::Zero { frees_blocks: true };
        is(operation::WRITE_ZEROES, freeing, false);
        let keeping = Operation::Zero { frees_blocks: false };
        is(operation::WRITE_ZEROES | flag::KEEP_BLOCKS | flag::FUA, keeping, true);
        // Hints, such as that of metadata, change nothing.
        is(operation::READ | 1 << 11 | 1 << 8, Operation::Read, false);
    }

    #[test]
    fn a_flush_has_no_range() {
        let flush = parse(operation::FLUSH, u64::MAX, u32::MAX).unwrap();
        assert_eq!((flush.operation, flush.offset, flush.length), (Operation::Flush, 0, 0));
    }

    #[test]
    fn ranges_end_with_the_disk() {
        assert!(parse(operation::WRITE, 2040, 8).is_ok());
        for (start, sectors) in [(2041, 8), (2048, 1), (u64::MAX, 1), (u64::MAX / 512, 8)] {
            assert_eq!(parse(operation::DISCARD, start, sectors), Err(Errno::IO));
        }
        let all = parse(operation::DISCARD, 0, 2048).unwrap();
        assert_eq!((all.offset, all.length), (0, 1 << 20));
    }

    #[test]
    fn data_fit_in_the_memory_of_an_entry() {
        assert!(parse(operation::READ, 0, 128).is_ok());
        assert_eq!(parse(operation::READ, 0, 129), Err(Errno::INVAL));
        assert_eq!(parse(operation::WRITE, 0, 0), Err(Errno::INVAL));
    }

    #[test]
    fn a_read_only_disk_refuses_changes() {
        let bounds = Bounds { read_only: true, ..BOUNDS };
        let parse = |operation| {
            let descriptor = IoDescriptor { operation, sectors: 8, start_sector: 0, address: 0 };
            Request::parse(descriptor, bounds).map(|request| request.operation)
        };
        assert_eq!(parse(operation::READ), Ok(Operation::Read));
        assert_eq!(parse(operation::FLUSH), Ok(Operation::Flush));
        for change in [operation::WRITE, operation::DISCARD, operation::WRITE_ZEROES] {
            assert_eq!(parse(change), Err(Errno::ROFS));
        }
    }

    #[test]
    fn other_operations_are_refused() {
        // WRITE_SAME, REPORT_ZONES, and what a later kernel may have.
        for operation in [4, 18, 200] {
            assert_eq!(parse(operation, 0, 1), Err(Errno::OPNOTSUPP));
        }
    }
}
