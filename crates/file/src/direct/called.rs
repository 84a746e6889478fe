//! A transfer of the fast path that the thread which waits for it makes itself: one call of the kernel, without a reactor. It
//! costs neither a hand-over to another thread nor a wake-up.

use uringfs_buffer::Buffer;
use uringfs_device::{KernelTarget, Op, Payload, Request, Tag};
use uringfs_reactor::quiescence;

use crate::direct::fast_path;
use crate::state::file::FileHandle;

/// Moves the bytes of `buffer`, all of them, between the memory and the file. The buffer comes back in `Err` if a
/// reactor is to do it: not one call does it, or the call did not move all, which a reactor then does again, and
/// reports.
pub(crate) fn transfer(
    handle: &FileHandle,
    op: Op,
    buffer: Buffer,
    offset: u64,
) -> Result<Buffer, Buffer> {
    let device = &*handle.device_inner;
    let is_called = match device.backend().kernel_target() {
        KernelTarget::Descriptor(_) | KernelTarget::Nop => true,
        KernelTarget::Nvme(..) | KernelTarget::InProcess => false,
    };
    if !is_called || handle.map.check_process().is_err() {
        return Err(buffer);
    }
    let Some(call) = quiescence(handle.index).enter_call() else { return Err(buffer) };
    let address = match op {
        Op::Read => fast_path::read(handle, &buffer, offset, |_| ()),
        _ => fast_path::write(handle, &buffer, offset),
    };
    let Some(address) = address else { return Err(buffer) };
    let length = buffer.len();
    let mut request = Request::new(handle.index, op, address, Payload::Buffer(buffer), Tag(0));
    let moved = device.perform(&mut request);
    let Payload::Buffer(buffer) = request.payload else { unreachable!("it has one buffer") };
    if moved != Ok(length as u32) {
        return Err(buffer);
    }
    call.count();
    Ok(buffer)
}
