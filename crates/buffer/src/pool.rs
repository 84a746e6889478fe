//! A fixed number of equal buffers out of one region. Getting and returning a buffer allocate nothing, and take no lock
//! while nobody waits; an empty pool returns `None` at once, or is awaited.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::buffer::{ALIGNMENT, Buffer, MAX_LENGTH};
use crate::region::Region;
use crate::slots::{Slots, Ticket};
use uringfs_sync::park_on;

/// Shows the buffers in completions that only this thread can take.
pub type VisitUnreaped = fn(&mut dyn FnMut(&Buffer));

thread_local! {
    static VISIT_UNREAPED: Cell<VisitUnreaped> = const { Cell::new(|_| ()) };
}

/// Sets how this thread finds the buffers of its completions, for [`Acquire::wait`].
#[doc(hidden)]
pub fn set_visit_unreaped(visit: VisitUnreaped) {
    VISIT_UNREAPED.set(visit);
}

/// A fixed number of buffers of one size. A clone is another handle to the same pool.
#[derive(Clone, Debug)]
pub struct BufferPool {
    region: Arc<Region>,
}

impl BufferPool {
    /// A pool of `count` buffers with `length` bytes each: the length comes first. Each is aligned to [`ALIGNMENT`]. Its
    /// pages are transparent huge ones where the kernel has them. Rings register a pool of up to [`MAX_LENGTH`] bytes, 1 GiB:
    /// for more memory make several.
    ///
    /// ```
    /// # use uringfs_buffer as uringfs;
    /// use uringfs::BufferPool;
    ///
    /// // 64 buffers of 4 KiB.
    /// let pool = BufferPool::new(4096, 64)?;
    /// assert_eq!((pool.buffer_length(), pool.available()), (4096, 64));
    /// # Ok::<_, std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for an empty pool, and for buffers of no bytes or over [`MAX_LENGTH`]; the error of
    /// `mmap` if there is no memory.
    pub fn new(length: usize, count: usize) -> io::Result<BufferPool> {
        let stride = length.next_multiple_of(ALIGNMENT);
        let total = stride.checked_mul(count);
        let (Some(total), Ok(count), true) =
            (total, u32::try_from(count), count > 0 && (1..=MAX_LENGTH).contains(&length))
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a pool of {count} buffers of {length} bytes cannot be made"),
            ));
        };
        let region = Region::mapped(total, Some(Slots::new(length, stride, count)))?;
        Ok(BufferPool { region })
    }

    /// A free buffer, or `None` while all are in use. It still contains the bytes of its last user.
    pub fn get(&self) -> Option<Buffer> {
        self.slots().allocate().map(|start| self.buffer_at(start))
    }

    /// A free buffer, as soon as there is one: await it, or block the thread with [`Acquire::wait`]. Those that wait
    /// are served in the order of their first poll, each before any later [`Self::get`]. The buffer still contains the
    /// bytes of its last user.
    ///
    /// Dropping the future leaves the queue. A task that holds buffers while it waits for more may wait for ever: take
    /// the buffers of one operation in one go, or give each task a pool of its own.
    ///
    /// ```
    /// # let pool = uringfs_buffer::BufferPool::new(4096, 1).unwrap();
    /// let buffer = pool.get().unwrap();
    /// let waiting = {
    ///     let pool = pool.clone();
    ///     std::thread::spawn(move || pool.acquire().wait().len())
    /// };
    /// drop(buffer);
    /// assert_eq!(waiting.join().unwrap(), 4096);
    /// ```
    pub fn acquire(&self) -> Acquire {
        Acquire { pool: self.clone(), ticket: None }
    }

    /// Buffers free now. Looks at each buffer's state.
    pub fn available(&self) -> usize {
        self.slots().available()
    }

    /// Bytes in each buffer.
    #[inline]
    pub fn buffer_length(&self) -> usize {
        self.slots().length()
    }

    #[inline]
    fn buffer_at(&self, start: usize) -> Buffer {
        Buffer::from_region(self.region.clone(), start, self.slots().length())
    }

    /// The region that is divided into the pool's buffers.
    #[inline]
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// True if a buffer begins at this address.
    #[inline]
    pub(crate) fn begins_at(&self, pointer: NonNull<u8>) -> bool {
        let start = (pointer.as_ptr() as usize).wrapping_sub(self.region.base().as_ptr() as usize);
        self.slots().begins_at(start)
    }

    /// The distance of two buffers, and the bytes of all of them with the gap behind each.
    pub(crate) fn stride_and_bytes(&self) -> (usize, usize) {
        self.slots().stride_and_bytes()
    }

    #[inline]
    fn slots(&self) -> &Slots {
        self.region.slots.as_ref().expect("a pool's region is divided into slots")
    }
}

/// A wait for a buffer of a pool: see [`BufferPool::acquire`].
#[derive(Debug)]
#[must_use = "nothing happens until it is awaited or waited for"]
pub struct Acquire {
    pool: BufferPool,
    /// Present while it waits.
    ticket: Option<Ticket>,
}

impl Acquire {
    /// Blocks the thread until there is a buffer. Meanwhile the operations of the thread's own reactors go on. In a task
    /// of a reactor, await it instead: there they do not.
    ///
    /// # Panics
    /// When all buffers of the pool are in completions of this thread's reactors: no other thread can reap them.
    pub fn wait(mut self) -> Buffer {
        park_on(poll_fn(|context| {
            let polled = Pin::new(&mut self).poll(context);
            if polled.is_pending() {
                self.check_reapable();
            }
            polled
        }))
    }

