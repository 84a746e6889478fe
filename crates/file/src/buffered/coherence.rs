//! Coherence between buffered and direct I/O, checked at the start of each buffered operation.
use uringfs_device::Errno;
use uringfs_reactor::Operation;

use crate::state::file::FileHandle;
use crate::state::file_cache::FileCache;

/// Makes sure that direct writers take range locks, so that they invalidate folios, and that the cached folios
/// are of the file's current truncate generation.
pub(crate) async fn begin_buffered(
    cache: &FileCache,
    operation: &mut Operation,
    handle: &FileHandle,
) -> Result<(), Errno> {
    if !cache.has_range_locks() {
        if let Some(epoch) = handle.state.enable_range_locks(handle.index) {
            operation.wait_for_quiescence(epoch).await?;
        }
        handle.state.quiesced();
        cache.set_range_locks();
    }
    let generation = handle.map.generation();
    if !cache.is_current(generation) {
        handle.state.dirty().discard_before(cache.file_folios(), generation);
        cache.advance(generation);
    }
    Ok(())
}
