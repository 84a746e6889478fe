//! Appends. Each lies at the file's end at its turn, so they run one after the other.
//!
//! 1. The first append excludes other writers ([`begin_append`]) and takes the end of the file as its offset.
//! 2. Appends that arrive meanwhile wait in the queue; then one of them leads, writes for all in one allocating
//!    write, and, if any of them is durable, requests one commit. One that finds no space or is cancelled fails alone.
//! 3. Blocks, extents and size are in memory then. `sync_data`, or `append_durably`, requests the commit, which
//!    all files and threads that wait share.
//!
//! So a log with many appenders costs one write for many appends.
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Payload};
use uringfs_reactor::Operation;

use crate::direct::write::{Written, write_locked};
use crate::direct::write_guard::{begin_append, prepare_write};
use crate::io::bounce::single_buffer;
use crate::map::change_gate::ChangeGuard;
use crate::map::mapping::WriteKind;
use crate::state::append_queue::{AppendRole, GroupedAppend, Leader, Wakeup};
use crate::state::file::{File, FileHandle};
use crate::writeback::sync::ensure_durable;

/// Appends the payload, one buffer. The result is the offset.
pub(crate) async fn append(
    mut operation: Operation,
    file: File,
    payload: Payload,
    durability: Durability,
) {
    let buffer = single_buffer(payload);
    let appended = append_buffer(&mut operation, &file.handle, buffer, durability);
    let (buffer, result) = appended.await;
    operation.end_releasing(file, Payload::Buffer(buffer), result);
}

async fn append_buffer(
    operation: &mut Operation,
    handle: &FileHandle,
    buffer: Buffer,
    durability: Durability,
) -> (Buffer, Result<u64, Errno>) {
    let _change = match begin_change(operation, handle).await {
        Ok(change) => change,
        Err(error) => return (buffer, Err(error)),
    };
    match handle.state.append_queue().join(buffer, durability) {
        AppendRole::Lead(buffer) => lead(operation, handle, buffer, durability).await,
        AppendRole::Wait(waiter) => {
            let wakeup = match operation.wait_outside_epoch(waiter.notified()).await {
                Ok(wakeup) => wakeup,
                Err(why) => match waiter.cancel() {
                    Some(buffer) => return (buffer, Err(why)),
                    // Too late to cancel.
                    None => operation.outside_epoch(waiter.notified()).await,
                },
            };
            match wakeup {
                Wakeup::Lead(buffer) => lead(operation, handle, buffer, durability).await,
                Wakeup::Done(buffer, Ok(offset), false) => {
                    let durable = commit(operation, handle, durability).await;
                    (buffer, durable.map(|()| offset))
                }
                Wakeup::Done(buffer, result, _) => (buffer, result),
            }
        }
    }
}

async fn commit(
    operation: &mut Operation,
    handle: &FileHandle,
    durability: Durability,
) -> Result<(), Errno> {
    ensure_durable(operation, handle, durability, Durability::Volatile, WriteKind::Allocated).await
}

async fn begin_change<'h>(
    operation: &mut Operation,
    handle: &'h FileHandle,
) -> Result<Option<ChangeGuard<'h>>, Errno> {
    handle.map.require_resizable()?;
    if let Some(errno) = handle.write_refusal {
        return Err(errno);
    }
    prepare_write(operation, handle).await
}

