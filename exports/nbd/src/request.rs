//! Bytes of a request into an operation.

use uringfs::Errno;
use uringfs::reactor::RequestKind;
use uringfs_nbd_protocol::transmission::{Command, Extent, REQUEST_MAGIC, Request, command_flags};
use zerocopy::FromBytes;

use crate::exports::MAX_PAYLOAD;
use crate::handshake::Violation;
use crate::operations::MAX_EXTENTS;

/// A request as it came, with a payload that is at most [`MAX_PAYLOAD`] long if it has one.
pub(crate) struct Received {
    pub(crate) command: Command,
    pub(crate) flags: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// The limits of an export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The size of the export in bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) cached: bool,
    /// The client has asked for `base:allocation`.
    pub(crate) block_status: bool,
}

/// The operation on a range of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write { durable: bool },
    Flush,
    Trim { durable: bool },
    Cache,
    WriteZeroes { durable: bool, no_hole: bool, fast: bool },
    BlockStatus { one: bool },
}

impl Received {
    /// The length of a request's head in bytes.
    pub(crate) const LENGTH: usize = size_of::<Request>();

    /// A request from its head.
    pub(crate) fn parse(bytes: &[u8; Received::LENGTH]) -> Result<Received, Violation> {
        let request = Request::read_from_bytes(bytes).expect("it has that length");
        let received = Received {
            command: Command(request.command.get()),
            flags: request.flags.get(),
            cookie: request.cookie.get(),
            offset: request.offset.get(),
            length: request.length.get(),
        };
        let has_magic = request.magic.get() == REQUEST_MAGIC;
        match has_magic && received.payload_length() <= MAX_PAYLOAD as usize {
            true => Ok(received),
            false => Err(Violation),
        }
    }

    /// The kind as which it counts.
    pub(crate) fn kind(&self) -> RequestKind {
        match self.command {
            Command::READ => RequestKind::Read,
            Command::WRITE => RequestKind::Write,
            Command::FLUSH => RequestKind::Flush,
            _ => RequestKind::Other,
        }
    }

    /// The number of bytes that follow the head.
    pub(crate) fn payload_length(&self) -> usize {
        if self.command == Command::WRITE { self.length as usize } else { 0 }
    }

    /// The bytes of memory that the request takes.
    pub(crate) fn memory(&self) -> usize {
        match self.command {
            Command::READ if self.length <= MAX_PAYLOAD => self.length as usize,
            Command::WRITE => self.length as usize,
            Command::BLOCK_STATUS => MAX_EXTENTS * size_of::<Extent>(),
            _ => 0,
        }
    }

    /// The operation, if the export allows it.
    pub(crate) fn operation(&self, limits: &Limits) -> Result<Operation, Errno> {
        let has = |flag| self.flags & flag != 0;
        let durable = has(command_flags::FUA);
        let (operation, flags) = match self.command {
            Command::READ => (Operation::Read, command_flags::DF),
            Command::WRITE => (Operation::Write { durable }, 0),
            Command::FLUSH => (Operation::Flush, 0),
            Command::TRIM => (Operation::Trim { durable }, 0),
            Command::CACHE if limits.cached => (Operation::Cache, 0),
            Command::WRITE_ZEROES => {
                let (no_hole, fast) = (has(command_flags::NO_HOLE), has(command_flags::FAST_ZERO));
                let flags = command_flags::NO_HOLE | command_flags::FAST_ZERO;
                (Operation::WriteZeroes { durable, no_hole, fast }, flags)
            }
            Command::BLOCK_STATUS if limits.block_status => {
                let one = has(command_flags::REQ_ONE);
                (Operation::BlockStatus { one }, command_flags::REQ_ONE)
            }
            _ => return Err(Errno::INVAL),
        };
        // Clients may set it on any request.
        if self.flags & !(flags | command_flags::FUA) != 0 {
            return Err(Errno::INVAL);
        }
        if operation != Operation::Flush {
            self.check_range(operation, limits)?;
        }
        Ok(operation)
    }

