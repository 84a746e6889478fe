//! The bytes of a superblock.

use std::mem::size_of;

use crc_fast::{CrcAlgorithm, checksum as crc_checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blocks::{BLOCK, Run};

/// The most runs of blocks of the catalog.
pub(crate) const MAX_CATALOG_RUNS: usize = 240;

/// The most bytes of a label.
pub(crate) const MAX_LABEL_BYTES: usize = 64;

pub(super) const MAGIC: [u8; 8] = *b"uringfs\x1a";

pub(super) const SPARE_BYTES: usize = 80;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct RawRun {
    pub(super) start: U64,
    pub(super) length: U64,
}

/// A slot on the device. Magic, checksum and version have the same position in every version.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSlot {
    pub(super) magic: [u8; 8],
    /// CRC32C of every byte of the slot after this field.
    pub(super) checksum: U32,
    pub(super) version: U32,
    pub(super) compatible: U64,
    pub(super) read_only_compatible: U64,
    pub(super) incompatible: U64,
    pub(super) generation: U64,
    pub(super) uuid: [u8; 16],
    /// UTF-8, padded with zeros.
    pub(super) label: [u8; MAX_LABEL_BYTES],
    pub(super) block_size: U32,
    pub(super) catalog_runs: U32,
    pub(super) total_blocks: U64,
    pub(super) created_ns: U64,
    pub(super) log: RawRun,
    /// 0 in volumes that have [`RESERVED_BLOCKS`].
    pub(super) reserved: U64,
    pub(super) spare: [u8; SPARE_BYTES],
    pub(super) catalog: [RawRun; MAX_CATALOG_RUNS],
}

impl From<Run> for RawRun {
    fn from(run: Run) -> RawRun {
        RawRun { start: run.start.into(), length: run.length.into() }
    }
}

impl From<RawRun> for Run {
    fn from(raw: RawRun) -> Run {
        Run { start: raw.start.get(), length: raw.length.get() }
    }
}

const _: () = assert!(size_of::<RawSlot>() == BLOCK as usize);

/// The first byte that the checksum covers.
const CHECKSUM_START: usize = 12;

pub(super) fn checksum_of(slot: &RawSlot) -> u32 {
    crc_checksum(CrcAlgorithm::Crc32Iscsi, &slot.as_bytes()[CHECKSUM_START..]) as u32
}
