//! A simulated device: bytes in memory, a seed, and all the faults of a real
//! device.
//!
//! ```
//! # mod uringfs { pub use uringfs_device::*; pub use uringfs_device as device; }
//! use uringfs::device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
//! use uringfs::device::{Device, Op};
//! use uringfs::Errno;
//!
//! let sim = Sim::new(SimOptions::new(1 << 20).seed(7));
//! sim.inject(Rule::new(Op::Write, When::Nth(3), Fault::Error(Errno::IO)));
//! let device = Device::new(sim.clone()).unwrap();
//! // ... use the device, then cut the power:
//! let found = Device::new(sim.crash_image(Crash::Seeded(1))).unwrap();
//! assert_eq!(found.geometry(), device.geometry());
//! ```
//!
//! A seed makes every run repeatable: the same requests in the same order meet
//! the same bytes, faults and latencies.

// All states that a power loss may leave.
mod crash_images;
// The device, and the handle that controls it.
mod device;
// The device's own queue.
mod queue;
// The part of the device that handle and queue share.
mod inner;
// The mutable state, and the effect of a request on it.
mod state;
// The record of events, for a power loss at any moment of the past.
mod record;
// The content that a power loss leaves.
mod media;
// Faults, and the rules that select requests for them.
mod fault;
// Options.
mod options;
// Bytes in memory.
mod image;
// Random numbers from a seed.
mod random;

pub use self::crash_images::{CrashImage, CrashImages, CrashPlan};
pub use self::device::Sim;
pub use self::fault::{Fault, MAX_RULES, Rule, When};
pub use self::media::{Action, Crash, Event, Outcome};
pub use self::options::{
    FlushMode, MAX_LATENCY, MAX_UNITS, Recording, SimOptions, Spread, WriteCache,
};
