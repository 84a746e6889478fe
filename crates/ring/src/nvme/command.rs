//! A namespace, and its commands in the format of the kernel: `struct nvme_uring_cmd` of `<linux/nvme_ioctl.h>`. The
//! fields of the commands are those of the NVM Command Set Specification.

/// The operation code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// All completed writes become durable.
    Flush = 0x00,
    /// Memory to namespace.
    Write = 0x01,
    /// Namespace to memory.
    Read = 0x02,
    /// A range then reads as zeros.
    WriteZeroes = 0x08,
    /// Dataset management: here, to deallocate ranges.
    DatasetManagement = 0x09,
}

impl Opcode {
    /// All of them.
    pub const ALL: [Opcode; 5] = [
        Opcode::Read,
        Opcode::Write,
        Opcode::Flush,
        Opcode::WriteZeroes,
        Opcode::DatasetManagement,
    ];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Opcode::Flush => "flush",
            Opcode::Write => "write",
            Opcode::Read => "read",
            Opcode::WriteZeroes => "write zeroes",
            Opcode::DatasetManagement => "dataset management",
        }
    }
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// When the controller has the bytes.
    Cached,
    /// When they are durable: Force Unit Access.
    ForceUnitAccess,
}

impl WriteMode {
    /// Its bit in command dword 12.
    #[inline(always)]
    fn bit(self) -> u32 {
        match self {
            WriteMode::Cached => 0,
            WriteMode::ForceUnitAccess => 1 << 30,
        }
    }
}

/// Dataset management deallocates the ranges: an attribute in command dword 11.
const DEALLOCATE: u32 = 1 << 2;

/// The most blocks of one command: their number, less one, has 16 bits.
const MAX_BLOCKS: u64 = 1 << 16;

/// Flags with which the kernel refuses a command with EINVAL before it reaches the controller: no caller may set any.
const REFUSED: u8 = 0xff;

/// A command. The layout is that of the kernel, which copies it from the submission entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NvmeCommand {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: u16,
    pub(crate) namespace: u32,
    pub(crate) dword2: u32,
    pub(crate) dword3: u32,
    pub(crate) metadata: u64,
    /// The address of the memory, or of a list of vectors.
    pub(crate) address: u64,
    pub(crate) metadata_length: u32,
    /// The bytes of the memory, or the number of vectors.
    pub(crate) length: u32,
    pub(crate) dword10: u32,
    pub(crate) dword11: u32,
    pub(crate) dword12: u32,
    pub(crate) dword13: u32,
    pub(crate) dword14: u32,
    pub(crate) dword15: u32,
    /// 0: the driver's timeout.
    pub(crate) timeout_ms: u32,
    pub(crate) reserved2: u32,
}

const _: () = assert!(size_of::<NvmeCommand>() == 72);

impl NvmeCommand {
    /// An Identify command of the admin queue, which fills 4096 bytes of memory. `selector` is the structure (CNS), of
    /// `namespace` if it is one of a namespace.
    pub fn identify(selector: u8, namespace: u32) -> NvmeCommand {
        const IDENTIFY: u8 = 0x06;
        let dword10 = u32::from(selector);
        NvmeCommand { opcode: IDENTIFY, namespace, dword10, ..NvmeCommand::default() }
    }

    /// The same command with `length` bytes of memory at `address`.
    pub fn with_memory(self, address: u64, length: u32) -> NvmeCommand {
        NvmeCommand { address, length, ..self }
    }

    /// As `struct nvme_passthru_cmd64`, with room for the controller's result.
    pub fn to_ioctl_words(self) -> [u64; 10] {
        let mut words = [0; 10];
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        words[0] = u64::from(self.opcode)
            | u64::from(self.flags) << 8
            | u64::from(self.reserved) << 16
            | u64::from(self.namespace) << 32;
        words[1] = pair(self.dword2, self.dword3);
        words[2] = self.metadata;
        words[3] = self.address;
        words[4] = pair(self.metadata_length, self.length);
        words[5] = pair(self.dword10, self.dword11);
        words[6] = pair(self.dword12, self.dword13);
        words[7] = pair(self.dword14, self.dword15);
        words[8] = pair(self.timeout_ms, self.reserved2);
        words
    }
}

/// A namespace, as far as its commands depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its id.
    pub id: u32,
    /// The bytes of a logical block, as a power of two: 9 is 512 bytes.
    pub block_shift: u32,
    /// The longest read or write of one command, in bytes: whole blocks, at least one, at most 65536 blocks.
    pub max_transfer: u32,
    /// Its size in bytes, when it was opened.
    pub size: u64,
    /// Writes are refused with EBADF, whatever the kernel allows.
    pub read_only: bool,
    /// Completed writes may be lost until a flush. Without it a flush has nothing to do, and is no command.
    pub volatile_cache: bool,
}

impl Namespace {
    /// No namespace.
    pub(crate) const ABSENT: Namespace = Namespace {
        id: 0,
        block_shift: 9,
        max_transfer: 512,
        size: 0,
        read_only: true,
        volatile_cache: true,
    };

