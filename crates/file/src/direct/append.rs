//! Appends. Each comes to lie where the file ends when its turn has come, so they go one after the other. Those
//! of other threads that come while one is at work wait for it, and then one of them writes for all of them,
//! and asks for one commit: so a log that many append to costs a write for many.

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Payload};
use uringfs_reactor::Operation;

use crate::direct::write::write_entered;
use crate::direct::write_guard::{enter_at_end, note_write};
use crate::io::bounce::the_one;
use crate::map::mapping::Preparation;
use crate::state::append_queue::{Joined, Lead, Part, Told};
use crate::state::file::{File, Shared};
use crate::writeback::sync::made_durable;

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
        duty.tell(Told::Done(buffer, result, is_done));
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
