//! The switches of a reactor and its queues.

use std::str::FromStr;

use uringfs_device::Clock;
use uringfs_device::queue::QueueKind;

/// The largest [`ReactorOptions::depth`].
const MAX_DEPTH: u32 = 16384;
/// The largest [`ReactorOptions::max_waits`].
const MAX_WAITS: u32 = 32768;

/// The thread that processes a request's completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionMode {
    /// The thread that issued it, while it reaps.
    #[default]
    Inline,
    /// A worker thread, which hands it back. Kernels do the same after interrupts.
    Worker,
}

/// The lowest tier a reactor accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Require {
    /// Any tier. [`Reactor::tier`](crate::Reactor::tier) says which one it is and why.
    #[default]
    Any,
    /// io_uring, with or without some of its features.
    Ring,
    /// io_uring with every feature.
    Full,
}

/// The options of a reactor. All are switches ([`Self::set`]), but for `clock`, `max_waits` and `serving`.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_reactor::*;
/// #     pub mod reactor { pub use uringfs_device::queue::QueueKind; }
/// # }
/// use uringfs::reactor::QueueKind;
/// use uringfs::{Reactor, ReactorOptions};
///
/// let options = ReactorOptions::new().queue(QueueKind::Threads).depth(256);
/// let reactor = Reactor::new(options)?;
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "each call returns the options, and changes nothing in place"]
pub struct ReactorOptions {
    /// `device.queue`: the queue that carries requests to devices.
    pub queue: QueueKind,
    /// `completion`: the thread that finishes operations.
    pub completion: CompletionMode,
    /// `ring.fixed_files`: registers devices, so that requests name them by index.
    pub fixed_files: bool,
    /// `ring.fixed_buffers`: registers pools, so that requests name them by index.
    pub fixed_buffers: bool,
    /// `ring.polled`: polls for completions of reads and writes, on devices that support it.
    pub polled: bool,
    /// `ring.commands`: submission entries of 128 bytes, which [`run_command`](crate::run_command) needs.
    pub commands: bool,
    /// Prefers io_uring, so that one system call waits for sockets and devices: see [`ReactorOptions::serving`].
    pub serving: bool,
    /// `ring.require`: the lowest tier to start on.
    pub require: Require,
    /// `reactor.depth`: the maximum of requests in flight in each queue, and of operations with a token that have not ended
    /// (EAGAIN beyond it), 1 to 16384.
    pub depth: u32,
    /// The maximum of waits for descriptors (EAGAIN beyond it), 1 to 32768.
    pub max_waits: u32,
    /// `reactor.spin_us`: how long to look for messages of the completion worker before sleeping.
    pub spin_us: u32,
    /// The source of time: the machine's clock, or a virtual one.
    pub clock: Clock,
}

impl Default for ReactorOptions {
    fn default() -> ReactorOptions {
        ReactorOptions {
            queue: QueueKind::Auto,
            completion: CompletionMode::Inline,
            fixed_files: true,
            fixed_buffers: true,
            polled: false,
            commands: false,
            serving: false,
            require: Require::Any,
            depth: 1024,
            max_waits: 1024,
            spin_us: 50,
            clock: Clock::System,
        }
    }
}

impl ReactorOptions {
    /// The defaults: the queue that calibration finds, completion in the issuing thread, files and buffers registered, a
    /// depth of 1024, and as many waits.
    pub fn new() -> ReactorOptions {
        ReactorOptions::default()
    }

    /// The queue that carries requests to devices.
    pub fn queue(mut self, queue: QueueKind) -> ReactorOptions {
        self.queue = queue;
        self
    }

    /// The thread that finishes operations.
    pub fn completion(mut self, completion: CompletionMode) -> ReactorOptions {
        self.completion = completion;
        self
    }

    /// Registers devices, so that requests name them by index.
    pub fn fixed_files(mut self, fixed_files: bool) -> ReactorOptions {
        self.fixed_files = fixed_files;
        self
    }

    /// Registers pools, so that requests name them by index.
    pub fn fixed_buffers(mut self, fixed_buffers: bool) -> ReactorOptions {
        self.fixed_buffers = fixed_buffers;
        self
    }

    /// Polls for completions of reads and writes, on devices that support it.
    pub fn polled(mut self, polled: bool) -> ReactorOptions {
        self.polled = polled;
        self
    }

    /// Submission entries of 128 bytes, which [`run_command`](crate::run_command) needs. The ring then also carries the
    /// requests of devices that support `RWF_NOWAIT`, unless [`Self::queue`] says otherwise.
    pub fn commands(mut self, commands: bool) -> ReactorOptions {
        self.commands = commands;
        self
    }

