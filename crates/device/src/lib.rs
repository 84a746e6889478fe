//! Places for data ([`Device`]), and ways for requests to reach them ([`Queue`]).
//!
//! A device is a back end (an ordinary file, a block device, memory, nothing, a
//! simulation) with a [`Geometry`]. A queue takes [`Request`]s, which own
//! their memory, and gives them back with a result. Any queue serves any back
//! end it can reach, with the same results.

// A device by name, and how it is opened.
mod target;
// The user's handle on a device.
mod device;
// Ways for requests to reach a device.
pub mod queue;
// The part of a device that handles and reactors share.
mod core;
// Places for data.
pub mod backend;
// The interfaces of back ends and queues.
mod interface;
// Failed requests, and their listeners.
mod failure;
// The memory of a request that is left to transfer.
mod segments;
// Requests.
mod request;
// The properties of a device.
mod geometry;
// The places of devices in tables.
mod index;
// Real and virtual time.
mod clock;

pub use self::core::Core;
pub use clock::{Clock, VirtualClock};
pub use device::Device;
pub use failure::{Failure, Listener};
pub use geometry::{Bounds, Discard, Geometry};
pub use index::{DeviceIndex, MAX_DEVICES};
pub use interface::backend::{Access, Backend, Reach};
pub use interface::kind::QueueKind;
pub use interface::queue::{Queue, Ready};
pub use request::{Completion, Durability, MAX_PIECES, Op, Payload, Progress, Request, Tag};
pub use rustix::io::Errno;
pub use target::Target;
