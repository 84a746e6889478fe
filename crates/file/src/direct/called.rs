//! A transfer that the thread which waits for it makes itself: one call of the kernel, without a reactor. It costs
//! neither a hand-over to another thread nor a wake-up.

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, KernelTarget, Op, Payload, Request, Tag};
use uringfs_reactor::quiescence;

use crate::direct::fast_path;
use crate::direct::write::may_be_of_a_flush;
use crate::io::transfer::part_durability;
use crate::state::file::FileHandle;

/// Longest transfer by a call, in bytes. The fast path of a reactor has a lower limit: there the longer ones are split, so
/// that they hold up no others.
const MAX_BYTES: u32 = 1 << 20;

/// Moves the bytes of `buffer`, all of them, between the memory and the file. The buffer comes back in `Err` if a
/// reactor is to do it: it is more than one request, it has to wait for others or for a commit, or the call did not
/// move all. The reactor then begins anew, and reports what fails again.
pub(crate) fn transfer(
    handle: &FileHandle,
    (op, durability): (Op, Durability),
    buffer: Buffer,
    offset: u64,
) -> Result<Buffer, Buffer> {
    let device = &*handle.device_inner;
    let has_descriptor = match device.backend().kernel_target() {
        KernelTarget::Descriptor(_) | KernelTarget::Nop => true,
        KernelTarget::Nvme(..) | KernelTarget::InProcess => false,
    };
    let is_durable = durability == Durability::Durable;
    let is_possible = !is_durable || handle.device.geometry().durable_writes;
    if !has_descriptor || device.is_forked() || !is_possible {
        return Err(buffer);
    }
    let Some(call) = quiescence(handle.index).enter_call() else { return Err(buffer) };
    // 0 if the fast path is switched off.
    let limit = |fast: u32| if fast == 0 { 0 } else { fast.max(MAX_BYTES) };
    let write_limit = || limit(handle.fast_write_limit);
    let address = match (op, durability) {
        (Op::Read, _) => {
            let limit = limit(handle.fast_read_limit);
            fast_path::read(handle, limit, &buffer, offset, |_| ())
        }
        (_, Durability::Volatile) => fast_path::write(handle, write_limit(), &buffer, offset),
        (_, Durability::Durable) => {
            fast_path::write_durably(handle, write_limit(), &buffer, offset)
        }
    };
    let Some(address) = address else { return Err(buffer) };
    let length = buffer.len();
    let mut request = Request::new(handle.index, op, address, Payload::Buffer(buffer), Tag(0));
    request.durability = durability;
    let moved = device.perform(&mut request);
    let Payload::Buffer(buffer) = request.payload else { unreachable!("it has one buffer") };
    // Of a request that was a write and a flush.
    if let Err(error) = moved
        && is_durable
        && part_durability(handle, durability) != durability
        && may_be_of_a_flush(error)
    {
        handle.map.note_flush_failure();
    }
    // A flush of others that has failed meanwhile may have lost the bytes, before this one's flush had them.
    if moved != Ok(length as u32) || is_durable && handle.map.has_flush_failed() {
        return Err(buffer);
    }
    call.count();
    Ok(buffer)
}
