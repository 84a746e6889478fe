//! The one place where data requests of the general way are issued: a range of
//! a file whose offset, length and memory are aligned, piece by piece.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, MAX_PIECES, Op, Payload, Request, Tag};
use uringfs_reactor::{Operation, Order, RequestFuture};

use crate::map::mapping::{Mapping, Place};
use crate::state::file::Shared;

/// Requests of one operation under way at once.
const WINDOW: usize = 32;

/// Moves `payload` between memory and the file from `offset` on, all inside
/// the size, and answers one request for all of it, ended: all bytes are moved, or
/// it has failed. What is one request is issued before it is awaited.
#[inline(always)]
pub(crate) fn transfer<'a>(
    operation: &'a Operation,
    shared: &'a Shared,
    op: Op,
    durability: Durability,
    payload: Payload,
    offset: u64,
) -> Transfer<'a> {
    let length = payload.length();
    let max = shared.device.geometry().max_transfer as u64;
    match shared.map.written(offset, length) {
        Some(address) if length <= max && pieces(&payload) <= MAX_PIECES => {
            let order = Order { op, durability, address };
            Transfer::Whole(request(operation, shared, order, payload))
        }
        _ => {
            let parts = transfer_parts(operation, shared, op, durability, payload, offset);
            Transfer::Parts(Box::pin(parts))
        }
    }
}

/// One request; a write takes the file's lock while it is submitted where all do.
#[inline(always)]
fn request<'a>(
    operation: &'a Operation,
    shared: &Shared,
    order: Order,
    payload: Payload,
) -> RequestFuture<'a> {
    match &shared.submission {
        Some(lock) if order.op == Op::Write => {
            operation.request_guarded(&shared.core, lock, order, payload)
        }
        _ => operation.request(&shared.core, order, payload),
    }
}

/// A transfer under way.
pub(crate) enum Transfer<'a> {
    /// One request.
    Whole(RequestFuture<'a>),
    /// Several. Boxed, to keep the common case small.
    Parts(Pin<Box<dyn Future<Output = Request> + 'a>>),
}

impl Future for Transfer<'_> {
    type Output = Request;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Transfer::Whole(request) => Pin::new(request).poll(context).map(whole_or_failed),
            Transfer::Parts(parts) => parts.as_mut().poll(context),
        }
    }
}

/// What the map says lies on the device is there: a request that has moved less has failed.
#[inline(always)]
fn whole_or_failed(mut request: Request) -> Request {
    if request.is_short() {
        request.end(Err(Errno::IO));
    }
    request
}

/// What is more than one request.
async fn transfer_parts(
    operation: &Operation,
    shared: &Shared,
    op: Op,
    durability: Durability,
    payload: Payload,
    offset: u64,
) -> Request {
    let length = payload.length();
    let (payload, result) = match payload {
        Payload::Buffer(buffer) => {
            let place_of = |at| shared.map.map(at);
            let (buffer, result) =
                transfer_buffer(operation, shared, op, durability, buffer, offset, place_of).await;
            (Payload::Buffer(buffer), result)
        }
        Payload::Buffers(buffers) => {
            transfer_each(operation, shared, op, durability, buffers.into_vec(), offset).await
        }
        Payload::Length(_) => unreachable!("a transfer has memory"),
    };
    let mut whole = Request::new(shared.index, op, 0, payload, Tag(0));
    whole.end(result.map(|()| length));
    whole
}

fn pieces(payload: &Payload) -> usize {
    match payload {
        Payload::Buffers(buffers) => buffers.len(),
        Payload::Buffer(_) | Payload::Length(_) => 1,
    }
}

/// One buffer after the other, until one fails.
async fn transfer_each(
    operation: &Operation,
    shared: &Shared,
    op: Op,
    durability: Durability,
    buffers: Vec<Buffer>,
    mut offset: u64,
) -> (Payload, Result<(), Errno>) {
    let mut done = Vec::with_capacity(buffers.len());
    let mut end = Ok(());
    let mut buffers = buffers.into_iter();
    for buffer in buffers.by_ref() {
        let length = buffer.len() as u64;
        let place_of = |at| shared.map.map(at);
        let (buffer, result) =
            transfer_buffer(operation, shared, op, durability, buffer, offset, place_of).await;
        done.push(buffer);
        offset += length;
        end = result;
        if end.is_err() {
            break;
        }
    }
    done.extend(buffers);
    (Payload::Buffers(done.into_boxed_slice()), end)
}

/// Splits a buffer where extents and the device's limit say, keeps a window of
/// requests under way, and joins it again. `place_of` says where an offset's bytes lie.
///
/// # Errors
/// What the device says, and EIO where it has moved less than lies there.
pub(crate) async fn transfer_buffer(
    operation: &Operation,
    shared: &Shared,
    op: Op,
    durability: Durability,
    mut rest: Buffer,
    offset: u64,
    place_of: impl Fn(u64) -> Mapping,
) -> (Buffer, Result<(), Errno>) {
    let max = shared.device.geometry().max_transfer as u64;
    let mut whole: Option<Buffer> = None;
    let mut under_way: VecDeque<RequestFuture<'_>> = VecDeque::new();
    let mut at = offset;
    let mut end = Ok(());
    loop {
        while end.is_ok() && !rest.is_empty() && under_way.len() < WINDOW {
            let mapping = place_of(at);
            let length = mapping.length.min(rest.len() as u64).min(max);
            let tail = rest.split_off(length as usize);
            let mut piece = std::mem::replace(&mut rest, tail);
            at += length;
            let address = match mapping.place {
                Place::Written(address) => Some(address),
                Place::Unwritten(address) if op == Op::Write => Some(address),
                Place::Hole | Place::Unwritten(_) => None,
            };
            if let Some(address) = address {
                let payload = Payload::Buffer(piece);
                let order = Order { op, durability, address };
                under_way.push_back(request(operation, shared, order, payload));
            } else if op == Op::Read && under_way.is_empty() {
                piece.fill(0);
                join(&mut whole, piece);
            } else {
                if op == Op::Read {
                    // Zeros are filled in when it is their turn.
                    at -= length;
                } else {
                    // It was not prepared, or has been cut off since.
                    end = Err(Errno::IO);
                }
                let joined = piece.join(rest);
                assert!(joined.is_ok(), "they were one buffer");
                rest = piece;
                break;
            }
        }
        let Some(request) = under_way.pop_front() else { break };
        let request = whole_or_failed(request.await);
        end = end.and(request.result().map(drop));
        let Payload::Buffer(piece) = request.payload else { unreachable!("a piece is one buffer") };
        join(&mut whole, piece);
    }
    join(&mut whole, rest);
    let whole = whole.expect("the rest has been joined");
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
