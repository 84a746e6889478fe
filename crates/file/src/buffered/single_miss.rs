//! The usual miss: a read inside one folio that is absent, without readahead. It is one request into the folio and one
//! copy out of it. Every other miss is [`read`](crate::buffered::read)'s.
//!
//! The folio is locked before the operation begins, so that nothing is looked up twice, and the operation's future
//! holds only what this case needs.

use uringfs_cache::{FOLIO, Fill};
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation, ReactorCore, RequestSpec};

use crate::buffered::read::copy;
use crate::io::bounce::single_buffer;
use crate::state::file::{File, FileHandle};

/// A folio that this read fills.
pub(crate) struct SingleMiss {
    fill: Fill,
    /// The folio's address on the device.
    address: u64,
}

impl SingleMiss {
    /// Locks the folio for a read of `length` bytes at `offset`, if that is all the read takes. The caller's operation is
    /// in the epoch.
    #[inline]
    pub(crate) fn begin(
        reactor: &ReactorCore,
        handle: &FileHandle,
        offset: u64,
        length: u64,
    ) -> Option<SingleMiss> {
        let buffered_handle = handle.cache_for_reads()?;
        let cache = handle.file_cache(buffered_handle);
        let (index, map) = (offset / FOLIO, &handle.map);
        let is_current = || cache.is_current(map.generation());
        let address = || map.written_address(index * FOLIO, FOLIO);
        // The folio of a hole or of the file's end is not locked in vain.
        let is_simple = length.wrapping_sub(1) < FOLIO - offset % FOLIO
            && cache.has_range_locks()
            && is_current()
            && !buffered_handle.is_dropbehind()
            && address().is_some()
            && buffered_handle.readahead.lock().is_random_miss(index, 1);
        if !is_simple {
            return None;
        }
        let fill = cache.file_folios().begin_fill_one(index, reactor.number()).ok()??;
        // The bytes are those of the address that is found now. A later change of the map finds the locked folio, and
        // invalidates it.
        let Some(address) = address().filter(|_| is_current()) else {
            fill.discard();
            return None;
        };
        buffered_handle.readahead.lock().note_random_miss(index, 1);
        reactor.count(Counter::CacheFilled);
        map.touch_atime();
        Some(SingleMiss { fill, address })
    }

    /// Reads the folio, and copies the bytes at `offset` into `payload`.
    pub(crate) async fn read(
        self,
        operation: Operation,
        file: File,
        mut payload: Payload,
        offset: u64,
    ) {
        let SingleMiss { mut fill, address } = self;
        let handle = &*file.handle;
        let buffered_handle = handle.cache().expect("a buffered read has a cache");
        let cache = handle.file_cache(buffered_handle);
        let size = cache.settled_size(|| handle.size());
        let timing = cache.begin_timing(|| operation.now());
        let spec = RequestSpec { op: Op::Read, durability: Durability::Volatile, address };
        let request = operation.request(&handle.device_inner, spec, Payload::Buffer(fill.lend()));
        // Not cancellable: other readers wait for this fill.
        let ended = operation.uncancellable(request).await;
        let filled = match ended.is_short() {
            true => Err(Errno::IO),
            false => ended.result().map(drop),
        };
        let mut buffer = single_buffer(ended.payload);
        // The file may have been truncated during the read: then the truncation invalidates the folio.
        let there = handle.map.size().saturating_sub(fill.range().start);
        if there < FOLIO {
            buffer[there as usize..].fill(0);
        }
        fill.take_back(buffer);
        cache.end_timing(timing, || operation.now());
        let mut result = operation.check_cancelled().and(filled).map(|()| 0);
        if result.is_ok() {
            if buffered_handle.counts_as_use(offset, 0) {
                fill.touch(1);
            }
            result = Ok(copy(handle, &mut payload, 0, offset, fill.bytes(), size));
        }
        fill.end(filled);
        buffered_handle.note_end(offset + result.unwrap_or(0));
        operation.end_releasing(file, payload, result);
    }
}
