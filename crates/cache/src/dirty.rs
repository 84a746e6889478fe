//! The number of dirty folios of each device. The flusher wakes when it is time to write some back; writers wait while
//! there are too many.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, Ordering};

/// Devices that files lie on; each has a number below.
pub const MAX_DEVICES: usize = if cfg!(loom) { 2 } else { 1024 };

/// One device may have one in so many of all folios dirty.
const MAX_DEVICE_ONE_IN: u32 = 4;
/// From one in so many on the flusher writes back without a request.
const FLUSH_ONE_IN: u32 = 8;
/// Of all devices together one in so many. A device may have no more than are left of these: so those that save
/// nothing leave some to each of the others.
const MAX_TOTAL_ONE_IN: u32 = 2;

/// The dirty folios of a cache, counted by device.
pub(crate) struct DirtySet {
    count: AtomicU32,
    devices: Box<[DeviceDirty]>,
    most: u32,
    most_in_all: u32,
    many: u32,
    waiting: Mutex<Waiters>,
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
    next: u64,
    writers: Vec<(Waiter, Until)>,
    /// Each with its device.
    savers: Vec<(Waiter, u16)>,
}

/// What one who waits wants.
#[derive(Clone, Copy)]
enum Until {
    /// Another of this device may be unsaved; or it has failed to save some more often than so.
    Room(u16, u32),
    /// Fewer than so many are unsaved.
    Below(u32),
}

/// One who waits, until he is woken or gives up.
struct Waiter {
    id: u64,
    waker: Waker,
}

impl Waiters {
    /// One who polls: the same one has the same number each time.
    fn waiter(&mut self, id: &mut Option<u64>, context: &Context<'_>) -> Waiter {
        let id = *id.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.remove(id);
        Waiter { id, waker: context.waker().clone() }
    }

    fn remove(&mut self, id: u64) {
        self.writers.retain(|(waiter, _)| waiter.id != id);
        self.savers.retain(|(waiter, _)| waiter.id != id);
    }

    /// Takes those who save for a device.
    fn take_savers(&mut self, device: u16) -> Vec<Waiter> {
        let is_its = |(_, of): &mut (Waiter, u16)| *of == device;
        self.savers.extract_if(.., is_its).map(|(waiter, _)| waiter).collect()
    }
}

impl DirtySet {
    /// Of a cache of so many folios.
    pub(crate) fn new(bound: u32) -> DirtySet {
        let part = |one_in: u32| (bound / one_in).max(1);
        DirtySet {
            count: AtomicU32::new(0),
            devices: (0..MAX_DEVICES).map(|_| DeviceDirty::default()).collect(),
            most: part(MAX_DEVICE_ONE_IN),
            // At least one for another than the one that has the most.
            most_in_all: part(MAX_TOTAL_ONE_IN).max(2),
            many: part(FLUSH_ONE_IN),
            waiting: Mutex::new(Waiters::default()),
        }
    }

    fn device(&self, device: u16) -> &DeviceDirty {
        &self.devices[usize::from(device)]
    }

    /// Of all devices.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    fn count_of(&self, device: u16) -> u32 {
        self.device(device).count.load(Ordering::Acquire)
    }

    pub(crate) fn has_too_many(&self, device: u16) -> bool {
        let left = self.most_in_all.saturating_sub(self.count());
        self.count_of(device) >= self.most.min(left)
    }

    pub(crate) fn failures(&self, device: u16) -> u32 {
        self.device(device).failures.load(Ordering::Acquire)
    }

    fn is_over(&self, until: Until) -> bool {
        match until {
            Until::Room(device, failures) => {
                !self.has_too_many(device) || self.failures(device) != failures
            }
            Until::Below(count) => self.count() < count,
        }
    }

    /// One more of a device.
    pub(crate) fn add(&self, device: u16) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let of_device = &self.device(device).count;
        if of_device.fetch_add(1, Ordering::AcqRel) + 1 >= self.many {
            let savers = self.waiting.lock().take_savers(device);
            wake(savers);
        }
    }

    /// One less.
    pub(crate) fn remove(&self, device: u16) {
        self.device(device).count.fetch_sub(1, Ordering::AcqRel);
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.wake_writers();
    }

    /// Some that were to be saved could not be.
    pub(crate) fn failed(&self, device: u16) {
        self.device(device).failures.fetch_add(1, Ordering::AcqRel);
        self.wake_writers();
    }

    fn wake_writers(&self) {
        let mut waiting = self.waiting.lock();
        let is_over = |(_, until): &mut (Waiter, Until)| self.is_over(*until);
        let writers: Vec<_> = waiting.writers.extract_if(.., is_over).collect();
        drop(waiting);
        wake(writers.into_iter().map(|(waiter, _)| waiter));
    }

    /// Whoever waited does not any more.
    fn leave(&self, id: Option<u64>) {
        if let Some(id) = id {
            self.waiting.lock().remove(id);
        }
    }
}

fn wake(waiters: impl IntoIterator<Item = Waiter>) {
    waiters.into_iter().for_each(|waiter| waiter.waker.wake());
}

/// Ends when fewer folios are unsaved.
pub struct Fewer {
    dirty: Arc<DirtySet>,
    until: Until,
    id: Option<u64>,
}

impl Fewer {
    /// Than so many.
    pub(crate) fn than(dirty: &Arc<DirtySet>, below: u32) -> Fewer {
        Fewer { dirty: dirty.clone(), until: Until::Below(below), id: None }
    }

    /// So that a device may have another, or when from now on some cannot be saved.
    pub(crate) fn with_room(dirty: &Arc<DirtySet>, device: u16) -> Fewer {
        let until = Until::Room(device, dirty.failures(device));
        Fewer { dirty: dirty.clone(), until, id: None }
    }
}

impl Future for Fewer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Fewer { dirty, until, id } = &mut *self;
        if dirty.is_over(*until) {
            return Poll::Ready(());
        }
        let savers = {
            let waiting = &mut *dirty.waiting.lock();
            // Whoever makes them fewer looks here afterwards.
            if dirty.is_over(*until) {
                return Poll::Ready(());
            }
            let waiter = waiting.waiter(id, context);
            waiting.writers.push((waiter, *until));
            match *until {
                Until::Room(device, _) => waiting.take_savers(device),
                Until::Below(_) => {
                    waiting.savers.drain(..).map(|(waiter, _)| waiter).collect::<Vec<_>>()
                }
            }
        };
        wake(savers);
        Poll::Pending
    }
}

impl Drop for Fewer {
    fn drop(&mut self) {
        self.dirty.leave(self.id);
    }
}

/// Ends when it is time to save what a device does not have.
pub struct Many {
    dirty: Arc<DirtySet>,
    device: u16,
    id: Option<u64>,
}

impl Many {
    pub(crate) fn of(dirty: &Arc<DirtySet>, device: u16) -> Many {
        Many { dirty: dirty.clone(), device, id: None }
    }
}

impl Future for Many {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Many { dirty, device, id } = &mut *self;
        let waiting = &mut *dirty.waiting.lock();
        let is_for_it = |(_, until): &(Waiter, Until)| match until {
            Until::Room(of, _) => of == device,
            Until::Below(_) => true,
        };
        if dirty.count_of(*device) >= dirty.many || waiting.writers.iter().any(is_for_it) {
            return Poll::Ready(());
        }
        let waiter = waiting.waiter(id, context);
        waiting.savers.push((waiter, *device));
        Poll::Pending
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        self.dirty.leave(self.id);
    }
}
