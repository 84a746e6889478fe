//! Durability: dirty folios are written back first, then a commit or a flush makes completed writes durable.

use std::ops::Range;

use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation, RequestSpec};

use crate::map::mapping::{CommitFuture, SyncScope, WriteKind};
use crate::state::file::{File, FileHandle};
use crate::writeback::runs::write_back;

/// Makes all completed writes of a range durable.
pub(crate) async fn sync(
    mut operation: Operation,
    file: File,
    scope: SyncScope,
    range: Range<u64>,
) {
    let handle = &*file.handle;
    let mut written_back = Ok(());
    if handle.state.dirty().is_any() {
        written_back = Box::pin(write_back(&mut operation, handle, range)).await;
    }
    let flushed = make_durable(&mut operation, handle, handle.map.commit(scope)).await;
    let mut result = written_back.and(flushed);
    // Each handle reports a failure once, even if a later write-back succeeded. A sync that was cancelled, or ended by its
    // deadline, leaves it to the next.
    let is_cancelled = result.is_err_and(|error| operation.is_cancellation(error));
    if !is_cancelled && handle.take_failure() {
        result = written_back.and(Err(Errno::IO));
    }
    operation.end_releasing(file, Payload::Length(0), result.map(|()| 0));
}

/// Makes a completed write durable, if `durability` requires it. Its requests were `issued` with this durability.
pub(crate) async fn ensure_durable(
    operation: &mut Operation,
    handle: &FileHandle,
    durability: Durability,
    issued: Durability,
    kind: WriteKind,
) -> Result<(), Errno> {
    if durability == Durability::Volatile {
        return Ok(());
    }
    // Even an overwrite in place may lie in an extent that an earlier write allocated and that is not
    // committed.
    match handle.map.commit(SyncScope::Data) {
        None if issued == Durability::Durable => Ok(()),
        // A commit of another operation has taken the change meanwhile.
        None if kind == WriteKind::Allocated => Ok(()),
        commit => {
            operation.count(Counter::DeferredFlush);
            make_durable(operation, handle, commit).await
        }
    }
}

/// Commits if the map has something to commit, else flushes.
async fn make_durable(
    operation: &mut Operation,
    handle: &FileHandle,
    commit: Option<CommitFuture>,
) -> Result<(), Errno> {
    match commit {
        Some(commit) => operation.wait_outside_epoch(commit).await?,
        None => match request_flush(operation, handle).await {
            // A concurrent flush has failed, and may have lost the writes that this one was to make durable.
            Ok(_) if handle.map.has_flush_failed() => Err(Errno::IO),
            Ok(_) => Ok(()),
            Err(error) => {
                if !operation.is_cancellation(error) {
                    handle.map.note_flush_failure();
                }
                Err(error)
            }
        },
    }
}

async fn request_flush(operation: &Operation, handle: &FileHandle) -> Result<u64, Errno> {
    handle.device_inner.count_flush();
    let spec = RequestSpec { op: Op::Flush, durability: Durability::Volatile, address: 0 };
    operation.request(&handle.device_inner, spec, Payload::Length(0)).await.result()
}