    /// The longest range that one command zeroes, in bytes.
    pub fn max_zeroed(&self) -> u64 {
        MAX_BLOCKS << self.block_shift
    }

    /// The bytes that one read or write moves, of `wanted` bytes from `address` on. It does not cross the end of the
    /// namespace.
    #[inline(always)]
    pub fn step_length(&self, address: u64, wanted: u64) -> u32 {
        // A command that begins behind the end goes to the controller: the namespace may have grown.
        let room = if address < self.size { self.size - address } else { u64::MAX };
        wanted.min(room).min(u64::from(self.max_transfer)) as u32
    }

    /// Reads `length` bytes at `address`: to `memory`, which has one segment.
    #[inline(always)]
    pub fn read(&self, address: u64, length: u32, memory: u64) -> NvmeCommand {
        self.on_range(Opcode::Read, 0, address, u64::from(length)).with_memory(memory, length)
    }

    /// Writes `length` bytes at `address`: from `memory`, which has one segment.
    #[inline(always)]
    pub fn write(&self, mode: WriteMode, address: u64, length: u32, memory: u64) -> NvmeCommand {
        self.on_range(Opcode::Write, mode.bit(), address, u64::from(length))
            .with_memory(memory, length)
    }

    /// All completed writes become durable.
    pub fn flush(&self) -> NvmeCommand {
        let opcode = Opcode::Flush as u8;
        NvmeCommand { opcode, namespace: self.id, ..NvmeCommand::default() }
    }

    /// Zeroes at most [`Self::max_zeroed`] bytes.
    pub fn write_zeroes(&self, mode: WriteMode, address: u64, length: u64) -> NvmeCommand {
        self.on_range(Opcode::WriteZeroes, mode.bit(), address, length)
    }

    /// Deallocates the one range of the list in `memory`, see [`Self::range_entry`].
    pub fn deallocate(&self, memory: u64, length: u32) -> NvmeCommand {
        NvmeCommand {
            opcode: Opcode::DatasetManagement as u8,
            namespace: self.id,
            // Dword 10 is the number of ranges, less one.
            dword11: DEALLOCATE,
            ..NvmeCommand::default()
        }
        .with_memory(memory, length)
    }

    /// An entry of the list for [`Self::deallocate`]. `None` if the range is not whole blocks, or more than 2^32 - 1.
    pub fn range_entry(&self, address: u64, length: u64) -> Option<[u8; 16]> {
        let blocks = u32::try_from(length >> self.block_shift).ok()?;
        if self.is_misaligned(address, length) {
            return None;
        }
        let mut range = [0; 16];
        range[4..8].copy_from_slice(&blocks.to_le_bytes());
        range[8..].copy_from_slice(&(address >> self.block_shift).to_le_bytes());
        Some(range)
    }

    /// A command with this opcode, but with memory that the kernel finds nowhere: it checks the permission, and then
    /// returns EFAULT. If it sent the command all the same, the controller would refuse its range, which begins at the
    /// last block that a number can name.
    pub fn permission_probe(&self, opcode: Opcode) -> NvmeCommand {
        // The last page of the address space is no user's.
        const NOWHERE: u64 = !0xfff;
        let first_block = match opcode {
            Opcode::Read | Opcode::Write | Opcode::WriteZeroes => u32::MAX,
            // In these the fields have another meaning: none of their attributes is set, so that nothing is
            // deallocated.
            Opcode::Flush | Opcode::DatasetManagement => 0,
        };
        let command = NvmeCommand {
            opcode: opcode as u8,
            namespace: self.id,
            dword10: first_block,
            dword11: first_block,
            ..NvmeCommand::default()
        };
        command.with_memory(NOWHERE, 1 << self.block_shift)
    }

    #[inline(always)]
    fn is_misaligned(&self, address: u64, length: u64) -> bool {
        (address | length) & ((1 << self.block_shift) - 1) != 0 || length == 0
    }

