//! Counters, by reason. Each reactor writes cache lines of its own; a reader sums them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::sync::domains::calls_of_threads;

macro_rules! counters {
    ($($(#[doc = $description:literal])+ $variant:ident = $name:literal,)*) => {
        /// An event that reactors count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Counter {
            $($(#[doc = $description])+ $variant,)*
        }

        impl Counter {
            /// Every counter, in the order of reports.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// The name in reports: `layer.what.reason`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => $name,)*
                }
            }

            /// A sentence that says what it counts.
            pub fn description(self) -> &'static str {
                match self {
                    $(Counter::$variant => concat!($($description),+).trim_ascii_start(),)*
                }
            }
        }
    };
}

counters! {
    /// Reads that went out as one request, without a task.
    FastPathTaken = "direct.fast_path.taken",
    /// Not on the fast path: the switch is off.
    FastPathOff = "direct.fast_path.refused.switched_off",
    /// Not on the fast path: empty, or longer than a block.
    FastPathLength = "direct.fast_path.refused.length",
    /// Not on the fast path: offset, length or memory is not aligned for the device.
    FastPathAlignment = "direct.fast_path.refused.alignment",
    /// Not on the fast path: not within the file's size.
    FastPathSize = "direct.fast_path.refused.size",
    /// Not on the fast path: not within one written extent.
    FastPathExtent = "direct.fast_path.refused.extent",
    /// Not on the fast path: the file's access time is due for an update.
    FastPathAtime = "direct.fast_path.refused.atime",
    /// Not on the fast path: the page cache has dirty folios of the file.
    FastPathDirty = "direct.fast_path.refused.dirty",
    /// Not on the fast path: several buffers.
    FastPathVectored = "direct.fast_path.refused.vectored",
    /// Not on the fast path: the operation has a deadline.
    FastPathDeadline = "direct.fast_path.refused.deadline",
    /// Not on the fast path: no free slot in the queue.
    FastPathQueueFull = "direct.fast_path.refused.queue_full",
    /// Operations on the slow path, as a task.
    SlowPath = "direct.slow_path",
    /// Reads and writes through a bounce buffer, for alignment.
    Bounced = "direct.bounced",
    /// Writes of whole blocks under the writer bias, without a lock.
    WriteUnlocked = "direct.write.unlocked",
    /// Atomic writes of a range, out of place.
    WriteAtomic = "direct.write.atomic",
    /// Overwrites that took a range lock, because another writer excluded them.
    WriteRangeLocked = "direct.write.range_locked",
    /// Writes that excluded overwriters: part of a block.
    WriteUnaligned = "direct.write.exclusive.unaligned",
    /// Writes that excluded overwriters: they zero the gap between the file's end and their own start.
    WriteGap = "direct.write.exclusive.gap",
    /// Appends. They exclude other writers, because they write where the file ends.
    WriteAppend = "direct.write.exclusive.append",
    /// Changes of a file's size, which exclude all writers.
    WriteResize = "direct.write.exclusive.resize",
    /// Changes of a file's space (preallocate, punch, zero, discard), which exclude all writers.
    WriteFallocate = "direct.write.exclusive.fallocate",
    /// Writes that first stripped privileges: set-ID bits, capabilities.
    WriteStripPrivileges = "direct.write.exclusive.strip_privileges",
    /// Writes that took the file's exclusive lock because `direct.write_lock=exclusive`.
    WriteAlways = "direct.write.exclusive.always",
    /// Reads that found all their folios in the page cache.
    CacheHit = "buffered.hit",
    /// Callbacks that reads registered on a folio, to wait for it.
    CacheWaits = "buffered.wait.callbacks",
    /// Reads restarted because their wait for a folio ended.
    CacheRestarted = "buffered.wait.restarts",
    /// Reads that waited in a thread: `buffered.wait=thread`.
    CacheThreads = "buffered.wait.threads",
    /// Folios that readers filled from the device.
    CacheFilled = "buffered.filled",
    /// Folios that readahead filled.
    CacheReadahead = "buffered.readahead",
    /// Reads that bypassed the cache, because another reactor's fill took too long.
    CacheWaitTimeout = "buffered.wait.timeout",
    /// Reads that bypassed the cache, because it had no room.
    CacheBypassed = "buffered.bypassed",
    /// Folios that writes made dirty.
    CacheDirtied = "buffered.written",
    /// Folios that were written back.
    CacheWrittenBack = "buffered.written_back",
    /// Buffered writes that waited because too many folios were dirty.
    CacheThrottled = "buffered.throttled",
    /// Buffered writes that went to the device at once, because the cache had no room.
    CacheWriteBypassed = "buffered.write_bypassed",
    /// Operations completed by the thread that issued them, while it reaped.
    CompletedInline = "completion.inline",
    /// Operations that needed a flush after their write.
    DeferredFlush = "completion.deferred.flush",
    /// Requests whose rest was issued again: short, EINTR, EAGAIN.
    Resumed = "completion.deferred.resumed",
    /// Completions sent through a worker thread: `completion=worker`.
    CompletedByWorker = "completion.worker",
    /// Requests that waited for room in a queue.
    Backlogged = "reactor.backlogged",
    /// Operations from threads without a reactor.
    Remote = "reactor.remote",
    /// Messages received.
    Messages = "reactor.messages",
    /// Commands of drivers that have ended.
    Commands = "reactor.commands",
    /// Times that the thread went to sleep.
    Sleeps = "reactor.sleeps",
    /// Transfers that named their file by registered index.
    FixedFiles = "ring.fixed_files",
    /// Transfers that named their file by descriptor.
    PlainFiles = "ring.plain_files",
    /// Transfers of registered memory.
    FixedBuffers = "ring.fixed_buffers",
    /// Transfers that named memory by address.
    PlainBuffers = "ring.plain_buffers",
    /// Calls of `io_uring_enter`.
    Enters = "ring.enters",
    /// System calls of queues that are not the reactor's rings, and to wait for them.
    OtherCalls = "queue.system_calls",
    /// Requests that a wait for completions executed itself, in calls, with nothing else in flight. The total also has the
    /// transfers that threads without a reactor have made themselves, in `FileOp::wait`.
    Called = "queue.called",
    /// Times that the queue of a device was chosen again, because its reads took much longer than measured.
    ChosenAgain = "queue.chosen_again",
}

