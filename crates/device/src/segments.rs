//! The part of a request's memory that is not yet transferred, segment by segment, for
//! the queues and back ends that work in the calling process.

use uringfs_buffer::Buffer;

use crate::request::{Payload, Request};

impl Request {
    /// The number of bytes still to transfer.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.length() - self.done()
    }

    /// The memory still to transfer, in the order of addresses on the device. Empty for
    /// requests without memory.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let buffers: &[Buffer] = match &self.payload {
            Payload::Buffer(buffer) => std::slice::from_ref(buffer),
            Payload::Buffers(buffers) => buffers,
            Payload::Length(_) => &[],
        };
        let mut skip = self.done() as usize;
        buffers.iter().filter_map(move |buffer| {
            let start = skip.min(buffer.len());
            skip -= start;
            (start < buffer.len()).then(|| &buffer[start..])
        })
    }

    /// The memory still to fill, as [`Self::segments`].
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut skip = self.done() as usize;
        let buffers: &mut [Buffer] = match &mut self.payload {
            Payload::Buffer(buffer) => std::slice::from_mut(buffer),
            Payload::Buffers(buffers) => buffers,
            Payload::Length(_) => &mut [],
        };
        buffers.iter_mut().filter_map(move |buffer| {
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
