//! Durability: dirty folios are written back first, then a commit or a flush makes what completed durable.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation, Order};

use crate::map::mapping::{Commit, Durable, WriteKind};
use crate::state::file::{File, FileHandle};
use crate::writeback::runs::write_back;

/// Makes every write of a range that has completed durable.
pub(crate) async fn sync(mut operation: Operation, file: File, what: Durable, range: Range<u64>) {
    let handle = &*file.handle;
    let mut written_back = Ok(());
    if handle.state.dirty().is_any() {
        written_back = Box::pin(write_back(&mut operation, handle, range)).await;
    }
    // Each opening hears of it once, though it may have been written_back since.
    if handle.take_failure() {
        written_back = written_back.and(Err(Errno::IO));
    }
    let flushed = make_durable(&mut operation, handle, handle.map.commit(what)).await;
    operation.end(Payload::Length(0), written_back.and(flushed).map(|()| 0));
}

/// How the requests of a write are issued that is to be durable: what the map hears of has to be committed,
/// and a commit flushes.
pub(crate) fn write_durability(
    handle: &FileHandle,
    durability: Durability,
    kind: WriteKind,
) -> Durability {
    match (durability, kind) {
        (Durability::Durable, WriteKind::InPlace) if handle.device.geometry().fua => durability,
        _ => Durability::Volatile,
    }
}

/// Makes a write durable that is to be and has completed.
pub(crate) async fn ensure_durable(
    operation: &mut Operation,
    handle: &FileHandle,
    durability: Durability,
    kind: WriteKind,
) -> Result<(), Errno> {
    if durability == Durability::Volatile {
        return Ok(());
    }
    let issued = write_durability(handle, durability, kind);
    // What lies in place now may have been put there by a write that is not committed.
    match handle.map.commit(Durable::Data) {
        None if issued == Durability::Durable => Ok(()),
        // Another's commit has begun since the map heard of it.
        None if kind == WriteKind::Allocated => Ok(()),
        commit => {
            operation.count(Counter::DeferredFlush);
            make_durable(operation, handle, commit).await
        }
    }
}

/// By a commit where the map has something to commit, else by a flush.
async fn make_durable(
    operation: &mut Operation,
    handle: &FileHandle,
    commit: Option<Commit>,
) -> Result<(), Errno> {
    match commit {
        Some(commit) => operation.wait_uncounted(commit).await?,
        None => match request_flush(operation, handle).await {
            // Another that was under way beside it has lost what both were to save.
            Ok(_) if handle.map.has_flush_failed() => Err(Errno::IO),
            Ok(_) => Ok(()),
            Err(error) => {
                if !operation.is_stopped_with(error) {
                    handle.map.flush_failed();
                }
                Err(error)
            }
        },
    }
}

async fn request_flush(operation: &Operation, handle: &FileHandle) -> Result<u64, Errno> {
    let order = Order { op: Op::Flush, durability: Durability::Volatile, address: 0 };
    operation.request(&handle.core, order, Payload::Length(0)).await.result()
}
