//! The append queue of a file: one writer at a time, which leads and writes for those that wait (RocksDB's
//! write group).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno};

/// Bytes that one group writes at most.
const MAX_GROUP_BYTES: usize = 1 << 20;

/// The leader's turn, and the appends that wait for it.
#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    queue: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    has_leader: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

/// A waiting append.
#[derive(Debug)]
pub(crate) struct Waiter {
    durability: Durability,
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
enum WaiterState {
    Queued(Buffer, Option<Waker>),
    /// The leader is writing its bytes.
    Taken(Option<Waker>),
    Notified(Wakeup),
    Gone,
}

/// Why a waiter wakes.
#[derive(Debug)]
pub(crate) enum Wakeup {
    /// It leads the next group and writes its bytes, with those of others.
    Lead(Buffer),
    /// The leader has written it: the offset or an error. False if the waiter still has to make it durable.
    Done(Buffer, Result<u64, Errno>, bool),
}

/// The role of a new append.
pub(crate) enum AppendRole {
    Lead(Buffer),
    Wait(Arc<Waiter>),
}

/// The turn to write. Its drop passes the turn on.
pub(crate) struct Leader<'a>(pub(crate) &'a AppendQueue);

/// One append of a group.
pub(crate) struct GroupedAppend {
    pub(crate) buffer: Buffer,
    pub(crate) durability: Durability,
    /// To notify; `None` for the leader's own append.
    pub(crate) follower: Option<Follower>,
    pub(crate) result: Result<u64, Errno>,
}

impl GroupedAppend {
    pub(crate) fn new(
        buffer: Buffer,
        durability: Durability,
        follower: Option<Follower>,
    ) -> GroupedAppend {
        GroupedAppend { buffer, durability, follower, result: Err(Errno::IO) }
    }

    pub(crate) fn wants_commit(&self) -> bool {
        self.durability == Durability::Durable && self.result.is_ok()
    }
}

/// The duty to notify a waiter whose bytes the leader took. Dropped before that, it reports EIO. That happens when
/// the leader's reactor ends because the kernel accepts no more requests from it.
pub(crate) struct Follower(Arc<Waiter>);

impl Follower {
    /// Wakes the waiter with the outcome.
    pub(crate) fn notify(&self, wakeup: Wakeup) {
        self.0.notify(wakeup);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if matches!(*self.0.state.lock(), WaiterState::Taken(_)) {
            self.0.notify(Wakeup::Done(Buffer::zeroed(0), Err(Errno::IO), true));
        }
    }
}

impl AppendQueue {
    /// Takes the turn to write, or waits in the queue.
    pub(crate) fn join(&self, buffer: Buffer, durability: Durability) -> AppendRole {
        let mut queue = self.queue.lock();
        if !queue.has_leader {
            queue.has_leader = true;
            return AppendRole::Lead(buffer);
        }
        let state = Mutex::new(WaiterState::Queued(buffer, None));
        let waiter = Arc::new(Waiter { durability, state });
        queue.waiting.push_back(waiter.clone());
        AppendRole::Wait(waiter)
    }
}

impl Leader<'_> {
    /// Moves waiting appends into the group, in order, as far as they fit.
    pub(crate) fn take_followers(&self, group: &mut Vec<GroupedAppend>) {
        let mut length: usize = group.iter().map(|append| append.buffer.len()).sum();
        let mut queue = self.0.queue.lock();
        while let Some(waiter) = queue.waiting.pop_front() {
            let mut state = waiter.state.lock();
            match std::mem::replace(&mut *state, WaiterState::Gone) {
                WaiterState::Queued(buffer, waker) if length + buffer.len() > MAX_GROUP_BYTES => {
                    *state = WaiterState::Queued(buffer, waker);
                    drop(state);
                    return queue.waiting.push_front(waiter);
                }
                WaiterState::Queued(buffer, waker) => {
                    *state = WaiterState::Taken(waker);
                    drop(state);
                    length += buffer.len();
                    group.push(GroupedAppend::new(
                        buffer,
                        waiter.durability,
                        Some(Follower(waiter)),
                    ));
                }
                WaiterState::Gone | WaiterState::Taken(_) | WaiterState::Notified(_) => {}
            }
        }
    }

    /// Puts followers whose bytes were not written at the head of the queue again.
    pub(crate) fn requeue(&self, group: &mut Vec<GroupedAppend>) {
        let mut queue = self.0.queue.lock();
        while let Some(GroupedAppend { buffer, follower: Some(follower), .. }) =
            group.pop_if(|append| append.follower.is_some())
        {
            let mut state = follower.0.state.lock();
            if let WaiterState::Taken(waker) = std::mem::replace(&mut *state, WaiterState::Gone) {
                *state = WaiterState::Queued(buffer, waker);
            }
            drop(state);
            queue.waiting.push_front(follower.0.clone());
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        while let Some(waiter) = queue.waiting.pop_front() {
            let mut state = waiter.state.lock();
            if let WaiterState::Queued(buffer, waker) =
                std::mem::replace(&mut *state, WaiterState::Gone)
            {
                *state = WaiterState::Notified(Wakeup::Lead(buffer));
                drop(state);
                drop(queue);
                return waker.into_iter().for_each(Waker::wake);
            }
        }
        queue.has_leader = false;
    }
}

