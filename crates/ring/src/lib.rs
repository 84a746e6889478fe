//! io_uring made safe: a submission owns its memory and its file until its completion.
//!
//! A [`Ring`] keeps a table of what is in flight. [`Ring::push`] moves a
//! transfer (anything that implements [`Transfer`]) into it, [`Ring::enter`]
//! hands everything pushed to the kernel and may wait, and [`Ring::reap`]
//! shows what has ended, to be taken out of its slot. Files are installed into
//! the ring's own table and stay there while a transfer names them; memory of a
//! registered pool is registered at its first use.
//!
//! Every feature of the kernel is probed by itself and kept or dropped with a
//! reason: see [`Features`]. [`bare::BareRing`] is the control of every
//! benchmark: the same kernel interface with nothing around it.
//!
//! A ring belongs to the thread that made it.

#![allow(unsafe_code)]

pub mod bare;
mod entry;
mod features;
mod message;
mod register;
mod ring;
mod setup;
mod slots;
mod sys;
mod transfer;
mod wait;

pub use entry::Piece;
pub use features::{Feature, Features};
pub use register::Registration;
pub use ring::{Event, Ring, RingCounters, Room};
pub use setup::RingOptions;
pub use slots::Ended;
pub use sys::{ForkMark, fork_count, watch_forks};
pub use transfer::{Memory, Step, StepResult, Transfer};
pub use wait::{Wait, WaitHandle, Waited};
