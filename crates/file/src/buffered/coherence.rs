//! The start of buffered I/O: direct writers know of the cache, and its folios are of the file as it is.

use rustix::io::Errno;
use uringfs_reactor::Operation;

use crate::state::file::Shared;
use crate::state::file_cache::Cached;

/// Before folios are looked for: writers know of them, and they are of the file as it is.
pub(crate) async fn enter(
    cached: &Cached,
    operation: &mut Operation,
    shared: &Shared,
) -> Result<(), Errno> {
    if !cached.is_mixed() {
        if let Some(epoch) = shared.lock.mix(shared.index) {
            operation.wait_for_quiescence(epoch).await?;
        }
        shared.lock.settle();
        cached.set_mixed();
    }
    let generation = shared.map.generation();
    if !cached.is_current(generation) {
        shared.lock.unsaved().forget(cached.pages(), generation);
        cached.advance(generation);
    }
    Ok(())
}
