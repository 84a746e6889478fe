//! The part of a request's memory that is not yet transferred, segment by segment, for
//! the queues and back ends that work in the calling process.

use std::mem;

use uringfs_buffer::Buffer;

use crate::request::{Op, Payload, Request};

impl Payload {
    fn buffers(&self) -> &[Buffer] {
        match self {
            Payload::Buffer(buffer) => std::slice::from_ref(buffer),
            Payload::Buffers(buffers) => buffers,
            Payload::Length(_) => &[],
        }
    }

    fn buffers_mut(&mut self) -> &mut [Buffer] {
        match self {
            Payload::Buffer(buffer) => std::slice::from_mut(buffer),
            Payload::Buffers(buffers) => buffers,
            Payload::Length(_) => &mut [],
        }
    }

    /// True if others change some of the memory: see [`Buffer::is_shared`].
    pub(crate) fn is_shared(&self) -> bool {
        self.buffers().iter().any(Buffer::is_shared)
    }

    /// Copies the bytes from byte `skip` on, of any memory, until one side ends.
    pub fn copy_to(&self, skip: u64, into: &mut [u8]) {
        let (mut skip, mut into) = (skip as usize, into);
        for buffer in self.buffers() {
            let take = buffer.len().saturating_sub(skip).min(into.len());
            let (head, tail) = into.split_at_mut(take);
            if take > 0 {
                buffer.copy_to(skip, head);
            }
            into = tail;
            skip = skip.saturating_sub(buffer.len());
        }
    }

    /// Overwrites the bytes from byte `skip` on, of any memory, until one side ends.
    pub fn copy_from(&mut self, skip: u64, bytes: &[u8]) {
        let (mut skip, mut bytes) = (skip as usize, bytes);
        // Nearly always.
        if let Payload::Buffer(buffer) = self
            && skip + bytes.len() <= buffer.len()
        {
            return buffer.copy_from(skip, bytes);
        }
        for buffer in self.buffers_mut() {
            let take = buffer.len().saturating_sub(skip).min(bytes.len());
            let (head, tail) = bytes.split_at(take);
            if take > 0 {
                buffer.copy_from(skip, head);
            }
            bytes = tail;
            skip = skip.saturating_sub(buffer.len());
        }
    }
}

impl Request {
    /// The number of bytes still to transfer.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.length() - self.done()
    }

    /// The memory still to transfer, in the order of addresses on the device. Empty for
    /// requests without memory. A back end's [`perform`](crate::Backend::perform) gets no memory that others change,
    /// which has no slices; a queue uses `ranges` or the copies.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.done() as usize;
        self.payload.buffers().iter().filter_map(move |buffer| {
            let start = skip.min(buffer.len());
            skip -= start;
            (start < buffer.len()).then(|| &buffer[start..])
        })
    }

    /// Address and length of the memory still to transfer, as [`Self::segments`], of any memory.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut skip = self.done() as usize;
        self.payload.buffers().iter().filter_map(move |buffer| {
            let start = skip.min(buffer.len());
            skip -= start;
            let range = (buffer.pointer().as_ptr().wrapping_add(start), buffer.len() - start);
            (range.1 > 0).then_some(range)
        })
    }

    /// A copy of the first `length` bytes still to transfer.
    pub(crate) fn copy_out(&self, length: usize) -> Buffer {
        let mut copy = Buffer::zeroed(length);
        self.payload.copy_to(self.done(), &mut copy);
        copy
    }

    /// Copies `bytes` to the memory still to fill.
    pub(crate) fn copy_in(&mut self, bytes: &[u8]) {
        let done = self.done();
        self.payload.copy_from(done, bytes);
    }

    /// Puts a copy in the place of memory that others change, which has no slices. Returns that memory.
    pub(crate) fn replace_shared(&mut self) -> Option<Payload> {
        if !self.payload.is_shared() {
            return None;
        }
        let mut copy = Buffer::zeroed(self.length() as usize);
        if self.op == Op::Write {
            self.payload.copy_to(0, &mut copy);
        }
        Some(mem::replace(&mut self.payload, Payload::Buffer(copy)))
    }

    /// Puts that memory back, after a step that has moved this many bytes: a read's are copied to it.
    pub(crate) fn restore_shared(&mut self, mut shared: Payload, moved: u32) {
        if let (Op::Read, Payload::Buffer(copy)) = (self.op, &self.payload) {
            let start = self.done() as usize;
            shared.copy_from(start as u64, &copy[start..start + moved as usize]);
        }
        self.payload = shared;
    }

    /// The memory still to fill, as [`Self::segments`].
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut skip = self.done() as usize;
        self.payload.buffers_mut().iter_mut().filter_map(move |buffer| {
            let start = skip.min(buffer.len());
            skip -= start;
            (start < buffer.len()).then(|| &mut buffer[start..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounds, DeviceIndex, Op, Progress, Tag};

    #[test]
    fn segments_begin_where_the_last_step_ended() {
        let bounds = |block_size| Bounds { block_size, size: 1 << 20 };
        let buffers = [1u8, 2, 3].map(|byte| Buffer::copy_of(&[byte; 512]));
        let payload = Payload::Buffers(Box::new(buffers));
        let mut request = Request::new(DeviceIndex::for_tests(0), Op::Write, 0, payload, Tag(0));
        assert_eq!(request.segments().map(<[u8]>::len).collect::<Vec<_>>(), [512, 512, 512]);
        assert_eq!(request.advance(Ok(512), bounds(512)), Progress::Again);
        assert_eq!(request.segments().map(|piece| piece[0]).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(request.advance(Ok(256), bounds(256)), Progress::Again);
        assert_eq!(request.remaining(), 768);
        assert_eq!(request.segments_mut().map(|piece| piece.len()).collect::<Vec<_>>(), [256, 512]);
    }
}
