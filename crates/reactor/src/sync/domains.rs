//! The quiescence domain of each device, over all reactors of the process.

use std::sync::OnceLock;

use uringfs_device::{DeviceIndex, MAX_DEVICES};

use crate::sync::quiescence::Domain;

/// The domain of `device`: which epochs have passed on all reactors.
pub fn quiescence(device: DeviceIndex) -> &'static Domain {
    domain_at(device.get())
}

pub(crate) fn domain_at(index: usize) -> &'static Domain {
    static DOMAINS: [OnceLock<Domain>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    DOMAINS[index].get_or_init(Domain::new)
}
