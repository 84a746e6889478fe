//! Completions of tokens: each goes from the kernel's queue and the ring's table directly to the caller, without a list
//! between them.

use std::fmt;
use std::mem;
use std::time::Duration;

use uringfs_device::Errno;

use crate::event_loop::core::ReactorCore;
use crate::tasks::completion::Completion;

/// The completions of tokens: see [`Reactor::completions`](crate::Reactor::completions).
#[must_use = "completions that are not taken stay for the next call"]
pub struct Completions<'r> {
    reactor: &'r ReactorCore,
    /// The caller waits for this many.
    min: usize,
    /// As many as can be there: otherwise a loop that starts new operations might never end on a fast device.
    max: usize,
    /// Those of `max` that are not taken.
    left: usize,
    /// Why the iteration ended early.
    error: Option<Errno>,
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Completions").field("taken", &self.taken()).finish_non_exhaustive()
    }
}

/// Takes completions: see [`Completions::take_each`]. Not a closure: the compiler leaves one out of line that has two
/// callers.
#[doc(hidden)]
pub trait TakeCompletion {
    /// Takes the completion with this number, counted from 0. Must not use the reactor.
    fn take(&mut self, number: usize, completion: Completion);
}

impl ReactorCore {
    #[inline(always)]
    pub(crate) fn completions(
        &self,
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<Completions<'_>, Errno> {
        self.check_process()?;
        let is_fast = timeout.is_none() && self.enter_fast(min)?;
        if !is_fast {
            let is_called = min > 0 && timeout.is_none() && self.call_fast()?;
            if !is_called {
                self.collect(min, timeout)?;
            }
        }
        let max = self.io.borrow().tokens_at_most();
        // There will be no completions beside those that were collected.
        let min = if is_fast { min } else { 0 };
        Ok(Completions { reactor: self, min, max, left: max, error: None })
    }

    #[inline]
    pub(crate) fn reap(
        &self,
        min: usize,
        timeout: Option<Duration>,
        completed: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        let mut completions = self.completions(min, timeout)?;
        completed.extend(&mut completions);
        completions.error.map_or(Ok(()), Err)
    }
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        while self.left > 0 {
            {
                let io = &mut *self.reactor.io.borrow_mut();
                if let Some(completion) = io.next_token() {
                    self.left -= 1;
                    return Some(completion);
                }
                // Others come first: they may be failures, of which listeners learn before callers.
                if !io.in_flight.has_other_completions {
                    if let Some(completion) = io.in_flight.completed.pop_front() {
                        self.left -= 1;
                        return Some(completion);
                    }
                    if self.taken() >= self.min {
                        return None;
                    }
                }
            }
            if !self.collect_rest() {
                return None;
            }
        }
        None
    }
}

impl Completions<'_> {
    /// Takes at most `max` completions as [`Iterator::next`] does, passes each to `taker`, and ends. For callers in other
    /// languages. Returns their number.
    ///
    /// # Errors
    /// Why there is none, if the kernel takes no requests.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_each(
        mut self,
        max: usize,
        taker: &mut impl TakeCompletion,
    ) -> Result<usize, Errno> {
        let mut number = 0;
        {
            let io = &mut *self.reactor.io.borrow_mut();
            while number < max && self.left > 0 {
                let Some(completion) = io.next_token() else { break };
                self.left -= 1;
                taker.take(number, completion);
                number += 1;
            }
        }
        if number < max && self.left > 0 {
            number = self.take_rest(number, max, taker);
        }
        // With a drop on the way of a panic only, the end is inlined here.
        self.end();
        let error = self.error;
        mem::forget(self);
        match error {
            Some(error) if number == 0 => Err(error),
            _ => Ok(number),
        }
    }

    #[inline(never)]
    fn take_rest(
        &mut self,
        mut number: usize,
        max: usize,
        taker: &mut impl TakeCompletion,
    ) -> usize {
        while number < max
            && let Some(completion) = self.next()
        {
            taker.take(number, completion);
            number += 1;
        }
        number
    }

    fn taken(&self) -> usize {
        self.max - self.left
    }

    /// Handles all that has completed, and waits for what the caller still waits for. False when there is no other
    /// completion of a token.
    #[cold]
    #[inline(never)]
    fn collect_rest(&mut self) -> bool {
        let missing = mem::take(&mut self.min).saturating_sub(self.taken());
        let checked = self.reactor.check_process();
        let collected = checked.and_then(|()| self.reactor.collect(missing, None));
        self.error = collected.err();
        self.error.is_none() && !self.reactor.io.borrow().in_flight.completed.is_empty()
    }
}

impl Drop for Completions<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.end();
    }
}

impl Completions<'_> {
    #[inline(always)]
    fn end(&mut self) {
        let is_any_left = {
            let in_flight = &mut self.reactor.io.borrow_mut().in_flight;
            in_flight.publish_epochs();
            in_flight.has_other_completions
                || !in_flight.completed.is_empty()
                || !in_flight.batches.is_empty()
        };
        if is_any_left {
            // No event reports what a foreign loop has not taken.
            self.reactor.request_turn();
        }
    }
}
