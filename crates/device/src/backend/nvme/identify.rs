//! The identity of a controller and of a namespace, as the controller describes them: two structures of 4096 bytes
//! (Identify, CNS 01h and 00h, of the NVM Express Base and NVM Command Set Specifications). Pure: bytes in, numbers or
//! one line out.

use crate::geometry::{Discard, Geometry};

/// The bytes of each structure.
pub(super) const LENGTH: usize = 4096;

/// The unit of MDTS: the smallest memory page that controllers support. Theirs cannot be read here; a larger one makes
/// the limit only lower than necessary.
const PAGE: u64 = 4096;

/// The most blocks of one command.
const MAX_BLOCKS: u64 = 1 << 16;

/// The block sizes that devices here support, as powers of two: 512 to 4096 bytes.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u32> = 9..=12;

/// The longest transfer that is offered, whatever the controller supports.
const MAX_TRANSFER: u64 = 1 << 30;

/// The limits that the kernel sets, from those of the namespace's block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelLimits {
    /// The longest transfer in bytes, if known.
    pub(super) max_transfer: Option<u32>,
    /// The most segments of memory in one command, if known.
    pub(super) max_segments: Option<u32>,
    /// The longest discard in bytes; 0 for none.
    pub(super) max_discard: u64,
    /// The longest range in bytes that is zeroed by one command; 0 for none.
    pub(super) max_zeroed: u64,
}

/// A controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Controller {
    /// The longest transfer of one command in bytes. `None`: no limit.
    pub(super) max_transfer: Option<u64>,
    /// Completed writes may be lost until a flush.
    pub(super) volatile_cache: bool,
    /// Blocks that are written in whole or not at all, even without power; of all its namespaces.
    pub(super) atomic_blocks: u32,
    pub(super) supports_write_zeroes: bool,
    pub(super) supports_deallocate: bool,
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// In bytes: whole blocks, at least one.
    pub(super) size: u64,
    /// Bytes of a block, as a power of two.
    pub(super) block_shift: u32,
    /// As [`Controller::atomic_blocks`], if the namespace has its own.
    pub(super) atomic_blocks: Option<u32>,
    /// Blocks that the device writes without reading first, if it says so.
    preferred_write_blocks: Option<u32>,
    /// Blocks that it deallocates together, if it says so.
    preferred_deallocate_blocks: Option<u32>,
    pub(super) is_write_protected: bool,
}

impl Controller {
    pub(super) fn parse(bytes: &[u8; LENGTH]) -> Controller {
        let commands = u16_at(bytes, 520);
        let transfer_shift = u32::from(bytes[77]);
        Controller {
            // A power of two beyond any address is no limit either.
            max_transfer: match transfer_shift {
                0 => None,
                shift => PAGE.checked_shl(shift).filter(|bytes| *bytes >> shift == PAGE),
            },
            volatile_cache: bytes[525] & 1 != 0,
            atomic_blocks: u32::from(u16_at(bytes, 528)) + 1,
            supports_write_zeroes: commands & 1 << 3 != 0,
            supports_deallocate: commands & 1 << 2 != 0,
        }
    }
}

