//! The number of dirty folios of each device. The flusher wakes when it is time to write some back; writers wait while
//! there are too many.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, Ordering};

/// Bound for the index of a device.
pub const MAX_DEVICES: usize = if cfg!(loom) { 2 } else { 1024 };

/// One device may have this fraction of all folios dirty: one in four.
const MAX_DEVICE_ONE_IN: u32 = 4;
/// From this fraction of all folios on, the flushers of a device write back without a request.
const BACKGROUND_ONE_IN: u32 = 8;
/// All devices together may have this fraction of all folios dirty: one in two. The limit of each device falls to the
/// number of folios that the total still leaves. So devices that write nothing back leave some folios to each of the
/// others.
const MAX_TOTAL_ONE_IN: u32 = 2;

/// The dirty folios of a cache, counted by device.
pub(crate) struct DirtyAccounting {
    count: AtomicU32,
    devices: Box<[DeviceDirty]>,
    max_per_device: u32,
    max_total: u32,
    background_threshold: u32,
    waiters: Mutex<Waiters>,
}

/// The dirty folios of one device.
#[derive(Default)]
struct DeviceDirty {
    count: AtomicU32,
    /// Write-backs that failed.
    failures: AtomicU32,
}

#[derive(Default)]
struct Waiters {
    next_id: u64,
    writers: Vec<(DirtyWaiter, Until)>,
    /// Each with its device.
    flushers: Vec<(DirtyWaiter, u16)>,
}

/// The condition that ends a wait.
#[derive(Clone, Copy)]
enum Until {
    /// This device is below its limit, or its number of failed write-backs differs from this one.
    Room(u16, u32),
    /// The number of dirty folios is below this one.
    Below(u32),
}

/// A future that waits.
struct DirtyWaiter {
    id: u64,
    waker: Waker,
}

impl Waiters {
    /// The waiter of a future that is polled. A future has the same number at each poll.
    fn waiter(&mut self, id: &mut Option<u64>, context: &Context<'_>) -> DirtyWaiter {
        let id = *id.get_or_insert_with(|| {
            self.next_id += 1;
            self.next_id
        });
        self.remove(id);
        DirtyWaiter { id, waker: context.waker().clone() }
    }

    fn remove(&mut self, id: u64) {
        self.writers.retain(|(waiter, _)| waiter.id != id);
        self.flushers.retain(|(waiter, _)| waiter.id != id);
    }

    /// Removes and returns the flushers of a device.
    fn take_flushers(&mut self, device: u16) -> Vec<DirtyWaiter> {
        let is_its = |(_, of): &mut (DirtyWaiter, u16)| *of == device;
        self.flushers.extract_if(.., is_its).map(|(waiter, _)| waiter).collect()
    }
}

impl DirtyAccounting {
    /// For a cache of `bound` folios.
    pub(crate) fn new(bound: u32) -> DirtyAccounting {
        let fraction = |one_in: u32| (bound / one_in).max(1);
        DirtyAccounting {
            count: AtomicU32::new(0),
            devices: (0..MAX_DEVICES).map(|_| DeviceDirty::default()).collect(),
            max_per_device: fraction(MAX_DEVICE_ONE_IN),
            // At least two, so that a second device can always dirty one.
            max_total: fraction(MAX_TOTAL_ONE_IN).max(2),
            background_threshold: fraction(BACKGROUND_ONE_IN),
            waiters: Mutex::new(Waiters::default()),
        }
    }

    fn device(&self, device: u16) -> &DeviceDirty {
        &self.devices[usize::from(device)]
    }

