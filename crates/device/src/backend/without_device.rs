//! The steps of requests that a back end in this process answers without its server or cluster.

use uringfs_errno::Errno;

use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// The result of the next step of a request to a device of `size` bytes, if nothing has to be moved for it: because it
/// breaks a rule, was cancelled, or is done already.
pub(super) fn without_device(
    request: &Request,
    geometry: &Geometry,
    size: u64,
) -> Option<Result<u32, Errno>> {
    let block_size = u64::from(geometry.block_size);
    let length = request.remaining();
    if request.is_cancelled() {
        return Some(Err(Errno::CANCELED));
    }
    if request.op == Op::Flush {
        return (!geometry.volatile_cache).then_some(Ok(0));
    }
    let Some(address) = request.address.checked_add(request.done()) else {
        return Some(Err(Errno::INVAL));
    };
    if !address.is_multiple_of(block_size) || !length.is_multiple_of(block_size) {
        return Some(Err(Errno::INVAL));
    }
    let room = size.saturating_sub(address);
    match request.op {
        Op::Read if request.payload.is_read_only() => Some(Err(Errno::FAULT)),
        Op::Read => (length.min(room) == 0).then_some(Ok(0)),
        _ if geometry.read_only => Some(Err(Errno::BADF)),
        _ if length > room => Some(Err(Errno::NOSPC)),
        Op::Discard if geometry.discard.is_none() => Some(Err(Errno::OPNOTSUPP)),
        _ => (length == 0).then_some(Ok(0)),
    }
}
