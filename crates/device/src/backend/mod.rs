//! The back ends: an ordinary [`mod@file`], a [`block`] device, a namespace of an NVMe device ([`nvme`]), [`memory`],
//! nothing ([`null`]), an export of an NBD server ([`nbd`]), a simulated device ([`sim`]).

// Opens the file or block device of a path.
pub(crate) mod open;
// A namespace of an NVMe device.
pub mod nvme;
// A block device.
pub mod block;
// An ordinary file.
pub mod file;
// Memory.
pub mod memory;
// A device without bytes.
pub mod null;
// An export of an NBD server.
pub mod nbd;
// A simulated device.
pub mod sim;
// The users of a device: mounts, swap, devices above it.
pub mod in_use;
// The format of a device, by its magic numbers.
pub mod signature;
// Error messages for paths that cannot be opened.
mod open_error;
// Moves bytes through a descriptor.
mod descriptor;
// `BLKDISCARD`, `BLKGETSIZE64` and `BLKFLSBUF`.
mod ioctl;
// The limits of a block device, from sysfs.
mod sysfs;
// Sizes in text.
pub(crate) mod size;

pub use open::open;
pub use size::parse_size;
