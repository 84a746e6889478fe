//! Mutex and condition variable: parking_lot's, or loom's with parking_lot's signatures.

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub use loom_lock::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
mod loom_lock {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    const HELD: &str = "the guard holds the lock except while it waits";

    /// loom's mutex, with parking_lot's signatures.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    /// Unlocks the mutex on drop.
    pub struct MutexGuard<'m, T>(Option<loom::sync::MutexGuard<'m, T>>);

    /// loom's condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Blocks until the mutex is locked.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect(HELD)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect(HELD)
        }
    }

    impl Condvar {
        /// Unlocks the mutex, waits for a notification and locks the mutex again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect(HELD);
            guard.0 = Some(self.0.wait(held).unwrap());
        }

        /// [`Self::wait`]: loom has no time, so the wait ends with a notification only.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            self.wait(guard);
        }

        /// Wakes all waiting threads.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
