//! An object before it has its name: a file without one, which is written and then linked. So nothing is ever seen of a
//! put that fails, is dropped or ends with the process; the next open of the volume frees the blocks.

use std::iter::Peekable;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{PutPayload, PutResult, Result};
use uringfs::volume::{FileType, Inode, InodeRef, Link};
use uringfs::{Errno, File, OpenOptions};

use crate::attributes::{self, Xattrs};
use crate::error::{io_error, object_error};
use crate::etag::etag;
use crate::new_name::NewName;
use crate::tree::{Tree, is_absent};

/// The most bytes of a write.
const WRITE_BYTES: usize = 8 << 20;
/// Writes in flight of one call.
const WRITES: usize = 4;
const FILE_MODE: u16 = 0o644;

#[derive(Clone, Debug)]
pub(crate) struct NewObject {
    tree: Tree,
    location: Path,
    inode: InodeRef,
    /// Direct, as a commit follows that would have to write a page cache back.
    file: File,
}

impl NewObject {
    /// Creates it in the directory in which it, or the first directory that it needs, gets its name: it inherits from
    /// there, as a named file does.
    pub(crate) async fn create(tree: &Tree, location: &Path, xattrs: &Xattrs) -> Result<NewObject> {
        let xattrs: Vec<_> = xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let inode = Inode::new(FileType::File, FILE_MODE);
        let directory = tree.existing_directory(location).await;
        let made = match directory.create_unnamed_with(&inode, &xattrs).await {
            // The directory has been removed meanwhile.
            Err(error) if is_absent(&error) => tree.root.create_unnamed_with(&inode, &xattrs).await,
            made => made,
        };
        let (inode, _) = made.map_err(|error| attributes::refused(location, error))?;
        let file = inode.open(OpenOptions::new().write(true).direct(true)).await;
        let file = file.map_err(|error| object_error(location, error))?;
        Ok(NewObject { tree: tree.clone(), location: location.clone(), inode, file })
    }

    pub(crate) fn inode(&self) -> &InodeRef {
        &self.inode
    }

    /// The bytes that it has, up to the end of its last write.
    pub(crate) fn length(&self) -> u64 {
        self.file.len()
    }

    /// Writes a payload at an offset. Several calls may run at a time, with ranges apart.
    pub(crate) async fn write(&self, payload: PutPayload, offset: u64) -> Result<()> {
        let writes = Writes::new(payload.into_iter(), offset);
        let writes = stream::iter(writes).map(|(bytes, offset)| self.write_bytes(bytes, offset));
        writes.buffer_unordered(WRITES).try_collect().await
    }

    async fn write_bytes(&self, bytes: Bytes, offset: u64) -> Result<()> {
        let (written, _) = self.file.write_all_at(bytes, offset).await;
        written.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOSPC) => {
                object_error(&self.location, self.tree.volume.volume().shortage())
            }
            _ => io_error(&self.location, error),
        })
    }

    /// Gives the object its name and makes it durable. Both, and its bytes, are in one commit, which is shared with all
    /// other puts that wait for one.
    pub(crate) async fn publish(&self, how: Link) -> Result<PutResult> {
        self.link(how).await?;
        self.make_durable().await
    }

    /// Gives the object its name. A later write would change what others have read: none is in flight, and none
    /// follows.
    pub(crate) async fn link(&self, how: Link) -> Result<()> {
        self.tree.make_name(&self.location, NewName::Link(&self.inode, how)).await
    }

    /// Makes the object durable, after it has its name.
    pub(crate) async fn make_durable(&self) -> Result<PutResult> {
        let NewObject { location, inode, file, .. } = self;
        file.sync_all().await.map_err(|error| io_error(location, error))?;
        let metadata = inode.metadata().await.map_err(|error| object_error(location, error))?;
        Ok(PutResult {
            e_tag: Some(etag(&metadata)),
            version: None,
            extensions: Default::default(),
        })
    }
}

/// The writes of a payload: the bytes and their offsets. Short pieces are gathered, so that the number of writes does
/// not depend on how the caller has cut the payload; only when a write is due, so that at most [`WRITES`] are copied at
/// a time.
struct Writes<I: Iterator<Item = Bytes>> {
    pieces: Peekable<I>,
    /// The rest of the current piece.
    rest: Bytes,
    /// The offset of the next write.
    end: u64,
}

impl<I: Iterator<Item = Bytes>> Writes<I> {
    fn new(pieces: I, offset: u64) -> Writes<I> {
        Writes { pieces: pieces.peekable(), rest: Bytes::new(), end: offset }
    }

    /// The next bytes, at most [`WRITE_BYTES`]. Empty at the end.
    fn next_bytes(&mut self) -> Bytes {
        let mut gathered = Vec::new();
        while gathered.len() < WRITE_BYTES {
            if self.rest.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.rest = piece,
                    None => break,
                }
            }
            let room = WRITE_BYTES - gathered.len();
            let bytes = self.rest.split_to(self.rest.len().min(room));
            let is_last = self.rest.is_empty() && self.pieces.peek().is_none();
            if gathered.is_empty() && (bytes.len() == WRITE_BYTES || is_last) {
                return bytes;
            }
            gathered.extend_from_slice(&bytes);
        }
        gathered.into()
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for Writes<I> {
    type Item = (Bytes, u64);

    fn next(&mut self) -> Option<(Bytes, u64)> {
        let bytes = self.next_bytes();
        let offset = self.end;
        self.end += bytes.len() as u64;
        (!bytes.is_empty()).then_some((bytes, offset))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn split(payload: PutPayload, offset: u64) -> Vec<(Bytes, u64)> {
        Writes::new(payload.into_iter(), offset).collect()
    }

    #[test]
    fn pieces_are_gathered_when_their_write_is_due() {
        let piece = Bytes::from(vec![7; 1 << 20]);
        let taken = Cell::new(0);
        let pieces = std::iter::repeat_n(piece, 64).inspect(|_| taken.set(taken.get() + 1));
        let mut writes = Writes::new(pieces, 0);
        let first: Vec<_> = writes.by_ref().take(WRITES).collect();
        assert!(first.iter().all(|(bytes, _)| bytes.len() == WRITE_BYTES));
        // One more is looked at.
        assert!(taken.get() <= WRITES * WRITE_BYTES / (1 << 20) + 1, "{} pieces", taken.get());
        assert_eq!(writes.count(), 4);
    }

    #[test]
    fn writes_do_not_depend_on_the_pieces_of_a_payload() {
        let whole: Bytes =
            (0..3 * WRITE_BYTES + 5).map(|at| (at / 7) as u8).collect::<Vec<_>>().into();
        let expected = split(whole.clone().into(), 100);
        let ranges: Vec<_> = expected.iter().map(|(bytes, at)| (*at, bytes.len())).collect();
        let w = WRITE_BYTES;
        let at = |n: usize| (100 + n * w) as u64;
        assert_eq!(ranges, [(at(0), w), (at(1), w), (at(2), w), (at(3), 5)]);
        for cuts in [vec![1], vec![w - 1, w + 1], vec![0, 10, 10, 2 * w, 3 * w + 5]] {
            let mut rest = whole.clone();
            let mut done = 0;
            let mut pieces: Vec<Bytes> = Vec::new();
            for cut in cuts {
                pieces.push(rest.split_to(cut - done));
                done = cut;
            }
            pieces.push(rest);
            assert_eq!(split(PutPayload::from_iter(pieces), 100), expected);
        }
        assert_eq!(split(PutPayload::new(), 0), []);
        assert_eq!(split(Bytes::new().into(), 0), []);
    }
}
