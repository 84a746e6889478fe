//! Serves a file as a block device of this machine, by the kernel's driver ublk: [`Disk`] is the file with its options,
//! [`UblkServer`] makes `/dev/ublkb0` of it.
//!
//! ```no_run
//! use uringfs::{OpenOptions, Volume};
//! use uringfs_ublk::{Disk, UblkServer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::open("volume.img")?;
//! let options = OpenOptions::new().read(true).write(true).direct(true);
//! let disk = Disk::new(options.open(&volume, "/disk.img")?).name("volume.img:/disk.img");
//! let server = UblkServer::start(disk.queues(2))?;
//! println!("{}", server.path().display());
//! server.wait()?;
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Each queue of the device belongs to a thread, whose ring takes requests from the kernel, carries them out on the
//! file, and ends them. The data of a request are copied once, between the kernel's memory and that of the queue, which
//! has room for 128 requests of 256 KiB: 32 MiB, as far as it is used.
//!
//! A server that is killed leaves its device, if the disk has a name: requests wait, and the next server of that name
//! goes on.

// The modules, top down. Each imports only from modules below it.

// The public face: prepare, start, stop, remove.
mod server;

// The thread of a queue.
mod worker;

// A queue: what its entries do.
mod queue;

// The commands of a device's life, in their order.
mod lifecycle;

// The driver.
mod control;
mod driver;

// Requests on the file.
mod operations;

// A request, from its descriptor.
mod request;

// Entries and their requests, between the kernel and this process.
mod channel;

// The options of a disk, and its parameters.
mod disk;

// Structures and constants.
mod abi;

pub use disk::Disk;
pub use server::{DeviceUse, PreparedServer, ServerHandle, UblkServer, remove};
