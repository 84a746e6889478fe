//! The switches of a reactor and its queues.

use std::str::FromStr;

use uringfs_device::Clock;
use uringfs_device::queue::QueueKind;

/// Where a completed operation is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionMode {
    /// In the thread that issued it, while it reaps.
    #[default]
    Inline,
    /// In a worker thread that hands it back: what kernels do after interrupts.
    Worker,
}

/// The lowest tier a reactor accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Require {
    /// Any; the reactor says which it is and why.
    #[default]
    Any,
    /// io_uring, with or without all of its features.
    Ring,
    /// io_uring with every feature.
    Full,
}

/// How a reactor is made.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// `device.queue`: how requests reach devices.
    pub queue: QueueKind,
    /// `completion`: where operations are finished.
    pub completion: CompletionMode,
    /// `ring.fixed_files`: register devices, so that requests name them by index.
    pub fixed_files: bool,
    /// `ring.fixed_buffers`: register pools, so that requests name them by index.
    pub fixed_buffers: bool,
    /// `ring.polled`: poll for completions of reads and writes, where the device can.
    pub polled: bool,
    /// `ring.require`: refuse to start on a lower tier.
    pub require: Require,
    /// `reactor.depth`: requests in flight at once in each queue, at max 16384.
    pub depth: u32,
    /// `reactor.spin_us`: look for a worker's answer this long before sleeping.
    pub spin_us: u32,
    /// What time it is.
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
            require: Require::Any,
            depth: 1024,
            spin_us: 50,
            clock: Clock::System,
        }
    }
}

impl ReactorOptions {
    /// Sets a switch by its dotted name. `Ok(false)` when the name is not one of these.
    ///
    /// # Errors
    /// Which values the switch takes.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "device.queue" => {
                self.queue = value.parse().map_err(|error: std::io::Error| error.to_string())?;
            }
            "completion" => self.completion = value.parse()?,
            "ring.fixed_files" => self.fixed_files = on_off(name, value)?,
            "ring.fixed_buffers" => self.fixed_buffers = on_off(name, value)?,
            "ring.polled" => self.polled = on_off(name, value)?,
            "ring.require" => self.require = value.parse()?,
            "reactor.depth" => self.depth = number(name, value, 1, 16384)?,
            "reactor.spin_us" => self.spin_us = number(name, value, 0, 1_000_000)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The names that [`Self::set`] knows, with their values.
    pub const SWITCHES: &'static [(&'static str, &'static str)] = &[
        ("device.queue", "auto, ring, aio, sync or threads"),
        ("completion", "inline or worker"),
        ("ring.fixed_files", "on or off"),
        ("ring.fixed_buffers", "on or off"),
        ("ring.polled", "on or off"),
        ("ring.require", "any, ring or full"),
        ("reactor.depth", "1 to 16384"),
        ("reactor.spin_us", "0 to 1000000"),
    ];
}

/// Parses `on` or `off` as the value of switch `name`.
///
/// # Errors
/// What it takes.
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
    fn every_switch_is_known_and_bad_values_are_refused() {
        for (name, _) in ReactorOptions::SWITCHES {
            let refused = ReactorOptions::default().set(name, "neither");
            assert!(refused.is_err(), "{name}");
        }
        assert_eq!(ReactorOptions::default().set("no.such", "on"), Ok(false));
    }
}
