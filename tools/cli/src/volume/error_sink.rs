//! Errors of a command that takes several names.

use crate::output::print_error;
use std::cell::Cell;
use uringfs_lab::Error;

/// Prints the error of each name that fails, so that the command can continue with the others.
#[derive(Default)]
pub(super) struct ErrorSink {
    /// The exit code of the first error; 0 if there is none.
    first_exit_code: Cell<u8>,
    /// The number of errors, and of results.
    failed: Cell<u64>,
    recorded: Cell<u64>,
}

impl ErrorSink {
    /// Returns the value, or prints the error and returns None.
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

    /// The exit code of the program: that of the error if it is the only result, else 1 if there are errors.
    pub(super) fn exit_code(&self) -> u8 {
        match (self.failed.get(), self.recorded.get()) {
            (0, _) => 0,
            (1, 1) => self.first_exit_code.get(),
            _ => 1,
        }
    }

    /// The exit code of a copy: that of the error if there is only one and nothing was copied, else 1 if there are
    /// errors.
    pub(super) fn exit_code_of_copy(&self, is_nothing_done: bool) -> u8 {
        match self.failed.get() {
            0 => 0,
            1 if is_nothing_done => self.first_exit_code.get(),
            _ => 1,
        }
    }
}
