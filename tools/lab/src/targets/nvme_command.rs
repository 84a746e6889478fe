//! Encodes NVMe commands as `<linux/nvme_ioctl.h>` has them, for `ioctl` and for io_uring's passthrough.

/// A command to a namespace or a controller: `struct nvme_passthru_cmd`, and `struct nvme_uring_cmd`, which has the same fields but
/// for the last.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    /// The kernel's answer by `ioctl`; reserved in an entry of io_uring.
    result: u32,
}

const _: () = assert!(size_of::<NvmeCommand>() == 72);

/// The direction of a transfer of whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// From the namespace into memory.
    Read,
    /// From memory to the namespace.
    Write,
    /// The same, and durable when it completes (force unit access).
    WriteDurably,
}

/// A range of memory that a command reads or fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRange {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
}

/// Bytes of the answer to Identify.
pub const IDENTIFY_BYTES: usize = 4096;
/// Bytes of the one range of [`NvmeCommand::deallocate`].
pub const DEALLOCATE_BYTES: usize = 16;

impl NvmeCommand {
    /// A read or write of `count` blocks from block `first` on.
    ///
    /// # Panics
    /// When there are no blocks, or more than 65,536: the field holds no such number.
    #[inline]
    pub fn transfer(
        transfer: Transfer,
        namespace: u32,
        first: u64,
        count: u32,
        data: DataRange,
    ) -> Self {
        const WRITE: u8 = 0x01;
        const READ: u8 = 0x02;
        const FORCE_UNIT_ACCESS: u32 = 1 << 30;
        assert!((1..=1 << 16).contains(&count), "{count} blocks");
        let (opcode, control) = match transfer {
            Transfer::Read => (READ, 0),
            Transfer::Write => (WRITE, 0),
            Transfer::WriteDurably => (WRITE, FORCE_UNIT_ACCESS),
        };
        Self {
            opcode,
            namespace,
            address: data.address,
            data_length: data.length,
            cdw10: first as u32,
            cdw11: (first >> 32) as u32,
            // One less than the number of blocks.
            cdw12: (count - 1) | control,
            ..Self::default()
        }
    }

    /// A flush of the volatile write cache.
    pub fn flush(namespace: u32) -> Self {
        Self { namespace, ..Self::default() }
    }

    /// A deallocation (dataset management) of the one range at `data`, in the form of the NVMe specification.
    pub fn deallocate(namespace: u32, data: DataRange) -> Self {
        const DATASET_MANAGEMENT: u8 = 0x09;
        const DEALLOCATE: u32 = 1 << 2;
        Self {
            opcode: DATASET_MANAGEMENT,
            namespace,
            address: data.address,
            data_length: data.length,
            // One less than the number of ranges.
            cdw10: 0,
            cdw11: DEALLOCATE,
            ..Self::default()
        }
    }

    /// Identify of a namespace, into 4096 bytes at `data`.
    pub fn identify_namespace(namespace: u32, data: DataRange) -> Self {
        Self { namespace, ..Self::identify(0x00, data) }
    }

    /// Identify of the controller, into 4096 bytes at `data`.
    pub fn identify_controller(data: DataRange) -> Self {
        Self::identify(0x01, data)
    }

    fn identify(structure: u32, data: DataRange) -> Self {
        const IDENTIFY: u8 = 0x06;
        let DataRange { address, length: data_length } = data;
        Self { opcode: IDENTIFY, address, data_length, cdw10: structure, ..Self::default() }
    }
}

/// A range of blocks in the form that [`NvmeCommand::deallocate`] sends.
pub fn deallocate_range(first: u64, count: u32) -> [u8; DEALLOCATE_BYTES] {
    let mut range = [0; DEALLOCATE_BYTES];
    range[4..8].copy_from_slice(&count.to_le_bytes());
    range[8..].copy_from_slice(&first.to_le_bytes());
    range
}

/// The answer of Identify about a namespace, as far as the lab uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceFormat {
    /// Size in blocks.
    pub blocks: u64,
    /// Bytes of a block's data.
    pub block_bytes: u32,
    /// Bytes of metadata of each block.
    pub metadata_bytes: u16,
    /// Whether blocks have protection information.
    pub is_protected: bool,
}

impl NamespaceFormat {
    /// Decodes the answer to [`NvmeCommand::identify_namespace`]. `None` for a format whose block has no bytes, or more than 1 MiB.
    pub fn from_identify(answer: &[u8; IDENTIFY_BYTES]) -> Option<Self> {
        const FORMATS: usize = 128;
        let blocks = u64::from_le_bytes(answer[..8].try_into().expect("8 bytes"));
        // Bits 5 and 6 are the high bits of namespaces with more than 16 formats.
        let flbas = answer[26];
        let index = usize::from(flbas & 0xf | (flbas >> 1) & 0x30);
        let format = &answer[FORMATS + 4 * index..][..4];
        let shift = u32::from(format[2]);
        (9..=20).contains(&shift).then(|| Self {
            blocks,
            block_bytes: 1 << shift,
            metadata_bytes: u16::from_le_bytes([format[0], format[1]]),
            is_protected: answer[29] & 0x7 != 0,
        })
    }
}

