//! The queue of a file's appends: one writes at a time, and leads for those that wait meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::Durability;

/// The most bytes that are written for others at once.
const MOST_TOGETHER: usize = 1 << 20;

/// Who appends to a file, and who waits meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    is_led: bool,
    waiting: VecDeque<Arc<Seat>>,
}

/// The place of one who waits.
#[derive(Debug)]
pub(crate) struct Seat {
    durability: Durability,
    state: Mutex<Seated>,
}

#[derive(Debug)]
enum Seated {
    Waits(Buffer, Option<Waker>),
    /// Whoever leads is writing its bytes.
    Taken(Option<Waker>),
    Told(Told),
    Left,
}

/// What one who waited hears.
#[derive(Debug)]
pub(crate) enum Told {
    /// It is its turn to write, for others too.
    Leads(Buffer),
    /// It has been written for, at an offset, or not; and whether that is as durable as it is to be.
    Done(Buffer, Result<u64, Errno>, bool),
}

/// What whoever appends finds.
pub(crate) enum Joined {
    Leads(Buffer),
    Waits(Arc<Seat>),
}

/// The turn to write. Dropped, the next one has it.
pub(crate) struct Lead<'a>(pub(crate) &'a Appends);

/// Bytes that are written together with others.
pub(crate) struct Part {
    pub(crate) buffer: Buffer,
    pub(crate) durability: Durability,
    /// Who hears of it; none where that is whoever writes.
    pub(crate) seat: Option<Duty>,
    pub(crate) result: Result<u64, Errno>,
}

impl Part {
    pub(crate) fn new(buffer: Buffer, durability: Durability, seat: Option<Duty>) -> Part {
        Part { buffer, durability, seat, result: Err(Errno::IO) }
    }

    pub(crate) fn wants_commit(&self) -> bool {
        self.durability == Durability::Durable && self.result.is_ok()
    }
}

/// To tell whose bytes were taken. Dropped without, as where a reactor ends that the kernel takes no more
/// requests of, it says so.
pub(crate) struct Duty(Arc<Seat>);

impl Duty {
    /// Answers the waiter.
    pub(crate) fn tell(&self, told: Told) {
        self.0.tell(told);
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if matches!(*self.0.state.lock(), Seated::Taken(_)) {
            self.0.tell(Told::Done(Buffer::zeroed(0), Err(Errno::IO), true));
        }
    }
}

impl Appends {
    /// Takes the turn to write, or a place behind those who wait.
    pub(crate) fn join(&self, buffer: Buffer, durability: Durability) -> Joined {
        let mut queue = self.queue.lock();
        if !queue.is_led {
            queue.is_led = true;
            return Joined::Leads(buffer);
        }
        let state = Mutex::new(Seated::Waits(buffer, None));
        let seat = Arc::new(Seat { durability, state });
        queue.waiting.push_back(seat.clone());
        Joined::Waits(seat)
    }
}

impl Lead<'_> {
    /// Adds those who wait, as far as they are written together.
    pub(crate) fn take(&self, parts: &mut Vec<Part>) {
        let mut length: usize = parts.iter().map(|part| part.buffer.len()).sum();
        let mut queue = self.0.queue.lock();
        while let Some(seat) = queue.waiting.pop_front() {
            let mut state = seat.state.lock();
            match std::mem::replace(&mut *state, Seated::Left) {
                Seated::Waits(buffer, waker) if length + buffer.len() > MOST_TOGETHER => {
                    *state = Seated::Waits(buffer, waker);
                    drop(state);
                    return queue.waiting.push_front(seat);
                }
                Seated::Waits(buffer, waker) => {
                    *state = Seated::Taken(waker);
                    drop(state);
                    length += buffer.len();
                    parts.push(Part::new(buffer, seat.durability, Some(Duty(seat))));
                }
                Seated::Left | Seated::Taken(_) | Seated::Told(_) => {}
            }
        }
    }

    /// Has those wait again who are not written for after all.
    pub(crate) fn put_back(&self, parts: &mut Vec<Part>) {
        let mut queue = self.0.queue.lock();
        while let Some(Part { buffer, seat: Some(duty), .. }) =
            parts.pop_if(|part| part.seat.is_some())
        {
            let mut state = duty.0.state.lock();
            if let Seated::Taken(waker) = std::mem::replace(&mut *state, Seated::Left) {
                *state = Seated::Waits(buffer, waker);
            }
            drop(state);
            queue.waiting.push_front(duty.0.clone());
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        while let Some(seat) = queue.waiting.pop_front() {
            let mut state = seat.state.lock();
            if let Seated::Waits(buffer, waker) = std::mem::replace(&mut *state, Seated::Left) {
                *state = Seated::Told(Told::Leads(buffer));
                drop(state);
                drop(queue);
                return waker.into_iter().for_each(Waker::wake);
            }
        }
        queue.is_led = false;
    }
}

