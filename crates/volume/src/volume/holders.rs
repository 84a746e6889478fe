//! [`Holders`]: the owners that keep a volume open after one of its handles was closed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use uringfs_device::{DeviceIndex, Errno};
use uringfs_reactor::operations_in_flight;

use crate::core::closed::Closed;
use crate::core::state::VolumeShared;
use crate::volume::volume::{Threads, Volume};

/// How long a close waits for work in the background when no operation is in flight.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it waits for what the device holds up: longer than devices take for a request, errors included.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(60);

/// The owners of a volume. Does not keep it open.
pub(crate) struct Holders {
    shared: Weak<VolumeShared>,
    threads: Weak<Threads>,
    device: DeviceIndex,
}

impl Holders {
    pub(crate) fn new(volume: &Volume) -> Holders {
        Holders {
            shared: Arc::downgrade(&volume.shared),
            threads: Arc::downgrade(&volume._threads),
            device: volume.device().index(),
        }
    }

    /// Waits for the volume's end as long as it may come without the caller, and returns whether the last changes are
    /// durable. `None` if the volume is still open.
    pub(crate) fn wait_for(&self, closed: &Closed) -> Option<Result<(), Errno>> {
        let last = Instant::now() + OPERATIONS_TIMEOUT;
        loop {
            let ended = closed.wait(BACKGROUND_TIMEOUT);
            if ended.is_some() || !self.may_end() || Instant::now() >= last {
                return ended;
            }
        }
    }

    /// True while the device may be all that holds the volume up: operations are in flight, or another thread, which had
    /// the last handle, makes the last commit.
    fn may_end(&self) -> bool {
        let operations = operations_in_flight(self.device);
        operations.total > operations.stuck || self.threads.strong_count() == 0
    }

    /// A message about the holders of the volume, with what to do.
    pub(crate) fn describe(&self) -> String {
        let operations = operations_in_flight(self.device).total;
        let files = self.shared.upgrade().map_or(0, |shared| shared.open_handles());
        // Each open file has a handle of the volume.
        let handles = self.threads.strong_count().saturating_sub(files);
        let holders = [
            (operations as usize, "operation is", "operations are", "in flight: await or reap"),
            (files, "file is", "files are", "open: close"),
            (
                handles,
                "other handle of the volume (a clone, or the one whose `as_async` was called) is",
                "other handles of it (clones, or those whose `as_async` was called) are",
                "alive: drop",
            ),
        ];
        let mut text = String::from("the volume is still open");
        if operations == 0 && handles + files == 0 {
            text += "; its last commit has not ended";
        }
        for (count, one, several, state) in holders {
            match count {
                0 => {}
                1 => text += &format!("; 1 {one} {state} it"),
                _ => text += &format!("; {count} {several} {state} them"),
            }
        }
        if operations > 0 && files > 0 {
            text += ", unless an operation holds it";
        }
        text
    }
}
