//! An object before it has its name: a file without one, which is written and then linked. So nothing is ever seen of a
//! put that fails, is dropped or ends with the process; the next open of the volume frees the blocks.

use std::mem;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{PutPayload, PutResult, Result};
use uringfs::volume::{FileType, Inode, InodeRef, Link};
use uringfs::{Errno, File, OpenOptions};

use crate::attributes::{self, Xattrs};
use crate::error::{io_error, object_error};
use crate::etag::etag;
use crate::tree::{NewName, Tree};

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
    pub(crate) async fn create(tree: &Tree, location: &Path, xattrs: &Xattrs) -> Result<NewObject> {
        let xattrs: Vec<_> = xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let inode = Inode::new(FileType::File, FILE_MODE);
        let made = tree.root.create_unnamed_with(&inode, &xattrs).await;
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
        let writes = split(payload, offset);
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
    pub(crate) async fn publish(self, how: Link) -> Result<PutResult> {
        let NewObject { tree, location, inode, file } = self;
        tree.make_name(&location, NewName::Link(&inode, how)).await?;
        file.sync_all().await.map_err(|errno| io_error(&location, errno))?;
        let metadata = inode.metadata().await.map_err(|error| object_error(&location, error))?;
        Ok(PutResult {
            e_tag: Some(etag(&metadata)),
            version: None,
            extensions: Default::default(),
        })
    }
}

/// The writes of a payload: the bytes and their offsets. The pieces of a payload in several are gathered, so that the
/// number of writes does not depend on how the caller has cut it.
fn split(payload: PutPayload, offset: u64) -> Vec<(Bytes, u64)> {
    let mut pieces = Vec::new();
    match payload.as_ref() {
        [whole] => {
            let mut whole = whole.clone();
            while !whole.is_empty() {
                pieces.push(whole.split_to(whole.len().min(WRITE_BYTES)));
            }
        }
        several => {
            let mut gathered = Vec::new();
            for mut bytes in several.iter().cloned() {
                while !bytes.is_empty() {
                    let room = WRITE_BYTES - gathered.len();
                    gathered.extend_from_slice(&bytes.split_to(bytes.len().min(room)));
                    if gathered.len() == WRITE_BYTES {
                        pieces.push(mem::take(&mut gathered).into());
                    }
                }
            }
            pieces.push(gathered.into());
        }
    }
    let mut end = offset;
    let at_its_offset = |bytes: Bytes| {
        let offset = end;
        end += bytes.len() as u64;
        (bytes, offset)
    };
    pieces.into_iter().filter(|bytes: &Bytes| !bytes.is_empty()).map(at_its_offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
