//! Volumes and files to test on.

#![allow(dead_code)] // each test uses its own part

use uringfs_device::Device;
use uringfs_device::backend::sim::Sim;
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FormatOptions, OpenOptions, Volume};

/// A new volume.
pub fn formatted(sim: &Sim) -> Volume {
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    Volume::open_on(device).unwrap()
}

pub fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A file, made if it is not there.
pub fn create(volume: &Volume, path: &str) -> File {
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
    volume.open(path, create).unwrap()
}
