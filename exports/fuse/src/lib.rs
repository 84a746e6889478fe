//! Mounts a volume: every program reads and writes its files through the kernel, by the FUSE protocol. [`Mount`] is one
//! mounted volume; [`Mount::serve`] serves it on the calling thread's reactor until it is unmounted.
//!
//! ```no_run
//! use uringfs::Volume;
//! use uringfs_fuse::{Mount, MountOptions};
//!
//! # fn main() -> std::io::Result<()> {
//! let volume = Volume::open("disk.img")?;
//! let mount = Mount::new(volume, "/mnt", &MountOptions::new())?;
//! mount.serve()?;
//! # Ok(())
//! # }
//! ```
//!
//! A request comes to a reactor, from `/dev/fuse` or over io_uring, and the same reactor issues and answers it: no other thread
//! takes part in a read. File data are cached once, by the kernel, unless [`MountCache`] says otherwise: reads bypass the page cache
//! of the volume.

// The modules, top down. Each imports only from modules below it.

// The public face: mount, serve, unmount.
mod mount;

// Requests about the mounted volume from other programs.
pub mod control;

// Changes that the kernel did not ask for.
mod notify;

// The loop of a thread: reads requests and starts tasks.
mod serve;

// The entries over io_uring: requests and replies.
mod ring;

// The operations of the protocol on the volume: names and attributes.
mod operations;

// The operations on open files.
mod files;

// One mounted volume, and a request under way.
mod session;

// How the threads wait for requests.
mod listen;

// How many requests of a thread are under way.
mod in_flight;

// Whether requests come over io_uring.
mod agreement;

// Makes changes durable every few seconds.
mod commit;

// The end of the volume.
mod closed;

// The files that the kernel knows, and those that it has open.
mod tables;

// Tells which syncs have nothing to do.
mod changes;

// Replies: the structures that the kernel expects.
mod reply;

// The mount(2) call, or fusermount3 for an ordinary user.
mod attach;

// Bytes from the kernel into operations.
mod request;

// The kernel's structures and constants.
mod abi;

pub use mount::{Mount, MountObserver, MountOptions, Unmounter, unmount};
pub use session::MountCache;
