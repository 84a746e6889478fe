//! Which thread this is, without a call: a function that calls another one saves all its arguments before.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// A number of this thread that no other one has while it exists: the address of its control block.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
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
    fn a_thread_has_one_number_of_its_own() {
        let own = this_thread();
        let other = thread::spawn(|| {
            let number = this_thread();
            thread::yield_now();
            assert_eq!(number, this_thread());
            number
        });
        assert_ne!(other.join().unwrap(), own);
        assert_eq!(this_thread(), own);
    }
}