    /// Dirty folios of all devices.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    fn device_count(&self, device: u16) -> u32 {
        self.device(device).count.load(Ordering::Acquire)
    }

    pub(crate) fn is_at_limit(&self, device: u16) -> bool {
        let left = self.max_total.saturating_sub(self.count());
        self.device_count(device) >= self.max_per_device.min(left)
    }

    pub(crate) fn failures(&self, device: u16) -> u32 {
        self.device(device).failures.load(Ordering::Acquire)
    }

    fn is_reached(&self, until: Until) -> bool {
        match until {
            Until::Room(device, failures) => {
                !self.is_at_limit(device) || self.failures(device) != failures
            }
            Until::Below(count) => self.count() < count,
        }
    }

    /// Counts one more dirty folio of a device.
    pub(crate) fn add(&self, device: u16) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let device_count = &self.device(device).count;
        if device_count.fetch_add(1, Ordering::AcqRel) + 1 >= self.background_threshold {
            let flushers = self.waiters.lock().take_flushers(device);
            wake(flushers);
        }
    }

    /// Counts one less.
    pub(crate) fn remove(&self, device: u16) {
        self.device(device).count.fetch_sub(1, Ordering::AcqRel);
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.wake_writers();
    }

    /// Counts a write-back that failed.
    pub(crate) fn add_failure(&self, device: u16) {
        self.device(device).failures.fetch_add(1, Ordering::AcqRel);
        self.wake_writers();
    }

    fn wake_writers(&self) {
        let mut waiters = self.waiters.lock();
        let is_reached = |(_, until): &mut (DirtyWaiter, Until)| self.is_reached(*until);
        let writers: Vec<_> = waiters.writers.extract_if(.., is_reached).collect();
        drop(waiters);
        wake(writers.into_iter().map(|(waiter, _)| waiter));
    }

    /// Removes the waiter of a future that is dropped.
    fn remove_waiter(&self, id: Option<u64>) {
        if let Some(id) = id {
            self.waiters.lock().remove(id);
        }
    }
}

fn wake(waiters: impl IntoIterator<Item = DirtyWaiter>) {
    waiters.into_iter().for_each(|waiter| waiter.waker.wake());
}

/// Completes when a throttled writer may go on.
pub struct ThrottleWait {
    dirty: Arc<DirtyAccounting>,
    until: Until,
    id: Option<u64>,
}

impl fmt::Debug for ThrottleWait {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ThrottleWait").finish_non_exhaustive()
    }
}

impl ThrottleWait {
    /// Completes when fewer than `count` folios of all devices are dirty.
    pub(crate) fn new(dirty: &Arc<DirtyAccounting>, count: u32) -> ThrottleWait {
        ThrottleWait { dirty: dirty.clone(), until: Until::Below(count), id: None }
    }

    /// Completes when one more folio of a device may become dirty, or when from now on a write-back fails.
    pub(crate) fn device_limit(dirty: &Arc<DirtyAccounting>, device: u16) -> ThrottleWait {
        let until = Until::Room(device, dirty.failures(device));
        ThrottleWait { dirty: dirty.clone(), until, id: None }
    }
}

impl Future for ThrottleWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let ThrottleWait { dirty, until, id } = &mut *self;
        if dirty.is_reached(*until) {
            return Poll::Ready(());
        }
        let flushers = {
            let waiters = &mut *dirty.waiters.lock();
            // A thread that lowers the count takes this lock afterwards, and so finds this waiter.
            if dirty.is_reached(*until) {
                return Poll::Ready(());
            }
            let waiter = waiters.waiter(id, context);
            waiters.writers.push((waiter, *until));
            match *until {
                Until::Room(device, _) => waiters.take_flushers(device),
                Until::Below(_) => {
                    waiters.flushers.drain(..).map(|(waiter, _)| waiter).collect::<Vec<_>>()
                }
            }
        };
        wake(flushers);
        Poll::Pending
    }
}

impl Drop for ThrottleWait {
    fn drop(&mut self) {
        self.dirty.remove_waiter(self.id);
    }
}

/// Completes when it is time to write back dirty folios of a device.
pub struct WritebackDue {
    dirty: Arc<DirtyAccounting>,
    device: u16,
    id: Option<u64>,
}

impl fmt::Debug for WritebackDue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("WritebackDue").field("device", &self.device).finish_non_exhaustive()
    }
}

impl WritebackDue {
    pub(crate) fn new(dirty: &Arc<DirtyAccounting>, device: u16) -> WritebackDue {
        WritebackDue { dirty: dirty.clone(), device, id: None }
    }
}

impl Future for WritebackDue {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let WritebackDue { dirty, device, id } = &mut *self;
        let waiters = &mut *dirty.waiters.lock();
        let is_for_it = |(_, until): &(DirtyWaiter, Until)| match until {
            Until::Room(of, _) => of == device,
            Until::Below(_) => true,
        };
        let is_due = dirty.device_count(*device) >= dirty.background_threshold;
        if is_due || waiters.writers.iter().any(is_for_it) {
            return Poll::Ready(());
        }
        let waiter = waiters.waiter(id, context);
        waiters.flushers.push((waiter, *device));
        Poll::Pending
    }
}

impl Drop for WritebackDue {
    fn drop(&mut self) {
        self.dirty.remove_waiter(self.id);
    }
}