impl Format {
    /// # Errors
    /// In one line why the namespace cannot be a device, and what to do.
    pub(super) fn parse(bytes: &[u8; LENGTH]) -> Result<Format, String> {
        let blocks = u64_at(bytes, 0);
        let (features, formats, current) = (bytes[24], u32::from(bytes[25]) + 1, bytes[26]);
        // With more than 16 formats the index has two more bits.
        let high = if formats > 16 { u32::from(current >> 5 & 3) << 4 } else { 0 };
        let index = u32::from(current & 15) | high;
        if blocks == 0 {
            return Err("the namespace has no blocks; attach it, or format it".into());
        }
        if index >= formats || index >= 64 {
            return Err(format!(
                "the namespace has format {index} of {formats}, which does not exist; format it again"
            ));
        }
        let at = 128 + 4 * index as usize;
        let (metadata, block_shift) = (u16_at(bytes, at), u32::from(bytes[at + 2]));
        if bytes[29] & 7 != 0 {
            return Err(format!(
                "its blocks have protection information of type {}, which passthrough does not fill in; format it \
                 without (nvme format --pi=0), or use its block device",
                bytes[29] & 7
            ));
        }
        if metadata != 0 {
            return Err(format!(
                "its blocks have {metadata} bytes of metadata, which passthrough does not fill in; format it without \
                 (nvme format --lbaf), or use its block device"
            ));
        }
        if !BLOCK_SHIFTS.contains(&block_shift) {
            return Err(format!(
                "its blocks have 2^{block_shift} bytes, and devices here have blocks of 512 to 4096 bytes; format it with \
                 such blocks (nvme format --lbaf)"
            ));
        }
        let size = blocks.checked_mul(1 << block_shift).filter(|size| *size <= i64::MAX as u64);
        let Some(size) = size else {
            return Err(format!(
                "the namespace has {blocks} blocks, more than any device; update its firmware"
            ));
        };
        let preferred = |at| (features & 1 << 4 != 0).then(|| u32::from(u16_at(bytes, at)) + 1);
        // Atomic writes must not cross boundaries. If these are not aligned, one block is atomic.
        let is_aligned = u16_at(bytes, 42) == 0;
        let atomic_blocks = match features & 1 << 1 != 0 {
            true if is_aligned => Some(u32::from(u16_at(bytes, 36)) + 1),
            _ => (!is_aligned).then_some(1),
        };
        Ok(Format {
            size,
            block_shift,
            atomic_blocks,
            preferred_write_blocks: preferred(64),
            preferred_deallocate_blocks: preferred(68),
            is_write_protected: bytes[99] & 1 != 0,
        })
    }

    pub(super) fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Bytes that are written in whole or not at all, even without power.
    pub(super) fn atomic_write(&self, controller: &Controller) -> u64 {
        u64::from(self.atomic_blocks.unwrap_or(controller.atomic_blocks)) << self.block_shift
    }

    /// The geometry of a device that is open for reading and writing.
    pub(super) fn geometry(&self, controller: &Controller, kernel: &KernelLimits) -> Geometry {
        let block_size = self.block_size();
        let in_bytes = |blocks: u32| u64::from(blocks) << self.block_shift;
        let preferred = self.preferred_write_blocks.map_or(block_size.into(), in_bytes);
        // A larger write may be torn (drivers/nvme/host/core.c, nvme_update_disk_info).
        let physical = preferred.min(self.atomic_write(controller)).max(block_size.into());
        let physical = 1 << physical.ilog2().min(31);
        let granularity = self.preferred_deallocate_blocks.map_or(block_size.into(), in_bytes);
        let max_discard = kernel.max_discard.min(u64::from(u32::MAX) << self.block_shift);
        let discard = Discard {
            granularity: granularity.min(1 << 31) as u32,
            max_bytes: max_discard - max_discard % u64::from(block_size),
        };
        let has_discard = controller.supports_deallocate && discard.max_bytes > 0;
        Geometry {
            size: self.size,
            block_size,
            physical_block_size: physical,
            memory_alignment: 4,
            max_transfer: self.max_transfer(controller, kernel),
            volatile_cache: controller.volatile_cache,
            cached_in_process: false,
            fua: true,
            durable_writes: true,
            discard: has_discard.then_some(discard),
            write_zeroes: controller.supports_write_zeroes && kernel.max_zeroed > 0,
            read_only: false,
            rotational: false,
            direct: true,
        }
    }

    /// The longest transfer: whole blocks, at least one.
    fn max_transfer(&self, controller: &Controller, kernel: &KernelLimits) -> u32 {
        // In the worst case each page of memory is a segment, and the first and the last are not whole.
        let by_segments = kernel.max_segments.map(|most| u64::from(most.saturating_sub(1)) * PAGE);
        let limits = [controller.max_transfer, kernel.max_transfer.map(u64::from), by_segments];
        let most = (MAX_BLOCKS << self.block_shift).min(MAX_TRANSFER);
        let bytes = limits.into_iter().flatten().fold(most, u64::min);
        let block_size = u64::from(self.block_size());
        (bytes - bytes % block_size).max(block_size) as u32
    }
}

