//! The system calls of a namespace's character device, which send a command and wait for its end.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use uringfs_buffer::Buffer;
use uringfs_errno::Errno;
use uringfs_ring::Tries;
use uringfs_ring::nvme::{self, Namespace, NvmeCommand, NvmeStatus, WriteMode};

use super::identify::LENGTH;
use crate::request::{Durability, Op, Request};

/// `NVME_IOCTL_ID`: the id of the namespace.
const ID: Opcode = opcode::none(b'N', 0x40);
/// `NVME_IOCTL_ADMIN64_CMD`: a command to the controller.
const ADMIN: Opcode = opcode::read_write::<[u64; 10]>(b'N', 0x47);
/// `NVME_IOCTL_IO64_CMD`: a command to the namespace.
const IO: Opcode = opcode::read_write::<[u64; 10]>(b'N', 0x48);
/// `NVME_IOCTL_IO64_CMD_VEC`: the same, whose memory is a list of vectors.
const IO_VECTORED: Opcode = opcode::read_write::<[u64; 10]>(b'N', 0x49);

/// The bytes of a list of ranges. Some controllers read all of it, whatever number of ranges the command has.
const RANGES: usize = 4096;

/// A call that reads and writes a `struct nvme_passthru_cmd64`, or nothing, and returns a number.
struct Call {
    opcode: Opcode,
    command: Option<[u64; 10]>,
}

// SAFETY: each opcode above reads and writes the 80 bytes of its command and keeps no pointer to them; ID has no
// argument.
unsafe impl Ioctl for Call {
    type Output = u32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.command.as_mut().map_or(std::ptr::null_mut(), |command| command.as_mut_ptr().cast())
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(output as u32)
    }
}

/// The id of the namespace.
///
/// # Errors
/// Those of the system.
pub(super) fn namespace_id(device: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: the call has no argument. It returns ENOTTY for a descriptor of another driver.
    Ok(unsafe { ioctl(device, Call { opcode: ID, command: None }) }?)
}

/// The structure `selector` (CNS) of the controller, or of `namespace`.
///
/// # Errors
/// Those of the system, or of the controller.
pub(super) fn identify(
    device: BorrowedFd<'_>,
    selector: u8,
    namespace: u32,
) -> Result<[u8; LENGTH], Errno> {
    let memory = Buffer::zeroed(LENGTH);
    let command = NvmeCommand::identify(selector, namespace)
        .with_memory(memory.pointer().as_ptr() as u64, LENGTH as u32);
    // SAFETY: the command writes 4096 bytes, which are the buffer's.
    unsafe { send(device, ADMIN, command, Tries::ALL) }?;
    Ok(memory[..].try_into().expect("the buffer has this length"))
}

/// Whether the kernel lets this user send commands with this opcode: what it returns before it would send one.
///
/// # Errors
/// EACCES if it does not; EFAULT if it does.
pub(super) fn ask_permission(
    device: BorrowedFd<'_>,
    namespace: &Namespace,
    opcode: nvme::Opcode,
) -> Result<(), Errno> {
    // SAFETY: no process has memory at the command's address, so nothing is read or written.
    unsafe { send(device, IO, namespace.permission_probe(opcode), Tries::ALL) }
}

/// All completed writes become durable.
///
/// # Errors
/// Those of the system, or of the device.
pub(super) fn flush(
    device: BorrowedFd<'_>,
    namespace: &Namespace,
    tries: Tries,
) -> Result<(), Errno> {
    // SAFETY: the command has no memory.
    unsafe { send(device, IO, namespace.flush(), tries) }
}

/// Zeroes a range that one command can zero.
///
/// # Errors
/// Those of the system, or of the device.
pub(super) fn write_zeroes(
    device: BorrowedFd<'_>,
    namespace: &Namespace,
    mode: WriteMode,
    (address, length): (u64, u64),
    tries: Tries,
) -> Result<(), Errno> {
    // SAFETY: the command has no memory.
    unsafe { send(device, IO, namespace.write_zeroes(mode, address, length), tries) }
}

