//! The kernel's two queues, with submission entries of 64 or of 128 bytes.

use std::hint;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::squeue::{Entry, Entry128};
use io_uring::{CompletionQueue, IoUring, Parameters, Submitter, cqueue};

/// Queues with entries of any size, for what registers files, memory and eventfds.
pub(crate) trait AnyQueues {
    fn submitter(&self) -> Submitter<'_>;
}

/// The queues of a ring of commands to NVMe devices, whose completions have 32 bytes.
pub(crate) type NvmeQueues = IoUring<Entry128, cqueue::Entry32>;

/// The queues of a ring.
pub(crate) enum Queues {
    /// With entries of 64 bytes.
    Narrow(IoUring),
    /// With entries of 128 bytes, which commands need.
    Wide(IoUring<Entry128>),
}

impl Queues {
    /// Puts an entry into the submission queue.
    ///
    /// # Safety
    /// The queue has a free entry. All that the entry names is valid until the kernel has completed it, or has read it.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, entry: Entry) {
        match self {
            Queues::Narrow(ring) => {
                let mut queue = ring.submission();
                // SAFETY: the caller's.
                unsafe { hint::assert_unchecked(!queue.is_full()) };
                // SAFETY: the caller's.
                let pushed = unsafe { queue.push(&entry) };
                debug_assert!(pushed.is_ok());
            }
            // SAFETY: the caller's.
            Queues::Wide(ring) => unsafe { push_wide(ring, &entry.into()) },
        }
    }

    /// The same for an entry of 128 bytes. Returns false if the queue has narrow ones.
    ///
    /// # Safety
    /// As for [`Self::push`].
    pub(crate) unsafe fn push_command(&mut self, entry: &Entry128) -> bool {
        match self {
            Queues::Narrow(_) => false,
            Queues::Wide(ring) => {
                // SAFETY: the caller's.
                unsafe { push_wide(ring, entry) };
                true
            }
        }
    }

    pub(crate) fn is_wide(&self) -> bool {
        matches!(self, Queues::Wide(_))
    }

    /// Entries in the submission queue that the kernel has not consumed.
    pub(crate) fn submissions(&mut self) -> u32 {
        match self {
            Queues::Narrow(ring) => ring.submission().len() as u32,
            Queues::Wide(ring) => ring.submission().len() as u32,
        }
    }

    #[inline(always)]
    pub(crate) fn completion(&mut self) -> CompletionQueue<'_> {
        match self {
            Queues::Narrow(ring) => ring.completion(),
            Queues::Wide(ring) => ring.completion(),
        }
    }

    /// # Safety
    /// No other code takes completions while the returned queue exists.
    pub(crate) unsafe fn completion_shared(&self) -> CompletionQueue<'_> {
        match self {
            // SAFETY: the caller's.
            Queues::Narrow(ring) => unsafe { ring.completion_shared() },
            // SAFETY: the caller's.
            Queues::Wide(ring) => unsafe { ring.completion_shared() },
        }
    }

    #[inline(always)]
    pub(crate) fn parameters(&self) -> &Parameters {
        match self {
            Queues::Narrow(ring) => ring.params(),
            Queues::Wide(ring) => ring.params(),
        }
    }
}

impl AnyQueues for Queues {
    fn submitter(&self) -> Submitter<'_> {
        match self {
            Queues::Narrow(ring) => ring.submitter(),
            Queues::Wide(ring) => ring.submitter(),
        }
    }
}

impl AnyQueues for NvmeQueues {
    fn submitter(&self) -> Submitter<'_> {
        IoUring::submitter(self)
    }
}

impl AsRawFd for Queues {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Queues::Narrow(ring) => ring.as_raw_fd(),
            Queues::Wide(ring) => ring.as_raw_fd(),
        }
    }
}

/// # Safety
/// As for [`Queues::push`].
#[cold]
#[inline(never)]
unsafe fn push_wide(ring: &mut IoUring<Entry128>, entry: &Entry128) {
    // SAFETY: the caller's.
    let pushed = unsafe { ring.submission().push(entry) };
    debug_assert!(pushed.is_ok());
}
