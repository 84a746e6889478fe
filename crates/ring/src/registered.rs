//! Files and memory that the ring has registered with the kernel. A request names
//! them by index, and the kernel neither looks up a file nor pins pages for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Weak;

use io_uring::squeue::Flags;
use rustix::process::{Resource, getrlimit};
use uringfs_buffer::{MAX_LENGTH, Region, RegionId};
use uringfs_errno::Errno;

use crate::queues::AnyQueues;
use crate::segment::IoSegment;
use crate::transfer::{StepResult, Transfer};

/// The state of registration, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Files named by index now.
    pub files: usize,
    /// Regions of memory named by index now.
    pub regions: usize,
    /// Why the last registration of memory failed; requests then name addresses.
    pub refused: Option<String>,
}

/// A file in the form that entries need: the first word of an entry, without its operation code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSlot(u64);

impl FileSlot {
    /// No file at this index; the kernel would return EBADF.
    pub(crate) const ABSENT: FileSlot = FileSlot::plain(-1);
    /// No file: requests are NOPs.
    pub(crate) const NOP: FileSlot = FileSlot::plain(-2);
    const FIXED: u64 = (Flags::FIXED_FILE.bits() as u64) << 8;

    /// By descriptor.
    #[inline(always)]
    pub(crate) const fn plain(descriptor: RawFd) -> FileSlot {
        FileSlot((descriptor as u32 as u64) << 32)
    }

    /// By its index in the kernel's table.
    #[inline(always)]
    pub(crate) const fn fixed(index: u32) -> FileSlot {
        FileSlot((index as u64) << 32 | FileSlot::FIXED)
    }

    /// The same file, for a request that a worker thread of the kernel executes.
    pub(crate) fn by_worker(self) -> FileSlot {
        FileSlot(self.0 | (Flags::ASYNC.bits() as u64) << 8)
    }

    #[inline(always)]
    pub(crate) fn is_fixed(self) -> bool {
        self.0 & FileSlot::FIXED != 0
    }

    /// The descriptor or index.
    pub(crate) fn number(self) -> i32 {
        (self.0 >> 32) as i32
    }

    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_truncate((self.0 >> 8) as u8)
    }

    /// The first word of an entry for this file.
    #[inline(always)]
    pub(crate) fn with_operation(self, code: u8) -> u64 {
        self.0 | code as u64
    }
}

/// The files of a ring, by indexes that the user chooses.
pub(crate) struct FileTable {
    fixed: bool,
    slots: Box<[FileSlot]>,
    /// Keeps plain files open; the kernel's table keeps fixed files open.
    descriptors: Vec<OwnedFd>,
}

impl FileTable {
    pub(crate) fn new(ring: &impl AnyQueues, count: u32, fixed: bool) -> FileTable {
        let fixed = fixed && ring.submitter().register_files_sparse(count).is_ok();
        let slots = vec![FileSlot::ABSENT; count as usize].into_boxed_slice();
        FileTable { fixed, slots, descriptors: Vec::new() }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    pub(crate) fn count_fixed(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_fixed()).count()
    }

    pub(crate) fn install(
        &mut self,
        ring: &impl AnyQueues,
        index: u32,
        file: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let slot = self.free_slot(index)?;
        let registered =
            || ring.submitter().register_files_update(index, &[file.as_raw_fd()]).is_ok();
        if self.fixed && registered() {
            self.slots[slot] = FileSlot::fixed(index);
            return Ok(());
        }
        let descriptor = file.try_clone_to_owned()?;
        self.slots[slot] = FileSlot::plain(descriptor.as_raw_fd());
        self.descriptors.push(descriptor);
        Ok(())
    }

    /// Makes every transfer that names `index` a NOP.
    pub(crate) fn install_nop(&mut self, index: u32) -> io::Result<()> {
        let slot = self.free_slot(index)?;
        self.slots[slot] = FileSlot::NOP;
        Ok(())
    }

    fn free_slot(&self, index: u32) -> io::Result<usize> {
        match self.slots.get(index as usize) {
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("file index {index} is not in the table"),
            )),
            Some(slot) => {
                assert_eq!(*slot, FileSlot::ABSENT, "file index {index} is in use");
                Ok(index as usize)
            }
        }
    }

    /// Removes a file. The caller ensures that no transfer names it.
    pub(crate) fn remove(&mut self, ring: &impl AnyQueues, index: u32) -> Result<(), Errno> {
        let slot = self.slot(index);
        if slot == FileSlot::ABSENT {
            return Err(Errno::BADF);
        }
        if slot.is_fixed() {
            // -1 empties the slot. A failure leaves the file open in the
            // kernel's table until the slot is used again.
            let _ = ring.submitter().register_files_update(index, &[-1]);
        } else {
            self.descriptors.retain(|descriptor| descriptor.as_raw_fd() != slot.number());
        }
        self.slots[index as usize] = FileSlot::ABSENT;
        Ok(())
    }

    /// The result of a step of `ended`, from the kernel's.
    #[inline(always)]
    pub(crate) fn step_result(&self, ended: &impl Transfer, result: i32) -> StepResult {
        if result == 0 && self.slot(ended.file()) == FileSlot::NOP {
            // A NOP completes with 0: report all bytes as moved.
            return StepResult(ended.length() as i32);
        }
        StepResult(result)
    }

    /// The file at `index`, if it is registered.
    #[inline(always)]
    pub(crate) fn fixed(&self, index: u32) -> Option<FileSlot> {
        self.slots.get(index as usize).copied().filter(|slot| slot.is_fixed())
    }

    /// The file at `index`, in the form that entries need.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> FileSlot {
        self.slots.get(index as usize).copied().unwrap_or(FileSlot::ABSENT)
    }
}

