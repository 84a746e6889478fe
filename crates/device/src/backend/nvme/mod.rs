//! A namespace of an NVMe device as `/dev/ngXnY`: commands go to the controller without the block layer.
//!
//! ```no_run
//! # mod uringfs { pub use uringfs_device as device; }
//! use uringfs::device::{Access, Device};
//!
//! let device = Device::open("/dev/ng0n1", Access::ReadWrite)?;
//! # Ok::<_, std::io::Error>(())
//! ```
//!
//! - **Whole namespaces** with blocks of 512 to 4096 bytes, without metadata and protection information.
//! - **Reads, writes, FUA and flushes** go over io_uring (Linux 5.19; with registered memory and polling Linux 6.1).
//!   Discards and zeroing are calls that wait. Without io_uring everything is such a call.
//! - **No retries by the kernel**, no I/O scheduler, no cgroup limits, no statistics of the block device. A status that
//!   another try may end is EAGAIN, and retried as any EAGAIN is, or, after a timeout or a reset, as often as the block
//!   layer does; after the last try it is the error of the block device.
//! - **Other users.** The block device of the same namespace is claimed as long as a device is open for writing, so
//!   that the kernel refuses mounts of it, and its page cache is dropped before and after.
//! - **Permission.** A user without `CAP_SYS_ADMIN` needs the character device's mode, and a controller whose log of
//!   command effects says what a command does: Linux 6.2 or later. Each command is probed when the device is opened.
//! - **Cancelling.** A command ends when the controller ends it, or its timeout does.

// The back end.
mod device;
// The commands that the kernel lets this user send.
mod permission;
// System calls.
mod ioctl;
// The two devices of a namespace in sysfs.
mod nodes;
// Identify data.
mod identify;
// The steps of opening it.
mod open;

pub use device::{Nvme, block_device_of, is_namespace};
#[doc(hidden)]
pub use identify::parse_bytes_of_a_controller;

pub(super) use device::refuse_controller;
