//! The back ends: an ordinary [`mod@file`], a [`block`] device, a namespace of an NVMe device ([`nvme`]), [`memory`],
//! nothing ([`null`]), an export of an NBD server ([`nbd`]), an image of Ceph's RBD ([`rbd`]), a simulated device ([`sim`]).

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
// An image of Ceph's RBD.
pub mod rbd;
// A simulated device.
pub mod sim;
// The users of a device: mounts, swap, devices above it.
pub mod in_use;
// The format of a device, by its magic numbers.
pub mod signature;
// URIs of exports and images.
pub(crate) mod remote;
// Percent-encoding in URIs.
mod percent;
// Queues for threads that perform requests.
mod kept_queues;
// Steps of requests that need no server.
mod without_device;
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
pub use remote::RemoteTarget;
pub use size::parse_size;
