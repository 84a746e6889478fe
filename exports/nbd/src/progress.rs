//! Whether a connection moves bytes that it has begun to move.

use std::cell::Cell;

/// A transfer under way moves at least so many bytes from one look to the next, and this part of all its bytes: it holds memory
/// for as many.
const MIN_BYTES: u64 = 16 << 10;
const MIN_PART: u64 = 10;

/// The bytes that a connection moves in one direction. A client that stalls in the middle of a request or of a reply holds memory.
#[derive(Default)]
pub(crate) struct Progress {
    /// The bytes of the transfer under way.
    under_way: Cell<Option<u64>>,
    moved: Cell<u64>,
    /// The bytes that had moved at the last look, if the transfer under way is still the same.
    seen: Cell<Option<u64>>,
}

/// A transfer under way.
pub(crate) struct Transfer<'p>(&'p Progress);

impl Progress {
    /// Begins a transfer of so many bytes, after the end of the one before.
    pub(crate) fn begin(&self, bytes: usize) -> Transfer<'_> {
        self.under_way.set(Some(bytes as u64));
        Transfer(self)
    }

    /// Notes bytes that moved.
    pub(crate) fn note(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }

    /// Whether one transfer is under way since the last look, and has hardly moved.
    pub(crate) fn has_stalled(&self) -> bool {
        let Some(bytes) = self.under_way.get() else { return false };
        let (moved, least) = (self.moved.get(), MIN_BYTES.max(bytes / MIN_PART));
        self.seen.replace(Some(moved)).is_some_and(|seen| moved < seen + least)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(None);
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
        let transfer = progress.begin(1);
        assert!(!progress.has_stalled());
        progress.note(MIN_BYTES as usize);
        assert!(!progress.has_stalled());
        progress.note(MIN_BYTES as usize - 1);
        assert!(progress.has_stalled());
        drop(transfer);
        let _next = progress.begin(1);
        assert!(!progress.has_stalled(), "it is another one");
    }

    #[test]
    fn a_large_transfer_moves_more_than_a_small_one() {
        let progress = Progress::default();
        let _transfer = progress.begin(32 << 20);
        assert!(!progress.has_stalled());
        progress.note(4 << 20);
        assert!(!progress.has_stalled());
        progress.note(3 << 20);
        assert!(progress.has_stalled());
    }
}
