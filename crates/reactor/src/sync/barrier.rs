//! Two fences that belong together, of which the frequent one costs nothing. Of two threads, each stores something and then
//! loads what the other stores. One has [`light`] between the two, the other [`heavy`]. At least one of them then sees
//! the other's store.
//!
//! [`heavy`] makes all running threads of the process execute a full fence (`membarrier(2)`, private expedited, Linux 4.14).
//! Where the kernel or a sandbox refuses that, both are full fences.

#[cfg(not(loom))]
pub(crate) use asymmetric::{heavy, light, prepare};
#[cfg(loom)]
pub(crate) use symmetric::{heavy, light, prepare};

#[cfg(not(loom))]
mod asymmetric {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
    use std::thread;
    use std::time::Duration;

    use rustix::thread::{MembarrierCommand, membarrier};

    const UNKNOWN: u8 = 0;
    const FULL_FENCES: u8 = 1;
    const MEMBARRIER: u8 = 2;
    /// Full fences from now on, but threads that do not know it yet may have executed none.
    const STOPPING: u8 = 3;

    /// Longer than any processor holds back a store, or executes a load ahead.
    const SETTLING_TIME: Duration = Duration::from_millis(1);

    static FENCES: Fences = Fences { mode: AtomicU8::new(UNKNOWN) };

    /// Decides how the fences work, unless that is decided. [`light`] costs as much as a full fence before.
    pub(crate) fn prepare() {
        FENCES.mode();
    }

    /// The frequent fence.
    #[inline(always)]
    pub(crate) fn light() {
        FENCES.light();
    }

    /// The rare fence: a system call, which interrupts other processors.
    pub(crate) fn heavy() {
        FENCES.heavy();
    }

    struct Fences {
        mode: AtomicU8,
    }

    impl Fences {
        #[inline(always)]
        fn light(&self) {
            if self.mode.load(Ordering::Relaxed) == MEMBARRIER {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
        }

        fn heavy(&self) {
            fence(Ordering::SeqCst);
            // Never unknown from here on: otherwise each side could take the other one for the one that pays.
            match self.mode() {
                MEMBARRIER if !fence_all_threads() => self.stop(),
                STOPPING => self.stop(),
                _ => {}
            }
        }

        #[inline]
        fn mode(&self) -> u8 {
            match self.mode.load(Ordering::Acquire) {
                UNKNOWN => self.choose(),
                known => known,
            }
        }

        /// Decides, once.
        #[cold]
        fn choose(&self) -> u8 {
            let found = if register() { MEMBARRIER } else { FULL_FENCES };
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            match self.mode.compare_exchange(UNKNOWN, found, success, failure) {
                Ok(_) => found,
                Err(other) => other,
            }
        }

        /// A sandbox that was entered only now refuses the call: from now on both sides execute full fences. Threads that do
        /// not know it yet have at most a few instructions on their way.
        #[cold]
        fn stop(&self) {
            let _ = self.mode.compare_exchange(
                MEMBARRIER,
                STOPPING,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            thread::sleep(SETTLING_TIME);
            fence(Ordering::SeqCst);
            self.mode.store(FULL_FENCES, Ordering::SeqCst);
        }
    }

    /// True if the kernel has the call, and permits it.
    fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    /// True if it was done. The child of a fork may have to register again.
    fn fence_all_threads() -> bool {
        let fence = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        fence() || register() && fence()
    }

    #[cfg(test)]
    mod tests {
        use std::hint::spin_loop;
        use std::sync::atomic::AtomicU64;

        use crossbeam_utils::CachePadded;

        use super::*;

        /// Waits until `ended` is `round`: at first in step with the other side, then without taking its processor.
        fn wait(ended: &AtomicU64, round: u64) {
            let mut looks = 0;
            while ended.load(Ordering::Acquire) < round {
                spin_loop();
                looks += 1;
                if looks > 10_000 {
                    thread::yield_now();
                }
            }
        }

        /// Two threads store and then load, many times at once. Returns the first round in which both have missed the other's
        /// store: about one round in 150 without a barrier, on x86-64 too, if each thread has a processor.
        fn first_miss(fences: &Fences) -> Option<u64> {
            const ROUNDS: u64 = 2000;
            let padded = || CachePadded::new(AtomicU64::new(0));
            let (ours, theirs, missed_by_light) = (padded(), padded(), padded());
            let (light_ended, heavy_ended) = (padded(), padded());
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        ours.store(round, Ordering::Relaxed);
                        fences.light();
                        if theirs.load(Ordering::Relaxed) < round {
                            missed_by_light.store(round, Ordering::Relaxed);
                        }
                        light_ended.store(round, Ordering::Release);
                        wait(&heavy_ended, round);
                    }
                });
                let mut first_miss = None;
                for round in 1..=ROUNDS {
                    // Each time at another moment of the other side's round.
                    (0..round % 32).for_each(|_| spin_loop());
                    theirs.store(round, Ordering::Relaxed);
                    fences.heavy();
                    let is_missed = ours.load(Ordering::Relaxed) < round;
                    wait(&light_ended, round);
                    if is_missed && missed_by_light.load(Ordering::Relaxed) == round {
                        first_miss.get_or_insert(round);
                    }
                    heavy_ended.store(round, Ordering::Release);
                }
                first_miss
            })
        }

        #[test]
        fn one_side_sees_the_others_store() {
            for mode in [UNKNOWN, FULL_FENCES, STOPPING] {
                let fences = Fences { mode: AtomicU8::new(mode) };
                assert_eq!(first_miss(&fences), None, "mode {mode}");
            }
        }

        #[test]
        fn a_refusal_ends_in_full_fences() {
            let fences = Fences { mode: AtomicU8::new(MEMBARRIER) };
            fences.stop();
            assert_eq!(fences.mode(), FULL_FENCES);
            assert_eq!(first_miss(&fences), None);
        }
    }
}

/// Loom knows no fence of all threads.
#[cfg(loom)]
mod symmetric {
    use uringfs_sync::atomic::{Ordering, fence};

    pub(crate) fn prepare() {}

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}