const COUNT: usize = Counter::ALL.len();

/// One reactor's counts. Only its thread writes them, without a locked instruction.
#[derive(Debug)]
pub struct Counters {
    values: CachePadded<[AtomicU64; COUNT]>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { values: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))) }
    }
}

impl Counters {
    /// Adds; only the owning thread calls this.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        let value = &self.values[counter as usize];
        value.store(value.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets a value that is counted elsewhere; only the owning thread calls this.
    pub(crate) fn set(&self, counter: Counter, value: u64) {
        self.values[counter as usize].store(value, Ordering::Relaxed);
    }

    /// The value so far.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }

    /// Every count that is not 0, by name.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        Counter::ALL
            .iter()
            .map(|counter| (counter.name(), self.get(*counter)))
            .filter(|(_, value)| *value > 0)
            .collect()
    }
}

/// The counters of all live reactors.
static LIVE: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());
/// The sums over reactors that were dropped.
static RETIRED: Mutex<[u64; COUNT]> = Mutex::new([0; COUNT]);

pub(crate) fn register(counters: &Arc<Counters>) {
    LIVE.lock().push(counters.clone());
}

pub(crate) fn retire(counters: &Arc<Counters>) {
    let mut live = LIVE.lock();
    live.retain(|other| !Arc::ptr_eq(other, counters));
    let mut retired = RETIRED.lock();
    for counter in Counter::ALL {
        retired[*counter as usize] += counters.get(*counter);
    }
}

/// The sum over all reactors of this process, dropped ones included.
pub fn total(counter: Counter) -> u64 {
    let live = LIVE.lock();
    let retired = RETIRED.lock()[counter as usize];
    let of_reactors = live.iter().map(|counters| counters.get(counter)).sum::<u64>() + retired;
    match counter {
        Counter::Called => of_reactors + calls_of_threads(),
        _ => of_reactors,
    }
}
