//! Memory of requests, and how much of it there is.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use uringfs::{Buffer, BufferPool};

/// Where data begin in a buffer: they are aligned, so that the device takes them as they are. The head of a reply comes
/// directly before them.
const DATA: usize = 4096;
/// Up to this length data have a buffer of the small pool.
const SMALL: usize = 16 << 10;
/// Up to this length they have one of the large pool. Longer ones are rare.
const LARGE: usize = 1 << 20;
/// Buffers of each pool.
const SMALL_COUNT: usize = 512;
const LARGE_COUNT: usize = 32;

/// A thread's memory for the data of requests. It is not cleared between them.
pub(crate) struct Memory {
    small: BufferPool,
    large: BufferPool,
}

impl Memory {
    pub(crate) fn new() -> io::Result<Memory> {
        let small = BufferPool::new(DATA + SMALL, SMALL_COUNT)?;
        let large = BufferPool::new(DATA + LARGE, LARGE_COUNT)?;
        Ok(Memory { small, large })
    }

    /// Aligned memory for data of `length` bytes, and directly before it memory for a head of `head` bytes. Both with any
    /// content.
    pub(crate) fn take(&self, head: usize, length: usize) -> (Buffer, Buffer) {
        let pool = if length <= SMALL { &self.small } else { &self.large };
        let pooled = if length <= LARGE { pool.get() } else { None };
        let mut all = pooled.unwrap_or_else(|| Buffer::zeroed(DATA + length));
        let mut data = all.split_off(DATA);
        data.truncate(length);
        (all.split_off(DATA - head), data)
    }
}

/// The requests under way, and the bytes of their data. A request waits for its turn until there is room.
pub(crate) struct Budget {
    max_requests: usize,
    max_bytes: usize,
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// Waits until there are fewer.
    fewer: Cell<Option<Waker>>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    next: Cell<u64>,
}

/// A request's share. Dropping it makes room for the next.
pub(crate) struct Share {
    budget: Rc<Budget>,
    bytes: usize,
}

/// The memory of a request, until its reply is sent: of its connection, and of the thread if the connection holds much.
pub(crate) type Shares = (Share, Option<Share>);

impl Budget {
    /// Room for so many requests, and so many bytes of data.
    pub(crate) fn new(max_requests: usize, max_bytes: usize) -> Rc<Budget> {
        Rc::new(Budget {
            max_requests,
            max_bytes,
            requests: Cell::default(),
            bytes: Cell::default(),
            fewer: Cell::default(),
            waiting: RefCell::default(),
            next: Cell::default(),
        })
    }

    /// Waits until no request is under way.
    pub(crate) async fn wait_for_none(&self) {
        self.wait_until(|| self.requests.get() == 0).await;
    }

    /// Waits until the requests under way have at most so many bytes of data.
    pub(crate) async fn wait_within(&self, bytes: usize) {
        self.wait_until(|| self.bytes.get() <= bytes).await;
    }

    /// One task can wait.
    async fn wait_until(&self, is_reached: impl Fn() -> bool) {
        poll_fn(|context| match is_reached() {
            true => Poll::Ready(()),
            false => {
                self.fewer.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await;
    }

    /// Waits until there is room for a request with so many bytes of data, and for all that came before. No request has
    /// more data than there is room for.
    pub(crate) async fn take(self: &Rc<Self>, bytes: usize) -> Share {
        let mut place = Place { budget: self, ticket: None };
        poll_fn(|context| place.poll(bytes, context)).await;
        Share { budget: self.clone(), bytes }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.requests.get() < self.max_requests && self.bytes.get() + bytes <= self.max_bytes
    }

    fn wake_first(&self) {
        let first = self.waiting.borrow().front().map(|(_, waker)| waker.clone());
        first.into_iter().for_each(Waker::wake);
    }
}

/// A place among those that wait.
struct Place<'b> {
    budget: &'b Budget,
    ticket: Option<u64>,
}

impl Place<'_> {
    fn poll(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let budget = self.budget;
        let first = budget.waiting.borrow().front().map(|(ticket, _)| *ticket);
        if first == self.ticket && budget.has_room(bytes) {
            budget.requests.set(budget.requests.get() + 1);
            budget.bytes.set(budget.bytes.get() + bytes);
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let mut waiting = budget.waiting.borrow_mut();
        match self.ticket {
            Some(ticket) => {
                let place = waiting.iter_mut().find(|(other, _)| *other == ticket);
                place.expect("it stays until it is dropped").1 = waker;
            }
            None => {
                let ticket = budget.next.replace(budget.next.get() + 1);
                self.ticket = Some(ticket);
                waiting.push_back((ticket, waker));
            }
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.budget.waiting.borrow_mut().retain(|(other, _)| *other != ticket);
            self.budget.wake_first();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Budget { requests, bytes, .. } = &*self.budget;
        requests.set(requests.get() - 1);
        bytes.set(bytes.get() - self.bytes);
        self.budget.fewer.take().into_iter().for_each(Waker::wake);
        self.budget.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn data_are_aligned_and_follow_their_head() {
        let memory = Memory::new().unwrap();
        for length in [1, 4096, SMALL, SMALL + 1, LARGE, LARGE + 1] {
            let (mut head, data) = memory.take(28, length);
            assert_eq!(data.pointer().as_ptr() as usize % 4096, 0);
            assert_eq!((head.len(), data.len()), (28, length));
            head.join(data).unwrap();
            assert_eq!(head.len(), 28 + length);
        }
    }

    #[test]
    fn a_large_request_is_not_overtaken() {
        let budget = Budget::new(10, 1000);
        let context = &mut Context::from_waker(Waker::noop());
        let take = |bytes| {
            let budget = budget.clone();
            Box::pin(async move { budget.take(bytes).await })
        };
        let mut first = take(990);
        let Poll::Ready(share) = first.as_mut().poll(context) else { panic!("there is room") };
        let (mut large, mut small) = (take(100), take(1));
        assert!(large.as_mut().poll(context).is_pending());
        assert!(small.as_mut().poll(context).is_pending(), "another waits already");
        drop(share);
        assert!(small.as_mut().poll(context).is_pending());
        assert!(large.as_mut().poll(context).is_ready());
        drop(large);
        assert!(small.as_mut().poll(context).is_ready());
        assert_eq!((budget.requests.get(), budget.bytes.get()), (0, 0));
    }

    #[test]
    fn a_request_that_gives_up_holds_up_no_other() {
        let budget = Budget::new(10, 0);
        let context = &mut Context::from_waker(Waker::noop());
        let all: Vec<_> = (0..10)
            .map(|_| match pin!(budget.take(0)).poll(context) {
                Poll::Ready(share) => share,
                Poll::Pending => panic!("there is room"),
            })
            .collect();
        let mut second = pin!(budget.take(0));
        {
            let mut first = pin!(budget.take(0));
            assert!(first.as_mut().poll(context).is_pending());
            assert!(second.as_mut().poll(context).is_pending());
            drop(all);
        }
        let mut none = pin!(budget.wait_for_none());
        let Poll::Ready(share) = second.as_mut().poll(context) else { panic!("there is room") };
        assert!(none.as_mut().poll(context).is_pending());
        drop(share);
        assert!(none.as_mut().poll(context).is_ready());
    }
}
