//! Where data lives ([`Device`]), and how requests reach it ([`Queue`]).
//!
//! A device is a back end (an ordinary file, a block device, memory, nothing, a
//! simulation) with a [`Geometry`]. A queue takes [`Request`]s, which own
//! their memory, and gives them back with a result. Any queue serves any back
//! end it can reach, with the same results.

mod clock;
mod device;
mod failure;
mod geometry;
mod pieces;
mod request;

pub mod backend;
pub mod queue;

pub use clock::{Clock, VirtualClock};
pub use device::{Access, Backend, Core, Device, DeviceIndex, MAX_DEVICES, Reach};
pub use failure::{Failure, Listener};
pub use geometry::{Bounds, Discard, Geometry};
pub use queue::{Queue, QueueKind, Ready};
pub use request::{Completion, Durability, MAX_PIECES, Op, Payload, Progress, Request, Tag};
pub use rustix::io::Errno;
