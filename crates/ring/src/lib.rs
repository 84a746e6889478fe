//! io_uring made safe: a submission owns its memory and its file until its completion.
//!
//! A [`Ring`] keeps a table of the requests in flight. [`Ring::push`] moves a
//! transfer (any implementer of [`Transfer`]) into it. [`Ring::enter`] submits
//! all pushed entries to the kernel and may wait. [`Ring::reap`] passes each
//! completed transfer to the caller, still in its slot. Files are installed into
//! the ring's own table and stay there while a transfer names them. Memory of a
//! pool is registered at its first use.
//!
//! Each feature of the kernel is probed separately and either used or dropped
//! with a reason: see [`Features`]. [`bare_ring::BareRing`] is the control of
//! every benchmark: the same kernel interface with nothing around it.
//!
//! A [`nvme::NvmeRing`] executes transfers as commands to NVMe namespaces.
//!
//! A ring belongs to the thread that created it.

#![allow(unsafe_code)]

// A bare ring over the same kernel interface, as a control for measurements.
pub mod bare_ring;
// A ring of commands to NVMe namespaces.
pub mod nvme;
// The ring: push, enter, reap.
mod ring;
// Slots whose transfers stay in place, pushed several at once.
mod pinned;
// Creates the two queues.
mod options;
// Encodes submission entries.
mod sqe;
// Completions of waits and messages.
mod event;
// The eventfd that becomes readable with a completion.
mod notifier;
// Counters.
mod counters;
// Waits for descriptors, connections and bytes of a socket.
mod wait;
// Several buffers sent in one message.
mod gathered_send;
// Commands of drivers.
mod command;
// Registered files and regions of memory.
mod registered;
// The kernel's two queues, with narrow or wide entries.
mod queues;
// The events of `poll(2)`.
mod poll_events;
// Messages to other rings.
mod message;
// The table of requests in flight.
mod in_flight;
// Transfers.
mod transfer;
// A segment of memory.
mod segment;
// Probes the features of io_uring.
mod probe;
// System calls about threads and files, for programs that measure.
pub mod raw_calls;
// System calls.
mod sys;
// Detects a fork.
mod fork;

pub use command::Command;
pub use counters::RingCounters;
pub use event::Event;
pub use fork::{ForkDetector, fork_count, install_fork_handler};
pub use gathered_send::GatheredSend;
pub use in_flight::CompletedTransfer;
pub use options::RingOptions;
pub use pinned::{PinnedBatch, PinnedSlots};
pub use poll_events::PollEvents;
pub use probe::{Feature, Features};
pub use registered::Registration;
pub use ring::{Reaped, Ring, SqeSlot};
pub use segment::IoSegment;
pub use transfer::{NextOp, StepResult, Transfer, TransferMemory, Tries};
pub use wait::{Wait, WaitHandle, WaitOutput};
