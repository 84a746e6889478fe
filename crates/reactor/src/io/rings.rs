//! The rings of a reactor, made from its options.

use std::io;

use uringfs_device::Request;
use uringfs_ring::nvme::NvmeRing;
use uringfs_ring::{Ring, RingOptions};

use crate::options::ReactorOptions;

/// The rings that the options demand: the main ring, and the one that polls for completions.
pub(crate) fn make_rings(
    options: &ReactorOptions,
) -> (io::Result<Ring<Request>>, Option<Ring<Request>>) {
    let ring = ring_options(options);
    let polled = RingOptions { polled: true, waits: 0, commands: false, ..ring.clone() };
    let iopoll_ring = if options.polled { Ring::new(&polled).ok() } else { None };
    (Ring::new(&ring), iopoll_ring)
}

/// The ring for commands to NVMe namespaces.
///
/// # Errors
/// In one line why there is none.
pub(crate) fn make_nvme_ring(options: &ReactorOptions) -> io::Result<NvmeRing<Request>> {
    NvmeRing::new(&RingOptions { polled: options.polled, ..ring_options(options) })
}

fn ring_options(options: &ReactorOptions) -> RingOptions {
    RingOptions {
        transfers: options.depth,
        // One more for the mailbox.
        waits: options.max_waits + 1,
        fixed_files: options.fixed_files,
        fixed_buffers: options.fixed_buffers,
        commands: options.commands,
        ..RingOptions::default()
    }
}
