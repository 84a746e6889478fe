//! Listings. Only regular files are objects; a directory without any in it is not seen.

use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use uringfs::volume::{AsyncReadDir, DirEntry, InodeRef, Metadata};
use uringfs::{AsyncVolume, Errno};

use crate::error::object_error;
use crate::etag::object_meta;
use crate::tree::{Tree, child, is_absent};

/// A walk through directories, depth first. It has one batch of entries of each directory that it is in.
struct Walk {
    tree: Tree,
    /// The directories that are being read, the innermost last.
    levels: Vec<Level>,
    /// Paths up to this one are left out.
    offset: Option<Path>,
}

/// A directory that is being read.
struct Level {
    path: Path,
    directory: InodeRef,
    entries: AsyncReadDir,
}

/// An entry of a directory.
struct Entry {
    path: Path,
    directory: InodeRef,
    entry: DirEntry,
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
            let mut walk = Walk { tree, levels: Vec::new(), offset };
            let entered = walk.begin(prefix).await;
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
        let mut walk = Walk { tree: self.clone(), levels: Vec::new(), offset: None };
        walk.begin(prefix).await?;
        while let Some(entry) = walk.next_entry().await? {
            if entry.is_dir() {
                let mut inner = self.list(Some(&entry.path), None);
                // Usually the first entry is an object: deletes leave no empty directory behind.
                if inner.next().await.transpose()?.is_some() {
                    common_prefixes.push(entry.path);
                }
            } else if let Some(object) = entry.into_object(&self.volume).await? {
                objects.push(object);
            }
        }
        Ok(ListResult { objects, common_prefixes, extensions: Default::default() })
    }
}

impl Walk {
    /// Goes into the directory of a prefix, if there is one.
    async fn begin(&mut self, prefix: Path) -> Result<()> {
        match self.tree.directory(&prefix).await {
            Ok(Some(directory)) => self.enter(prefix, directory).await,
            Ok(None) => Ok(()),
            Err(error) => Err(object_error(&prefix, error)),
        }
    }

    /// Goes into a directory that was looked up, because its path alone might lead through a symbolic link.
    async fn enter(&mut self, path: Path, directory: InodeRef) -> Result<()> {
        match self.tree.volume.read_dir(self.tree.volume_path(&path)).await {
            Ok(entries) => self.levels.push(Level { path, directory, entries }),
            Err(error) if is_absent(&error) => {}
            // Other programs may nest directories without a limit. No put makes an object there.
            Err(error) if error.errno() == Errno::NAMETOOLONG => {}
            Err(error) => return Err(object_error(&path, error)),
        }
        Ok(())
    }

    async fn next_object(&mut self) -> Result<Option<ObjectMeta>> {
        while let Some(entry) = self.next_entry().await? {
            if self.is_left_out(&entry) {
                continue;
            }
            if entry.is_dir() {
                match entry.look_up().await? {
                    Some((inner, metadata)) if metadata.is_dir() => {
                        self.enter(entry.path, inner).await?;
                    }
                    _ => {}
                }
            } else if let Some(object) = entry.into_object(&self.tree.volume).await? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    async fn next_entry(&mut self) -> Result<Option<Entry>> {
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next_entry().await {
                Ok(Some(entry)) => {
                    let path = child(&level.path, entry.name().as_encoded_bytes());
                    return Ok(Some(Entry { path, directory: level.directory.clone(), entry }));
                }
                // A directory that is removed meanwhile is empty.
                Ok(None) => drop(self.levels.pop()),
                Err(error) if is_absent(&error) => drop(self.levels.pop()),
                Err(error) => return Err(object_error(&level.path, error)),
            }
        }
        Ok(None)
    }

    /// Whether a path, and all paths under it if it is a directory, are not after the offset.
    fn is_left_out(&self, entry: &Entry) -> bool {
        let Some(offset) = &self.offset else { return false };
        let path = &entry.path;
        match entry.is_dir() {
            false => path <= offset,
            true => {
                let under = format!("{path}/");
                under.as_str() < offset.as_ref() && !offset.as_ref().starts_with(&under)
            }
        }
    }
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.entry.file_type().is_dir()
    }

    /// The file that has the name by now.
    async fn look_up(&self) -> Result<Option<(InodeRef, Metadata)>> {
        match self.directory.lookup(self.entry.name()).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(object_error(&self.path, error)),
        }
    }

    /// The object of the name. `None` if it is none, or no longer.
    async fn into_object(self, volume: &AsyncVolume) -> Result<Option<ObjectMeta>> {
        if !self.entry.file_type().is_file() {
            return Ok(None);
        }
        let metadata = match self.entry.metadata_async(volume).await {
            Ok(metadata) => Some(metadata),
            // Deleted meanwhile, or replaced by another file.
            Err(error) if is_absent(&error) => self.look_up().await?.map(|(_, metadata)| metadata),
            Err(error) => return Err(object_error(&self.path, error)),
        };
        let file = metadata.filter(Metadata::is_file);
        Ok(file.map(|metadata| object_meta(self.path, &metadata)))
    }
}
