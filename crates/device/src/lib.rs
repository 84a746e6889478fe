//! Storage devices ([`Device`]), and the queues that carry requests to them ([`Queue`]).
//!
//! A device is a back end (an ordinary file, a block device, a namespace of an NVMe device, memory, nothing, an
//! export of an NBD server, a simulation) with a [`Geometry`]. A queue takes [`Request`]s, which own
//! their memory, and returns them with a result. Any queue serves any back
//! end that it supports, with the same results.

// The name of a device, and how to open it.
mod target;
// The user's handle on a device.
mod device;
// Uses of a device within this process that exclude each other.
mod device_use;
// The queues.
pub mod queue;
// The part of a device that its handles and reactors share.
mod inner;
// Calibrations that devices share.
mod shared_calibration;
// The back ends.
pub mod backend;
// The interfaces of back ends and queues.
mod interface;
// Reports of failed requests to listeners.
mod failure;
// The memory of a request that is still to transfer.
mod segments;
// Requests.
mod request;
// The exclusive claim on a block device.
mod claim;
// The size of a device, which may change.
mod device_size;
// The properties of a device.
mod geometry;
// The indexes of devices in tables.
mod index;
// Real and virtual time.
mod clock;

pub use claim::Claim;
pub use clock::{Clock, VirtualClock};
pub use device::Device;
pub use device_use::{DeviceUse, UseKind};
pub use failure::{Failure, FailureListener};
pub use geometry::{Bounds, Discard, Geometry};
pub use index::{DeviceIndex, MAX_DEVICES};
pub use inner::DeviceInner;
#[doc(hidden)]
pub use interface::backend::Property;
pub use interface::backend::{Access, Backend, KernelTarget};
pub use interface::kind::QueueKind;
pub use interface::queue::{Queue, Ready};
pub use request::{Durability, MAX_SEGMENTS, Op, Payload, Progress, Request, StepCompletion, Tag};
pub use shared_calibration::{MeasuredCalibration, SharedCalibration};
pub use target::Target;
pub use uringfs_errno::Errno;
#[doc(hidden)]
pub use uringfs_ring::nvme::Namespace;