/// Parses `bytes` as the two structures of a controller, one after the other; short ones are filled up with zeros. For
/// the fuzz target.
///
/// # Panics
/// When a parser accepts what no device can be, or has more than one line for what it refuses.
pub fn parse_bytes_of_a_controller(bytes: &[u8]) {
    let mut both = [0; 2 * LENGTH];
    let length = bytes.len().min(both.len());
    both[..length].copy_from_slice(&bytes[..length]);
    let (first, second) = both.split_at(LENGTH);
    let whole = |bytes: &[u8]| <[u8; LENGTH]>::try_from(bytes).expect("half of the array");
    let controller = Controller::parse(&whole(first));
    match Format::parse(&whole(second)) {
        Err(why) => assert!(!why.contains('\n') && !why.is_empty(), "{why}"),
        Ok(format) => {
            let kernel = KernelLimits {
                max_transfer: Some(u32::from(u16_at(bytes_or_zeros(bytes), 0)) << 9),
                max_segments: Some(u32::from(u16_at(bytes_or_zeros(bytes), 2))),
                max_discard: u64::MAX,
                max_zeroed: u64::MAX,
            };
            for kernel in [KernelLimits::default(), kernel] {
                let geometry = format.geometry(&controller, &kernel);
                assert!((512..=4096).contains(&geometry.block_size));
                assert!(geometry.size > 0 && geometry.size <= i64::MAX as u64);
                assert!(geometry.size.is_multiple_of(geometry.block_size.into()));
                assert!(geometry.max_transfer >= geometry.block_size);
                assert!(geometry.max_transfer.is_multiple_of(geometry.block_size));
                assert!(geometry.physical_block_size >= geometry.block_size);
                assert!(geometry.discard.is_none_or(|discard| discard.max_bytes > 0));
            }
        }
    }
}

