//! Listings. Only regular files are objects; a directory without any in it is not seen.

use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use uringfs::volume::{AsyncReadDir, DirEntry};

use crate::error::object_error;
use crate::etag::object_meta;
use crate::tree::{Tree, child, is_absent};

/// A walk through directories, depth first. It has one batch of entries of each directory that it is in.
struct Walk {
    tree: Tree,
    /// The directories that are being read, the innermost last.
    directories: Vec<(Path, AsyncReadDir)>,
    /// Paths up to this one are left out.
    offset: Option<Path>,
}

impl Tree {
    /// All objects under a prefix whose paths are after `offset`.
    pub(crate) fn list(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (tree, offset) = (self.clone(), offset.cloned());
        let prefix = prefix.cloned().unwrap_or_default();
        let walk = async move {
            let mut walk = Walk { tree, directories: Vec::new(), offset };
            let entered = walk.enter(prefix).await;
            // After an error the stream goes on with what the walk is in: here nothing.
            let first = stream::iter(entered.err().map(Err));
            first.chain(stream::unfold(walk, |mut walk| async move {
                walk.next_object().await.transpose().map(|object| (object, walk))
            }))
        };
        stream::once(walk).flatten().boxed()
    }

    pub(crate) async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        let mut walk = Walk { tree: self.clone(), directories: Vec::new(), offset: None };
        walk.enter(prefix).await?;
        while let Some((path, entry)) = walk.next_entry().await? {
            if entry.file_type().is_dir() {
                let mut inner = self.list(Some(&path), None);
                // Usually the first entry is an object: deletes leave no empty directory behind.
                if inner.next().await.transpose()?.is_some() {
                    common_prefixes.push(path);
                }
            } else if let Some(object) = self.object_of(path, &entry).await? {
                objects.push(object);
            }
        }
        Ok(ListResult { objects, common_prefixes, extensions: Default::default() })
    }

    /// The object of an entry. `None` if it is none, or no longer.
    async fn object_of(&self, path: Path, entry: &DirEntry) -> Result<Option<ObjectMeta>> {
        if !entry.file_type().is_file() {
            return Ok(None);
        }
        match entry.metadata_async(&self.volume).await {
            Ok(metadata) => Ok(Some(object_meta(path, &metadata))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(object_error(&path, error)),
        }
    }
}

impl Walk {
    /// Goes into a directory. A path that does not lead to one has no objects under it.
    async fn enter(&mut self, path: Path) -> Result<()> {
        let failed = |error| object_error(&path, error);
        // The path of a listing would follow symbolic links.
        if self.tree.directory(&path).await.map_err(failed)?.is_none() {
            return Ok(());
        }
        match self.tree.volume.read_dir(self.tree.volume_path(&path)).await {
            Ok(entries) => self.directories.push((path, entries)),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    async fn next_object(&mut self) -> Result<Option<ObjectMeta>> {
        while let Some((path, entry)) = self.next_entry().await? {
            if self.is_left_out(&path, &entry) {
                continue;
            }
            if entry.file_type().is_dir() {
                self.enter(path).await?;
            } else if let Some(object) = self.tree.object_of(path, &entry).await? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    async fn next_entry(&mut self) -> Result<Option<(Path, DirEntry)>> {
        while let Some((directory, entries)) = self.directories.last_mut() {
            match entries.next_entry().await {
                Ok(Some(entry)) => {
                    let path = child(directory, entry.name().as_encoded_bytes());
                    return Ok(Some((path, entry)));
                }
                // A directory that is removed meanwhile is empty.
                Ok(None) => drop(self.directories.pop()),
                Err(error) if is_absent(&error) => drop(self.directories.pop()),
                Err(error) => return Err(object_error(directory, error)),
            }
        }
        Ok(None)
    }

    /// Whether a path, and all paths under it if it is a directory, are not after the offset.
    fn is_left_out(&self, path: &Path, entry: &DirEntry) -> bool {
        let Some(offset) = &self.offset else { return false };
        match entry.file_type().is_dir() {
            false => path <= offset,
            true => {
                let under = format!("{path}/");
                under.as_str() < offset.as_ref() && !offset.as_ref().starts_with(&under)
            }
        }
    }
}