/// Leads a group: writes its own bytes and those of others, and notifies them. Returns the buffer and result of
/// its own.
async fn lead(
    operation: &mut Operation,
    handle: &FileHandle,
    buffer: Buffer,
    durability: Durability,
) -> (Buffer, Result<u64, Errno>) {
    let leader = Leader(handle.state.append_queue());
    let mut group = vec![GroupedAppend::new(buffer, durability, None)];
    write_group(operation, handle, &leader, &mut group).await;
    drop(leader);
    let durable = match group.iter().any(GroupedAppend::wants_commit) {
        true => commit(operation, handle, Durability::Durable).await,
        false => Ok(()),
    };
    // A cancelled leader stops alone: each follower waits for a commit of its own.
    let is_stopped = durable.is_err() && operation.check_cancelled().is_err();
    for append in group.drain(1..) {
        let wants_commit = append.wants_commit();
        let GroupedAppend { buffer, follower: Some(follower), result, .. } = append else {
            continue;
        };
        let is_done = !wants_commit || !is_stopped;
        let result = if wants_commit && is_done {
            result.and_then(|at| durable.map(|()| at))
        } else {
            result
        };
        follower.notify(Wakeup::Done(buffer, result, is_done));
    }
    let own = group.pop().expect("the leader's own append is the first");
    let result = if own.wants_commit() {
        own.result.and_then(|at| durable.map(|()| at))
    } else {
        own.result
    };
    (own.buffer, result)
}

/// Writes the group in one write, or each append by itself where that fails. A cancelled leader returns what it
/// did not write to the queue.
async fn write_group(
    operation: &mut Operation,
    handle: &FileHandle,
    leader: &Leader<'_>,
    group: &mut Vec<GroupedAppend>,
) {
    let written =
        write_at_end(operation, handle, group, |group| leader.take_followers(group)).await;
    match written {
        Err(_) if group.len() > 1 && operation.check_cancelled().is_err() => leader.requeue(group),
        Err(_) if group.len() > 1 => {
            // An append that finds no space does not fail the others.
            for index in 0..group.len() {
                let append = &mut group[index];
                let buffer = std::mem::replace(&mut append.buffer, Buffer::zeroed(0));
                let mut alone = vec![GroupedAppend::new(buffer, append.durability, None)];
                let written = write_at_end(operation, handle, &mut alone, |_| ()).await;
                let alone = alone.pop().expect("it has one append");
                (append.buffer, append.result) = (alone.buffer, alone.result);
                if written.is_err() && operation.check_cancelled().is_err() {
                    return leader.requeue(&mut group.split_off(index.max(1)));
                }
            }
        }
        _ => {}
    }
}

/// Writes the group at the file's end, back to back. `more` may add to it once the other writers are excluded.
async fn write_at_end(
    operation: &mut Operation,
    handle: &FileHandle,
    group: &mut Vec<GroupedAppend>,
    more: impl FnOnce(&mut Vec<GroupedAppend>),
) -> Result<(), Errno> {
    let length = |group: &[GroupedAppend]| {
        group.iter().map(|append| append.buffer.len() as u64).sum::<u64>()
    };
    let begun = begin_append(operation, handle, || {
        more(group);
        length(group)
    });
    let (guard, offset) = match begun.await {
        Ok(begun) => begun,
        Err(error) => {
            group[0].result = Err(error);
            return Err(error);
        }
    };
    let range = offset..offset + length(group);
    let mut written = Ok(0);
    if !range.is_empty() {
        let mut buffers: Vec<Buffer> = group
            .iter_mut()
            .map(|append| std::mem::replace(&mut append.buffer, Buffer::zeroed(0)))
            .collect();
        let payload = match buffers.len() {
            1 => Payload::Buffer(buffers.remove(0)),
            _ => Payload::Buffers(buffers.into()),
        };
        let Written { payload, result, .. } =
            write_locked(operation, handle, payload, range, Durability::Volatile, guard).await;
        let buffers = match payload {
            Payload::Buffer(buffer) => vec![buffer],
            Payload::Buffers(buffers) => buffers.into_vec(),
            Payload::Length(_) => unreachable!("buffers went in"),
        };
        group.iter_mut().zip(buffers).for_each(|(append, buffer)| append.buffer = buffer);
        written = result;
    }
    let mut at = offset;
    for append in group.iter_mut() {
        append.result = written.map(|_| at);
        at += append.buffer.len() as u64;
    }
    written.map(drop)
}