/// The first four bytes, which may be missing.
fn bytes_or_zeros(bytes: &[u8]) -> &[u8] {
    if bytes.len() < 4 { &[0; 4] } else { bytes }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8; LENGTH], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 1 << 20;

    fn controller(fields: &[(usize, &[u8])]) -> Controller {
        Controller::parse(&structure(fields))
    }

    fn structure(fields: &[(usize, &[u8])]) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    /// A namespace of [`BLOCKS`] blocks of 512 bytes, except for `fields`.
    fn format(fields: &[(usize, &[u8])]) -> Result<Format, String> {
        let mut bytes = structure(&[(0, &BLOCKS.to_le_bytes()), (130, &[9])]);
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        Format::parse(&bytes)
    }

    fn refusal(fields: &[(usize, &[u8])]) -> String {
        let text = format(fields).expect_err("refused");
        assert!(!text.contains('\n') && text.contains(';'), "it says what to do: {text}");
        text
    }

    #[test]
    fn a_controller_has_limits_and_commands() {
        let none = controller(&[]);
        assert_eq!(none.max_transfer, None);
        assert!(!none.volatile_cache && !none.supports_write_zeroes && !none.supports_deallocate);
        assert_eq!(none.atomic_blocks, 1);
        let all = controller(&[(77, &[5]), (520, &[0b1100]), (525, &[7]), (528, &[7, 1])]);
        assert_eq!(all.max_transfer, Some(128 << 10));
        assert!(all.volatile_cache && all.supports_write_zeroes && all.supports_deallocate);
        assert_eq!(all.atomic_blocks, 0x108);
        assert_eq!(controller(&[(77, &[255])]).max_transfer, None);
        assert_eq!(controller(&[(77, &[52])]).max_transfer, None);
    }

    #[test]
    fn the_current_format_gives_the_block_size() {
        let found = format(&[]).unwrap();
        assert_eq!((found.size, found.block_size()), (BLOCKS << 9, 512));
        // Format 1 of two.
        let found = format(&[(25, &[1]), (26, &[1]), (134, &[12])]).unwrap();
        assert_eq!((found.size, found.block_size()), (BLOCKS << 12, 4096));
        // Format 17 of twenty: the upper bits of the index count only then.
        let found = format(&[(25, &[19]), (26, &[0x21]), (128 + 17 * 4 + 2, &[12])]).unwrap();
        assert_eq!(found.block_size(), 4096);
        let found = format(&[(25, &[1]), (26, &[0x61]), (134, &[12])]).unwrap();
        assert_eq!(found.block_size(), 4096);
    }

    #[test]
    fn what_cannot_be_a_device_is_refused_with_advice() {
        assert!(refusal(&[(0, &[0; 8])]).contains("no blocks"));
        assert!(refusal(&[(26, &[1])]).contains("format 1 of 1"));
        assert!(refusal(&[(128, &[8, 0])]).contains("8 bytes of metadata"));
        assert!(refusal(&[(29, &[1])]).contains("protection information of type 1"));
        assert!(refusal(&[(29, &[3]), (128, &[8, 0])]).contains("nvme format --pi=0"));
        assert!(refusal(&[(130, &[8])]).contains("2^8 bytes"));
        assert!(refusal(&[(130, &[16])]).contains("512 to 4096"));
        assert!(refusal(&[(0, &[0xff; 8])]).contains("more than any device"));
        // Its first four bits: where it lies, if there is any.
        assert!(format(&[(29, &[8])]).is_ok());
    }

    #[test]
    fn the_geometry_follows_from_both() {
        let kernel = KernelLimits {
            max_transfer: Some(1 << 20),
            max_segments: Some(128),
            max_discard: u64::MAX,
            max_zeroed: 1 << 20,
        };
        let device = controller(&[(77, &[5]), (520, &[0b1100]), (525, &[1]), (528, &[15, 0])]);
        let found = format(&[]).unwrap().geometry(&device, &kernel);
        assert_eq!((found.size, found.block_size), (BLOCKS << 9, 512));
        assert_eq!((found.max_transfer, found.memory_alignment), (128 << 10, 4));
        assert!(found.volatile_cache && found.fua && found.write_zeroes && found.direct);
        assert_eq!(found.physical_block_size, 512);
        let discard = found.discard.expect("deallocates");
        assert_eq!((discard.granularity, discard.max_bytes), (512, u64::from(u32::MAX) << 9));
        // It prefers to write 32 blocks and to deallocate 64, but 16 are atomic.
        let prefers = [(24, &[0b10010][..]), (36, &[15, 0]), (64, &[31, 0]), (68, &[63, 0])];
        let found = format(&prefers).unwrap().geometry(&device, &kernel);
        assert_eq!((found.physical_block_size, found.discard.unwrap().granularity), (8192, 32768));
    }

    #[test]
    fn the_longest_transfer_is_the_smallest_limit_in_whole_blocks() {
        let most = |shift: u8, max_transfer, max_segments| {
            let kernel = KernelLimits { max_transfer, max_segments, ..KernelLimits::default() };
            let block = format(&[(130, &[12])]).unwrap();
            block.geometry(&controller(&[(77, &[shift])]), &kernel).max_transfer
        };
        assert_eq!(most(0, None, None), 65536 << 12);
        assert_eq!(most(8, None, None), 1 << 20);
        assert_eq!(most(8, Some(100_000), None), 98304);
        assert_eq!(most(8, None, Some(128)), 127 << 12);
        assert_eq!(most(8, Some(512), Some(1)), 4096);
    }

    #[test]
    fn commands_that_either_side_lacks_are_not_offered() {
        let kernel = KernelLimits::default();
        let found = format(&[]).unwrap().geometry(&controller(&[(520, &[0b1100])]), &kernel);
        assert!(found.discard.is_none() && !found.write_zeroes);
        let kernel = KernelLimits { max_discard: 1 << 30, max_zeroed: 1 << 20, ..kernel };
        let found = format(&[]).unwrap().geometry(&controller(&[]), &kernel);
        assert!(found.discard.is_none() && !found.write_zeroes);
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted_or_refused(
            blocks in any::<u64>(),
            fields in prop::collection::vec((0..2 * LENGTH, any::<u8>()), 0..16),
            shift in 0u8..16,
        ) {
            let mut bytes = [0; 2 * LENGTH];
            bytes[LENGTH..LENGTH + 8].copy_from_slice(&blocks.to_le_bytes());
            bytes[LENGTH + 130] = shift;
            fields.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            parse_bytes_of_a_controller(&bytes);
        }
    }
}
