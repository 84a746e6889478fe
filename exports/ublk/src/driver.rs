//! [`Driver`]: the ublk driver as a server uses it besides requests. `/dev/ublk-control` is one, and a fake in tests.

use std::io;

use uringfs::Errno;

/// A command of the control device.
#[derive(Debug)]
pub(crate) struct ControlRequest<'m> {
    /// One of [`control`](crate::abi::control).
    pub(crate) operation: u32,
    pub(crate) device: u32,
    pub(crate) data: u64,
    /// The driver checks the permissions of `/dev/ublkcN`, whose path it gets.
    pub(crate) has_path: bool,
    /// The bytes that the driver reads, and overwrites.
    pub(crate) memory: &'m mut [u8],
}

/// The driver, and the nodes of its devices.
pub(crate) trait Driver {
    /// An open `/dev/ublkcN`.
    type Channel;

    /// Carries out a command, and waits for its end.
    fn run(&mut self, request: ControlRequest<'_>) -> Result<(), Errno>;

    /// The numbers of all devices.
    ///
    /// # Errors
    /// Those of reading `/dev`.
    fn devices(&mut self) -> io::Result<Vec<u32>>;

    /// Opens `/dev/ublkcN`, which one server at a time can.
    fn open(&mut self, device: u32) -> Result<Self::Channel, Errno>;

    /// Whether there is such a process.
    fn is_alive(&self, process: i32) -> bool;

    /// Waits for [`PAUSE_MS`].
    fn pause(&mut self);
}

/// The length of a pause in milliseconds.
pub(crate) const PAUSE_MS: u64 = 10;

/// Where a server gets a device's requests.
pub(crate) fn channel_path(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

/// The block device.
pub(crate) fn disk_path(device: u32) -> String {
    format!("/dev/ublkb{device}")
}
