//! What a reactor counts. Each reactor writes its own line; whoever asks sums them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// Every counter, in the order they are shown.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Its name in reports: `layer.what.reason`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Reads that went out as one request, without a task.
    SimpleTaken = "direct.simple.taken",
    /// Refused: the switch is off.
    SimpleOff = "direct.simple.refused.switched_off",
    /// Refused: empty, or longer than a block.
    SimpleLength = "direct.simple.refused.length",
    /// Refused: offset, length or memory not aligned for the device.
    SimpleAlignment = "direct.simple.refused.alignment",
    /// Refused: not inside the file's size.
    SimpleSize = "direct.simple.refused.size",
    /// Refused: not inside one written extent.
    SimpleExtent = "direct.simple.refused.extent",
    /// Refused: the file's time of access is to be moved.
    SimpleTimes = "direct.simple.refused.times",
    /// Refused: something was written to the file through the page cache, and is not on the device.
    SimpleUnsaved = "direct.simple.refused.unsaved",
    /// Refused: several pieces of memory.
    SimplePieces = "direct.simple.refused.pieces",
    /// Refused: it carries a deadline.
    SimpleDeadline = "direct.simple.refused.deadline",
    /// Refused: no free slot in the queue.
    SimpleFull = "direct.simple.refused.queue_full",
    /// Operations that went the general way, as a task.
    General = "direct.general",
    /// Reads and writes that went through a buffer of our own for alignment.
    Bounced = "direct.bounced",
    /// Writes of whole blocks under the shared mode: no lock.
    WriteShared = "direct.write.shared",
    /// Writes of a range as a whole, into blocks of their own.
    WriteAtomic = "direct.write.atomic",
    /// Overwrites that took a range lock because another excluded them.
    WriteRanged = "direct.write.range_locked",
    /// Writes that excluded overwriters: part of a block.
    WriteUnaligned = "direct.write.exclusive.unaligned",
    /// Writes that did, to zero what would come to light between the file's end and them.
    WriteGap = "direct.write.exclusive.gap",
    /// Appends, which keep others out since they go where the file ends.
    WriteAppend = "direct.write.exclusive.append",
    /// Changes of a file's size, which excluded all writers.
    WriteSize = "direct.write.exclusive.size",
    /// Changes of a file's space, which did: allocated ahead, punched, zeroed, discarded.
    WriteSpace = "direct.write.exclusive.space",
    /// Writes that took rights away that a writer takes: set-ID bits, capabilities.
    WriteRights = "direct.write.exclusive.rights",
    /// Writes that took the file's lock because all do: `direct.write_lock=exclusive`.
    WriteAlways = "direct.write.exclusive.always",
    /// Reads of the page cache that found all they asked for.
    CacheHit = "buffered.hit",
    /// Reads that waited for a folio: each time a callback was left on it.
    CacheArmed = "buffered.wait.callbacks",
    /// Reads that were restarted by whoever filled the folio.
    CacheRestarted = "buffered.wait.restarts",
    /// Reads that waited in a thread: `buffered.wait=thread`.
    CacheThreads = "buffered.wait.threads",
    /// Folios that readers had read from the device.
    CacheFilled = "buffered.filled",
    /// Folios that were read ahead of readers.
    CacheAhead = "buffered.readahead",
    /// Reads that would have waited too long for another reactor's fill, and went past the cache.
    CacheLate = "buffered.late",
    /// Reads that found no room in the cache and went past it.
    CacheBypassed = "buffered.bypassed",
    /// Folios that were changed in the page cache.
    CacheWritten = "buffered.written",
    /// Folios that were written back.
    CacheSaved = "buffered.written_back",
    /// Buffered writes that waited since too much was not written back.
    CacheThrottled = "buffered.throttled",
    /// Buffered writes that went to the device at once, since the cache had no room.
    CacheWrittenThrough = "buffered.written_through",
    /// Operations completed by the thread that issued them, while it reaped.
    CompletedInline = "completion.inline",
    /// Operations that needed a flush after their write.
    DeferredFlush = "completion.deferred.flush",
    /// Steps whose rest was issued again: short, EINTR, EAGAIN.
    Resumed = "completion.deferred.resumed",
    /// Completions sent through a worker thread: `completion=worker`.
    CompletedByWorker = "completion.worker",
    /// OperationRequests that waited for room in a queue.
    Backlogged = "reactor.backlogged",
    /// Operations that came from a thread without a reactor.
    Remote = "reactor.remote",
    /// Letters received.
    Letters = "reactor.letters",
    /// Times the thread went to sleep.
    Sleeps = "reactor.sleeps",
    /// Transfers that named their file by index.
    FixedFiles = "ring.fixed_files",
    /// Transfers that named it by descriptor.
    PlainFiles = "ring.plain_files",
    /// Transfers whose memory was registered.
    FixedBuffers = "ring.fixed_buffers",
    /// Transfers that named memory by address.
    PlainBuffers = "ring.plain_buffers",
    /// Calls of `io_uring_enter`.
    Enters = "ring.enters",
    /// System calls of queues other than the reactor's rings, and of waiting for them by epoll.
    OtherCalls = "queue.system_calls",
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

    /// Sets what is counted elsewhere; only the owning thread calls this.
    pub(crate) fn set(&self, counter: Counter, value: u64) {
        self.values[counter as usize].store(value, Ordering::Relaxed);
    }

    /// The count so far.
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

/// The counts of every reactor alive.
static LIVE: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());
/// The sums of those that are gone.
static RETIRED: Mutex<[u64; COUNT]> = Mutex::new([0; COUNT]);

pub(crate) fn register(counters: &Arc<Counters>) {
    LIVE.lock().push(counters.clone());
}

pub(crate) fn retire(counters: &Arc<Counters>) {
    let mut live = LIVE.lock();
    live.retain(|other| !Arc::ptr_eq(other, counters));
    let mut gone = RETIRED.lock();
    for counter in Counter::ALL {
        gone[*counter as usize] += counters.get(*counter);
    }
}

/// The sum over all reactors of this process, gone ones included.
pub fn total(counter: Counter) -> u64 {
    let live = LIVE.lock();
    let gone = RETIRED.lock()[counter as usize];
    live.iter().map(|counters| counters.get(counter)).sum::<u64>() + gone
}
