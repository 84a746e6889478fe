//! The thread that a handle belongs to. To compare takes no call: a function that calls another one saves all its arguments
//! before.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::getpid;
use rustix::thread::gettid;

/// The thread that a handle belongs to. Once it has ended, that is no thread any more, whichever has its memory.
#[derive(Debug)]
pub(crate) struct Owner(Arc<AtomicUsize>);

impl Owner {
    pub(crate) fn this_thread() -> Owner {
        fn running() -> Arc<AtomicUsize> {
            Arc::new(AtomicUsize::new(control_block()))
        }
        thread_local!(static THIS: Running = Running(running()));
        // It fails in a thread that is ending.
        Owner(THIS.try_with(|this| this.0.clone()).unwrap_or_else(|_| running()))
    }

    #[inline(always)]
    pub(crate) fn is_this_thread(&self) -> bool {
        self.0.load(Ordering::Relaxed) == control_block()
    }
}

/// The address of a thread's control block, 0 from its end on.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        // No other thread gets the memory of the first one, which still closes handles after this, in functions of `atexit`.
        if gettid() != getpid() {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// The address of this thread's control block, which no other one has while the thread exists.
#[inline(always)]
fn control_block() -> usize {
    let pointer;
    // SAFETY: it reads a word that the ABI of thread-local storage defines, and that stays as long as the thread: on
    // x86-64 the thread pointer is also the word that it points to.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags))
    };
    // SAFETY: it reads a register, which the ABI of thread-local storage gives to the thread pointer.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags))
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static ADDRESS: u8 = const { 0 });
        pointer = ADDRESS.with(|address| std::ptr::from_ref(address) as usize);
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_has_ended_owns_nothing() {
        let own = Owner::this_thread();
        let owner = || {
            let owner = Owner::this_thread();
            assert!(owner.is_this_thread() && Owner::this_thread().is_this_thread());
            owner
        };
        let before = thread::spawn(owner).join().unwrap();
        assert!(!before.is_this_thread());
        // It mostly has the memory of the one before it.
        let after = thread::spawn(move || (before.is_this_thread(), owner().is_this_thread()));
        assert_eq!(after.join().unwrap(), (false, true));
        assert!(own.is_this_thread());
    }
}
