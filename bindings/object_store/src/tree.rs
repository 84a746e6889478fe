//! The directories of a store: from the path of an object to its file. Follows no symbolic link.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use object_store::Result;
use object_store::path::Path;
use uringfs::volume::{InodeRef, Metadata};
use uringfs::{AsyncVolume, Errno};

use crate::error::{not_found, object_error};
use crate::names::{name_from_segment, segment_from_name};

/// The part of a volume in which a store has its objects.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) volume: AsyncVolume,
    /// The root directory of the volume.
    pub(crate) root: InodeRef,
    /// The names of the directories that lead to the store's, which need not exist.
    prefix: Vec<OsString>,
}

/// The file of an object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) inode: InodeRef,
    pub(crate) metadata: Metadata,
}

/// The directories from the volume's root to that of an object, each with the name in it that leads on.
pub(crate) struct Place<'n> {
    pub(crate) directories: Vec<InodeRef>,
    pub(crate) names: &'n [OsString],
}

impl Place<'_> {
    pub(crate) fn directory(&self) -> &InodeRef {
        self.directories.last().expect("the root is there")
    }

    /// The object's name.
    pub(crate) fn name(&self) -> &OsStr {
        self.names.last().expect("an object has a name")
    }

    /// Removes the directories that are empty, the innermost first. A put that needs one of them meanwhile makes it
    /// again.
    pub(crate) async fn prune(&self) {
        for at in (1..self.directories.len()).rev() {
            let (parent, name) = (&self.directories[at - 1], &self.names[at - 1]);
            // Not empty, or gone: then another call has it. An error of the catalog comes from the commit, too.
            if parent.remove_dir(name).await.is_err() {
                return;
            }
        }
    }
}

fn names(location: &Path) -> impl Iterator<Item = OsString> {
    location.parts().map(|part| OsString::from_vec(name_from_segment(part.as_ref())))
}

impl Tree {
    pub(crate) fn new(volume: AsyncVolume) -> Tree {
        let root = volume.volume().root();
        Tree { volume, root, prefix: Vec::new() }
    }

    /// The tree of a directory.
    pub(crate) fn inner(&self, prefix: &Path) -> Tree {
        let (volume, root) = (self.volume.clone(), self.root.clone());
        Tree { volume, root, prefix: self.names(prefix) }
    }

    /// The names that lead from the volume's root to an object or a directory.
    pub(crate) fn names(&self, location: &Path) -> Vec<OsString> {
        self.prefix.iter().cloned().chain(names(location)).collect()
    }

    /// The path of some of these names in the store; for a directory above the store's, that in the volume.
    pub(crate) fn location(&self, names: &[OsString]) -> Path {
        let names =
            names.get(self.prefix.len()..).filter(|names| !names.is_empty()).unwrap_or(names);
        names.iter().fold(Path::default(), |path, name| child(&path, name.as_bytes()))
    }

    /// Makes all changes of names durable, in a commit that all calls which wait for one share. A sync of the volume
    /// would write back the bytes of other programs' files, too, and take the report of a loss from them.
    pub(crate) async fn commit(&self, location: &Path) -> Result<()> {
        self.root.sync_metadata().await.map_err(|error| object_error(location, error))
    }

    /// The path of a prefix in the volume.
    pub(crate) fn volume_path(&self, prefix: &Path) -> PathBuf {
        PathBuf::from("/").join(self.names(prefix).into_iter().collect::<PathBuf>())
    }

    /// The directory of a prefix, if there is one.
    pub(crate) async fn directory(&self, prefix: &Path) -> uringfs::Result<Option<InodeRef>> {
        let mut at = self.root.clone();
        for name in self.names(prefix) {
            match at.lookup(name).await {
                Ok((inode, metadata)) if metadata.is_dir() => at = inode,
                Ok(_) => return Ok(None),
                Err(error) if is_absent(&error) => return Ok(None),
                // No name is that long.
                Err(error) if error.errno() == Errno::NAMETOOLONG => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
    }

    /// The innermost directory of an object that exists.
    pub(crate) async fn existing_directory(&self, location: &Path) -> InodeRef {
        let mut names = self.names(location);
        names.pop();
        let mut at = self.root.clone();
        for name in names {
            match at.lookup(name).await {
                Ok((inode, metadata)) if metadata.is_dir() => at = inode,
                // Making the object's name reports what is in its way.
                _ => break,
            }
        }
        at
    }

    /// The directories of an object, which has these [`Self::names`].
    ///
    /// # Errors
    /// `NotFound` if one of them does not exist, and for the path of the store itself.
    pub(crate) async fn place<'n>(
        &self,
        location: &Path,
        names: &'n [OsString],
    ) -> Result<Place<'n>> {
        if location.is_root() {
            return Err(not_found(location, "the store's own directory is no object"));
        }
        let mut directories = vec![self.root.clone()];
        for name in &names[..names.len() - 1] {
            let parent = directories.last().expect("the root is there");
            let found = parent.lookup(name).await;
            let (inode, _) = found.map_err(|error| object_error(location, error))?;
            directories.push(inode);
        }
        Ok(Place { directories, names })
    }

    /// The file of an object.
    ///
    /// # Errors
    /// `NotFound`, also for a directory and for other files without bytes.
    pub(crate) async fn object(&self, location: &Path) -> Result<Object> {
        let names = self.names(location);
        self.object_at(location, &self.place(location, &names).await?).await
    }

    /// The file of the object that a place is for.
    ///
    /// # Errors
    /// As [`Self::object`].
    pub(crate) async fn object_at(&self, location: &Path, place: &Place<'_>) -> Result<Object> {
        let found = place.directory().lookup(place.name()).await;
        let (inode, metadata) = found.map_err(|error| object_error(location, error))?;
        match metadata.is_file() {
            true => Ok(Object { inode, metadata }),
            false => Err(not_found(location, "the name is not that of a regular file")),
        }
    }
}

/// The path of a name in a directory.
pub(crate) fn child(directory: &Path, name: &[u8]) -> Path {
    let segment = segment_from_name(name);
    let path = match directory.is_root() {
        true => segment,
        false => format!("{directory}/{segment}"),
    };
    Path::parse(path).expect("a segment is legal in a path")
}

/// Whether a file, or one of its directories, does not exist.
pub(crate) fn is_absent(error: &uringfs::Error) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR)
}
