//! Durability: dirty folios are written back first, then a commit or a flush makes what completed durable.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation, Order};

use crate::map::mapping::{Commit, Durable, Preparation};
use crate::state::file::{File, Shared};
use crate::writeback::runs::save;

/// Makes every write of a range that has completed durable.
pub(crate) async fn flush(mut operation: Operation, file: File, what: Durable, range: Range<u64>) {
    let shared = &*file.shared;
    let mut saved = Ok(());
    if shared.lock.unsaved().is_any() {
        saved = Box::pin(save(&mut operation, shared, range)).await;
    }
    // Each opening hears of it once, though it may have been saved since.
    if shared.take_failure() {
        saved = saved.and(Err(Errno::IO));
    }
    let flushed = make_durable(&mut operation, shared, shared.map.commit(what)).await;
    operation.end(Payload::Length(0), saved.and(flushed).map(|()| 0));
}

/// How the requests of a write are issued that is to be durable: what the map hears of has to be committed,
/// and a commit flushes.
pub(crate) fn fua(shared: &Shared, durability: Durability, preparation: Preparation) -> Durability {
    match (durability, preparation) {
        (Durability::Durable, Preparation::InPlace) if shared.device.geometry().fua => durability,
        _ => Durability::Volatile,
    }
}

/// Makes a write durable that is to be and has completed.
pub(crate) async fn made_durable(
    operation: &mut Operation,
    shared: &Shared,
    durability: Durability,
    preparation: Preparation,
) -> Result<(), Errno> {
    if durability == Durability::Volatile {
        return Ok(());
    }
    let fua = fua(shared, durability, preparation);
    // What lies in place now may have been put there by a write that is not committed.
    match shared.map.commit(Durable::Data) {
        None if fua == Durability::Durable => Ok(()),
        // Another's commit has begun since the map heard of it.
        None if preparation == Preparation::Allocated => Ok(()),
        commit => {
            operation.count(Counter::DeferredFlush);
            make_durable(operation, shared, commit).await
        }
    }
}

/// By a commit where the map has something to commit, else by a flush.
async fn make_durable(
    operation: &mut Operation,
    shared: &Shared,
    commit: Option<Commit>,
) -> Result<(), Errno> {
    match commit {
        Some(commit) => operation.wait_uncounted(commit).await?,
        None => match request_flush(operation, shared).await {
            // Another that was under way beside it has lost what both were to save.
            Ok(_) if shared.map.has_flush_failed() => Err(Errno::IO),
            Ok(_) => Ok(()),
            Err(error) => {
                if !operation.is_stopped_with(error) {
                    shared.map.flush_failed();
                }
                Err(error)
            }
        },
    }
}

async fn request_flush(operation: &Operation, shared: &Shared) -> Result<u64, Errno> {
    let order = Order { op: Op::Flush, durability: Durability::Volatile, address: 0 };
    operation.request(&shared.core, order, Payload::Length(0)).await.result()
}
