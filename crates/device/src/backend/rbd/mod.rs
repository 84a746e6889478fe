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
// Opens an image, within a bounded time.
mod open;
// What the queues of a device share.
mod opened;
// What a process that has the lock says of itself.
mod owner;
// The name of an image.
mod target;

pub use device::Rbd;
pub use target::{ImageCache, RbdTarget};