    fn check_range(&self, operation: Operation, limits: &Limits) -> Result<(), Errno> {
        let takes_room =
            matches!(operation, Operation::Write { .. } | Operation::WriteZeroes { .. });
        let is_change = takes_room || matches!(operation, Operation::Trim { .. });
        let is_inside =
            self.offset.checked_add(self.length.into()).is_some_and(|end| end <= limits.size);
        match () {
            () if is_change && limits.read_only => Err(Errno::PERM),
            () if self.length == 0 => Err(Errno::INVAL),
            () if operation == Operation::Read && self.length > MAX_PAYLOAD => Err(Errno::INVAL),
            () if is_inside => Ok(()),
            () if takes_room => Err(Errno::NOSPC),
            () => Err(Errno::INVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const LIMITS: Limits =
        Limits { size: 1 << 20, read_only: false, cached: true, block_status: true };

    fn received(command: Command, flags: u16, offset: u64, length: u32) -> Received {
        let request = Request::new(command, flags, 1, offset, length);
        Received::parse(request.as_bytes().try_into().unwrap()).unwrap()
    }

    fn operation(
        command: Command,
        flags: u16,
        offset: u64,
        length: u32,
    ) -> Result<Operation, Errno> {
        received(command, flags, offset, length).operation(&LIMITS)
    }

    #[test]
    fn a_range_beyond_the_end_is_refused() {
        for (offset, length) in
            [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX, 2), (1 << 63, 1 << 20)]
        {
            assert_eq!(operation(Command::READ, 0, offset, length), Err(Errno::INVAL));
            assert_eq!(operation(Command::WRITE, 0, offset, length), Err(Errno::NOSPC));
            assert_eq!(operation(Command::WRITE_ZEROES, 0, offset, length), Err(Errno::NOSPC));
            assert_eq!(operation(Command::TRIM, 0, offset, length), Err(Errno::INVAL));
            assert_eq!(operation(Command::BLOCK_STATUS, 0, offset, length), Err(Errno::INVAL));
        }
        assert_eq!(operation(Command::READ, 0, 0, 1 << 20), Ok(Operation::Read));
        assert_eq!(operation(Command::FLUSH, 0, u64::MAX, 5), Ok(Operation::Flush));
    }

    #[test]
    fn flags_of_another_command_are_refused() {
        assert_eq!(operation(Command::READ, command_flags::DF, 0, 1), Ok(Operation::Read));
        assert_eq!(operation(Command::WRITE, command_flags::DF, 0, 1), Err(Errno::INVAL));
        assert_eq!(operation(Command::READ, 1 << 15, 0, 1), Err(Errno::INVAL));
        let durable = Operation::Write { durable: true };
        assert_eq!(operation(Command::WRITE, command_flags::FUA, 0, 1), Ok(durable));
        assert_eq!(operation(Command(99), 0, 0, 1), Err(Errno::INVAL));
    }

    #[test]
    fn what_was_not_agreed_on_is_refused() {
        let limits = Limits { read_only: true, cached: false, block_status: false, ..LIMITS };
        for command in [Command::WRITE, Command::TRIM, Command::WRITE_ZEROES] {
            assert_eq!(received(command, 0, 0, 1).operation(&limits), Err(Errno::PERM));
        }
        for command in [Command::CACHE, Command::BLOCK_STATUS] {
            assert_eq!(received(command, 0, 0, 1).operation(&limits), Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_payload_that_is_too_long_ends_the_connection() {
        let parse =
            |request: Request| Received::parse(request.as_bytes().try_into().unwrap()).err();
        let long = |command| Request::new(command, 0, 1, 0, MAX_PAYLOAD + 1);
        assert_eq!(parse(long(Command::WRITE)), Some(Violation));
        assert_eq!(parse(long(Command::READ)), None);
        let mut request = Request::new(Command::READ, 0, 1, 0, 1);
        request.magic = 7.into();
        assert_eq!(parse(request), Some(Violation));
    }
}
