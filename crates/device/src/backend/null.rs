//! A device without bytes: requests complete and move nothing. Measurements on it
//! show the cost of the layers above.

use uringfs_errno::Errno;

use crate::geometry::{Discard, Geometry};
use crate::interface::backend::{Backend, KernelTarget};
use crate::request::Request;

/// A device without bytes: a read leaves its memory unchanged.
#[derive(Debug)]
pub struct Null {
    geometry: Geometry,
}

impl Null {
    /// A device that reports a size of `size` bytes.
    pub fn new(size: u64) -> Null {
        Null {
            geometry: Geometry {
                size,
                block_size: 512,
                physical_block_size: 4096,
                memory_alignment: 1,
                max_transfer: 1 << 30,
                volatile_cache: false,
                cached_in_process: false,
                fua: true,
                durable_writes: true,
                discard: Some(Discard { granularity: 512, max_bytes: u64::MAX >> 1 }),
                write_zeroes: true,
                read_only: false,
                rotational: false,
                direct: true,
            },
        }
    }
}

impl Backend for Null {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        format!("null, {} bytes", self.geometry.size)
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::Nop
    }

    #[inline]
    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        Ok(request.remaining().min(self.geometry.max_transfer as u64) as u32)
    }
}
