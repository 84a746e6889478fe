//! Images of Ceph's RBD: replicated, moved between hosts, grown while in use. librados and librbd are loaded when an image is
//! opened; nothing needs them otherwise.
//!
//! A device has one open image, which all its queues share, because two would fight over the image's lock. Threads of librbd
//! execute requests, and send them back to their queues without a lock. librbd cannot cancel: a cancelled request that it has
//! still completes as done.
//!
//! A writer has the image's exclusive lock for as long as the device is open. A reader takes none.

// The back end.
mod device;
// The queue of a reactor.
mod queue;
// The size of an image, and the blocklist of its cluster.
mod admin;
// A new client for requests that have timed out.
mod renewal;
// Opens an image.
mod open;
// The state that the queues of a device share.
mod opened;
// How soon renewals follow each other.
mod renewals;
// A client that has the image open.
mod instance;
// For how long requests have been waiting.
mod waits;
// The end of a process that was stopped for too long.
mod lease;
// The description that a process with the lock leaves of itself.
mod owner;
// Notices that another client has taken the image.
mod owner_watch;
// A thread that does the same again and again.
mod periodic;
// Bounds the wait for a cluster.
mod bounded;
// Connects to a cluster.
mod connect;
// The name of an image.
mod target;

pub use admin::{BlockedClient, RbdAdmin};
pub use device::Rbd;
pub use target::{ImageCache, RbdTarget};