    #[inline(always)]
    fn on_range(&self, opcode: Opcode, bits: u32, address: u64, length: u64) -> NvmeCommand {
        let (block, blocks) = (address >> self.block_shift, length >> self.block_shift);
        let refused = self.is_misaligned(address, length) || blocks > MAX_BLOCKS;
        NvmeCommand {
            opcode: opcode as u8,
            flags: if refused { REFUSED } else { 0 },
            namespace: self.id,
            dword10: block as u32,
            dword11: (block >> 32) as u32,
            dword12: (blocks.wrapping_sub(1) & 0xffff) as u32 | bits,
            ..NvmeCommand::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace {
        id: 0x0102_0304,
        block_shift: 12,
        max_transfer: 128 << 10,
        size: 1 << 60,
        read_only: false,
        volatile_cache: true,
    };

    /// The fields that are not 0, by their offsets in `struct nvme_passthru_cmd64`.
    fn fields(command: NvmeCommand) -> Vec<(usize, u64)> {
        let bytes: Vec<u8> =
            command.to_ioctl_words().iter().flat_map(|word| word.to_le_bytes()).collect();
        // Offset and size of each field.
        let layout = [
            (0, 1),
            (1, 1),
            (2, 2),
            (4, 4),
            (8, 4),
            (12, 4),
            (16, 8),
            (24, 8),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 4),
            (48, 4),
            (52, 4),
            (56, 4),
            (60, 4),
            (64, 4),
            (68, 4),
            (72, 8),
        ];
        let value = |(offset, size): (usize, usize)| {
            let mut value = [0; 8];
            value[..size].copy_from_slice(&bytes[offset..offset + size]);
            (offset, u64::from_le_bytes(value))
        };
        layout.into_iter().map(value).filter(|(_, value)| *value != 0).collect()
    }

    const OPCODE: usize = 0;
    const FLAGS: usize = 1;
    const NSID: usize = 4;
    const ADDRESS: usize = 24;
    const LENGTH: usize = 36;
    const CDW10: usize = 40;
    const CDW11: usize = 44;
    const CDW12: usize = 48;

    #[test]
    fn each_command_fills_the_fields_of_the_kernels_structure() {
        let id = (NSID, 0x0102_0304);
        let (address, memory) = (0x0567_89ab_cdef_0000 & !0xfff, 0x7000_1234_5000);
        let block = address >> 12;
        let place = [(CDW10, block & 0xffff_ffff), (CDW11, block >> 32)];
        let read = NAMESPACE.read(address, 16 << 12, memory);
        let mut expected = vec![(OPCODE, 2), id, (ADDRESS, memory), (LENGTH, 16 << 12)];
        expected.extend(place);
        expected.push((CDW12, 15));
        assert_eq!(fields(read), expected);

        let write = NAMESPACE.write(WriteMode::Cached, address, 4096, memory);
        let mut expected = vec![(OPCODE, 1), id, (ADDRESS, memory), (LENGTH, 4096)];
        expected.extend(place);
        assert_eq!(fields(write), expected, "the number of blocks is one less");

        let durable = NAMESPACE.write(WriteMode::ForceUnitAccess, address, 8192, memory);
        assert!(fields(durable).contains(&(CDW12, 1 << 30 | 1)));

        assert_eq!(fields(NAMESPACE.flush()), [id]);

        let zeroes = NAMESPACE.write_zeroes(WriteMode::ForceUnitAccess, address, 65536 << 12);
        let mut expected = vec![(OPCODE, 8), id];
        expected.extend(place);
        expected.push((CDW12, 1 << 30 | 0xffff));
        assert_eq!(fields(zeroes), expected);

        let deallocate = NAMESPACE.deallocate(memory, 4096);
        let expected = [(OPCODE, 9), id, (ADDRESS, memory), (LENGTH, 4096), (CDW11, 4)];
        assert_eq!(fields(deallocate), expected);

        let identify = NvmeCommand::identify(1, 0).with_memory(memory, 4096);
        let expected = [(OPCODE, 6), (ADDRESS, memory), (LENGTH, 4096), (CDW10, 1)];
        assert_eq!(fields(identify), expected);
    }

    #[test]
    fn a_range_has_attributes_then_blocks_then_the_first_block() {
        let range = NAMESPACE.range_entry(5 << 12, 3 << 12).unwrap();
        assert_eq!(range, [0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(NAMESPACE.range_entry(512, 4096), None);
        assert_eq!(NAMESPACE.range_entry(0, 1 << 44), None);
    }

    #[test]
    fn the_kernel_refuses_what_is_not_whole_blocks() {
        for (address, length) in [(512, 4096), (0, 512), (4096, 0), (1, 4096)] {
            let command = NAMESPACE.read(address, length, 0);
            assert!(fields(command).contains(&(FLAGS, 0xff)), "{address} {length}");
        }
        let long = NAMESPACE.write_zeroes(WriteMode::Cached, 0, 65537 << 12);
        assert!(fields(long).contains(&(FLAGS, 0xff)));
    }

    #[test]
    fn a_probe_names_memory_that_no_process_has_and_blocks_that_no_namespace_has() {
        for opcode in Opcode::ALL {
            let probe = fields(NAMESPACE.permission_probe(opcode));
            assert!(
                probe.contains(&(ADDRESS, 0xffff_ffff_ffff_f000))
                    && probe.contains(&(LENGTH, 4096))
            );
            let has_range = matches!(opcode, Opcode::Read | Opcode::Write | Opcode::WriteZeroes);
            for field in [CDW10, CDW11] {
                assert_eq!(probe.contains(&(field, 0xffff_ffff)), has_range, "{opcode:?}");
                assert_eq!(probe.iter().any(|(other, _)| *other == field), has_range, "{opcode:?}");
            }
        }
    }

    #[test]
    fn a_step_ends_at_the_limit_and_at_the_end() {
        let namespace = Namespace { size: 1 << 20, ..NAMESPACE };
        assert_eq!(namespace.step_length(0, 4096), 4096);
        assert_eq!(namespace.step_length(0, 1 << 20), 128 << 10);
        assert_eq!(namespace.step_length((1 << 20) - 4096, 8192), 4096);
        assert_eq!(namespace.step_length(1 << 20, 8192), 8192);
        assert_eq!(namespace.step_length(0, 1 << 40), 128 << 10);
    }
}
