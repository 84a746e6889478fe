//! The fast path: a small aligned read or overwrite inside one written extent is one request and completes
//! inline. No task, no state machine, no allocation.
//!
//! Everything else takes the slow path. A refused direct read is counted by its reason at the place of refusal, in
//! code that is not inlined. If the reason were returned, it would occupy a register of each read that is not refused.

use uringfs_buffer::Buffer;
use uringfs_reactor::{BatchAddresses, Counter, Locate, LocateBatch, ReactorCore};

use crate::map::file_map::FileMap;
use crate::map::hot_extent::ExtentWindow;
use crate::map::mapping::SyncScope;
use crate::map::refusal::Refusal;
use crate::state::file::FileHandle;

/// A read, to be located for the fast path.
pub(crate) struct LocateRead<'a> {
    pub(crate) reactor: &'a ReactorCore,
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateRead<'_> {
    #[inline(always)]
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        let refuse = |refusal| count_refusal(self.reactor, self.handle, refusal);
        read(self.handle, self.handle.fast_read_limit, buffer, self.offset, refuse)
    }
}

/// A read of several, to be located for the fast path. If it is refused it is tried alone, and counted then.
#[derive(Clone, Copy)]
pub(crate) struct LocateReadOfSeveral<'a> {
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateReadOfSeveral<'_> {
    #[inline(always)]
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        read(self.handle, self.handle.fast_read_limit, buffer, self.offset, |_| ())
    }
}

/// An overwrite, to be located for the fast path.
#[derive(Clone, Copy)]
pub(crate) struct LocateWrite<'a> {
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateWrite<'_> {
    #[inline(always)]
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        write(self.handle, self.handle.fast_write_limit, buffer, self.offset)
    }
}

/// A durable overwrite, to be located for the fast path: on a device where one request makes it durable, of bytes whose extent
/// needs no commit.
pub(crate) struct LocateDurableWrite<'a> {
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateDurableWrite<'_> {
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        let LocateDurableWrite { handle, offset } = self;
        // Where the request is a write and a flush, a failure has to be noted.
        if !handle.device.geometry().fua {
            return None;
        }
        write_durably(handle, handle.fast_write_limit, buffer, offset)
    }
}

/// The reads of a batch, to be located for the fast path.
pub(crate) struct LocateReads<'a> {
    pub(crate) handle: &'a FileHandle,
}

impl LocateBatch for LocateReads<'_> {
    #[inline(always)]
    fn begin(self, length: u32, address_bits: u64) -> Option<impl BatchAddresses> {
        let handle = self.handle;
        let is_fast = is_eligible(handle, handle.fast_read_limit, length, address_bits)
            && !handle.state.dirty().is_any();
        // A read that is refused is counted when it is tried alone.
        let look_up = |map: &FileMap, offset, length| map.fast_read_address(offset, length, |_| ());
        let window = || handle.map.fast_read_window();
        is_fast.then(|| ExtentAddresses::new(handle, window(), length.into(), look_up))
    }
}

/// The overwrites of a batch, to be located for the fast path while the bias holds.
pub(crate) struct LocateWrites<'a> {
    pub(crate) handle: &'a FileHandle,
}

impl LocateBatch for LocateWrites<'_> {
    #[inline(always)]
    fn begin(self, length: u32, address_bits: u64) -> Option<impl BatchAddresses> {
        let handle = self.handle;
        let is_fast = handle.state.is_biased()
            && is_eligible(handle, handle.fast_write_limit, length, address_bits);
        let window = || handle.map.fast_write_window();
        let look_up = FileMap::fast_write_address;
        is_fast.then(|| ExtentAddresses::new(handle, window(), length.into(), look_up))
    }
}

/// The addresses of a batch's transfers, most of which lie in one extent.
struct ExtentAddresses<'a, L> {
    map: &'a FileMap,
    extent: BatchExtent,
    length: u64,
    block_mask: u64,
    /// The address of another one, by its offset and length.
    look_up: L,
}

impl<'a, L: Fn(&FileMap, u64, u64) -> Option<u64>> ExtentAddresses<'a, L> {
    #[inline(always)]
    fn new(handle: &'a FileHandle, window: ExtentWindow, length: u64, look_up: L) -> Self {
        let extent = BatchExtent::new(window, length);
        ExtentAddresses { map: &handle.map, extent, length, block_mask: handle.block_mask, look_up }
    }
}

impl<L: Fn(&FileMap, u64, u64) -> Option<u64>> BatchAddresses for ExtentAddresses<'_, L> {
    #[inline(always)]
    fn known(&self, offset: u64) -> Option<u64> {
        if offset & self.block_mask != 0 {
            return None;
        }
        self.extent.address(offset)
    }

    #[inline(always)]
    fn look_up(&self, offset: u64) -> Option<u64> {
        if offset & self.block_mask != 0 {
            return None;
        }
        (self.look_up)(self.map, offset, self.length)
    }
}

/// The offsets at which the transfers of a batch lie in one extent. All of them see the extent as it was when they were
/// put in the epoch.
struct BatchExtent {
    first: u64,
    /// The number of offsets, from `first` on.
    count: u64,
    /// The number that, added to an offset, gives the device address, modulo 2^64.
    shift: u64,
}

