//! Serves a file as a disk of a virtual machine, by the vhost-user-blk protocol: [`Disk`] is the file with its options,
//! [`VhostServer`] serves it at a socket, to which QEMU or any other front end connects.
//!
//! ```no_run
//! use uringfs::{OpenOptions, Volume};
//! use uringfs_vhost::{Disk, VhostServer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::open("volume.img")?;
//! let options = OpenOptions::new().read(true).write(true).direct(true);
//! let disk = Disk::new(options.open(&volume, "/guest.img")?).serial("guest").queues(2);
//! VhostServer::bind("/run/guest.sock", 0o600, disk)?.serve()?;
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! The guest's memory is shared with this process (`memory-backend-memfd,share=on`). A request is read there by the thread
//! of its queue, and the data move between this memory and the device without a copy. The guest, and the front end, are not
//! trusted: nothing that they write there is used before a copy of it was checked.
//!
//! Live migration is not offered: the pages that a disk writes are not logged.

// The modules, top down. Each imports only from modules below it.

// The public face: bind, serve, stop.
mod server;

// The state that a front end has agreed on and set up.
mod session;

// The thread of a queue.
mod worker;

// A queue while it runs.
mod queue;

// Requests to the disk, from chains of descriptors.
mod block;

// The options of a disk, and how a guest sees it.
mod disk;

// A ring of either kind.
mod ring;
mod packed_ring;
mod split_ring;

// Requests that the next server goes on with.
mod in_flight;

// A chain of descriptors.
mod chain;

// The memory of a guest.
mod memory;

// A mapped region of it.
mod mapping;

// Whole messages from a socket.
mod connection;

// Messages of the protocol.
mod message;

// The eventfds of a front end.
mod eventfd;

// Structures and constants.
mod abi;

pub use disk::{Disk, PinMemory};
pub use server::{ServerHandle, VhostServer};
