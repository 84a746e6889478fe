//! The queue of a file's queue: one writes at a time, and leads for those that wait meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::Durability;

/// The most bytes that are written for others at once.
const MAX_GROUP_BYTES: usize = 1 << 20;

/// Who queue to a file, and who waits meanwhile.
#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    queue: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    has_leader: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

/// The place of one who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    durability: Durability,
    state: Mutex<WaiterState>,
}

#[derive(Debug)]
enum WaiterState {
    Queued(Buffer, Option<Waker>),
    /// Whoever leads is writing its bytes.
    Taken(Option<Waker>),
    Notified(Wakeup),
    Gone,
}

/// What one who waited hears.
#[derive(Debug)]
pub(crate) enum Wakeup {
    /// It is its turn to write, for others too.
    Lead(Buffer),
    /// It has been written for, at an offset, or not; and whether that is as durable as it is to be.
    Done(Buffer, Result<u64, Errno>, bool),
}

/// What whoever queue finds.
pub(crate) enum Joined {
    Lead(Buffer),
    Wait(Arc<Waiter>),
}

/// The turn to write. Dropped, the next one has it.
pub(crate) struct Leader<'a>(pub(crate) &'a AppendQueue);

/// Bytes that are written together with others.
pub(crate) struct GroupedAppend {
    pub(crate) buffer: Buffer,
    pub(crate) durability: Durability,
    /// Who hears of it; none where that is whoever writes.
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

/// To tell whose bytes were taken. Dropped without, as where a reactor ends that the kernel takes no more
/// requests of, it says so.
pub(crate) struct Follower(Arc<Waiter>);

impl Follower {
    /// Answers the waiter.
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
    /// Takes the turn to write, or a place behind those who wait.
    pub(crate) fn join(&self, buffer: Buffer, durability: Durability) -> Joined {
        let mut queue = self.queue.lock();
        if !queue.has_leader {
            queue.has_leader = true;
            return Joined::Lead(buffer);
        }
        let state = Mutex::new(WaiterState::Queued(buffer, None));
        let waiter = Arc::new(Waiter { durability, state });
        queue.waiting.push_back(waiter.clone());
        Joined::Wait(waiter)
    }
}

impl Leader<'_> {
    /// Adds those who wait, as far as they are written together.
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

    /// Has those wait again who are not written for after all.
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
    /// Waits for what becomes of it.
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
                    _ => unreachable!("it was told a moment ago"),
                },
                WaiterState::Gone => unreachable!("who has left does not ask"),
            }
        })
        .await
    }

    /// Gives its bytes back, unless somebody has taken them or it has been told something.
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
            Joined::Wait(waiter) => waiter,
            Joined::Lead(_) => panic!("another has the turn"),
        }
    }

    fn wakeup_of(waiter: &Waiter) -> Option<Wakeup> {
        match pin!(waiter.notified()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wakeup) => Some(wakeup),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_turn_goes_to_the_first_who_waits_and_ends_when_nobody_does() {
        let queue = AppendQueue::default();
        assert!(matches!(queue.join(bytes(1), Durability::Volatile), Joined::Lead(_)));
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
        assert!(matches!(queue.join(bytes(1), Durability::Volatile), Joined::Lead(_)));
    }

    #[test]
    fn no_more_is_taken_than_is_written_together_and_in_order() {
        let queue = AppendQueue::default();
        queue.join(bytes(1), Durability::Volatile);
        let lengths = [MAX_GROUP_BYTES - 10, 10, 1, MAX_GROUP_BYTES + 1, 5];
        let _seats = lengths.map(|length| wait(&queue, length));
        let leader = Leader(&queue);
        let taken = || {
            let mut group = Vec::new();
            leader.take_followers(&mut group);
            group.iter().map(|append| append.buffer.len()).collect::<Vec<_>>()
        };
        assert_eq!(taken(), [MAX_GROUP_BYTES - 10, 10]);
        assert_eq!(taken(), [1]);
        // What is longer than that leads itself.
        assert_eq!(taken(), [0; 0]);
    }

    #[test]
    fn who_was_taken_and_is_not_told_hears_of_an_error() {
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
