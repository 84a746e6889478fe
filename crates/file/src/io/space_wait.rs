//! Waits for free space: for a commit that frees blocks, or for reads of blocks about to become free.

use std::ops::Range;
use std::time::{Duration, Instant};

use uringfs_device::Errno;
use uringfs_reactor::Operation;

use crate::map::mapping::{AllocOutcome, SpaceReservation, TruncateGeneration};
use crate::state::file::FileHandle;

/// Longest wait of one operation, in all, for reads of blocks about to become free.
const QUIESCENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Commits that an operation waits for at most: other writers may take the space that each one frees.
const MAX_COMMITS: u32 = 1000;

/// Allocates what is missing in a range, unless the file has been truncated to 0 since `generation`. Waits for
/// space.
pub(crate) async fn allocate(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
    generation: TruncateGeneration,
) -> Result<(), Errno> {
    allocate_reserved(operation, handle, range, &mut SpaceReservation::default(), generation).await
}

/// As [`allocate`], with space reserved for some of the bytes.
pub(crate) async fn allocate_reserved(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
    reservation: &mut SpaceReservation,
    generation: TruncateGeneration,
) -> Result<(), Errno> {
    retry_for_space(operation, || handle.map.allocate(range.clone(), reservation, generation)).await
}

/// Repeats a request to the map, and waits in between, until there is space.
pub(crate) async fn retry_for_space<T>(
    operation: &mut Operation,
    mut request: impl FnMut() -> Result<AllocOutcome<T>, Errno>,
) -> Result<T, Errno> {
    let mut space_wait = SpaceWait::default();
    loop {
        match request()? {
            AllocOutcome::Ready(ready) => return Ok(ready),
            later => space_wait.wait(operation, later).await?,
        }
    }
}

/// The waits of one operation for space.
#[derive(Default)]
pub(crate) struct SpaceWait {
    /// When waits for quiescence give up; set by the first.
    until: Option<Instant>,
    commits: u32,
}

impl SpaceWait {
    /// Waits until space may have become free.
    pub(crate) async fn wait<T>(
        &mut self,
        operation: &mut Operation,
        outcome: AllocOutcome<T>,
    ) -> Result<(), Errno> {
        match outcome {
            AllocOutcome::Ready(_) => Ok(()),
            // No time limit: a slow commit is not a lack of space.
            AllocOutcome::AfterCommit(commit) => {
                self.commits += 1;
                if self.commits > MAX_COMMITS {
                    return Err(Errno::NOSPC);
                }
                operation.wait_outside_epoch(commit).await?
            }
            AllocOutcome::AfterQuiescence(epoch) => {
                let now = operation.now();
                let until = *self.until.get_or_insert(now + QUIESCENCE_TIMEOUT);
                if now >= until {
                    return Err(Errno::NOSPC);
                }
                operation.wait_for_quiescence_until(epoch, Some(until)).await.map(drop)
            }
        }
    }
}
