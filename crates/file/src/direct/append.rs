//! Appends. Each comes to lie where the file ends when its turn has come, so they go one after the other. Those
//! of other threads that come while one is at work wait for it, and then one of them writes for all of them,
//! and asks for one commit: so a log that many append to costs a write for many.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Payload};
use uringfs_reactor::Operation;

use crate::direct::write::write_entered;
use crate::direct::write_guard::{enter_at_end, note_write};
use crate::io::bounce::the_one;
use crate::map::mapping::Preparation;
use crate::state::file::{File, Shared};
use crate::writeback::sync::made_durable;

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
struct Seat {
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
enum Told {
    /// It is its turn to write, for others too.
    Leads(Buffer),
    /// It has been written for, at an offset, or not; and whether that is as durable as it is to be.
    Done(Buffer, Result<u64, Errno>, bool),
}

/// What whoever appends finds.
enum Joined {
    Leads(Buffer),
    Waits(Arc<Seat>),
}

/// The turn to write. Dropped, the next one has it.
struct Lead<'a>(&'a Appends);

/// Bytes that are written together with others.
struct Part {
    buffer: Buffer,
    durability: Durability,
    /// Who hears of it; none where that is whoever writes.
    seat: Option<Duty>,
    result: Result<u64, Errno>,
}

impl Part {
    fn new(buffer: Buffer, durability: Durability, seat: Option<Duty>) -> Part {
        Part { buffer, durability, seat, result: Err(Errno::IO) }
    }

    fn wants_commit(&self) -> bool {
        self.durability == Durability::Durable && self.result.is_ok()
    }
}

/// To tell whose bytes were taken. Dropped without, as where a reactor ends that the kernel takes no more
/// requests of, it says so.
struct Duty(Arc<Seat>);

impl Drop for Duty {
    fn drop(&mut self) {
        if matches!(*self.0.state.lock(), Seated::Taken(_)) {
            self.0.tell(Told::Done(Buffer::zeroed(0), Err(Errno::IO), true));
        }
    }
}

