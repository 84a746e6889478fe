//! Another format that was made over a volume: a file system, a partition table, swap. Such a format overwrites the
//! beginning of the device, and leaves the backup superblock, or even a slot. Writing a superblock would destroy that
//! format.

use std::ops::Range;

use uringfs_device::backend::signature::{DeviceEnds, PROBED_BYTES};

use crate::blocks::{BLOCK, BlockIo};
use crate::error::{Error, ErrorKind};

/// The advice about a format over a volume.
const ADVICE: &str = "uringfs wipe erases what is left of the volume; uringfs check --repair --force restores the \
                      volume as far as possible, and destroys the other format";

/// The format, as words for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherFormat(&'static str);

impl OtherFormat {
    /// The format of a device; None if all slots are good. `unusable` are the blocks of those without a good
    /// superblock. Unless block 0 is one of them, signatures at the end do not count: they may be in a file's data.
    pub(super) fn find(blocks: &BlockIo, unusable: &[u64]) -> Option<OtherFormat> {
        if unusable.is_empty() {
            return None;
        }
        let size = blocks.readable_bytes();
        let end = match unusable.contains(&0) {
            true => size.saturating_sub(PROBED_BYTES) / BLOCK * BLOCK..size,
            false => size..size,
        };
        let start = read_readable(blocks, 0..PROBED_BYTES.min(size));
        let ends = DeviceEnds { size, start, end: read_readable(blocks, end) };
        ends.format().map(OtherFormat)
    }

    /// The error of using the volume below.
    pub(crate) fn error(self) -> Error {
        let what = format!("holds {}, which was made over an old uringfs volume", self.0);
        Error::new(ErrorKind::OtherFormat, what).with_advice(ADVICE)
    }

    /// The error for a device without a trace of a volume.
    pub(super) fn not_a_volume(self) -> Error {
        let what = format!("this is not a uringfs volume, but {}", self.0);
        Error::new(ErrorKind::NotAVolume, what)
    }

    /// The warning for a volume that can still be read.
    pub(crate) fn warning(self) -> String {
        format!(
            "holds {}, which was made over the volume: files may be damaged; nothing is written to the volume until \
             uringfs check --repair --force destroys the other format; uringfs wipe erases what is left of the volume",
            self.0
        )
    }
}

/// Reads a range that begins with a block. Blocks that cannot be read are zeros.
fn read_readable(blocks: &BlockIo, range: Range<u64>) -> Vec<u8> {
    let length = (range.end - range.start) as usize;
    if let Ok(bytes) = blocks.read_bytes(range.start, length) {
        return bytes.to_vec();
    }
    let mut bytes = vec![0; length];
    for (address, part) in
        (range.start..).step_by(BLOCK as usize).zip(bytes.chunks_mut(BLOCK as usize))
    {
        if let Ok(read) = blocks.read_bytes(address, part.len()) {
            part.copy_from_slice(&read);
        }
    }
    bytes
}
