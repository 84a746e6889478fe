//! Copies, renames and deletes. Each is durable when it answers.

use std::ops::Range;

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{CopyMode, Error, PutMode, RenameTargetMode, Result};
use uringfs::volume::Rename;
use uringfs::{Errno, File};

use crate::attributes::read_xattrs;
use crate::error::{generic, not_found, object_error};
use crate::get::{self, READ_BYTES};
use crate::new_name::NewName;
use crate::new_object::NewObject;
use crate::tree::{Object, Tree};

/// Deletes of a stream that wait for a commit at a time, which they share.
const DELETES: usize = 64;
/// Chunks of a copy that are written at a time.
const WRITES: usize = 2;

impl Tree {
    /// Copies the bytes and the extended attributes of an object into a new file, so that no later write to one of the
    /// two, through a mount, changes the other.
    pub(crate) async fn copy(&self, from: &Path, to: &Path, mode: CopyMode) -> Result<()> {
        let source = self.object(from).await?;
        let mode = match mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let link = self.condition(to, mode).await?;
        let file = get::open(from, &source).await?;
        let xattrs = read_xattrs(&source.inode, |name| name.starts_with(b"user.")).await;
        let xattrs = xattrs.map_err(|error| object_error(from, error))?;
        let new = NewObject::create(self, to, &xattrs).await?;
        copy_bytes(file, from, 0..source.metadata.len(), &new, 0).await?;
        new.publish(link).await.map(drop)
    }

    /// Moves the name of an object. In one step, so that no other call sees both names or none.
    pub(crate) async fn rename(
        &self,
        from: &Path,
        to: &Path,
        mode: RenameTargetMode,
    ) -> Result<()> {
        let names = self.names(from);
        let place = self.place(from, &names).await?;
        let moved = self.object_at(from, &place).await?;
        let how = match mode {
            RenameTargetMode::Overwrite => {
                self.refuse_same_file(from, &moved, to).await?;
                Rename::Replace
            }
            RenameTargetMode::Create => Rename::NoReplace,
        };
        let new_name = NewName::Move(place.directory(), place.name(), how);
        self.make_name(to, new_name).await.map_err(|error| match error {
            // Another call has deleted or renamed it meanwhile.
            Error::NotFound { source, .. } => Error::NotFound { path: from.to_string(), source },
            error => error,
        })?;
        place.prune().await;
        self.commit(to).await
    }

    /// Refuses a rename of a file to another name that it has, for which rename(2) does nothing. To remove the old name
    /// would take another step, in which it may be that of a new object.
    async fn refuse_same_file(&self, from: &Path, moved: &Object, to: &Path) -> Result<()> {
        match self.object(to).await {
            Ok(there) if there.inode == moved.inode && from != to => Err(generic(format!(
                "object {from:?}: {to:?} is another name of the same file (a hard link); delete {from:?} instead",
                from = from.as_ref(),
                to = to.as_ref()
            ))),
            _ => Ok(()),
        }
    }

    /// Removes the name of an object, and the directories that it leaves empty.
    async fn delete(&self, location: &Path) -> Result<()> {
        let names = self.names(location);
        let place = self.place(location, &names).await?;
        self.object_at(location, &place).await?;
        let removed = place.directory().remove_file(place.name()).await;
        removed.map_err(|error| match error.errno() {
            Errno::ISDIR => not_found(location, "the name is a directory's by now"),
            _ => object_error(location, error),
        })?;
        place.prune().await;
        self.commit(location).await
    }

    pub(crate) fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let tree = self.clone();
        let deletes = locations.map(move |location| {
            let tree = tree.clone();
            async move {
                let location = location?;
                tree.delete(&location).await?;
                Ok(location)
            }
        });
        deletes.buffered(DELETES).boxed()
    }
}

/// Copies a range of a file to an offset of a new object.
pub(crate) async fn copy_bytes(
    file: File,
    location: &Path,
    range: Range<u64>,
    new: &NewObject,
    offset: u64,
) -> Result<()> {
    let chunks = get::chunks(file, location.clone(), range);
    let offsets = (0..).map(|chunk| offset + chunk * READ_BYTES);
    let writes = chunks
        .zip(stream::iter(offsets))
        .map(|(chunk, offset)| async move { new.write(chunk?.into(), offset).await });
    writes.buffer_unordered(WRITES).try_collect().await
}
