//! Options of a ring, and the creation of its two queues.

use std::io;

use io_uring::squeue::EntryMarker;
use io_uring::{IoUring, cqueue};

use crate::probe::{Features, explain_setup_error};
use crate::queues::{NvmeQueues, Queues};

/// Entries of the submission queue: one batch, not everything in flight. A long
/// queue is cycled through from end to end and never stays in the processor's cache.
const SUBMISSIONS: u32 = 256;
/// The part of these entries that is reserved for waits, cancels and messages.
pub(crate) const RESERVE: u32 = 64;

/// Options of a ring.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Transfers in flight at once, at most 16384.
    pub transfers: u32,
    /// Waits in flight at once.
    pub waits: u32,
    /// Length of the file table.
    pub files: u32,
    /// Register files, so that requests name them by index.
    pub fixed_files: bool,
    /// Register the memory of pools, so that requests name it by index.
    pub fixed_buffers: bool,
    /// Poll for completions. Such a ring accepts only reads and writes.
    pub polled: bool,
    /// Entries of 128 bytes, so that the ring takes [`Command`](crate::Command)s.
    pub commands: bool,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions {
            transfers: 1024,
            waits: 1024,
            files: 1024,
            fixed_files: true,
            fixed_buffers: true,
            polled: false,
            commands: false,
        }
    }
}

/// Creates queues for `in_flight` requests, or for fewer if the limit of locked
/// memory requires it: the kernel then keeps the completions that do not fit.
pub(crate) fn build(
    options: &RingOptions,
    features: &Features,
    in_flight: u32,
) -> io::Result<Queues> {
    match options.commands {
        false => build_with(options, features, in_flight).map(Queues::Narrow),
        true => build_with(options, features, in_flight).map(Queues::Wide),
    }
}

/// Creates queues for `in_flight` commands to NVMe devices.
pub(crate) fn build_nvme(
    options: &RingOptions,
    features: &Features,
    in_flight: u32,
) -> io::Result<NvmeQueues> {
    build_with(options, features, in_flight)
}

fn build_with<S: EntryMarker, C: cqueue::EntryMarker>(
    options: &RingOptions,
    features: &Features,
    in_flight: u32,
) -> io::Result<IoUring<S, C>> {
    let mut completions = in_flight.next_power_of_two();
    loop {
        // Without an explicit size the completion queue is twice the submission queue.
        let has_size = features.cqsize.is_enabled();
        let entries = if has_size { completions.min(SUBMISSIONS) } else { completions };
        let mut builder = IoUring::<S, C>::builder();
        builder.setup_clamp();
        if features.single_issuer.is_enabled() {
            builder.setup_single_issuer();
        }
        if features.defer_taskrun.is_enabled() {
            builder.setup_defer_taskrun();
        }
        if features.no_sqarray.is_enabled() {
            builder.setup_no_sqarray();
        }
        if features.submit_all.is_enabled() {
            builder.setup_submit_all();
        }
        if has_size {
            builder.setup_cqsize(completions);
        }
        if options.polled {
            builder.setup_iopoll();
        }
        match builder.build(entries) {
            Ok(io) => return Ok(io),
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && entries > 2 * RESERVE => {
                completions /= 2;
            }
            Err(error) => return Err(io::Error::new(error.kind(), explain_setup_error(&error))),
        }
    }
}
