//! [`VolumeMap`]: the extents of an open file, as the map that crate `file` does I/O by.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use uringfs_device::Errno;
use uringfs_file::{
    AllocOutcome, AtimeUpdates, ChangeGate, CommitFuture, ExtentWindow, HotExtentReader, Map,
    Mapping, MappingState, OutOfPlaceExtents, Refusal, ResizableMap, SpaceReservation, SyncScope,
    TruncateGeneration, WriteOrigin,
};
use uringfs_reactor::ForkDetector;

use crate::blocks::BLOCK;
use crate::core::blocking::WaitMode;
use crate::namespace::credentials::AtimePolicy;
use crate::namespace::operations::strip_privileges;
use crate::open_file::open_file::OpenFile;
use crate::space::extent::ExtentState;
use crate::space::extent_map::ExtentOrHole;
use crate::volume::volume::Volume;

/// The map of one open handle.
pub(crate) struct VolumeMap {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) volume: Volume,
    /// The handle was opened by the superuser, whose writes keep set-ID bits.
    pub(crate) is_superuser: bool,
    pub(crate) access_time: AtimePolicy,
    /// The handle was opened for reading.
    pub(crate) is_readable: bool,
    /// The handle was opened for writing.
    pub(crate) is_writable: bool,
    /// In the child of a fork nothing is written: the blocks may belong to other files by then.
    pub(crate) fork: ForkDetector,
}

impl VolumeMap {
    /// The side effects of reads through this handle: they may update the access time.
    fn reads(&self) -> AtimeUpdates {
        match self.access_time {
            AtimePolicy::Relative if !self.volume.is_read_only() => AtimeUpdates::Enabled,
            AtimePolicy::Relative | AtimePolicy::Never => AtimeUpdates::Disabled,
        }
    }

    fn is_atime_due(&self) -> bool {
        self.file.is_atime_due() && self.reads() == AtimeUpdates::Enabled
    }

    /// True if a write must strip privileges: see [`crate::namespace::operations::strip_privileges`].
    #[inline]
    pub(crate) fn must_strip_privileges(&self) -> bool {
        self.file.must_strip_privileges(self.is_superuser)
    }

    /// True if a write now needs neither an update of the file nor a wait before it.
    #[inline]
    fn takes_fast_writes(&self) -> bool {
        let shared = &self.volume.shared;
        !self.file.is_touch_due()
            && !self.must_strip_privileges()
            && !self.fork.is_forked()
            && !shared.freeze.gate.is_closed()
            && shared.size_watch.shrunk().is_none()
    }

    /// Updates the modification time and the change cookie, if they are due.
    pub(crate) fn touch(&self) {
        if self.file.is_touch_due() {
            self.file.touch();
            self.volume.mark_dirty(&self.file);
        }
    }
}

impl Map for VolumeMap {
    fn map(&self, offset: u64) -> Mapping {
        let snapshot = self.file.snapshot();
        let (block, into) = (offset / BLOCK, offset % BLOCK);
        match snapshot.extents.find(block) {
            ExtentOrHole::Extent(extent) => {
                let address = (extent.start + (block - extent.offset)) * BLOCK + into;
                let length = (extent.end() - block) * BLOCK - into;
                let state = match extent.state {
                    ExtentState::Written => MappingState::Written(address),
                    ExtentState::Unwritten => MappingState::Unwritten(address),
                };
                Mapping { length, state }
            }
            ExtentOrHole::Hole { end } => {
                let length = (end - block).saturating_mul(BLOCK).saturating_sub(into);
                Mapping { length, state: MappingState::Hole }
            }
        }
    }

    #[inline]
    fn written_address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        self.file.address(offset, end).ok()
    }

    fn size(&self) -> u64 {
        self.file.snapshot().size()
    }
}

impl ResizableMap for VolumeMap {
    fn block_size(&self) -> u64 {
        BLOCK
    }

    fn read_refusal(&self) -> Option<Errno> {
        (!self.is_readable).then_some(Errno::BADF)
    }

    fn write_refusal(&self) -> Option<Errno> {
        match (self.volume.is_read_only(), self.is_writable) {
            (true, _) => Some(Errno::ROFS),
            (false, false) => Some(Errno::BADF),
            (false, true) => None,
        }
    }

    fn allocate(
        &self,
        range: Range<u64>,
        reservation: &mut SpaceReservation,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        if self.file.snapshot().extents.is_written(&blocks) && !self.volume.is_opened_read_only() {
            return Ok(AllocOutcome::Ready(()));
        }
        self.volume.shared.allocate(&self.file, blocks, reservation, generation)
    }

