//! Structures and constants of virtio 1.2 (rings, block devices) and of the vhost-user protocol.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Feature bits of virtio and of block devices.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const MULTI_QUEUE: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_INDEX: u64 = 1 << 29;
    /// Of vhost-user: there are protocol features.
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
    pub(crate) const PACKED: u64 = 1 << 34;
}

/// Protocol features of vhost-user.
pub(crate) mod protocol {
    pub(crate) const MULTI_QUEUE: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQUESTS: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const IN_FLIGHT: u64 = 1 << 12;
    pub(crate) const MEMORY_SLOTS: u64 = 1 << 15;
}

/// Flags of a descriptor.
pub(crate) mod descriptor {
    pub(crate) const NEXT: u16 = 1;
    pub(crate) const WRITE: u16 = 2;
    pub(crate) const INDIRECT: u16 = 4;
    /// Of packed rings.
    pub(crate) const AVAILABLE: u16 = 1 << 7;
    pub(crate) const USED: u16 = 1 << 15;
}

/// A descriptor of a split ring, or of a table of either.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: U64,
    pub(crate) length: U32,
    pub(crate) flags: U16,
    pub(crate) next: U16,
}

/// A descriptor of a packed ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PackedDescriptor {
    pub(crate) address: U64,
    pub(crate) length: U32,
    pub(crate) id: U16,
    pub(crate) flags: U16,
}

/// The size of a descriptor of either kind in bytes.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// An element of the used ring of a split ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct UsedElement {
    pub(crate) id: U32,
    pub(crate) length: U32,
}

/// The beginning of each request to a block device.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestHeader {
    pub(crate) kind: U32,
    pub(crate) reserved: U32,
    pub(crate) sector: U64,
}

/// Kinds of requests.
pub(crate) mod kind {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// A range of a discard or zeroing.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RangeSegment {
    pub(crate) sector: U64,
    pub(crate) sectors: U32,
    pub(crate) flags: U32,
}

/// The status of a request, its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    Error = 1,
    Unsupported = 2,
}

/// The configuration space of a block device.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BlockConfig {
    /// In sectors of 512 bytes.
    pub(crate) capacity: U64,
    pub(crate) max_segment_bytes: U32,
    pub(crate) max_segments: U32,
    pub(crate) geometry: [u8; 4],
    pub(crate) block_bytes: U32,
    pub(crate) physical_block_exponent: u8,
    pub(crate) alignment_offset: u8,
    pub(crate) min_io_blocks: U16,
    pub(crate) optimal_io_blocks: U32,
    pub(crate) writeback: u8,
    pub(crate) unused: u8,
    pub(crate) queues: U16,
    pub(crate) max_discard_sectors: U32,
    pub(crate) max_discard_segments: U32,
    pub(crate) discard_alignment_sectors: U32,
    pub(crate) max_zeroes_sectors: U32,
    pub(crate) max_zeroes_segments: U32,
    pub(crate) zeroes_may_unmap: u8,
    pub(crate) reserved: [u8; 3],
}

/// The size of a sector of virtio in bytes, whatever the block size is.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Codes of messages of the front end.
pub(crate) mod message {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// The code of the message of the back end that the configuration has changed.
pub(crate) const CONFIG_CHANGED: u32 = 2;

/// Flags in the header of a message: a version, and two bits.
pub(crate) mod header {
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const VERSION_MASK: u32 = 3;
    pub(crate) const REPLY: u32 = 1 << 2;
    pub(crate) const NEED_REPLY: u32 = 1 << 3;
}

/// In the message of an eventfd: there is none.
pub(crate) const NO_DESCRIPTOR: u64 = 1 << 8;

/// The header of a message. All numbers of the protocol have the byte order of the machine.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub(crate) code: u32,
    pub(crate) flags: u32,
    pub(crate) length: u32,
}

/// A region of guest memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MemoryRegion {
    pub(crate) guest_address: u64,
    pub(crate) bytes: u64,
    /// Its address in the front end.
    pub(crate) user_address: u64,
    pub(crate) file_offset: u64,
}

/// The state of a ring, a number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RingState {
    pub(crate) index: u32,
    pub(crate) number: u32,
}

/// Addresses of a ring, as the front end has them mapped.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RingAddresses {
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
    pub(crate) log: u64,
}

/// The head of a message that reads or writes the configuration space.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ConfigRange {
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) flags: u32,
}

/// The table of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InFlightArea {
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
    pub(crate) padding: u32,
}
