//! The counters of a ring.

use std::ops::AddAssign;

use crate::registered::FileSlot;

/// The counters of a ring, updated by its own thread only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Transfers that named their file by index.
    pub fixed_files: u64,
    /// Transfers that named it by descriptor.
    pub plain_files: u64,
    /// Transfers whose memory was registered.
    pub fixed_buffers: u64,
    /// Transfers that named memory by address.
    pub plain_buffers: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Messages sent to other rings.
    pub messages: u64,
    /// Calls that made the notifier unreadable.
    pub notifier_reads: u64,
}

impl AddAssign for RingCounters {
    fn add_assign(&mut self, other: RingCounters) {
        self.fixed_files += other.fixed_files;
        self.plain_files += other.plain_files;
        self.fixed_buffers += other.fixed_buffers;
        self.plain_buffers += other.plain_buffers;
        self.enters += other.enters;
        self.messages += other.messages;
        self.notifier_reads += other.notifier_reads;
    }
}

/// The stored counters: all transfers, and separately the rarer kinds, so that the usual transfer increments
/// only one counter.
#[derive(Default)]
pub(crate) struct RawCounters {
    transfers: u64,
    plain_files: u64,
    plain_buffers: u64,
    pub(crate) enters: u64,
    pub(crate) messages: u64,
}

impl RawCounters {
    #[inline(always)]
    pub(crate) fn count(&mut self, file: FileSlot, fixed_buffer: bool) {
        self.count_many(file, fixed_buffer, 1);
    }

    /// Counts a transfer whose file and memory are named by index.
    #[inline(always)]
    pub(crate) fn count_fixed(&mut self) {
        self.transfers += 1;
    }

    /// Counts several transfers of one kind.
    #[inline(always)]
    pub(crate) fn count_many(&mut self, file: FileSlot, fixed_buffer: bool, transfers: u64) {
        self.transfers += transfers;
        if !file.is_fixed() {
            self.plain_files += transfers;
        }
        if !fixed_buffer {
            self.plain_buffers += transfers;
        }
    }

    pub(crate) fn read(&self, notifier_reads: u64) -> RingCounters {
        let RawCounters { transfers, plain_files, plain_buffers, enters, messages } = *self;
        RingCounters {
            fixed_files: transfers - plain_files,
            plain_files,
            fixed_buffers: transfers - plain_buffers,
            plain_buffers,
            enters,
            messages,
            notifier_reads,
        }
    }
}