impl Waiter {
    /// Waits for the outcome.
    pub(crate) async fn notified(&self) -> Wakeup {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock();
            match &mut *state {
                WaiterState::Queued(_, waker) | WaiterState::Taken(waker) => {
                    *waker = Some(context.waker().clone());
                    Poll::Pending
                }
                WaiterState::Notified(_) => match std::mem::replace(&mut *state, WaiterState::Gone)
                {
                    WaiterState::Notified(wakeup) => Poll::Ready(wakeup),
                    _ => unreachable!("it was notified just now"),
                },
                WaiterState::Gone => unreachable!("a waiter polls no more once it has left"),
            }
        })
        .await
    }

    /// Leaves the queue with its bytes, unless the leader has taken them or the outcome is there.
    pub(crate) fn cancel(&self) -> Option<Buffer> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, WaiterState::Gone) {
            WaiterState::Queued(buffer, _) => Some(buffer),
            previous => {
                *state = previous;
                None
            }
        }
    }

    fn notify(&self, wakeup: Wakeup) {
        let done = WaiterState::Notified(wakeup);
        let before = std::mem::replace(&mut *self.state.lock(), done);
        if let WaiterState::Taken(Some(waker)) = before {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn bytes(length: usize) -> Buffer {
        Buffer::zeroed(length)
    }

    fn wait(queue: &AppendQueue, length: usize) -> Arc<Waiter> {
        match queue.join(bytes(length), Durability::Volatile) {
            AppendRole::Wait(waiter) => waiter,
            AppendRole::Lead(_) => panic!("another one leads"),
        }
    }

    fn wakeup_of(waiter: &Waiter) -> Option<Wakeup> {
        match pin!(waiter.notified()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wakeup) => Some(wakeup),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_turn_passes_to_the_first_waiter_and_ends_with_the_last() {
        let queue = AppendQueue::default();
        assert!(matches!(queue.join(bytes(1), Durability::Volatile), AppendRole::Lead(_)));
        let waiters = [1, 2, 3].map(|length| wait(&queue, length));
        assert_eq!(waiters[0].cancel().map(|buffer| buffer.len()), Some(1));
        drop(Leader(&queue));
        assert!(matches!(wakeup_of(&waiters[1]), Some(Wakeup::Lead(buffer)) if buffer.len() == 2));
        assert!(wakeup_of(&waiters[2]).is_none());
        let leader = Leader(&queue);
        let mut group = Vec::new();
        leader.take_followers(&mut group);
        assert!(group.len() == 1 && waiters[2].cancel().is_none(), "it has been taken");
        leader.requeue(&mut group);
        assert_eq!(waiters[2].cancel().map(|buffer| buffer.len()), Some(3));
        drop(leader);
        assert!(matches!(queue.join(bytes(1), Durability::Volatile), AppendRole::Lead(_)));
    }

    #[test]
    fn a_group_keeps_its_order_and_its_size_limit() {
        let queue = AppendQueue::default();
        queue.join(bytes(1), Durability::Volatile);
        let lengths = [MAX_GROUP_BYTES - 10, 10, 1, MAX_GROUP_BYTES + 1, 5];
        let _waiters = lengths.map(|length| wait(&queue, length));
        let leader = Leader(&queue);
        let taken = || {
            let mut group = Vec::new();
            leader.take_followers(&mut group);
            group.iter().map(|append| append.buffer.len()).collect::<Vec<_>>()
        };
        assert_eq!(taken(), [MAX_GROUP_BYTES - 10, 10]);
        assert_eq!(taken(), [1]);
        // An append longer than the limit leads a group of its own.
        assert_eq!(taken(), [0; 0]);
    }

    #[test]
    fn a_follower_that_is_dropped_unnotified_gets_an_error() {
        let queue = AppendQueue::default();
        queue.join(bytes(1), Durability::Volatile);
        let waiter = wait(&queue, 7);
        let mut group = Vec::new();
        Leader(&queue).take_followers(&mut group);
        assert!(wakeup_of(&waiter).is_none());
        drop(group);
        assert!(matches!(wakeup_of(&waiter), Some(Wakeup::Done(_, Err(Errno::IO), true))));
    }
}
