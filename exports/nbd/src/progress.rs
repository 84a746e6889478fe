//! Whether a connection moves bytes that it has begun to move.

use std::cell::Cell;

/// A transfer under way moves at least so many bytes from one look to the next.
const MIN_BYTES: u64 = 16 << 10;

/// The bytes that a connection moves in one direction. A client that stalls in the middle of a request or of a reply holds memory.
#[derive(Default)]
pub(crate) struct Progress {
    is_under_way: Cell<bool>,
    moved: Cell<u64>,
    /// The bytes that had moved at the last look, if the transfer under way is still the same.
    seen: Cell<Option<u64>>,
}

/// A transfer under way.
pub(crate) struct Transfer<'p>(&'p Progress);

impl Progress {
    /// Begins a transfer, after the end of the one before.
    pub(crate) fn begin(&self) -> Transfer<'_> {
        self.is_under_way.set(true);
        Transfer(self)
    }

    /// Whether one transfer is under way since the last look, and has hardly moved.
    pub(crate) fn has_stalled(&self) -> bool {
        if !self.is_under_way.get() {
            return false;
        }
        let moved = self.moved.get();
        self.seen.replace(Some(moved)).is_some_and(|seen| moved < seen + MIN_BYTES)
    }
}

impl Transfer<'_> {
    /// Notes bytes that moved.
    pub(crate) fn note(&self, bytes: usize) {
        self.0.moved.set(self.0.moved.get() + bytes as u64);
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.is_under_way.set(false);
        self.0.seen.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_transfer_that_hardly_moves_has_stalled() {
        let progress = Progress::default();
        assert!(!progress.has_stalled());
        assert!(!progress.has_stalled(), "nothing is under way");
        let transfer = progress.begin();
        assert!(!progress.has_stalled());
        transfer.note(MIN_BYTES as usize);
        assert!(!progress.has_stalled());
        transfer.note(MIN_BYTES as usize - 1);
        assert!(progress.has_stalled());
        drop(transfer);
        let _next = progress.begin();
        assert!(!progress.has_stalled(), "it is another one");
    }
}
