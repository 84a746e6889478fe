//! The quiescence domain of each device, over all reactors of the process.

use std::sync::OnceLock;

use uringfs_device::{DeviceIndex, MAX_DEVICES};

use crate::sync::quiescence::Domain;

static DOMAINS: [OnceLock<Domain>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// The domain of `device`: which epochs have passed on all reactors.
pub fn quiescence(device: DeviceIndex) -> &'static Domain {
    domain_at(device.get())
}

pub(crate) fn domain_at(index: usize) -> &'static Domain {
    DOMAINS[index].get_or_init(Domain::new)
}

/// Transfers that threads have made without a reactor, over all devices.
pub(crate) fn calls_of_threads() -> u64 {
    DOMAINS.iter().filter_map(OnceLock::get).map(Domain::calls).sum()
}