/// How a request names its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryName {
    /// By the index of its registered region.
    Index(u16),
    Address,
    /// By address; the kernel must not write there.
    ReadOnlyAddress,
}

/// The regions that a ring has registered, by the index in their id.
pub(crate) struct RegionTable {
    enabled: bool,
    registered: Box<[RegionId; RegionId::COUNT as usize]>,
    refused: Box<[RegionId; RegionId::COUNT as usize]>,
    regions: Vec<Weak<Region>>,
    /// [`Region::dropped`] at the last check.
    dropped: u64,
    refusal: Option<String>,
}

impl RegionTable {
    pub(crate) fn new(ring: &impl AnyQueues, enabled: bool) -> RegionTable {
        let count = RegionId::COUNT;
        let table = if enabled { ring.submitter().register_buffers_sparse(count) } else { Ok(()) };
        RegionTable {
            enabled: enabled && table.is_ok(),
            registered: Box::new([RegionId::EMPTY; RegionId::COUNT as usize]),
            refused: Box::new([RegionId::EMPTY; RegionId::COUNT as usize]),
            regions: std::iter::repeat_with(Weak::new).take(count as usize).collect(),
            dropped: Region::dropped(),
            refusal: table.err().map(|error| format!("no table for registered buffers: {error}")),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn count(&self) -> usize {
        self.registered.iter().filter(|id| **id != RegionId::EMPTY).count()
    }

    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The index of a region that is registered.
    #[inline(always)]
    pub(crate) fn registered_index(&self, id: RegionId) -> Option<u16> {
        let index = id.index();
        (self.registered[index as usize] == id).then_some(index as u16)
    }

    /// How a request names the segment. Its region is registered at its first use, if it can be.
    #[inline(always)]
    pub(crate) fn name_of(&mut self, ring: &impl AnyQueues, segment: &IoSegment) -> MemoryName {
        match self.registered_index(segment.region_id) {
            Some(index) => MemoryName::Index(index),
            None => self.register(ring, segment),
        }
    }

    #[inline(never)]
    fn register(&mut self, ring: &impl AnyQueues, segment: &IoSegment) -> MemoryName {
        let id = segment.region_id;
        let index = id.index() as usize;
        if id == RegionId::READ_ONLY {
            return MemoryName::ReadOnlyAddress;
        }
        if id.is_unregistered() || !self.enabled || self.refused[index] == id {
            return MemoryName::Address;
        }
        // SAFETY: the segment's buffer holds the region; the transfer that owns
        // the buffer is in the ring's table.
        let region = unsafe { segment.region.as_ref() };
        self.unregister_dropped(ring);
        let bytes = region.len();
        let vector = libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: bytes };
        // SAFETY: a transfer that names this index owns a buffer of the region,
        // so the memory outlives every use. A region that is dropped while it is
        // registered leaves pinned pages that no request names any more.
        let done = unsafe { ring.submitter().register_buffers_update(id.index(), &[vector], None) };
        match done {
            Ok(()) => {
                self.registered[index] = id;
                self.regions[index] = region.downgrade();
                MemoryName::Index(index as u16)
            }
            Err(error) => {
                self.registered[index] = RegionId::EMPTY;
                self.refused[index] = id;
                self.refusal = Some(explain_refusal(bytes, &error));
                MemoryName::Address
            }
        }
    }

    /// Unpins regions that are dropped, if any were dropped since the last call.
    #[inline]
    pub(crate) fn unregister_dropped(&mut self, ring: &impl AnyQueues) {
        if Region::dropped() != self.dropped {
            self.unregister_dropped_slow(ring);
        }
    }

    #[cold]
    fn unregister_dropped_slow(&mut self, ring: &impl AnyQueues) {
        self.dropped = Region::dropped();
        for index in 0..self.registered.len() {
            if self.registered[index] != RegionId::EMPTY && self.regions[index].strong_count() == 0
            {
                let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
                // SAFETY: an empty vector names no memory; it empties the slot.
                let _ = unsafe {
                    ring.submitter().register_buffers_update(index as u32, &[empty], None)
                };
                self.registered[index] = RegionId::EMPTY;
            }
        }
    }
}

fn explain_refusal(bytes: usize, error: &io::Error) -> String {
    let limit = getrlimit(Resource::Memlock).current;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM), Some(limit)) => format!(
            "{bytes} bytes of buffers are not registered: RLIMIT_MEMLOCK is {limit} bytes; \
             raise it by {bytes} (ulimit -l)"
        ),
        (Some(libc::EFAULT), _) if bytes > MAX_LENGTH => format!(
            "{bytes} bytes of buffers are not registered: the kernel takes at most {MAX_LENGTH} \
             as one; make several pools"
        ),
        _ => format!("{bytes} bytes of buffers are not registered: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_too_large_to_be_registered_is_explained() {
        let explain = |bytes, code| explain_refusal(bytes, &io::Error::from_raw_os_error(code));
        let large = explain(MAX_LENGTH + 4096, libc::EFAULT);
        assert!(
            large.contains("at most 1073741824") && large.ends_with("several pools"),
            "{large}"
        );
        assert!(explain(MAX_LENGTH, libc::EFAULT).contains("Bad address"));
    }
}