/// Deallocates a range of less than 2^32 blocks.
///
/// # Errors
/// Those of the system, or of the device; EINVAL for a longer range, or one that is not whole blocks.
pub(super) fn deallocate(
    device: BorrowedFd<'_>,
    namespace: &Namespace,
    (address, length): (u64, u64),
    tries: Tries,
) -> Result<(), Errno> {
    let range = namespace.range_entry(address, length).ok_or(Errno::INVAL)?;
    let mut list = Buffer::zeroed(RANGES);
    list[..range.len()].copy_from_slice(&range);
    let command = namespace.deallocate(list.pointer().as_ptr() as u64, RANGES as u32);
    // SAFETY: the command reads the list, which lives until it has ended.
    unsafe { send(device, IO, command, tries) }
}

/// The next step of a read or write: the number of bytes moved.
///
/// # Errors
/// Those of the system, or of the device. As on the block device, a read behind the end returns 0 bytes, and a write ENOSPC.
pub(super) fn transfer(
    device: BorrowedFd<'_>,
    namespace: &Namespace,
    request: &mut Request,
    tries: Tries,
) -> Result<u32, Errno> {
    let address = request.address.checked_add(request.done()).ok_or(Errno::INVAL)?;
    let length = namespace.step_length(address, request.remaining());
    if length == 0 {
        return Ok(0);
    }
    let vectors = vectors_of(request, length as usize);
    let (opcode, memory, count) = match vectors[..] {
        [vector] => (IO, vector.iov_base as u64, length),
        _ => (IO_VECTORED, vectors.as_ptr() as u64, vectors.len() as u32),
    };
    let command = match (request.op, request.durability) {
        (Op::Read, _) => namespace.read(address, length, 0),
        (_, Durability::Volatile) => namespace.write(WriteMode::Cached, address, length, 0),
        (_, Durability::Durable) => namespace.write(WriteMode::ForceUnitAccess, address, length, 0),
    };
    // SAFETY: the vectors are those of the request's memory, `length` bytes in all, which it owns and which is borrowed
    // as mutable until the command has ended.
    let sent = unsafe { send_raw(device, opcode, command.with_memory(memory, count)) }?;
    match sent {
        None => Ok(length),
        Some(status) if status.is_behind_the_end() && address >= namespace.size => {
            if request.op == Op::Read { Ok(0) } else { Err(Errno::NOSPC) }
        }
        Some(status) => Err(status.step_errno(tries)),
    }
}

/// The first `length` bytes of memory of the next step.
fn vectors_of(request: &Request, mut length: usize) -> Vec<libc::iovec> {
    let mut vectors = Vec::new();
    for (pointer, bytes) in request.ranges() {
        let bytes = bytes.min(length);
        if bytes == 0 {
            break;
        }
        vectors.push(libc::iovec { iov_base: pointer.cast(), iov_len: bytes });
        length -= bytes;
    }
    vectors
}

/// Sends a command, and waits for its end.
///
/// # Safety
/// As for [`send_raw`].
unsafe fn send(
    device: BorrowedFd<'_>,
    opcode: Opcode,
    command: NvmeCommand,
    tries: Tries,
) -> Result<(), Errno> {
    // SAFETY: the caller's.
    match unsafe { send_raw(device, opcode, command) }? {
        None => Ok(()),
        Some(status) => Err(status.step_errno(tries)),
    }
}

/// The same. Returns the status of a command that the controller has failed.
///
/// # Safety
/// The memory that the command names is valid for what it does, until the call returns.
unsafe fn send_raw(
    device: BorrowedFd<'_>,
    opcode: Opcode,
    command: NvmeCommand,
) -> Result<Option<NvmeStatus>, Errno> {
    let call = Call { opcode, command: Some(command.to_ioctl_words()) };
    // SAFETY: the caller's. The call returns ENOTTY for a descriptor of another driver.
    match unsafe { ioctl(device, call) }.map_err(Errno::from) {
        Ok(0) => Ok(None),
        Ok(status) => Ok(Some(NvmeStatus::from_result(status))),
        Err(Errno::INTR) => Ok(Some(NvmeStatus::ABORTED_BY_HOST)),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_calls_have_the_numbers_of_the_header() {
        assert_eq!([ID, ADMIN, IO, IO_VECTORED], [0x4e40, 0xc050_4e47, 0xc050_4e48, 0xc050_4e49]);
    }

    #[test]
    fn another_device_knows_none_of_the_calls() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(namespace_id(file.as_fd()), Err(Errno::NOTTY));
        assert_eq!(identify(file.as_fd(), 1, 0).unwrap_err(), Errno::NOTTY);
    }
}
