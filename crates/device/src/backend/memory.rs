//! Anonymous memory as a device: chunks of 1 MiB. Each is allocated at its first
//! write and has its own lock, so threads rarely contend.

use std::io;

use crossbeam_utils::CachePadded;
use parking_lot::RwLock;
use uringfs_errno::Errno;

use crate::geometry::{Discard, Geometry};
use crate::interface::backend::{Backend, KernelTarget};
use crate::request::{Op, Request};

/// The size of a chunk in bytes.
const CHUNK: u64 = 1 << 20;

/// The largest size in bytes; the table of chunks then takes 128 MiB.
const MAX_SIZE: u64 = 1 << 40;

/// The bytes of a chunk; `None` for zeros.
type Chunk = RwLock<Option<Box<[u8]>>>;

/// Memory. The content is lost when the device is dropped.
pub struct Memory {
    chunks: Box<[CachePadded<Chunk>]>,
    geometry: Geometry,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Memory of {} bytes", self.geometry.size)
    }
}

impl Memory {
    /// `size` bytes of zeros, at most 1 TiB, a multiple of 512.
    ///
    /// # Errors
    /// `InvalidInput` for any other size.
    pub fn new(size: u64) -> io::Result<Memory> {
        if size > MAX_SIZE || !size.is_multiple_of(512) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("memory of {size} bytes: give a multiple of 512, at most {MAX_SIZE}"),
            ));
        }
        let geometry = Geometry {
            size,
            block_size: 512,
            physical_block_size: 4096,
            memory_alignment: 1,
            max_transfer: 1 << 30,
            volatile_cache: false,
            cached_in_process: false,
            fua: true,
            durable_writes: true,
            discard: Some(Discard { granularity: CHUNK as u32, max_bytes: u64::MAX >> 1 }),
            write_zeroes: true,
            read_only: false,
            rotational: false,
            direct: true,
        };
        let chunks = (0..size.div_ceil(CHUNK)).map(|_| CachePadded::default()).collect();
        Ok(Memory { chunks, geometry })
    }

    /// The chunk at `address`, and the part of it that `length` bytes from there
    /// cover: its start in the chunk and its length.
    fn part(&self, address: u64, length: u64) -> (&Chunk, usize, usize) {
        let start = address % CHUNK;
        let length = length.min(CHUNK - start);
        (&self.chunks[(address / CHUNK) as usize], start as usize, length as usize)
    }

    fn read(&self, mut address: u64, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let (chunk, start, length) = self.part(address, bytes.len() as u64);
            let (head, tail) = bytes.split_at_mut(length);
            match &*chunk.read() {
                Some(stored) => head.copy_from_slice(&stored[start..start + length]),
                None => head.fill(0),
            }
            address += length as u64;
            bytes = tail;
        }
    }

    fn write(&self, mut address: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (chunk, start, length) = self.part(address, bytes.len() as u64);
            let (head, tail) = bytes.split_at(length);
            let mut stored = chunk.write();
            // The kernel backs a large zeroed allocation page by page, at first use.
            let stored = stored.get_or_insert_with(|| vec![0; CHUNK as usize].into());
            stored[start..start + length].copy_from_slice(head);
            address += length as u64;
            bytes = tail;
        }
    }

    fn clear(&self, mut address: u64, mut length: u64) {
        while length > 0 {
            let (chunk, start, part) = self.part(address, length);
            let mut stored = chunk.write();
            if part as u64 == CHUNK {
                *stored = None;
            } else if let Some(stored) = &mut *stored {
                stored[start..start + part].fill(0);
            }
            address += part as u64;
            length -= part as u64;
        }
    }
}

impl Backend for Memory {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        format!("memory, {} bytes", self.geometry.size)
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let mut address = request.address + request.done();
        let room = self.geometry.size.saturating_sub(address);
        let remaining = request.remaining();
        match request.op {
            Op::Flush => return Ok(0),
            Op::Read => {
                let mut left = remaining.min(room) as usize;
                for segment in request.segments_mut() {
                    let part = segment.len().min(left);
                    self.read(address, &mut segment[..part]);
                    address += part as u64;
                    left -= part;
                }
            }
            _ if remaining > room => return Err(Errno::NOSPC),
            Op::Write => {
                for segment in request.segments() {
                    self.write(address, segment);
                    address += segment.len() as u64;
                }
            }
            Op::Discard | Op::WriteZeroes => {
                self.clear(address, remaining);
                return Ok(0);
            }
        }
        Ok((address - request.address - request.done()) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceIndex, Payload, Tag};
    use uringfs_buffer::Buffer;

    fn request(op: Op, address: u64, payload: Payload) -> Request {
        Request::new(DeviceIndex::for_tests(0), op, address, payload, Tag(0))
    }

    #[test]
    fn a_transfer_crosses_chunks_and_clearing_frees_them() {
        let memory = Memory::new(4 * CHUNK).unwrap();
        let payload = || Payload::Buffer(Buffer::copy_of(&vec![7; 2 * CHUNK as usize]));
        let mut write = request(Op::Write, CHUNK / 2, payload());
        assert_eq!(memory.perform(&mut write), Ok(2 * CHUNK as u32));
        let mut clear = request(Op::WriteZeroes, CHUNK, Payload::Length(CHUNK));
        assert_eq!(memory.perform(&mut clear), Ok(0));
        assert!(memory.chunks[1].read().is_none());
        let mut read = request(Op::Read, CHUNK / 2, payload());
        assert_eq!(memory.perform(&mut read), Ok(2 * CHUNK as u32));
        let bytes: Vec<u8> = read.segments().flatten().copied().collect();
        let half = CHUNK as usize / 2;
        assert!(bytes[..half].iter().all(|byte| *byte == 7));
        assert!(bytes[half..3 * half].iter().all(|byte| *byte == 0));
        assert!(bytes[3 * half..].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn reads_and_writes_stop_at_the_end() {
        let memory = Memory::new(1024).unwrap();
        let payload = || Payload::Buffer(Buffer::zeroed(1024));
        assert_eq!(memory.perform(&mut request(Op::Read, 512, payload())), Ok(512));
        assert_eq!(memory.perform(&mut request(Op::Read, 4096, payload())), Ok(0));
        assert_eq!(memory.perform(&mut request(Op::Write, 512, payload())), Err(Errno::NOSPC));
        assert!(Memory::new(513).is_err());
    }
}
