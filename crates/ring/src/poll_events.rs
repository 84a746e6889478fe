//! The events of `poll(2)`: [`PollEvents`].

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of events of `poll(2)`: those to wait for, or those that a descriptor is ready for.
///
/// ```
/// # mod uringfs { pub use uringfs_ring as reactor; }
/// use uringfs::reactor::PollEvents;
///
/// let ready = PollEvents::IN | PollEvents::HUP;
/// assert!(ready.contains(PollEvents::IN));
/// assert_eq!(format!("{ready:?}"), "IN | HUP");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PollEvents(u32);

impl PollEvents {
    /// It is readable.
    pub const IN: PollEvents = PollEvents(libc::POLLIN as u32);
    /// It has urgent data, or another exceptional condition.
    pub const PRI: PollEvents = PollEvents(libc::POLLPRI as u32);
    /// It is writable.
    pub const OUT: PollEvents = PollEvents(libc::POLLOUT as u32);
    /// It has failed. Reported whether asked for or not.
    pub const ERR: PollEvents = PollEvents(libc::POLLERR as u32);
    /// The other side is closed. Reported whether asked for or not.
    pub const HUP: PollEvents = PollEvents(libc::POLLHUP as u32);
    /// The other side sends no more.
    pub const RDHUP: PollEvents = PollEvents(libc::POLLRDHUP as u32);

    /// Of all that wait for the descriptor with it, one is woken by an event, as by `EPOLLEXCLUSIVE`. It is no event.
    pub const EXCLUSIVE: PollEvents = PollEvents(libc::EPOLLEXCLUSIVE as u32);

    const NAMES: [(PollEvents, &str); 7] = [
        (PollEvents::IN, "IN"),
        (PollEvents::PRI, "PRI"),
        (PollEvents::OUT, "OUT"),
        (PollEvents::ERR, "ERR"),
        (PollEvents::HUP, "HUP"),
        (PollEvents::RDHUP, "RDHUP"),
        (PollEvents::EXCLUSIVE, "EXCLUSIVE"),
    ];

    /// The set with these bits of `<poll.h>`, also those that have no constant here.
    pub const fn from_bits(bits: u32) -> PollEvents {
        PollEvents(bits)
    }

    /// The bits of `<poll.h>`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// True if it has all of `events`.
    pub const fn contains(self, events: PollEvents) -> bool {
        self.0 & events.0 == events.0
    }

    /// True if it has any of `events`.
    pub const fn intersects(self, events: PollEvents) -> bool {
        self.0 & events.0 != 0
    }
}

impl BitOr for PollEvents {
    type Output = PollEvents;

    fn bitor(self, other: PollEvents) -> PollEvents {
        PollEvents(self.0 | other.0)
    }
}

impl BitOrAssign for PollEvents {
    fn bitor_assign(&mut self, other: PollEvents) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for PollEvents {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (event, name) in PollEvents::NAMES {
            if self.contains(event) {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest &= !event.0;
            }
        }
        match rest {
            0 if self.0 == 0 => f.write_str("0"),
            0 => Ok(()),
            rest => write!(f, "{separator}{rest:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_shown_by_name_and_others_by_number() {
        let shown = |bits| format!("{:?}", PollEvents::from_bits(bits));
        assert_eq!(shown(0), "0");
        assert_eq!(shown(PollEvents::OUT.bits() | 0x40), "OUT | 0x40");
        assert_eq!(shown(0x40), "0x40");
    }

    #[test]
    fn a_set_contains_all_or_intersects_some() {
        let mut set = PollEvents::IN;
        assert!(!set.contains(PollEvents::IN | PollEvents::HUP));
        assert!(set.intersects(PollEvents::IN | PollEvents::HUP));
        set |= PollEvents::HUP;
        assert!(set.contains(PollEvents::IN | PollEvents::HUP));
        assert!(!set.intersects(PollEvents::OUT));
    }
}
