//! Reads and writes of the slow path: requests for an aligned range of a file, split at extents and at the device's
//! limits.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, MAX_SEGMENTS, Op, Payload, Request, Tag};
use uringfs_reactor::{Operation, RequestFuture, RequestSpec};

use crate::map::mapping::{Mapping, MappingState};
use crate::state::file::FileHandle;

/// Requests of one operation in flight at once.
const MAX_IN_FLIGHT: usize = 32;

/// Moves `payload` between memory and the file at `offset`, all inside the size. Returns one ended request for
/// the whole: all bytes have moved, or it failed. A transfer that is one request is issued before it is
/// awaited. With [`Durability::Durable`] several requests are durable only by FUA: the durability of the returned
/// request says whether a flush has to follow.
#[inline(always)]
pub(crate) fn transfer<'a>(
    operation: &'a Operation,
    handle: &'a FileHandle,
    op: Op,
    durability: Durability,
    payload: Payload,
    offset: u64,
) -> Transfer<'a> {
    let length = payload.length();
    let max = handle.device.geometry().max_transfer as u64;
    match handle.map.written_address(offset, length) {
        Some(address)
            if length <= max
                && buffer_count(&payload) <= MAX_SEGMENTS
                && may_issue(handle, op, address, length) =>
        {
            let spec = RequestSpec { op, durability, address };
            Transfer::Whole(issue(operation, handle, spec, payload))
        }
        _ => {
            let durability = part_durability(handle, durability);
            let split = transfer_split(operation, handle, op, durability, payload, offset);
            Transfer::Split(Box::pin(split))
        }
    }
}

/// The durability of each request of a write that is several, if one would have `durability`. Without FUA one flush
/// follows them all.
pub(crate) fn part_durability(handle: &FileHandle, durability: Durability) -> Durability {
    if handle.device.geometry().fua { durability } else { Durability::Volatile }
}

/// False for a change beyond the end of a device that has shrunk: it would make an image longer, with a hole where data
/// were. Reads fail at the device.
#[inline(always)]
pub(crate) fn may_issue(handle: &FileHandle, op: Op, address: u64, length: u64) -> bool {
    op == Op::Read || address + length <= handle.device_inner.size()
}

/// Issues one request. With `direct.write_lock=exclusive` a write holds the file's lock while it is submitted.
#[inline(always)]
fn issue<'a>(
    operation: &'a Operation,
    handle: &FileHandle,
    spec: RequestSpec,
    payload: Payload,
) -> RequestFuture<'a> {
    match &handle.submission {
        Some(lock) if spec.op == Op::Write => {
            operation.request_locked(&handle.device_inner, lock, spec, payload)
        }
        _ => operation.request(&handle.device_inner, spec, payload),
    }
}

/// A transfer in flight.
pub(crate) enum Transfer<'a> {
    /// One request.
    Whole(RequestFuture<'a>),
    /// Several requests. Boxed, to keep the common case small.
    Split(Pin<Box<dyn Future<Output = Request> + 'a>>),
}

impl Future for Transfer<'_> {
    type Output = Request;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Transfer::Whole(request) => Pin::new(request).poll(context).map(fail_if_short),
            Transfer::Split(split) => split.as_mut().poll(context),
        }
    }
}

/// The map says the bytes are on the device: a request that moved fewer has failed.
#[inline(always)]
fn fail_if_short(mut request: Request) -> Request {
    if request.is_short() {
        request.end(Err(Errno::IO));
    }
    request
}

/// A transfer of several requests.
async fn transfer_split(
    operation: &Operation,
    handle: &FileHandle,
    op: Op,
    durability: Durability,
    payload: Payload,
    offset: u64,
) -> Request {
    let length = payload.length();
    let (payload, result) = match payload {
        Payload::Buffer(buffer) => {
            let map_at = |at| handle.map.map(at);
            let (buffer, result) =
                transfer_buffer(operation, handle, op, durability, buffer, offset, map_at).await;
            (Payload::Buffer(buffer), result)
        }
        Payload::Buffers(buffers) => {
            transfer_buffers(operation, handle, op, durability, buffers.into_vec(), offset).await
        }
        Payload::Length(_) => unreachable!("a transfer has memory"),
    };
    let mut whole = Request::new(handle.index, op, 0, payload, Tag(0));
    whole.durability = durability;
    whole.end(result.map(|()| length));
    whole
}

fn buffer_count(payload: &Payload) -> usize {
    match payload {
        Payload::Buffers(buffers) => buffers.len(),
        Payload::Buffer(_) | Payload::Length(_) => 1,
    }
}

