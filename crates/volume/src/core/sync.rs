//! The lock and the condition by which threads meet in the group commit: parking_lot's, or loom's with the
//! same signatures when the interleavings are being searched.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex};

#[cfg(loom)]
pub(crate) use searched::{Condvar, Mutex};

#[cfg(loom)]
mod searched {
    use std::ops::{Deref, DerefMut};

    #[derive(Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'m, T>(Option<loom::sync::MutexGuard<'m, T>>);

    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    const HELD: &str = "it is held but while waiting";

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
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
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect(HELD);
            guard.0 = Some(self.0.wait(held).unwrap());
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
