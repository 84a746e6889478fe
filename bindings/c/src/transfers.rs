//! Reads and writes that are queued by one call, from an array.

use std::ffi::c_void;

use uringfs::{Buffer, SubmitError, Token, Tokens};

use crate::error::Failure;
use crate::file::{FileHandle, WriteKind};
use crate::handle::{call, check};
use crate::pointers::{self, load_at};
use crate::pool::PoolHandle;
use crate::queue::not_queued;
use crate::reactor::{ReactorHandle, token};

/// One of the reads or writes that uringfs_queue_reads or uringfs_queue_writes queues.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CTransfer {
    /// Memory of the caller, or, if the call has a pool, one of its buffers.
    pub buffer: *mut c_void,
    /// Bytes, at most 1 GiB.
    pub length: usize,
    /// The offset in the file.
    pub offset: u64,
    /// The number that its completion has, below 2^63.
    pub user_data: u64,
}

/// Queues `count` reads of a file at once, with less work for each than one call a read: as uringfs_queue_read, or, if
/// `pool` is not NULL, as uringfs_queue_read_pooled.
///
/// Returns how many of them, from the first on, are queued. They are fewer than `count` when the next one was refused,
/// and uringfs_error_text says why. If that is the first, the result is its negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_reads(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    pool: Option<&PoolHandle>,
    transfers: *const CTransfer,
    count: u32,
) -> i32 {
    call(reactor, |handle| {
        let (file, reactor) = (check(file)?.file(), handle.reactor());
        match pool {
            None => queue(
                handle,
                transfers,
                count,
                |one| foreign(handle, one),
                |reads| reactor.read_each(file, reads),
            ),
            Some(_) => {
                let pool = check(pool)?;
                queue(
                    handle,
                    transfers,
                    count,
                    |one| pooled(pool, one),
                    |reads| reactor.read_each(file, reads),
                )
            }
        }
    })
}

/// Queues `count` writes to a file at once: as uringfs_queue_write, or, if `pool` is not NULL, as
/// uringfs_queue_write_pooled. `flags` are URINGFS_WRITE_ flags for all of them. Returns as uringfs_queue_reads.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_queue_writes(
    reactor: Option<&ReactorHandle>,
    file: Option<&FileHandle>,
    pool: Option<&PoolHandle>,
    transfers: *const CTransfer,
    count: u32,
    flags: u32,
) -> i32 {
    call(reactor, |handle| {
        let (file, kind) = (check(file)?, WriteKind::from_flags(flags)?);
        match pool {
            None => queue(
                handle,
                transfers,
                count,
                |one| constant(handle, one),
                |writes| write_each(handle, file, kind, writes),
            ),
            Some(_) => {
                let pool = check(pool)?;
                queue(
                    handle,
                    transfers,
                    count,
                    |one| pooled(pool, one),
                    |writes| write_each(handle, file, kind, writes),
                )
            }
        }
    })
}

/// Queues the transfers of an array, whose memory is `memory`, by `start`. Returns how many are queued.
#[inline(always)]
fn queue<M: Fn(CTransfer) -> Result<Buffer, Failure>>(
    handle: &ReactorHandle,
    transfers: *const CTransfer,
    count: u32,
    memory: M,
    start: impl FnOnce(&mut Prepared<M>) -> (usize, Option<SubmitError>),
) -> Result<i32, Failure> {
    let mut prepared = Prepared::new(transfers, count, memory)?;
    let queued = start(&mut prepared);
    prepared.result(handle, queued)
}

/// Starts writes, up to the first that is refused. Those that need not be durable are on the fast path.
#[inline(always)]
fn write_each(
    handle: &ReactorHandle,
    file: &FileHandle,
    kind: WriteKind,
    writes: &mut impl Iterator<Item = (Buffer, u64, Token)>,
) -> (usize, Option<SubmitError>) {
    let (reactor, file) = (handle.reactor(), file.file());
    if let WriteKind::Volatile = kind {
        return reactor.write_each(file, writes);
    }
    let mut begun = 0;
    for (buffer, offset, token) in writes {
        match reactor.start(kind.write(file, buffer, offset), token) {
            Ok(()) => begun += 1,
            Err(refusal) => return (begun, Some(refusal)),
        }
    }
    (begun, None)
}

/// The memory of a transfer.
#[inline(always)]
fn foreign(handle: &ReactorHandle, transfer: CTransfer) -> Result<Buffer, Failure> {
    let CTransfer { buffer, length, .. } = transfer;
    handle.foreign(pointers::address(buffer.cast(), length)?, length)
}

/// The same if it is only read.
#[inline(always)]
fn constant(handle: &ReactorHandle, transfer: CTransfer) -> Result<Buffer, Failure> {
    let CTransfer { buffer, length, .. } = transfer;
    handle.constant(pointers::address(buffer.cast(), length)?, length)
}

/// The same if it is a pool's.
#[inline(always)]
fn pooled(pool: &PoolHandle, transfer: CTransfer) -> Result<Buffer, Failure> {
    pool.take(transfer.buffer, transfer.length)
}

/// The transfers of an array with their memory, up to the first that breaks a rule.
struct Prepared<M> {
    transfers: *const CTransfer,
    next: u32,
    count: u32,
    memory: M,
    /// That of the transfer which breaks a rule.
    failure: Option<Failure>,
}

impl<M: Fn(CTransfer) -> Result<Buffer, Failure>> Prepared<M> {
    #[inline(always)]
    fn new(transfers: *const CTransfer, count: u32, memory: M) -> Result<Prepared<M>, Failure> {
        if transfers.is_null() && count > 0 {
            return Err(Failure::argument(c"the array of transfers is NULL"));
        }
        let count = count.min(i32::MAX as u32);
        Ok(Prepared { transfers, next: 0, count, memory, failure: None })
    }

    /// The result of the call that has queued so many of them, and was refused the next one.
    #[inline(always)]
    fn result(
        self,
        handle: &ReactorHandle,
        (queued, refusal): (usize, Option<SubmitError>),
    ) -> Result<i32, Failure> {
        let refused = refusal.map(|refusal| not_queued(handle, refusal));
        match refused.or(self.failure) {
            Some(failure) if queued == 0 => Err(failure),
            _ => Ok(queued as i32),
        }
    }

    #[inline(always)]
    fn prepare(&self, transfer: CTransfer) -> Result<(Buffer, u64, Token), Failure> {
        let token = token(transfer.user_data)?;
        Ok(((self.memory)(transfer)?, transfer.offset, token))
    }
}

impl<M: Fn(CTransfer) -> Result<Buffer, Failure>> Iterator for Prepared<M> {
    type Item = (Buffer, u64, Token);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        match self.prepare(load_at(self.transfers, self.next as usize)) {
            Ok(prepared) => {
                self.next += 1;
                Some(prepared)
            }
            Err(failure) => {
                self.failure = Some(failure);
                self.count = self.next;
                None
            }
        }
    }
}
