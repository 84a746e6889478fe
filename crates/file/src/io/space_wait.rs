//! Waits for free space: for a commit that frees blocks, or for readers of blocks that are to be free.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uringfs_reactor::Operation;

use crate::map::mapping::{Generation, Prepared, Promise};
use crate::state::file::FileHandle;

/// How long a write waits, in all, for others to end what they read of blocks that are to be free.
const QUIESCENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Commits that it waits for at most: each makes room, which others may take.
const MAX_COMMITS: u32 = 1000;

/// Has every byte of a range lie somewhere, unless the file has been emptied since `generation`; waits for room that may
/// become free.
pub(crate) async fn allocate(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
    generation: Generation,
) -> Result<(), Errno> {
    allocate_reserved(operation, handle, range, &mut Promise::default(), generation).await
}

/// The same for bytes for some of which there is room already.
pub(crate) async fn allocate_reserved(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
    reservation: &mut Promise,
    generation: Generation,
) -> Result<(), Errno> {
    retry_for_space(operation, || handle.map.prepare(range.clone(), reservation, generation)).await
}

/// Asks a map until it has room; waits for what may become free.
pub(crate) async fn retry_for_space<T>(
    operation: &mut Operation,
    mut request: impl FnMut() -> Result<Prepared<T>, Errno>,
) -> Result<T, Errno> {
    let mut space_wait = SpaceWait::default();
    loop {
        match request()? {
            Prepared::Ready(ready) => return Ok(ready),
            later => space_wait.wait(operation, later).await?,
        }
    }
}

/// The waits of one operation for room.
#[derive(Default)]
pub(crate) struct SpaceWait {
    /// Until when it waits for those who read what is to be free.
    until: Option<Instant>,
    commits: u32,
}

impl SpaceWait {
    /// Waits for what a map says may become free.
    pub(crate) async fn wait<T>(
        &mut self,
        operation: &mut Operation,
        what: Prepared<T>,
    ) -> Result<(), Errno> {
        match what {
            Prepared::Ready(_) => Ok(()),
            // As long as it takes: a slow commit is no lack of room.
            Prepared::AfterCommit(commit) => {
                self.commits += 1;
                if self.commits > MAX_COMMITS {
                    return Err(Errno::NOSPC);
                }
                operation.wait_uncounted(commit).await?
            }
            Prepared::AfterQuiescence(epoch) => {
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