    /// The thread serves: it waits for sockets of clients or for events of guests as often as for devices. The ring then
    /// carries the requests of devices that support `RWF_NOWAIT`, unless [`Self::queue`] says otherwise: one system call
    /// waits for both.
    pub fn serving(mut self, serving: bool) -> ReactorOptions {
        self.serving = serving;
        self
    }

    /// The lowest tier to start on.
    pub fn require(mut self, require: Require) -> ReactorOptions {
        self.require = require;
        self
    }

    /// The maximum of requests in flight in each queue, and of operations with a token that have not ended (EAGAIN beyond it).
    /// Awaited operations have no maximum: their requests wait for room. A depth that is not from 1 to 16384 becomes the nearest
    /// one that is.
    pub fn depth(mut self, depth: u32) -> ReactorOptions {
        self.depth = depth.clamp(1, MAX_DEPTH);
        self
    }

    /// The maximum of waits for descriptors at a time (EAGAIN beyond it): a server has one or two for each connection. A
    /// number that is not from 1 to 32768 becomes the nearest one that is.
    pub fn max_waits(mut self, max_waits: u32) -> ReactorOptions {
        self.max_waits = max_waits.clamp(1, MAX_WAITS);
        self
    }

    /// How long to look for messages of the completion worker before sleeping, in microseconds.
    pub fn spin_us(mut self, spin_us: u32) -> ReactorOptions {
        self.spin_us = spin_us;
        self
    }

    /// The source of time: the machine's clock, or a virtual one.
    pub fn clock(mut self, clock: Clock) -> ReactorOptions {
        self.clock = clock;
        self
    }

    /// Sets a switch by its dotted name. `Ok(false)` when no switch has this name.
    ///
    /// # Errors
    /// A message that names the values of the switch.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "device.queue" => {
                self.queue = value.parse().map_err(|error: std::io::Error| error.to_string())?;
            }
            "completion" => self.completion = value.parse()?,
            "ring.fixed_files" => self.fixed_files = on_off(name, value)?,
            "ring.fixed_buffers" => self.fixed_buffers = on_off(name, value)?,
            "ring.polled" => self.polled = on_off(name, value)?,
            "ring.commands" => self.commands = on_off(name, value)?,
            "ring.require" => self.require = value.parse()?,
            "reactor.depth" => self.depth = number(name, value, 1, MAX_DEPTH)?,
            "reactor.spin_us" => self.spin_us = number(name, value, 0, 1_000_000)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The names that [`Self::set`] accepts, with their values.
    pub const SWITCHES: &'static [(&'static str, &'static str)] = &[
        ("device.queue", "auto, ring, aio, sync or threads"),
        ("completion", "inline or worker"),
        ("ring.fixed_files", "on or off"),
        ("ring.fixed_buffers", "on or off"),
        ("ring.polled", "on or off"),
        ("ring.commands", "on or off"),
        ("ring.require", "any, ring or full"),
        ("reactor.depth", "1 to 16384"),
        ("reactor.spin_us", "0 to 1000000"),
    ];
}

/// Parses `on` or `off` as the value of switch `name`.
///
/// # Errors
/// A message that names both values.
pub fn on_off(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{name} is on or off, not {value:?}")),
    }
}

fn number(name: &str, value: &str, min: u32, max: u32) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{name} is a number from {min} to {max}, not {value:?}"))
}

impl FromStr for CompletionMode {
    type Err = String;

    fn from_str(value: &str) -> Result<CompletionMode, String> {
        match value {
            "inline" => Ok(CompletionMode::Inline),
            "worker" => Ok(CompletionMode::Worker),
            _ => Err(format!("completion is inline or worker, not {value:?}")),
        }
    }
}

impl FromStr for Require {
    type Err = String;

    fn from_str(value: &str) -> Result<Require, String> {
        match value {
            "any" => Ok(Require::Any),
            "ring" => Ok(Require::Ring),
            "full" => Ok(Require::Full),
            _ => Err(format!("ring.require is any, ring or full, not {value:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_out_of_range_becomes_the_nearest_in_range() {
        for (depth, found) in [(0, 1), (1, 1), (16384, 16384), (u32::MAX, 16384)] {
            assert_eq!(ReactorOptions::new().depth(depth).depth, found);
            assert_eq!(
                ReactorOptions::new().max_waits(depth).max_waits,
                found.max(depth.min(32768))
            );
        }
    }

    #[test]
    fn set_knows_every_switch_and_rejects_bad_values() {
        for (name, _) in ReactorOptions::SWITCHES {
            let rejected = ReactorOptions::default().set(name, "neither");
            assert!(rejected.is_err(), "{name}");
        }
        assert_eq!(ReactorOptions::default().set("no.such", "on"), Ok(false));
    }
}
