//! How much memory the rings of a job may register.

use crate::job::JobSet;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

/// Whether the rings of all threads may register their buffers. A ring that gets no locked memory would fail, and all sides must
/// have the same.
pub(super) fn is_enough_for(set: &JobSet) -> bool {
    registered_bytes(set) <= lockable_bytes()
}

/// The bytes that the threads of all jobs would register.
fn registered_bytes(set: &JobSet) -> u64 {
    let of_job = |job: &crate::job::Job| {
        let options = &job.options;
        let bytes = u64::from(options.jobs) * u64::from(options.depth) * options.largest_block();
        if options.fixed_buffers { bytes } else { 0 }
    };
    set.jobs.iter().map(of_job).sum()
}

/// The bytes that rings can safely register: half of `RLIMIT_MEMLOCK`, because the kernel and other programs
/// of the user also need locked memory.
fn lockable_bytes() -> u64 {
    let is_unlimited = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current;
    if is_unlimited { u64::MAX } else { limit.map_or(u64::MAX, |bytes| bytes / 2) }
}
