//! Operations that are queued on a reactor, each with a number by which the caller knows its completion.

use std::ffi::c_void;

use uringfs::{Buffer, SubmitError, Token, Tokens};

use crate::error::Failure;
use crate::file::{FileHandle, WriteKind, append, flush};
use crate::handle::{call, check};
use crate::pointers;
use crate::pool::PoolHandle;
use crate::reactor::{ReactorHandle, refused, token};

/// Queues a read at `offset` into memory of the caller. The completion has the number of bytes, fewer than `length` at
/// the end of the file only.
///
/// Each function that queues an operation returns 0, or a negative errno, with nothing queued: -EAGAIN when as much is
/// in flight as the reactor's depth allows, or when the kernel takes no more before something is reaped; -EINVAL for a
/// `user_data` of 2^63 or more, and for over 1 GiB; -EPERM in another thread; -ENODEV when the device is gone. All
/// other errors are results of completions.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_read(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        let buffer = handle.foreign(pointers::address(buffer.cast(), length)?, length)?;
        queued(handle, handle.reactor().read_at(file.file(), buffer, offset, token))
    })
}

/// Queues a read into a buffer of a pool, or its first bytes, as uringfs_queue_read.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_read_pooled(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    pool: Option<&PoolHandle>,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        let buffer = check(pool)?.take(buffer, length)?;
        queued(handle, handle.reactor().read_at(file.file(), buffer, offset, token))
    })
}

/// Queues a write at `offset` from memory of the caller, which must not change before the completion. `flags` are
/// URINGFS_WRITE_ flags. The completion has the number of bytes. Returns as uringfs_queue_read.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_write(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    flags: u32,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        let kind = WriteKind::from_flags(flags)?;
        let buffer = handle.constant(pointers::address(buffer.cast(), length)?, length)?;
        write(handle, file, kind, buffer, offset, token)
    })
}

/// Queues a write from a buffer of a pool, or its first bytes, as uringfs_queue_write.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_write_pooled(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    pool: Option<&PoolHandle>,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    flags: u32,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        let kind = WriteKind::from_flags(flags)?;
        let buffer = check(pool)?.take(buffer, length)?;
        write(handle, file, kind, buffer, offset, token)
    })
}

/// Queues an append from memory of the caller to a file of a volume. `flags` are 0 or URINGFS_WRITE_DURABLE. The
/// completion has the offset at which the bytes are. Returns as uringfs_queue_read.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_append(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    buffer: *const c_void,
    length: usize,
    flags: u32,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        let buffer = handle.constant(pointers::address(buffer.cast(), length)?, length)?;
        queued(handle, handle.reactor().start(append(file.file(), buffer, flags)?, token))
    })
}

/// Queues a flush: all writes of the file that have completed before become durable. `flags` are 0 or
/// URINGFS_FLUSH_DATA. Returns as uringfs_queue_read.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_flush(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    flags: u32,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        queued(handle, handle.reactor().start(flush(file.file(), flags)?, token))
    })
}

/// Queues a discard of a range, as uringfs_file_discard. Returns as uringfs_queue_read.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_discard(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    offset: u64,
    length: u64,
    user_data: u64,
) -> i32 {
    call(reactor, |handle| {
        let (file, token) = (check(file)?, token(user_data)?);
        queued(handle, handle.reactor().start(file.file().discard(offset, length), token))
    })
}

/// Starts a write. Those that need not be durable are on the fast path.
#[inline(always)]
fn write(
    handle: &ReactorHandle,
    file: &FileHandle,
    kind: WriteKind,
    buffer: Buffer,
    offset: u64,
    token: Token,
) -> Result<i32, Failure> {
    let (reactor, file) = (handle.reactor(), file.file());
    match kind {
        WriteKind::Volatile => queued(handle, reactor.write_at(file, buffer, offset, token)),
        kind => queued(handle, reactor.start(kind.write(file, buffer, offset), token)),
    }
}

/// The result of an operation that is begun. The memory of one that is refused is the caller's again.
#[inline(always)]
fn queued(handle: &ReactorHandle, begun: Result<(), SubmitError>) -> Result<i32, Failure> {
    match begun {
        Ok(()) => Ok(0),
        Err(refusal) => Err(not_queued(handle, refusal)),
    }
}

#[cold]
#[inline(never)]
pub(crate) fn not_queued(handle: &ReactorHandle, refusal: SubmitError) -> Failure {
    let SubmitError { error, payload, .. } = refusal;
    handle.give_back(payload);
    refused(error)
}
