//! The steps of every exported function around its work: it checks the handle, catches panics, and turns errors into
//! numbers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use uringfs::Errno;
use uringfs::reactor::ForkDetector;

use crate::error::Failure;

/// A value that C holds by its address.
pub(crate) trait Handle {
    fn state(&self) -> &HandleState;

    /// Checks what the handle asks of its callers beyond the rules of C.
    #[inline(always)]
    fn check_caller(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Whether a handle may be used: not in the child of a fork, and not after a panic in a call with it.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    process: ForkDetector,
    has_panicked: AtomicBool,
}

impl HandleState {
    #[inline(always)]
    fn is_usable(&self) -> bool {
        !self.process.is_forked() && !self.has_panicked.load(Ordering::Relaxed)
    }

    #[cold]
    fn failure(&self) -> Failure {
        match self.process.is_forked() {
            true => Failure::fixed(
                Errno::CHILD,
                c"the handle is the parent process's: open volumes and create reactors after the fork",
            ),
            false => Failure::fixed(
                Errno::NOTRECOVERABLE,
                c"the library has failed in an earlier call with this handle: close it",
            ),
        }
    }
}

/// The type of an exported function's result: a negative errno is an error.
pub(crate) trait Status {
    fn from_errno(negative: i32) -> Self;
}

impl Status for i32 {
    #[inline(always)]
    fn from_errno(negative: i32) -> i32 {
        negative
    }
}

impl Status for i64 {
    #[inline(always)]
    fn from_errno(negative: i32) -> i64 {
        negative.into()
    }
}

/// Does the work of a call with a handle. After a panic the handle can only be closed.
#[inline(always)]
pub(crate) fn call<H: Handle, S: Status>(
    handle: Option<&H>,
    work: impl FnOnce(&H) -> Result<S, Failure>,
) -> S {
    let handle = match check(handle) {
        Ok(handle) => handle,
        Err(failure) => return failed(failure),
    };
    match catch_unwind(AssertUnwindSafe(|| work(handle))) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failed(failure),
        Err(panic) => {
            handle.state().has_panicked.store(true, Ordering::Relaxed);
            panicked(panic)
        }
    }
}

/// Does the work of a call that has no handle yet, or no longer.
pub(crate) fn call_free<S: Status>(work: impl FnOnce() -> Result<S, Failure>) -> S {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failed(failure),
        Err(panic) => panicked(panic),
    }
}

/// A handle that may be used: also for the further handles of a call.
#[inline(always)]
pub(crate) fn check<H: Handle>(handle: Option<&H>) -> Result<&H, Failure> {
    let Some(handle) = handle else {
        return Err(Failure::argument(
            c"a handle is NULL: pass what the function that opens it has stored",
        ));
    };
    if !handle.state().is_usable() {
        return Err(handle.state().failure());
    }
    handle.check_caller()?;
    Ok(handle)
}

/// Gives a new handle to C.
pub(crate) fn store<H>(
    into: Option<&mut *mut H>,
    open: impl FnOnce() -> Result<H, Failure>,
) -> i32 {
    let into = cleared(into);
    call_free(|| place(into, open))
}

/// As [`store`], in a call with the handle that the new one is opened from.
pub(crate) fn store_from<P: Handle, H>(
    parent: Option<&P>,
    into: Option<&mut *mut H>,
    open: impl FnOnce(&P) -> Result<H, Failure>,
) -> i32 {
    let into = cleared(into);
    call(parent, |parent| place(into, || open(parent)))
}

/// Stores NULL before all else: a caller who ignores an error finds it.
fn cleared<H>(mut into: Option<&mut *mut H>) -> Option<&mut *mut H> {
    if let Some(into) = &mut into {
        **into = std::ptr::null_mut();
    }
    into
}

fn place<H>(
    into: Option<&mut *mut H>,
    open: impl FnOnce() -> Result<H, Failure>,
) -> Result<i32, Failure> {
    let Some(into) = into else {
        return Err(Failure::argument(c"the place for the new handle is NULL"));
    };
    *into = Box::into_raw(Box::new(open()?));
    Ok(0)
}

/// Takes a handle back from C, to close it. `None` for NULL, and in the child of a fork: what the handle holds is the
/// parent's.
pub(crate) fn take<H: Handle>(pointer: *mut H) -> Result<Option<Box<H>>, Failure> {
    // SAFETY: `store` made the handle of a box, and C has not closed it before.
    let Some(handle) = (unsafe { pointer.as_ref() }) else { return Ok(None) };
    if handle.state().process.is_forked() {
        return Ok(None);
    }
    handle.check_caller()?;
    // SAFETY: as above, and no other call uses it: C closes it once, in a thread that may.
    Ok(Some(unsafe { Box::from_raw(pointer) }))
}

#[inline(always)]
fn failed<S: Status>(failure: Failure) -> S {
    S::from_errno(failure.status())
}

#[cold]
#[inline(never)]
fn panicked<S: Status>(panic: Box<dyn Any + Send>) -> S {
    let message = match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => match panic.downcast::<&str>() {
            Ok(message) => (*message).to_owned(),
            Err(other) => {
                // Its drop could panic again.
                std::mem::forget(other);
                "it gives no reason".to_owned()
            }
        },
    };
    let text =
        format!("the library has failed, which is a mistake in it: {message}; close the handle");
    failed(Failure::new(Errno::NOTRECOVERABLE, text))
}
