//! A request to the disk, from its chain: what to do with the file, checked in full.
//!
//! The guest may change a request while it is read. So its header and ranges are copied out once, and only the copies count.

use uringfs::Buffer;
use uringfs::buffer::SharedMemory;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{RangeSegment, RequestHeader, SECTOR_BYTES, Status, kind};
use crate::chain::{Broken, Chain};
use crate::disk::{MAX_RANGE_SECTORS, MAX_RANGES, ServedDisk};
use crate::memory::{GuestMemory, Segment};

/// The flag of a zeroing that blocks may be freed.
const MAY_UNMAP: u32 = 1;

/// A request.
#[derive(Debug)]
pub(crate) struct BlockRequest {
    /// The guest address of its status.
    pub(crate) status_address: u64,
    /// Bytes that the device writes if it succeeds, with the status.
    pub(crate) written: u32,
    pub(crate) action: Action,
}

/// The purpose of a request.
#[derive(Debug)]
pub(crate) enum Action {
    Read(Transfer),
    Write(Transfer),
    Flush,
    Ranges(Vec<RangeAction>),
    /// It has ended.
    Done(Status),
}

/// Data of the guest, and their offset in the file.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) offset: u64,
}

/// A range, as offset and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAction {
    Discard(u64, u64),
    Zero(u64, u64),
    Punch(u64, u64),
}

/// Guest memory, and its form for buffers.
#[derive(Debug)]
pub(crate) struct RequestMemory<'m> {
    pub(crate) guest: &'m GuestMemory,
    pub(crate) shared: &'m [SharedMemory],
}

impl RangeAction {
    /// Takes the first part off, if zeroing all would hold up a stop.
    pub(crate) fn take_part(&mut self, max: u64) -> Option<RangeAction> {
        match self {
            RangeAction::Zero(offset, length) if *length > max => {
                let part = RangeAction::Zero(*offset, max);
                (*offset, *length) = (*offset + max, *length - max);
                Some(part)
            }
            _ => None,
        }
    }
}

impl BlockRequest {
    /// The request in `chain`, which is used up.
    ///
    /// # Errors
    /// If it has no place for its status, so that it cannot be answered.
    pub(crate) fn parse(
        chain: &mut Chain,
        memory: &RequestMemory<'_>,
        disk: &ServedDisk,
    ) -> Result<BlockRequest, Broken> {
        let status_address = take_status(&mut chain.writable)
            .ok_or(Broken("a request has no place for its status"))?;
        if memory.guest.area(status_address, 1).is_err() {
            return Err(Broken("the status of a request is not in the guest's memory"));
        }
        let (action, written) = match parse_action(chain, memory, disk) {
            Ok(parsed) => parsed,
            Err(status) => (Action::Done(status), 0),
        };
        Ok(BlockRequest { status_address, written: written.saturating_add(1), action })
    }
}

fn parse_action(
    chain: &mut Chain,
    memory: &RequestMemory<'_>,
    disk: &ServedDisk,
) -> Result<(Action, u32), Status> {
    let mut header = RequestHeader::default();
    take_front(memory.guest, &mut chain.readable, header.as_mut_bytes())?;
    let sector = header.sector.get();
    match header.kind.get() {
        kind::READ => {
            let transfer = transfer(&chain.writable, sector, memory, disk)?;
            let written = transfer.buffers.iter().map(|buffer| buffer.len() as u32).sum();
            match transfer.buffers.is_empty() {
                true => Ok((Action::Done(Status::Ok), 0)),
                false => Ok((Action::Read(transfer), written)),
            }
        }
        kind::WRITE if disk.disk.read_only => Err(Status::Error),
        kind::WRITE => {
            let transfer = transfer(&chain.readable, sector, memory, disk)?;
            match transfer.buffers.is_empty() {
                true => Ok((Action::Done(Status::Ok), 0)),
                false => Ok((Action::Write(transfer), 0)),
            }
        }
        kind::FLUSH => Ok((Action::Flush, 0)),
        kind::GET_ID => {
            let written = write_serial(&chain.writable, memory.guest, &disk.disk.serial)?;
            Ok((Action::Done(Status::Ok), written))
        }
        kind @ (kind::DISCARD | kind::WRITE_ZEROES) => {
            let is_offered = match kind {
                kind::DISCARD => disk.discards(),
                _ => !disk.disk.read_only,
            };
            if !is_offered {
                return Err(Status::Unsupported);
            }
            Ok((Action::Ranges(ranges(chain, kind, memory.guest, disk)?), 0))
        }
        _ => Err(Status::Unsupported),
    }
}