impl Appends {
    fn join(&self, buffer: Buffer, durability: Durability) -> Joined {
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
    fn take(&self, parts: &mut Vec<Part>) {
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
    fn put_back(&self, parts: &mut Vec<Part>) {
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
    async fn told(&self) -> Told {
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
    fn leave(&self) -> Option<Buffer> {
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

/// Writes `buffer` behind the file's end, and answers where that was.
pub(crate) async fn append(
    mut operation: Operation,
    file: File,
    payload: Payload,
    durability: Durability,
) {
    let shared = &*file.shared;
    let buffer = the_one(payload);
    if let Err(error) = may_append(&mut operation, shared).await {
        return operation.end(Payload::Buffer(buffer), Err(error));
    }
    let (buffer, result) = match shared.lock.appends().join(buffer, durability) {
        Joined::Leads(buffer) => lead(&mut operation, shared, buffer, durability).await,
        Joined::Waits(seat) => {
            let told = match operation.wait_uncounted(seat.told()).await {
                Ok(told) => told,
                Err(why) => match seat.leave() {
                    Some(buffer) => return operation.end(Payload::Buffer(buffer), Err(why)),
                    // Too late to stop.
                    None => seat.told().await,
                },
            };
            match told {
                Told::Leads(buffer) => lead(&mut operation, shared, buffer, durability).await,
                Told::Done(buffer, Ok(offset), false) => {
                    let durable = commit(&mut operation, shared, durability).await;
                    (buffer, durable.map(|()| offset))
                }
                Told::Done(buffer, result, _) => (buffer, result),
            }
        }
    };
    operation.end(Payload::Buffer(buffer), result);
}

async fn commit(
    operation: &mut Operation,
    shared: &Shared,
    durability: Durability,
) -> Result<(), Errno> {
    made_durable(operation, shared, durability, Preparation::Allocated).await
}

async fn may_append(operation: &mut Operation, shared: &Shared) -> Result<(), Errno> {
    shared.map.growing()?;
    if shared.read_only {
        return Err(Errno::ROFS);
    }
    note_write(operation, shared).await
}

/// Writes what is to be appended, with what others have brought meanwhile, and answers what came of its own.
async fn lead(
    operation: &mut Operation,
    shared: &Shared,
    buffer: Buffer,
    durability: Durability,
) -> (Buffer, Result<u64, Errno>) {
    let lead = Lead(shared.lock.appends());
    let mut parts = vec![Part::new(buffer, durability, None)];
    write_all(operation, shared, &lead, &mut parts).await;
    drop(lead);
    let durable = match parts.iter().any(Part::wants_commit) {
        true => commit(operation, shared, Durability::Durable).await,
        false => Ok(()),
    };
    // Who is told to stop stops by itself: the others wait for a commit of their own.
    let is_stopped = durable.is_err() && operation.check().is_err();
    for part in parts.drain(1..) {
        let wants_commit = part.wants_commit();
        let Part { buffer, seat: Some(duty), result, .. } = part else { continue };
        let is_done = !wants_commit || !is_stopped;
        let result = if wants_commit && is_done {
            result.and_then(|at| durable.map(|()| at))
        } else {
            result
        };
        duty.0.tell(Told::Done(buffer, result, is_done));
    }
    let own = parts.pop().expect("its own is the first");
    let result = if own.wants_commit() {
        own.result.and_then(|at| durable.map(|()| at))
    } else {
        own.result
    };
    (own.buffer, result)
}

/// Writes all parts in one, or, where that cannot be, each by itself; of those whom it cannot write for since
/// it is told to stop, another one does.
async fn write_all(
    operation: &mut Operation,
    shared: &Shared,
    lead: &Lead<'_>,
    parts: &mut Vec<Part>,
) {
    let written = write_parts(operation, shared, parts, |parts| lead.take(parts)).await;
    match written {
        Err(_) if parts.len() > 1 && operation.check().is_err() => lead.put_back(parts),
        Err(_) if parts.len() > 1 => {
            // One that finds no room is no reason for the others.
            for index in 0..parts.len() {
                let part = &mut parts[index];
                let buffer = std::mem::replace(&mut part.buffer, Buffer::zeroed(0));
                let mut alone = vec![Part::new(buffer, part.durability, None)];
                let written = write_parts(operation, shared, &mut alone, |_| ()).await;
                let alone = alone.pop().expect("it went in");
                (part.buffer, part.result) = (alone.buffer, alone.result);
                if written.is_err() && operation.check().is_err() {
                    return lead.put_back(&mut parts.split_off(index.max(1)));
                }
            }
        }
        _ => {}
    }
}

/// Writes parts one behind the other at the file's end; `more` adds to them when nobody else writes any more.
async fn write_parts(
    operation: &mut Operation,
    shared: &Shared,
    parts: &mut Vec<Part>,
    more: impl FnOnce(&mut Vec<Part>),
) -> Result<(), Errno> {
    let length = |parts: &[Part]| parts.iter().map(|part| part.buffer.len() as u64).sum::<u64>();
    let entered = enter_at_end(operation, shared, || {
        more(parts);
        length(parts)
    });
    let (entry, offset) = match entered.await {
        Ok(entered) => entered,
        Err(error) => {
            parts[0].result = Err(error);
            return Err(error);
        }
    };
    let range = offset..offset + length(parts);
    let mut written = Ok(0);
    if !range.is_empty() {
        let mut buffers: Vec<Buffer> = parts
            .iter_mut()
            .map(|part| std::mem::replace(&mut part.buffer, Buffer::zeroed(0)))
            .collect();
        let payload = match buffers.len() {
            1 => Payload::Buffer(buffers.remove(0)),
            _ => Payload::Buffers(buffers.into()),
        };
        let (payload, result) =
            write_entered(operation, shared, payload, range, Durability::Volatile, entry).await;
        let buffers = match payload {
            Payload::Buffer(buffer) => vec![buffer],
            Payload::Buffers(buffers) => buffers.into_vec(),
            Payload::Length(_) => unreachable!("buffers went in"),
        };
        parts.iter_mut().zip(buffers).for_each(|(part, buffer)| part.buffer = buffer);
        written = result;
    }
    let mut at = offset;
    for part in parts.iter_mut() {
        part.result = written.map(|_| at);
        at += part.buffer.len() as u64;
    }
    written.map(drop)
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
