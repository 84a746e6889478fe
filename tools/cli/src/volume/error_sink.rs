//! Errors of a command that takes several names.

use crate::output::print_error;
use std::cell::Cell;
use uringfs_lab::Error;

/// What went wrong with some of many names: each is told in a line, and the others have their turn.
#[derive(Default)]
pub(super) struct ErrorSink {
    /// Of what went wrong first, the error's own; 0 of nothing.
    first_exit_code: Cell<u8>,
    /// How many names went wrong, and how many had their turn.
    failed: Cell<u64>,
    recorded: Cell<u64>,
}

impl ErrorSink {
    /// What was asked for; nothing, once it was told why.
    pub(super) fn record<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.recorded.set(self.recorded.get() + 1);
        let report = |error: Error| {
            print_error(&error.to_string());
            if self.failed.replace(self.failed.get() + 1) == 0 {
                self.first_exit_code.set(error.exit_code());
            }
        };
        result.map_err(report).ok()
    }

    /// With which the program ends: 1 where some of several went wrong, and with one alone its error's.
    pub(super) fn exit_code(&self) -> u8 {
        match (self.failed.get(), self.recorded.get()) {
            (0, _) => 0,
            (1, 1) => self.first_exit_code.get(),
            _ => 1,
        }
    }
}