/// Takes the last byte to write off the segments, and returns its address.
fn take_status(writable: &mut Vec<Segment>) -> Option<u64> {
    while let Some(last) = writable.last_mut() {
        if last.length > 0 {
            last.length -= 1;
            return last.address.checked_add(u64::from(last.length));
        }
        writable.pop();
    }
    None
}

/// Copies the first bytes of the segments out, and takes them off.
fn take_front(
    memory: &GuestMemory,
    segments: &mut [Segment],
    into: &mut [u8],
) -> Result<(), Status> {
    let mut into = into;
    for segment in segments {
        let take = into.len().min(segment.length as usize);
        let (front, rest) = into.split_at_mut(take);
        memory.read(segment.address, front).map_err(|_| Status::Error)?;
        // An address that wraps was refused when it was read.
        segment.address = segment.address.wrapping_add(take as u64);
        segment.length -= take as u32;
        into = rest;
        if into.is_empty() {
            return Ok(());
        }
    }
    Err(Status::Error)
}

/// The data in segments, which must fit in the disk.
fn transfer(
    segments: &[Segment],
    sector: u64,
    memory: &RequestMemory<'_>,
    disk: &ServedDisk,
) -> Result<Transfer, Status> {
    let bytes: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
    let offset = checked_range(sector, bytes, disk)?;
    if !bytes.is_multiple_of(SECTOR_BYTES) || bytes > u64::from(u32::MAX) {
        return Err(Status::Error);
    }
    let mut buffers = Vec::new();
    for segment in segments {
        let appended = memory.guest.append_buffers(memory.shared, *segment, &mut buffers);
        appended.map_err(|_| Status::Error)?;
    }
    Ok(Transfer { buffers, offset })
}

/// The offset of a sector, if `bytes` from there on are inside the disk.
fn checked_range(sector: u64, bytes: u64, disk: &ServedDisk) -> Result<u64, Status> {
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::Error)?;
    match offset.checked_add(bytes) {
        Some(end) if end <= disk.capacity() => Ok(offset),
        _ => Err(Status::Error),
    }
}

/// Writes the serial number, filled up with zeros, and returns the bytes written.
fn write_serial(segments: &[Segment], memory: &GuestMemory, serial: &str) -> Result<u32, Status> {
    let mut padded = [0; 20];
    padded[..serial.len()].copy_from_slice(serial.as_bytes());
    let mut rest = &padded[..];
    for segment in segments {
        let (part, tail) = rest.split_at(rest.len().min(segment.length as usize));
        memory.write(segment.address, part).map_err(|_| Status::Error)?;
        rest = tail;
    }
    Ok((padded.len() - rest.len()) as u32)
}

/// The ranges of a discard or zeroing.
fn ranges(
    chain: &mut Chain,
    kind: u32,
    memory: &GuestMemory,
    disk: &ServedDisk,
) -> Result<Vec<RangeAction>, Status> {
    const RANGE_BYTES: usize = size_of::<RangeSegment>();
    let bytes: u64 = chain.readable.iter().map(|segment| u64::from(segment.length)).sum();
    if bytes == 0
        || !bytes.is_multiple_of(RANGE_BYTES as u64)
        || bytes > (MAX_RANGES * RANGE_BYTES) as u64
    {
        return Err(Status::Error);
    }
    let mut copy = <[RangeSegment]>::new_box_zeroed_with_elems(bytes as usize / RANGE_BYTES)
        .map_err(|_| Status::Error)?;
    take_front(memory, &mut chain.readable, copy.as_mut_bytes())?;
    let action = |range: &RangeSegment| {
        if range.sectors.get() > MAX_RANGE_SECTORS {
            return Err(Status::Error);
        }
        let length = u64::from(range.sectors.get()) * SECTOR_BYTES;
        let offset = checked_range(range.sector.get(), length, disk)?;
        match (kind, range.flags.get()) {
            (kind::DISCARD, 0) => Ok(RangeAction::Discard(offset, length)),
            (kind::WRITE_ZEROES, MAY_UNMAP) if disk.has_holes => {
                Ok(RangeAction::Punch(offset, length))
            }
            (kind::WRITE_ZEROES, 0 | MAY_UNMAP) => Ok(RangeAction::Zero(offset, length)),
            _ => Err(Status::Unsupported),
        }
    };
    copy.iter().filter(|range| range.sectors.get() > 0).map(action).collect()
}
