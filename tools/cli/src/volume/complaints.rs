//! Errors of a command that takes several names.

use crate::output::complain;
use std::cell::Cell;
use uringfs_lab::Error;

/// What went wrong with some of many names: each is told in a line, and the others have their turn.
#[derive(Default)]
pub(super) struct Complaints {
    /// Of what went wrong first, the error's own; 0 of nothing.
    first: Cell<u8>,
    /// How many names went wrong, and how many had their turn.
    failed: Cell<u64>,
    turns: Cell<u64>,
}

impl Complaints {
    /// What was asked for; nothing, once it was told why.
    pub(super) fn told<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.turns.set(self.turns.get() + 1);
        let tell = |error: Error| {
            complain(&error.to_string());
            if self.failed.replace(self.failed.get() + 1) == 0 {
                self.first.set(error.exit_code());
            }
        };
        result.map_err(tell).ok()
    }

    /// With which the program ends: 1 where some of several went wrong, and with one alone its error's.
    pub(super) fn exit_code(&self) -> u8 {
        match (self.failed.get(), self.turns.get()) {
            (0, _) => 0,
            (1, 1) => self.first.get(),
            _ => 1,
        }
    }
}
