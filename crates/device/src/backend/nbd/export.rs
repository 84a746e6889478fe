//! The properties that a server reports of an export, and the geometry that follows from them.

use std::io::ErrorKind;

use uringfs_nbd_protocol::handshake::export_flags;

use super::refusal::Refusal;
use crate::geometry::{Discard, Geometry};
use crate::interface::backend::Access;

/// The longest payload of a request, in bytes: what the protocol lets a client send to a server that gives no bound.
const MAX_PAYLOAD: u32 = 32 << 20;

/// The longest range of a `TRIM` or `WRITE_ZEROES`, in bytes: a slow disk, too, ends it long before the timeout.
pub(super) const MAX_CLEAR: u64 = 64 << 20;

/// The largest minimum block size that the protocol allows.
const MAX_MINIMUM: u32 = 64 << 10;

/// The largest that devices here support: a volume's block.
const MAX_BLOCK: u32 = 4096;

/// The smallest unit of requests of any device here.
const MIN_BLOCK: u32 = 512;

/// An export. Two connections serve the same one if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// In bytes.
    pub(super) size: u64,
    /// Of [`export_flags`]; unknown ones have no effect.
    pub(super) flags: u16,
    pub(super) block_sizes: BlockSizes,
    /// Reads are answered in chunks.
    pub(super) structured: bool,
}

/// The lengths that a server accepts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSizes {
    pub(super) minimum: u32,
    pub(super) preferred: u32,
    pub(super) maximum: u32,
}

impl Default for BlockSizes {
    /// The lengths that hold if a server names none.
    fn default() -> BlockSizes {
        BlockSizes { minimum: MIN_BLOCK, preferred: 4096, maximum: MAX_PAYLOAD }
    }
}

impl Export {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The size in whole blocks.
    pub(super) fn whole_size(&self) -> u64 {
        self.size - self.size % u64::from(self.block_sizes.minimum.max(MIN_BLOCK))
    }

    /// The geometry for this access.
    ///
    /// # Errors
    /// When the export cannot be a device, or is read-only and is to be written.
    pub(super) fn geometry(&self, access: Access) -> Result<Geometry, Refusal> {
        let sizes = self.block_sizes;
        self.check_block_sizes()?;
        let block_size = sizes.minimum.max(MIN_BLOCK);
        let size = self.whole_size();
        if size == 0 || self.size > i64::MAX as u64 {
            let text =
                format!("the export has {} bytes, which no device has; name another", self.size);
            return Err(Refusal::new(ErrorKind::InvalidData, text));
        }
        let is_read_only = self.has(export_flags::READ_ONLY);
        if is_read_only && access == Access::ReadWrite {
            let text = "the export is read-only; make it writable, or use it for reading only";
            return Err(Refusal::new(ErrorKind::ReadOnlyFilesystem, text));
        }
        let maximum = sizes.maximum.min(MAX_PAYLOAD);
        let physical_block_size = sizes.preferred.max(block_size);
        let volatile_cache = self.has(export_flags::SEND_FLUSH);
        let discard = Discard { granularity: physical_block_size, max_bytes: MAX_CLEAR };
        Ok(Geometry {
            size,
            block_size,
            physical_block_size,
            memory_alignment: 1,
            max_transfer: maximum - maximum % block_size,
            volatile_cache,
            cached_in_process: false,
            fua: self.has(export_flags::SEND_FUA) || !volatile_cache,
            durable_writes: self.has(export_flags::SEND_FUA) || !volatile_cache,
            discard: self.has(export_flags::SEND_TRIM).then_some(discard),
            write_zeroes: self.has(export_flags::SEND_WRITE_ZEROES),
            read_only: is_read_only || access == Access::Read,
            rotational: self.has(export_flags::ROTATIONAL),
            direct: true,
        })
    }

