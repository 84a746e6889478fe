//! Which thread this is, by a number in thread-local storage.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of this thread: 0 until [`number_this_thread`] gives it one.
#[inline(always)]
pub(crate) fn this_thread() -> u64 {
    with_number(Cell::get)
}

/// The number of this thread, which it gets now if it has none. It is never 0, and that of no other thread, also after
/// this one has ended.
pub(crate) fn number_this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    with_number(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn with_number<R>(work: impl FnOnce(&Cell<u64>) -> R) -> R {
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(work)
}

// The same by a TLS descriptor, as compilers use them on AArch64: its function keeps the registers. For thread_local!
// rustc calls __tls_get_addr in a shared library, before which each function of the interface would save all its
// arguments.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.uringfs_thread_number, \"awT\", @nobits",
    ".balign 8",
    ".globl uringfs_thread_number",
    ".hidden uringfs_thread_number",
    "uringfs_thread_number: .zero 8",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn with_number<R>(work: impl FnOnce(&Cell<u64>) -> R) -> R {
    let number: *const Cell<u64>;
    // SAFETY: this is the sequence of the ABI, which linkers know. It gives the address of this thread's number. The
    // function keeps all registers but rax; that of glibc before 2.40 may change vector registers, too.
    unsafe {
        std::arch::asm!(
            "lea uringfs_thread_number@tlsdesc(%rip), %rax",
            "call *uringfs_thread_number@tlscall(%rax)",
            "add %fs:0, %rax",
            out("rax") number,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(att_syntax, pure, readonly)
        )
    };
    // SAFETY: the number stays where it is as long as the thread, and begins as zeros.
    work(unsafe { &*number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_has_one_number_that_no_other_gets() {
        let own = number_this_thread();
        assert_eq!((number_this_thread(), this_thread()), (own, own));
        let later = |_| {
            let numbered = || (this_thread(), number_this_thread(), this_thread());
            thread::spawn(numbered).join().unwrap()
        };
        // Each has the memory of the one before it.
        let [first, second] = [0, 1].map(later);
        for (before, number, after) in [first, second] {
            assert_eq!((before, after), (0, number));
            assert_ne!(number, own);
        }
        assert_ne!(first.1, second.1);
    }
}
