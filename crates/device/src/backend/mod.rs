//! Places for data: an ordinary [`mod@file`], a [`block`] device, [`memory`],
//! nothing ([`null`]), a simulated device ([`sim`]).

// Opens what a path names.
pub(crate) mod open;
// A block device.
pub mod block;
// An ordinary file.
pub mod file;
// Memory.
pub mod memory;
// No bytes at all.
pub mod null;
// A simulated device.
pub mod sim;
// The users of a device: mounts, swap, other devices.
pub mod in_use;
// Explains why a path is not opened.
mod open_error;
// Moves bytes through a descriptor.
mod descriptor;
// `BLKDISCARD`.
mod discard;
// The limits of a block device.
mod sysfs;
// Sizes as people write them.
pub(crate) mod size;

pub use open::open;
pub use size::parse_size;