    fn check_block_sizes(&self) -> Result<(), Refusal> {
        let BlockSizes { minimum, preferred, maximum } = self.block_sizes;
        let is_sound = minimum.is_power_of_two()
            && minimum <= MAX_MINIMUM
            && preferred.is_power_of_two()
            && (minimum..=MAX_PAYLOAD).contains(&preferred)
            && maximum >= minimum.max(MIN_BLOCK);
        match is_sound {
            true if minimum <= MAX_BLOCK => Ok(()),
            true => Err(Refusal::new(
                ErrorKind::Unsupported,
                format!(
                    "the server takes no blocks of less than {minimum} bytes, and devices here have blocks of at most \
                     {MAX_BLOCK}; let it take smaller ones (nbdkit: --filter=blocksize)"
                ),
            )),
            false => Err(Refusal::violation(format!(
                "block sizes of {minimum}, {preferred} and {maximum} bytes"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(size: u64, flags: u16) -> Export {
        Export { size, flags, block_sizes: BlockSizes::default(), structured: true }
    }

    #[test]
    fn flags_become_properties() {
        use export_flags::*;
        let plain = export(1 << 20, HAS_FLAGS).geometry(Access::ReadWrite).unwrap();
        assert!(!plain.volatile_cache && plain.fua && !plain.write_zeroes && !plain.rotational);
        assert_eq!((plain.discard, plain.max_transfer), (None, MAX_PAYLOAD));
        let all = HAS_FLAGS | SEND_FLUSH | SEND_TRIM | SEND_WRITE_ZEROES | ROTATIONAL;
        let found = export(1 << 20, all).geometry(Access::ReadWrite).unwrap();
        assert!(found.volatile_cache && !found.fua && found.write_zeroes && found.rotational);
        assert!(found.discard.is_some() && !found.read_only);
        assert!(export(1 << 20, all | SEND_FUA).geometry(Access::ReadWrite).unwrap().fua);
        let unknown = export(1 << 20, HAS_FLAGS | 0xf000).geometry(Access::ReadWrite).unwrap();
        assert_eq!(unknown, plain);
    }

    #[test]
    fn a_read_only_export_is_not_opened_for_writing() {
        let export = export(1 << 20, export_flags::HAS_FLAGS | export_flags::READ_ONLY);
        assert!(export.geometry(Access::Read).unwrap().read_only);
        let refusal = export.geometry(Access::ReadWrite).unwrap_err();
        assert!(refusal.text.contains("read-only"), "{refusal:?}");
    }

    #[test]
    fn sizes_are_whole_blocks_and_checked() {
        let sized = |size, minimum, preferred, maximum| {
            let block_sizes = BlockSizes { minimum, preferred, maximum };
            Export { block_sizes, ..export(size, 1) }.geometry(Access::ReadWrite)
        };
        let found = sized(10_000, 1, 4096, u32::MAX).unwrap();
        assert_eq!((found.size, found.block_size, found.max_transfer), (9728, 512, MAX_PAYLOAD));
        let found = sized(1 << 20, 4096, 65536, 100_000).unwrap();
        assert_eq!(
            (found.block_size, found.physical_block_size, found.max_transfer),
            (4096, 65536, 98304)
        );
        for (size, minimum, preferred, maximum) in [
            (0, 1, 4096, 1 << 20),
            (511, 1, 4096, 1 << 20),
            (u64::MAX, 1, 4096, 1 << 20),
            (1 << 20, 0, 4096, 1 << 20),
            (1 << 20, 3, 4096, 1 << 20),
            (1 << 20, 8192, 8192, 1 << 20),
            (1 << 20, 1 << 17, 1 << 17, 1 << 20),
            (1 << 20, 4096, 512, 1 << 20),
            (1 << 20, 1, 0, 1 << 20),
            (1 << 20, 1, 5000, 1 << 20),
            (1 << 20, 512, 4096, 511),
            (1 << 20, 1, 4096, 100),
            (1 << 20, 1, 4096, 0),
        ] {
            let refusal = sized(size, minimum, preferred, maximum);
            assert!(refusal.is_err(), "{size} {minimum} {preferred} {maximum}");
        }
    }
}