impl Seat {
    /// Waits for what becomes of it.
    pub(crate) async fn told(&self) -> Told {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock();
            match &mut *state {
                Seated::Waits(_, waker) | Seated::Taken(waker) => {
                    *waker = Some(context.waker().clone());
                    Poll::Pending
                }
                Seated::Told(_) => match std::mem::replace(&mut *state, Seated::Left) {
                    Seated::Told(told) => Poll::Ready(told),
                    _ => unreachable!("it was told a moment ago"),
                },
                Seated::Left => unreachable!("who has left does not ask"),
            }
        })
        .await
    }

    /// Gives its bytes back, unless somebody has taken them or it has been told something.
    pub(crate) fn leave(&self) -> Option<Buffer> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, Seated::Left) {
            Seated::Waits(buffer, _) => Some(buffer),
            state_before => {
                *state = state_before;
                None
            }
        }
    }

    fn tell(&self, told: Told) {
        let done = Seated::Told(told);
        let before = std::mem::replace(&mut *self.state.lock(), done);
        if let Seated::Taken(Some(waker)) = before {
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

    fn wait(appends: &Appends, length: usize) -> Arc<Seat> {
        match appends.join(bytes(length), Durability::Volatile) {
            Joined::Waits(seat) => seat,
            Joined::Leads(_) => panic!("another has the turn"),
        }
    }

    fn told(seat: &Seat) -> Option<Told> {
        match pin!(seat.told()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(told) => Some(told),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_turn_goes_to_the_first_who_waits_and_ends_when_nobody_does() {
        let appends = Appends::default();
        assert!(matches!(appends.join(bytes(1), Durability::Volatile), Joined::Leads(_)));
        let seats = [1, 2, 3].map(|length| wait(&appends, length));
        assert_eq!(seats[0].leave().map(|buffer| buffer.len()), Some(1));
        drop(Lead(&appends));
        assert!(matches!(told(&seats[1]), Some(Told::Leads(buffer)) if buffer.len() == 2));
        assert!(told(&seats[2]).is_none());
        let lead = Lead(&appends);
        let mut parts = Vec::new();
        lead.take(&mut parts);
        assert!(parts.len() == 1 && seats[2].leave().is_none(), "it has been taken");
        lead.put_back(&mut parts);
        assert_eq!(seats[2].leave().map(|buffer| buffer.len()), Some(3));
        drop(lead);
        assert!(matches!(appends.join(bytes(1), Durability::Volatile), Joined::Leads(_)));
    }

    #[test]
    fn no_more_is_taken_than_is_written_together_and_in_order() {
        let appends = Appends::default();
        appends.join(bytes(1), Durability::Volatile);
        let lengths = [MOST_TOGETHER - 10, 10, 1, MOST_TOGETHER + 1, 5];
        let _seats = lengths.map(|length| wait(&appends, length));
        let lead = Lead(&appends);
        let taken = || {
            let mut parts = Vec::new();
            lead.take(&mut parts);
            parts.iter().map(|part| part.buffer.len()).collect::<Vec<_>>()
        };
        assert_eq!(taken(), [MOST_TOGETHER - 10, 10]);
        assert_eq!(taken(), [1]);
        // What is longer than that leads itself.
        assert_eq!(taken(), [0; 0]);
    }

    #[test]
    fn who_was_taken_and_is_not_told_hears_of_an_error() {
        let appends = Appends::default();
        appends.join(bytes(1), Durability::Volatile);
        let seat = wait(&appends, 7);
        let mut parts = Vec::new();
        Lead(&appends).take(&mut parts);
        assert!(told(&seat).is_none());
        drop(parts);
        assert!(matches!(told(&seat), Some(Told::Done(_, Err(Errno::IO), true))));
    }
}