/// The largest transfer of a controller in bytes, from the answer to [`NvmeCommand::identify_controller`]; `None` is no limit. Its unit is
/// the controller's smallest page, taken as 4096 bytes, the least that there is.
pub fn largest_transfer(answer: &[u8; IDENTIFY_BYTES]) -> Option<u64> {
    const PAGE: u64 = 4096;
    match answer[77] {
        0 => None,
        shift => PAGE.checked_shl(shift.into()).filter(|bytes| *bytes >= PAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: DataRange = DataRange { address: 0x1122_3344_5566_7788, length: 8192 };

    /// The bytes of a command, by the offsets of `<linux/nvme_ioctl.h>`: each field, little endian.
    fn bytes(command: NvmeCommand) -> Vec<u8> {
        let NvmeCommand {
            opcode,
            flags,
            reserved,
            namespace,
            cdw2,
            cdw3,
            metadata,
            address,
            metadata_length,
            data_length,
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            timeout_ms,
            result,
        } = command;
        let mut bytes = vec![opcode, flags];
        bytes.extend(reserved.to_le_bytes());
        bytes.extend([namespace, cdw2, cdw3].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend([metadata, address].iter().flat_map(|word| word.to_le_bytes()));
        let rest = [
            metadata_length,
            data_length,
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            timeout_ms,
            result,
        ];
        bytes.extend(rest.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn fields_are_where_the_kernels_header_has_them() {
        use std::mem::offset_of;
        let offsets = [
            (offset_of!(NvmeCommand, opcode), 0),
            (offset_of!(NvmeCommand, flags), 1),
            (offset_of!(NvmeCommand, namespace), 4),
            (offset_of!(NvmeCommand, cdw2), 8),
            (offset_of!(NvmeCommand, cdw3), 12),
            (offset_of!(NvmeCommand, metadata), 16),
            (offset_of!(NvmeCommand, address), 24),
            (offset_of!(NvmeCommand, metadata_length), 32),
            (offset_of!(NvmeCommand, data_length), 36),
            (offset_of!(NvmeCommand, cdw10), 40),
            (offset_of!(NvmeCommand, cdw11), 44),
            (offset_of!(NvmeCommand, cdw12), 48),
            (offset_of!(NvmeCommand, cdw13), 52),
            (offset_of!(NvmeCommand, cdw14), 56),
            (offset_of!(NvmeCommand, cdw15), 60),
            (offset_of!(NvmeCommand, timeout_ms), 64),
            (offset_of!(NvmeCommand, result), 68),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_transfer_has_its_first_block_in_two_words_and_one_less_than_its_count() {
        let first = 0x1_0000_0002;
        let command = NvmeCommand::transfer(Transfer::Read, 3, first, 16, DATA);
        let mut expected = vec![0; 72];
        expected[0] = 2;
        expected[4] = 3;
        expected[24..32].copy_from_slice(&DATA.address.to_le_bytes());
        expected[36..40].copy_from_slice(&8192u32.to_le_bytes());
        expected[40] = 2;
        expected[44] = 1;
        expected[48] = 15;
        assert_eq!(bytes(command), expected);
        let durable = NvmeCommand::transfer(Transfer::WriteDurably, 3, first, 16, DATA);
        let plain = NvmeCommand::transfer(Transfer::Write, 3, first, 16, DATA);
        assert_eq!((plain.opcode, plain.cdw12), (1, 15));
        assert_eq!(durable, NvmeCommand { cdw12: 15 | 1 << 30, ..plain });
    }

    #[test]
    #[should_panic(expected = "0 blocks")]
    fn a_transfer_of_no_blocks_is_a_mistake() {
        NvmeCommand::transfer(Transfer::Read, 1, 0, 0, DATA);
    }

    #[test]
    fn the_other_commands_have_their_codes() {
        assert_eq!(NvmeCommand::flush(7), NvmeCommand { namespace: 7, ..NvmeCommand::default() });
        let deallocate = NvmeCommand::deallocate(7, DATA);
        assert_eq!((deallocate.opcode, deallocate.cdw10, deallocate.cdw11), (9, 0, 4));
        let identify = NvmeCommand::identify_namespace(7, DATA);
        assert_eq!((identify.opcode, identify.namespace, identify.cdw10), (6, 7, 0));
        let identify = NvmeCommand::identify_controller(DATA);
        assert_eq!((identify.opcode, identify.namespace, identify.cdw10), (6, 0, 1));
        let range = deallocate_range(0x0102_0304_0506_0708, 0x0a0b_0c0d);
        assert_eq!(range, [0, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn the_format_in_use_is_found_among_all() {
        let mut answer = [0; IDENTIFY_BYTES];
        answer[..8].copy_from_slice(&1000u64.to_le_bytes());
        answer[26] = 2;
        answer[128 + 4 * 2..][..4].copy_from_slice(&[8, 0, 12, 0]);
        let format = NamespaceFormat {
            blocks: 1000,
            block_bytes: 4096,
            metadata_bytes: 8,
            is_protected: false,
        };
        assert_eq!(NamespaceFormat::from_identify(&answer), Some(format));
        // The 18th of more than 16 formats, protected.
        (answer[26], answer[29]) = (0x21, 1);
        answer[128 + 4 * 17..][..4].copy_from_slice(&[0, 0, 9, 0]);
        let format =
            NamespaceFormat { block_bytes: 512, metadata_bytes: 0, is_protected: true, ..format };
        assert_eq!(NamespaceFormat::from_identify(&answer), Some(format));
        for shift in [0, 8, 21, 255] {
            answer[128 + 4 * 17 + 2] = shift;
            assert_eq!(NamespaceFormat::from_identify(&answer), None, "{shift}");
        }
    }

    #[test]
    fn the_largest_transfer_is_a_power_of_two_of_pages() {
        let mut answer = [0; IDENTIFY_BYTES];
        for (shift, expected) in [(0, None), (1, Some(8192)), (7, Some(512 << 10)), (255, None)] {
            answer[77] = shift;
            assert_eq!(largest_transfer(&answer), expected, "{shift}");
        }
    }
}
