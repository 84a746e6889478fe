//! [`GatheredSend`]: several buffers that are sent in one message.

use std::mem;
use std::ptr;

use uringfs_buffer::Buffer;

/// The most buffers that the kernel takes in one call (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

/// Buffers that are sent one after the other, with what the kernel reads of them.
#[derive(Debug)]
pub struct GatheredSend {
    buffers: Vec<Buffer>,
    /// Their addresses and lengths, as `struct iovec` has them.
    vectors: Box<[[usize; 2]]>,
    message: Message,
}

/// `struct msghdr` of `<sys/socket.h>`, of a system of 64 bits, as words.
#[repr(C)]
#[derive(Debug)]
struct Message {
    name: usize,
    name_length: usize,
    vectors: usize,
    vector_count: usize,
    control: usize,
    control_length: usize,
    flags: usize,
}

const _: () = assert!(mem::size_of::<Message>() == mem::size_of::<libc::msghdr>());

impl GatheredSend {
    /// The first 1024 buffers are sent.
    pub fn new(buffers: Vec<Buffer>) -> GatheredSend {
        let sent = buffers.iter().take(MAX_VECTORS);
        let vectors: Box<[_]> =
            sent.map(|buffer| [buffer.pointer().as_ptr() as usize, buffer.len()]).collect();
        let message = Message {
            name: 0,
            name_length: 0,
            vectors: vectors.as_ptr() as usize,
            vector_count: vectors.len(),
            control: 0,
            control_length: 0,
            flags: 0,
        };
        GatheredSend { buffers, vectors, message }
    }

    /// The buffers.
    pub fn into_buffers(self) -> Vec<Buffer> {
        self.buffers
    }

    /// Those that are sent.
    pub fn sent(&self) -> &[Buffer] {
        &self.buffers[..self.vectors.len()]
    }

    /// Valid as long as this stays where it is.
    pub(crate) fn message(&self) -> *const libc::msghdr {
        ptr::from_ref(&self.message).cast()
    }
}