    fn check_reapable(&self) {
        let slots = self.pool.slots();
        let mut unreaped = BTreeSet::new();
        VISIT_UNREAPED.get()(&mut |buffer| {
            if ptr::eq(buffer.region(), &*self.pool.region) {
                unreaped.insert(slots.slot_at(buffer.offset_in_region()));
            }
        });
        assert!(
            unreaped.len() < slots.count(),
            "the wait for a buffer can never end: all {} buffers of the pool are in completions that this thread has \
             not reaped",
            slots.count()
        );
    }
}

impl Future for Acquire {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buffer> {
        let Acquire { pool, ticket } = &mut *self;
        pool.slots().poll_allocate(ticket, context).map(|start| pool.buffer_at(start))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pool.slots().give_up(ticket);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[test]
    fn a_pool_without_bytes_is_refused() {
        for (length, count) in [(0, 1), (4096, 0), (MAX_LENGTH + 1, 1)] {
            let error = BufferPool::new(length, count).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
    }

    #[test]
    fn an_empty_pool_returns_none_and_recovers() {
        let pool = BufferPool::new(512, 3).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.get()).collect();
        assert_eq!(all.len(), 3);
        assert!(pool.get().is_none());
        drop(all);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn invalid_pool_sizes_are_refused() {
        assert!(BufferPool::new(4096, 0).is_err());
        assert!(BufferPool::new(MAX_LENGTH + 1, 1).is_err());
        assert!(BufferPool::new(4096, usize::MAX).is_err());
    }

    #[test]
    fn parts_dropped_on_several_threads_free_the_slot_once() {
        let pool = BufferPool::new(4096, 1).unwrap();
        for _ in 0..200 {
            let mut head = pool.get().unwrap();
            let parts: Vec<_> = (1..4).rev().map(|cut| head.split_off(cut * 1024)).collect();
            std::thread::scope(|scope| {
                for part in parts {
                    scope.spawn(move || drop(part));
                }
                drop(head);
            });
            assert_eq!(pool.available(), 1);
        }
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<WakeCounter>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls with a waker that counts.
    fn poll(acquire: &mut Pin<&mut Acquire>, wakes: &Arc<WakeCounter>) -> Poll<Buffer> {
        acquire.as_mut().poll(&mut Context::from_waker(&Waker::from(wakes.clone())))
    }

    #[test]
    fn waiters_are_served_in_order_and_before_others() {
        let pool = BufferPool::new(512, 1).unwrap();
        let held = pool.get().unwrap();
        let wakes = [(); 3].map(|()| Arc::<WakeCounter>::default());
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        let mut first = pin!(pool.acquire());
        let mut second = pin!(pool.acquire());
        let mut third = pin!(pool.acquire());
        assert!(poll(&mut first, &wakes[0]).is_pending());
        assert!(poll(&mut second, &wakes[1]).is_pending());
        assert!(poll(&mut third, &wakes[2]).is_pending());
        drop(held);
        assert_eq!(woken(), [1, 0, 0]);
        assert!(pool.get().is_none(), "it belongs to the first");
        assert!(poll(&mut second, &wakes[1]).is_pending());
        let Poll::Ready(buffer) = poll(&mut first, &wakes[0]) else { panic!("its turn") };
        drop(buffer);
        assert_eq!(woken(), [1, 1, 0]);
        let Poll::Ready(buffer) = poll(&mut second, &wakes[1]) else { panic!("its turn") };
        drop(buffer);
        let Poll::Ready(buffer) = poll(&mut third, &wakes[2]) else { panic!("its turn") };
        drop(buffer);
        assert_eq!((pool.available(), woken()), (1, [1, 1, 1]));
    }

    #[test]
    fn a_waiter_that_goes_away_loses_no_buffer() {
        let pool = BufferPool::new(512, 1).unwrap();
        let wakes = Arc::default();
        for granted in [false, true] {
            let held = pool.get().unwrap();
            let mut first = Box::pin(pool.acquire());
            let mut second = pin!(pool.acquire());
            assert!(poll(&mut first.as_mut(), &wakes).is_pending());
            assert!(poll(&mut second, &wakes).is_pending());
            if granted {
                drop(held);
                drop(first);
            } else {
                drop(first);
                drop(held);
            }
            assert!(poll(&mut second, &wakes).is_ready());
            assert_eq!(pool.available(), 1);
        }
        // The last that waited has gone: buffers are free for all again.
        let held = pool.get().unwrap();
        let mut only = Box::pin(pool.acquire());
        assert!(poll(&mut only.as_mut(), &wakes).is_pending());
        drop((only, held));
        assert!(pool.get().is_some());
    }

    #[test]
    fn many_threads_share_few_buffers() {
        let pool = BufferPool::new(512, 3).unwrap();
        let in_use = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..500 {
                        let buffer = match round % 3 {
                            0 => pool.get().unwrap_or_else(|| pool.acquire().wait()),
                            _ => pool.acquire().wait(),
                        };
                        assert!(in_use.fetch_add(1, Ordering::Relaxed) < 3);
                        in_use.fetch_sub(1, Ordering::Relaxed);
                        drop(buffer);
                    }
                });
            }
        });
        assert_eq!(pool.available(), 3);
    }
}