/// Transfers the buffers, those that lie in one extent by one request, until one fails. A buffer that lies in several extents,
/// or in a hole, is transferred by itself.
async fn transfer_buffers(
    operation: &Operation,
    handle: &FileHandle,
    op: Op,
    durability: Durability,
    buffers: Vec<Buffer>,
    mut offset: u64,
) -> (Payload, Result<(), Errno>) {
    let mut done = Vec::with_capacity(buffers.len());
    let mut end = Ok(());
    let mut rest = VecDeque::from(buffers);
    while end.is_ok() && !rest.is_empty() {
        let joint = joint_request(handle, op, rest.iter(), offset);
        let count = joint.as_ref().map_or(1, |joint| joint.count);
        let mut group: Vec<Buffer> = rest.drain(..count).collect();
        let length = group.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        if let Some(Joint { address, .. }) = joint {
            let spec = RequestSpec { op, durability, address };
            let request = issue(operation, handle, spec, Payload::Buffers(group.into())).await;
            let request = fail_if_short(request);
            end = request.result().map(drop);
            let Payload::Buffers(group) = request.payload else { unreachable!("buffers went in") };
            done.extend(group);
        } else {
            let buffer = group.pop().expect("it is one buffer");
            let map_at = |at| handle.map.map(at);
            let (buffer, result) =
                transfer_buffer(operation, handle, op, durability, buffer, offset, map_at).await;
            done.push(buffer);
            end = result;
        }
        offset += length;
    }
    done.extend(rest);
    (Payload::Buffers(done.into_boxed_slice()), end)
}

/// A request for several buffers.
struct Joint {
    address: u64,
    /// The number of buffers.
    count: usize,
}

/// The request for as many of the first buffers as lie in one extent and fit into one request. `None` if that is not even one.
fn joint_request<'b>(
    handle: &FileHandle,
    op: Op,
    buffers: impl Iterator<Item = &'b Buffer>,
    offset: u64,
) -> Option<Joint> {
    let Mapping { length: room, state } = handle.map.map(offset);
    let address = address_of(state, op)?;
    let room = room.min(handle.device.geometry().max_transfer.into());
    let (mut count, mut length) = (0, 0);
    for buffer in buffers.take(MAX_SEGMENTS) {
        let end = length + buffer.len() as u64;
        if end > room {
            break;
        }
        (count, length) = (count + 1, end);
    }
    (length > 0 && may_issue(handle, op, address, length)).then_some(Joint { address, count })
}

/// The place of bytes on the device. `None` if an operation does not go there: a read of bytes that were never written.
fn address_of(state: MappingState, op: Op) -> Option<u64> {
    match state {
        MappingState::Written(address) => Some(address),
        MappingState::Unwritten(address) if op == Op::Write => Some(address),
        MappingState::Hole | MappingState::Unwritten(_) => None,
    }
}

/// Splits a buffer at extents and at the device's limit, keeps several requests in flight, and joins the buffer
/// again. `map_at` gives the mapping of an offset.
///
/// # Errors
/// The device's error; EIO where it moved fewer bytes than the map names.
pub(crate) async fn transfer_buffer(
    operation: &Operation,
    handle: &FileHandle,
    op: Op,
    durability: Durability,
    mut rest: Buffer,
    offset: u64,
    map_at: impl Fn(u64) -> Mapping,
) -> (Buffer, Result<(), Errno>) {
    let max = handle.device.geometry().max_transfer as u64;
    let mut whole: Option<Buffer> = None;
    let mut in_flight: VecDeque<RequestFuture<'_>> = VecDeque::new();
    let mut at = offset;
    let mut end = Ok(());
    loop {
        while end.is_ok() && !rest.is_empty() && in_flight.len() < MAX_IN_FLIGHT {
            let mapping = map_at(at);
            let length = mapping.length.min(rest.len() as u64).min(max);
            let tail = rest.split_off(length as usize);
            let mut piece = std::mem::replace(&mut rest, tail);
            at += length;
            let address = address_of(mapping.state, op)
                .filter(|address| may_issue(handle, op, *address, length));
            if let Some(address) = address {
                let payload = Payload::Buffer(piece);
                let spec = RequestSpec { op, durability, address };
                in_flight.push_back(issue(operation, handle, spec, payload));
            } else if op == Op::Read && in_flight.is_empty() {
                piece.fill_zeros(0..piece.len());
                join(&mut whole, piece);
            } else {
                if op == Op::Read {
                    // Zeros are filled in when the requests before have been joined.
                    at -= length;
                } else {
                    // It was not allocated, or has been truncated since, or is no longer on the device.
                    end = Err(Errno::IO);
                }
                let joined = piece.join(rest);
                assert!(joined.is_ok(), "both are parts of one buffer");
                rest = piece;
                break;
            }
        }
        let Some(request) = in_flight.pop_front() else { break };
        let request = fail_if_short(request.await);
        end = end.and(request.result().map(drop));
        let Payload::Buffer(piece) = request.payload else { unreachable!("a piece is one buffer") };
        join(&mut whole, piece);
    }
    join(&mut whole, rest);
    let whole = whole.expect("the rest was joined just now");
    (whole, end)
}

fn join(whole: &mut Option<Buffer>, piece: Buffer) {
    match whole {
        None => *whole = Some(piece),
        Some(whole) => {
            let joined = whole.join(piece);
            assert!(joined.is_ok(), "pieces of one buffer come back in order");
        }
    }
}
