//! Gets: whole objects, ranges, and many ranges at once. They go through the page cache.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, Result};
use uringfs::{BufferPool, File, IoBufMut, OpenOptions};

use crate::attributes;
use crate::error::{generic, io_error, object_error};
use crate::etag::object_meta;
use crate::tree::{Object, Tree};

/// The most bytes of a chunk of a get's stream. A get of at most so many is one read and one allocation.
pub(crate) const READ_BYTES: u64 = 8 << 20;
/// The chunks of a get that are read ahead of the caller.
const CHUNKS_AHEAD: usize = 2;
/// Memory of large chunks, which new memory would make slower: the kernel or the allocator fills that with zeros first.
/// The buffers are the process's, and return when the caller drops the bytes; while all are in use, chunks get new
/// memory.
static POOL: LazyLock<Option<BufferPool>> =
    LazyLock::new(|| BufferPool::new(READ_BYTES as usize, POOL_BUFFERS).ok());
const POOL_BUFFERS: usize = 8;
/// The least length for which a chunk occupies a whole buffer.
const MIN_POOLED: usize = READ_BYTES as usize / 2;
/// Reads in flight of a call for many ranges.
const RANGES: usize = 64;

impl Tree {
    pub(crate) async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(Error::NotSupported {
                source: "a volume keeps no versions of objects; get the object without one".into(),
            });
        }
        let Object { inode, metadata } = self.object(location).await?;
        let meta = object_meta(location.clone(), &metadata);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).map_err(generic)?,
            None => 0..meta.size,
        };
        let attributes = attributes::read(location, &inode).await?;
        let stream = match options.head {
            true => stream::empty().boxed(),
            // An object that is replaced or deleted meanwhile stays as long as its file is open.
            false => chunks(
                open(location, &Object { inode, metadata }).await?,
                location.clone(),
                range.clone(),
            ),
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    pub(crate) async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let object = self.object(location).await?;
        let file = open(location, &object).await?;
        let size = object.metadata.len();
        let within = |range: &Range<u64>| GetRange::Bounded(range.clone()).as_range(size);
        let ranges: Vec<_> =
            ranges.iter().map(within).collect::<Result<_, _>>().map_err(generic)?;
        let reads = stream::iter(ranges).map(|range| read_range(&file, location, range));
        reads.buffered(RANGES).try_collect().await
    }
}

pub(crate) async fn open(location: &Path, object: &Object) -> Result<File> {
    let file = object.inode.open(OpenOptions::new().read(true)).await;
    file.map_err(|error| object_error(location, error))
}

/// A range of an object in chunks.
pub(crate) fn chunks(
    file: File,
    location: Path,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let begins = range.clone().step_by(READ_BYTES as usize);
    let reads = stream::iter(begins).map(move |begin| {
        let (file, location) = (file.clone(), location.clone());
        let end = range.end.min(begin + READ_BYTES);
        async move { read(&file, &location, begin..end).await }
    });
    reads.buffered(CHUNKS_AHEAD).boxed()
}

/// Reads a range of any length: one that is longer than a chunk in chunks, as a read of a volume has at most 1 GiB.
async fn read_range(file: &File, location: &Path, range: Range<u64>) -> Result<Bytes> {
    let length = range.end - range.start;
    if length <= READ_BYTES {
        return read(file, location, range).await;
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).map_err(generic)?).map_err(generic)?;
    let mut chunks = chunks(file.clone(), location.clone(), range);
    while let Some(chunk) = chunks.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// # Errors
/// `Generic` if the file is shorter by now: it was truncated in place, which no call of a store does.
async fn read(file: &File, location: &Path, range: Range<u64>) -> Result<Bytes> {
    let length = usize::try_from(range.end - range.start).map_err(generic)?;
    let pooled = if (MIN_POOLED..=READ_BYTES as usize).contains(&length) {
        POOL.as_ref().and_then(BufferPool::get)
    } else {
        None
    };
    match pooled {
        Some(mut buffer) => {
            drop(buffer.split_off(length));
            read_into(file, location, range.start, buffer).await.map(Bytes::from_owner)
        }
        None => read_into(file, location, range.start, vec![0; length]).await.map(Bytes::from),
    }
}

async fn read_into<B: IoBufMut>(file: &File, location: &Path, at: u64, memory: B) -> Result<B> {
    let (read, memory) = file.read_exact_at(memory, at).await;
    read.map(|()| memory).map_err(|error| io_error(location, error))
}