    fn reserve_space(&self, bytes: u64) -> Result<AllocOutcome<SpaceReservation>, Errno> {
        self.volume.shared.reserve_space(&self.file, bytes)
    }

    fn retire_if_unlinked(&self) -> bool {
        self.volume.shared.retire_if_unlinked(&self.file)
    }

    fn allocate_out_of_place(
        &self,
        range: Range<u64>,
    ) -> Result<AllocOutcome<OutOfPlaceExtents>, Errno> {
        self.volume.shared.allocate_out_of_place(&self.file, range.start / BLOCK..range.end / BLOCK)
    }

    fn swap_extents(
        &self,
        range: Range<u64>,
        new_blocks: &mut Option<OutOfPlaceExtents>,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        self.volume.shared.swap_extents(&self.file, range, new_blocks, generation)
    }

    fn set_size(&self, size: u64) {
        self.volume.shared.set_size(&self.file, size);
    }

    fn punch_hole(&self, range: Range<u64>) {
        let blocks = range.start / BLOCK..range.end / BLOCK;
        self.volume.shared.punch_hole(&self.file, blocks);
    }

    fn mark_unwritten(&self, range: Range<u64>) {
        self.file.mark_unwritten(range.start / BLOCK..range.end / BLOCK);
        self.volume.mark_dirty(&self.file);
    }

    fn allocated(&self) -> u64 {
        (self.file.snapshot().extents.blocks() + self.file.delayed_blocks()) * BLOCK
    }

    fn generation(&self) -> TruncateGeneration {
        self.file.generation()
    }

    fn generation_and_size(&self) -> (TruncateGeneration, u64) {
        self.file.end()
    }

    fn mark_written(&self, range: Range<u64>, generation: TruncateGeneration, origin: WriteOrigin) {
        self.volume.mark_written(&self.file, range, generation, origin);
    }

    fn commit(&self, what: SyncScope) -> Option<CommitFuture> {
        self.volume.commit_for(&self.file, what)
    }

    fn note_flush_failure(&self) {
        self.volume.shared.group_commit.fail();
    }

    fn has_flush_failed(&self) -> bool {
        // Also what a successful flush covers may have been cut off.
        let shared = &self.volume.shared;
        shared.size_watch.check().is_err() || shared.group_commit.has_failed()
    }

    fn note_lost_writes(&self) {
        self.volume.shared.note_lost_writes(self.file.number);
    }

    fn take_lost_writes(&self) -> bool {
        self.volume.shared.lost_writes.lock().remove(&self.file.number)
    }

    fn hot_extent(&self) -> HotExtentReader {
        HotExtentReader::new(self.file.hot_extent().clone(), self.reads())
    }

    #[inline]
    fn fast_read_address(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        let end = offset.checked_add(length).ok_or(Refusal::Size)?;
        if self.is_atime_due() {
            return Err(Refusal::NeedsUpdate);
        }
        self.file.address_beyond_hot_extent(offset, end)
    }

    #[inline]
    fn fast_write_address(&self, offset: u64, length: u64) -> Option<u64> {
        if !self.takes_fast_writes() {
            return None;
        }
        self.file.address(offset, offset.checked_add(length)?).ok()
    }

    fn fast_write_window(&self) -> ExtentWindow {
        let window = || self.file.hot_extent().window();
        if self.takes_fast_writes() { window() } else { ExtentWindow::default() }
    }

    fn change_gate(&self) -> Option<&ChangeGate> {
        Some(&self.volume.shared.freeze.gate)
    }

    fn touch_atime(&self) {
        if self.is_atime_due() && !self.fork.is_forked() && self.file.update_atime() {
            self.volume.mark_dirty(&self.file);
        }
    }

    fn check_process(&self) -> Result<(), Errno> {
        if self.fork.is_forked() { Err(Errno::CHILD) } else { Ok(()) }
    }

    fn prepare_write(&self) -> Option<CommitFuture> {
        if self.volume.shared.size_watch.shrunk().is_some() {
            return Some(Box::pin(ready(Err(Errno::ROFS))));
        }
        self.touch();
        self.must_strip_privileges().then(|| {
            let (volume, file) = (self.volume.clone(), self.file.clone());
            let is_superuser = self.is_superuser;
            let stripped: CommitFuture = Box::pin(async move {
                volume.check_changeable().map_err(|error| error.errno())?;
                let strip = strip_privileges(&file, is_superuser);
                let stripped = volume.shared.run_transaction(WaitMode::Async, strip).await;
                stripped.map_err(|error| error.errno())
            });
            stripped
        })
    }
}
