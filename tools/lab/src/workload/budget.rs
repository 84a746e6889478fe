//! The bytes of a pass.

use super::io::Amount;

/// The bytes of a pass. The last I/O may exceed them; the next pass is shorter by the excess.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    pass: u64,
    /// Bytes left in this pass; `u64::MAX` is endless.
    pub(super) left: u64,
    overshoot: u64,
}

impl Budget {
    /// `once` is the bytes in whole blocks of all files.
    pub(super) fn new(amount: Amount, once: u64, block: u64) -> Self {
        let pass = match amount {
            Amount::Endless => u64::MAX,
            // As with fio: at the end of the files a rest of less than a block is dropped.
            Amount::Bytes(bytes) => match bytes.checked_rem(once) {
                Some(rest) if bytes >= once && rest < block => bytes - rest,
                _ => bytes,
            },
        };
        Self { pass, left: pass, overshoot: 0 }
    }

    /// Begins the next pass.
    pub(super) fn begin_pass(&mut self) {
        self.left = self.pass.saturating_sub(self.overshoot);
        self.overshoot = self.overshoot.saturating_sub(self.pass);
    }

    /// The length of the last I/O, a multiple of `unit`, when the drawn length exceeds what is left.
    #[cold]
    pub(super) fn last_length(&mut self, unit: u64) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let length = self.left.next_multiple_of(unit);
        self.overshoot += length - self.left;
        self.left = length;
        Some(length)
    }
}
