//! The kinds of queues, and their names.

use std::fmt;
use std::io;
use std::str::FromStr;

/// The kind of a queue. `Ring` (two tiers: with every feature of io_uring, and without some), `Aio` and
/// `Threads` are the tiers, best first. `Sync`, which works on every tier, is for devices that complete within the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// The fastest of the others on this device, found by measuring.
    #[default]
    Auto,
    /// io_uring.
    Ring,
    /// Linux AIO.
    Aio,
    /// Synchronous calls in the issuing thread.
    Sync,
    /// Synchronous calls in threads of the queue.
    Threads,
}

impl QueueKind {
    /// All kinds, in display order.
    pub const ALL: [QueueKind; 5] =
        [QueueKind::Auto, QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads];

    /// Its name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Auto => "auto",
            QueueKind::Ring => "ring",
            QueueKind::Aio => "aio",
            QueueKind::Sync => "sync",
            QueueKind::Threads => "threads",
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for QueueKind {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<QueueKind> {
        QueueKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = QueueKind::ALL.map(QueueKind::name).join(", ");
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no queue is called '{text}'; choose one of {names}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_to_their_kind() {
        for kind in QueueKind::ALL {
            assert_eq!(kind.to_string().parse::<QueueKind>().unwrap(), kind);
        }
        assert!("uring".parse::<QueueKind>().unwrap_err().to_string().contains("ring, aio"));
    }
}
