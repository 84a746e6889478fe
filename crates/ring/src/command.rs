//! [`Command`]: what the driver of a file defines (`IORING_OP_URING_CMD`).

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use uringfs_buffer::Buffer;

use crate::in_flight::RequestId;
use crate::registered::FileSlot;

/// A command of a file's driver, with the memory that the kernel may access until it ends.
#[derive(Debug)]
pub struct Command {
    file: Arc<OwnedFd>,
    operation: u32,
    argument: [u8; 80],
    buffers: [Buffer; 2],
    /// The addresses and lengths of the buffers, as `struct iovec` has them.
    vectors: Box<[[usize; 2]; 2]>,
}

impl Command {
    /// A command to the driver of `file`, which also gets the addresses of `buffers`.
    ///
    /// # Safety
    /// For each operation that is set, the driver accesses no memory but the buffers that are in the command, and only until it
    /// ends. A buffer that is taken out is put back before the next command, if the driver remembers its address.
    pub unsafe fn new(file: Arc<OwnedFd>, buffers: [Buffer; 2]) -> Command {
        let vectors =
            buffers.each_ref().map(|buffer| [buffer.pointer().as_ptr() as usize, buffer.len()]);
        Command { file, operation: 0, argument: [0; 80], buffers, vectors: Box::new(vectors) }
    }

    /// Sets what the driver is to do.
    pub fn set(&mut self, operation: u32, argument: [u8; 80]) {
        (self.operation, self.argument) = (operation, argument);
    }

    /// The memory. While the command is under way it is out of reach.
    pub fn buffers(&mut self) -> &mut [Buffer; 2] {
        &mut self.buffers
    }

    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    pub(crate) fn entry(&self, id: RequestId) -> Entry128 {
        let entry = Sqe {
            head: FileSlot::plain(self.file.as_raw_fd()).with_operation(UringCmd80::CODE),
            operation: self.operation.into(),
            address: self.vectors.as_ptr() as u64,
            length: self.vectors.len() as u64,
            user_data: id.0,
            unused: 0,
            argument: self.argument,
        };
        // SAFETY: an `Entry128` is the kernel's structure (`repr(C)`) of integers only, and this one has the same size.
        unsafe { mem::transmute::<Sqe, Entry128>(entry) }
    }
}

/// The command in the kernel's format: `struct io_uring_sqe` of `<linux/io_uring.h>` as words, in its form of 128 bytes. The
/// builder of the crate `io-uring` has no length.
#[repr(C)]
struct Sqe {
    /// Operation code, flags, priority, file.
    head: u64,
    operation: u64,
    address: u64,
    length: u64,
    user_data: u64,
    unused: u64,
    argument: [u8; 80],
}