impl BatchExtent {
    /// Of transfers of `length` bytes, at least one.
    #[inline(always)]
    fn new(window: ExtentWindow, length: u64) -> BatchExtent {
        let count = (window.end - window.start).saturating_sub(length - 1);
        BatchExtent { first: window.start, count, shift: window.shift() }
    }

    #[inline(always)]
    fn address(&self, offset: u64) -> Option<u64> {
        let is_inside = offset.wrapping_sub(self.first) < self.count;
        is_inside.then(|| offset.wrapping_add(self.shift))
    }
}

/// True if the length and the memory of a batch's transfers are eligible.
#[inline(always)]
fn is_eligible(handle: &FileHandle, limit: u32, length: u32, address_bits: u64) -> bool {
    let (block_mask, memory_mask) = (handle.block_mask, handle.memory_mask);
    length <= limit
        && u64::from(length) & block_mask | address_bits & memory_mask == 0
        && !handle.device_inner.is_closed()
}

/// The device address of a read of at most `limit` bytes that is eligible for the fast path; `refuse` learns why it is not.
/// The caller has entered the epoch, so the extent stays allocated until the read has ended.
#[inline(always)]
pub(crate) fn read(
    handle: &FileHandle,
    limit: u32,
    buffer: &Buffer,
    offset: u64,
    refuse: impl Fn(Refusal) + Copy,
) -> Option<u64> {
    let length = eligible_length(handle, limit, buffer, offset, refuse)?;
    if handle.state.dirty().is_any() {
        refuse(Refusal::Dirty);
        return None;
    }
    handle.map.fast_read_address(offset, length, refuse)
}

/// The same for an overwrite while the bias holds. A writer that must exclude overwrites first revokes the bias,
/// then waits for quiescence.
#[inline(always)]
pub(crate) fn write(handle: &FileHandle, limit: u32, buffer: &Buffer, offset: u64) -> Option<u64> {
    if !handle.state.is_biased() {
        return None;
    }
    let length = eligible_length(handle, limit, buffer, offset, |_| ())?;
    handle.map.fast_write_address(offset, length)
}

/// The same for an overwrite that is durable when its bytes are: its extent needs no commit.
pub(crate) fn write_durably(
    handle: &FileHandle,
    limit: u32,
    buffer: &Buffer,
    offset: u64,
) -> Option<u64> {
    let address = write(handle, limit, buffer, offset)?;
    // The order matters: an extent that a look-up finds has been noted for a commit before, if it needs one.
    handle.map.commit(SyncScope::Data).is_none().then_some(address)
}

/// Its length in bytes, if length, offset and memory are eligible.
#[inline(always)]
fn eligible_length(
    handle: &FileHandle,
    limit: u32,
    buffer: &Buffer,
    offset: u64,
    refuse: impl Fn(Refusal),
) -> Option<u64> {
    let length = buffer.len() as u64;
    // 0 wraps to the largest length.
    if length.wrapping_sub(1) >= limit as u64 {
        refuse(Refusal::Length);
        return None;
    }
    let memory = buffer.pointer().as_ptr() as u64;
    if (offset | length) & handle.block_mask | memory & handle.memory_mask != 0 {
        refuse(Refusal::Alignment);
        return None;
    }
    // The slow path reports a closed device; the reactor may not know yet.
    if handle.device_inner.is_closed() {
        return None;
    }
    Some(length)
}

/// Counts why a direct read was refused. A closed device, and a handle that may not read, are not counted.
#[cold]
#[inline(never)]
fn count_refusal(reactor: &ReactorCore, handle: &FileHandle, refusal: Refusal) {
    if handle.cache().is_some() || handle.read_refusal.is_some() {
        return;
    }
    reactor.count(match refusal {
        Refusal::Length if !handle.options.simple_read => Counter::FastPathOff,
        Refusal::Length => Counter::FastPathLength,
        Refusal::Alignment => Counter::FastPathAlignment,
        Refusal::Size => Counter::FastPathSize,
        Refusal::Dirty => Counter::FastPathDirty,
        Refusal::NeedsUpdate => Counter::FastPathAtime,
        Refusal::Extent => Counter::FastPathExtent,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_reads_in_the_extent_have_an_address() {
        let window = ExtentWindow { start: 8192, end: 16384, address: 4096 };
        let extent = BatchExtent::new(window, 4096);
        let found = [0, 8191, 8192, 12288, 12289, 16384, u64::MAX].map(|at| extent.address(at));
        assert_eq!(found, [None, None, Some(4096), Some(8192), None, None, None]);
        assert_eq!(BatchExtent::new(window, 8192).address(8192), Some(4096));
        assert_eq!(BatchExtent::new(window, 8193).address(8192), None);
        assert_eq!(BatchExtent::new(ExtentWindow::default(), 1).address(0), None);
        let all = BatchExtent::new(ExtentWindow { start: 0, end: u64::MAX, address: 0 }, 4096);
        let found = [0, u64::MAX - 4096, u64::MAX - 4095].map(|at| all.address(at));
        assert_eq!(found, [Some(0), Some(u64::MAX - 4096), None]);
    }
}
