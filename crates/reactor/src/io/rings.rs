//! The rings of a reactor, as its options ask for them.

use std::io;

use uringfs_device::Request;
use uringfs_ring::{Ring, RingOptions};

use crate::options::ReactorOptions;

/// Descriptors that one reactor waits for at once: places in its ring, which waits are cancelled in, too.
pub const MAX_WAITS: usize = 1024;

/// Rings that the options ask for: the one for everything, and the one that polls.
pub(crate) fn make_rings(
    options: &ReactorOptions,
) -> (io::Result<Ring<Request>>, Option<Ring<Request>>) {
    let ring = RingOptions {
        transfers: options.depth,
        // And the mailbox.
        waits: MAX_WAITS as u32 + 1,
        fixed_files: options.fixed_files,
        fixed_buffers: options.fixed_buffers,
        ..RingOptions::default()
    };
    let polled = RingOptions { polled: true, waits: 0, ..ring.clone() };
    let polled = if options.polled { Ring::new(&polled).ok() } else { None };
    (Ring::new(&ring), polled)
}
