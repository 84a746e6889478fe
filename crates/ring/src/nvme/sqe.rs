//! Encodes the submission entry of a command: `struct io_uring_sqe` of `<linux/io_uring.h>` in its form of 128 bytes.

use std::mem;

use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;

use super::command::NvmeCommand;
use crate::in_flight::RequestId;
use crate::registered::FileSlot;

/// `NVME_URING_CMD_IO`: the command's memory is one segment.
const COMMAND: u64 = 0xc048_4e80;
/// `NVME_URING_CMD_IO_VEC`: its memory is a list of vectors.
const VECTORED: u64 = 0xc048_4e81;
/// `IORING_URING_CMD_FIXED`, in the word of the length: the memory is in a registered region.
const FIXED: u64 = 1 << 32;

/// The entry as words, and the command behind them.
#[repr(C)]
pub(super) struct CommandSqe {
    /// Operation, flags, priority, file.
    head: u64,
    /// Low half: the driver's operation.
    operation: u64,
    address: u64,
    /// High half: `uring_cmd_flags`.
    length: u64,
    user_data: u64,
    /// Lowest 16 bits: the registered buffer's index.
    buffer: u64,
    command: NvmeCommand,
    unused: u64,
}

impl CommandSqe {
    #[inline(always)]
    fn new(file: FileSlot, operation: u64, command: NvmeCommand) -> CommandSqe {
        CommandSqe {
            head: file.with_operation(UringCmd80::CODE),
            operation,
            address: 0,
            length: 0,
            user_data: 0,
            buffer: 0,
            command,
            unused: 0,
        }
    }

    /// For memory by address, or none.
    #[inline(always)]
    pub(super) fn plain(file: FileSlot, command: NvmeCommand) -> CommandSqe {
        CommandSqe::new(file, COMMAND, command)
    }

    /// For memory in the registered region at `index`.
    #[inline(always)]
    pub(super) fn fixed(file: FileSlot, command: NvmeCommand, index: u16) -> CommandSqe {
        let plain = CommandSqe::new(file, COMMAND, command);
        CommandSqe { length: FIXED, buffer: u64::from(index), ..plain }
    }

    /// For a list of vectors.
    pub(super) fn vectored(file: FileSlot, command: NvmeCommand) -> CommandSqe {
        CommandSqe::new(file, VECTORED, command)
    }

    /// The entry, with `id` as its `user_data`.
    #[inline(always)]
    pub(super) fn with_id(self, id: RequestId) -> Entry128 {
        let sqe = CommandSqe { user_data: id.0, ..self };
        // SAFETY: an `Entry128` is the kernel's structure (`repr(C)`) of integers only, and this one has the same size
        // and no padding.
        unsafe { mem::transmute::<CommandSqe, Entry128>(sqe) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Namespace, WriteMode};
    use super::*;

    const NAMESPACE: Namespace = Namespace {
        id: 7,
        block_shift: 9,
        max_transfer: 1 << 20,
        size: 1 << 40,
        read_only: false,
        volatile_cache: true,
    };

    fn bytes(sqe: CommandSqe) -> [u8; 128] {
        // SAFETY: both are integers only, of the same size.
        unsafe {
            mem::transmute::<Entry128, [u8; 128]>(sqe.with_id(RequestId(0x1122_3344_5566_7788)))
        }
    }

    fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
        let mut value = [0; 8];
        value[..size].copy_from_slice(&bytes[at..at + size]);
        u64::from_le_bytes(value)
    }

    /// `struct io_uring_sqe`, then `struct nvme_uring_cmd` from byte 48 on.
    #[test]
    fn the_entry_has_the_layout_of_the_kernel() {
        let command =
            NAMESPACE.write(WriteMode::ForceUnitAccess, 0x1_2345_6789_0000, 8192, 0x7f00_0000_1000);
        let entry = bytes(CommandSqe::fixed(FileSlot::fixed(5), command, 9));
        let fields = [
            ("opcode", 0, 1, 46),
            ("flags: IOSQE_FIXED_FILE", 1, 1, 1),
            ("ioprio", 2, 2, 0),
            ("fd", 4, 4, 5),
            ("cmd_op", 8, 4, 0xc048_4e80),
            ("__pad1", 12, 4, 0),
            ("addr", 16, 8, 0),
            ("len", 24, 4, 0),
            ("uring_cmd_flags: IORING_URING_CMD_FIXED", 28, 4, 1),
            ("user_data", 32, 8, 0x1122_3344_5566_7788),
            ("buf_index", 40, 2, 9),
            ("personality", 42, 2, 0),
            ("splice_fd_in", 44, 4, 0),
            ("cmd: opcode", 48, 1, 1),
            ("cmd: flags", 49, 1, 0),
            ("cmd: rsvd1", 50, 2, 0),
            ("cmd: nsid", 52, 4, 7),
            ("cmd: cdw2", 56, 4, 0),
            ("cmd: cdw3", 60, 4, 0),
            ("cmd: metadata", 64, 8, 0),
            ("cmd: addr", 72, 8, 0x7f00_0000_1000),
            ("cmd: metadata_len", 80, 4, 0),
            ("cmd: data_len", 84, 4, 8192),
            ("cmd: cdw10", 88, 4, 0xa2b3_c480),
            ("cmd: cdw11", 92, 4, 0x91),
            ("cmd: cdw12", 96, 4, 1 << 30 | 15),
            ("cmd: cdw13", 100, 4, 0),
            ("cmd: cdw14", 104, 4, 0),
            ("cmd: cdw15", 108, 4, 0),
            ("cmd: timeout_ms", 112, 4, 0),
            ("cmd: rsvd2", 116, 4, 0),
            ("the rest", 120, 8, 0),
        ];
        for (name, at, size, expected) in fields {
            assert_eq!(number(&entry, at, size), expected, "{name}");
        }
    }

    #[test]
    fn plain_and_vectored_entries_differ_in_operation_and_flags() {
        let command = NAMESPACE.read(0, 512, 0x1000);
        let plain = bytes(CommandSqe::plain(FileSlot::plain(3), command));
        assert_eq!((number(&plain, 1, 1), number(&plain, 4, 4)), (0, 3));
        assert_eq!((number(&plain, 8, 4), number(&plain, 28, 4)), (0xc048_4e80, 0));
        let vectored = bytes(CommandSqe::vectored(FileSlot::plain(3), command));
        assert_eq!((number(&vectored, 8, 4), number(&vectored, 28, 4)), (0xc048_4e81, 0));
        assert_eq!(plain[48..], vectored[48..]);
    }
}
