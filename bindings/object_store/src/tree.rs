//! The directories of a store: from the path of an object to its file, and the directories that puts make and deletes
//! remove. Follows no symbolic link.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use object_store::Result;
use object_store::path::Path;
use uringfs::volume::{FileType, Inode, InodeRef, Link, Metadata, Rename};
use uringfs::{AsyncVolume, Errno};

use crate::error::{NameConflict, generic, no_name, not_found, object_error, precondition};
use crate::names::{name_from_segment, segment_from_name};

/// Attempts of a change whose directories are removed meanwhile, each time by a delete of the last object in them.
const MAX_ATTEMPTS: u32 = 1000;
/// The longest path of a volume.
const MAX_PATH_BYTES: usize = 4096;
const DIRECTORY_MODE: u16 = 0o755;

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
    directories: Vec<InodeRef>,
    names: &'n [OsString],
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

/// How an object gets its name.
#[derive(Clone, Copy)]
pub(crate) enum NewName<'a> {
    /// A file without a name gets it.
    Link(&'a InodeRef, Link),
    /// A name in this directory becomes it.
    Move(&'a InodeRef, &'a OsStr, Rename),
}

impl NewName<'_> {
    async fn make(self, place: &Place<'_>) -> uringfs::Result<()> {
        let (directory, name) = (place.directory(), place.name());
        match self {
            NewName::Link(inode, how) => inode.link_with(directory, name, how).await,
            NewName::Move(old, old_name, how) => old.rename(old_name, directory, name, how).await,
        }
    }
}

/// Why a name was not made.
enum Stop {
    /// A directory was removed meanwhile, or an empty one was in the way: try again.
    Again,
    Fail(object_store::Error),
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
    fn location(&self, names: &[OsString]) -> Path {
        let names =
            names.get(self.prefix.len()..).filter(|names| !names.is_empty()).unwrap_or(names);
        names.iter().fold(Path::default(), |path, name| child(&path, name.as_bytes()))
    }

    /// Makes all changes of names durable, in a commit that all calls which wait for one share.
    pub(crate) async fn commit(&self, location: &Path) -> Result<()> {
        self.volume.sync().await.map_err(|error| object_error(location, error))
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
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
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

    /// Makes the name of an object, and first the directories that it needs. Leaves no new directory empty when it fails.
    ///
    /// # Errors
    /// `InvalidPath` for the path of the store itself; [`NameConflict`] if one of the directories is an object, or the
    /// object a directory; `AlreadyExists` and
    /// `Precondition` as `new` says; errors of the volume.
    pub(crate) async fn make_name(&self, location: &Path, new: NewName<'_>) -> Result<()> {
        if location.is_root() {
            return Err(no_name(location));
        }
        let names = self.names(location);
        let length = self.volume_path(location).as_os_str().len();
        if length > MAX_PATH_BYTES {
            return Err(generic(format!(
                "object {:?}: its path in the volume has {length} bytes; choose one of at most {MAX_PATH_BYTES}",
                location.as_ref()
            )));
        }
        for _ in 0..MAX_ATTEMPTS {
            let place = match self.make_place(location, &names).await {
                Ok(place) => place,
                Err(Stop::Again) => continue,
                Err(Stop::Fail(error)) => return Err(error),
            };
            let Err(error) = new.make(&place).await else { return Ok(()) };
            match self.stop_at(location, &place, new, error).await {
                Stop::Again => {}
                Stop::Fail(error) => {
                    place.prune().await;
                    return Err(error);
                }
            }
        }
        Err(generic(format!(
            "object {:?}: other calls removed its directory {MAX_ATTEMPTS} times; try again",
            location.as_ref()
        )))
    }

    async fn make_place<'n>(
        &self,
        location: &Path,
        names: &'n [OsString],
    ) -> Result<Place<'n>, Stop> {
        let mut directories = vec![self.root.clone()];
        for (depth, name) in names[..names.len() - 1].iter().enumerate() {
            let parent = directories.last().expect("the root is there");
            let (inode, metadata) = match parent.lookup(name).await {
                Err(error) if error.errno() == Errno::NOENT => {
                    let directory = Inode::new(FileType::Directory, DIRECTORY_MODE);
                    match parent.create(name, &directory).await {
                        Ok(made) => made,
                        Err(error) if error.errno() == Errno::EXIST => return Err(Stop::Again),
                        Err(error) => return Err(self.stop(location, parent, error).await),
                    }
                }
                found => found.map_err(|error| Stop::Fail(object_error(location, error)))?,
            };
            if !metadata.is_dir() {
                let existing = self.location(&names[..=depth]);
                return Err(Stop::Fail(NameConflict::error(location, existing)));
            }
            directories.push(inode);
        }
        Ok(Place { directories, names })
    }

    /// Why a name could not be made in its directory. The directory may have been removed, or the name be that of another
    /// directory: one without objects makes room, one with objects is a conflict.
    async fn stop_at(
        &self,
        location: &Path,
        place: &Place<'_>,
        new: NewName<'_>,
        error: uringfs::Error,
    ) -> Stop {
        if matches!(new, NewName::Link(_, Link::ReplaceOnly(_))) && is_absent(&error) {
            let what = "the object has been deleted meanwhile".to_owned();
            return Stop::Fail(precondition(location, what));
        }
        if matches!(error.errno(), Errno::EXIST | Errno::ISDIR)
            && let Ok((inode, metadata)) = place.directory().lookup(place.name()).await
            && metadata.is_dir()
        {
            return match remove_empty(&inode, location.clone()).await {
                Ok(Some(existing)) => Stop::Fail(NameConflict::error(location, existing)),
                Ok(None) => {
                    // If it is not empty any more, the next attempt finds out.
                    let _ = place.directory().remove_dir(place.name()).await;
                    Stop::Again
                }
                Err(error) => Stop::Fail(object_error(location, error)),
            };
        }
        self.stop(location, place.directory(), error).await
    }

    /// Why a call in a directory has failed.
    async fn stop(&self, location: &Path, directory: &InodeRef, error: uringfs::Error) -> Stop {
        if error.errno() == Errno::NOENT && directory != &self.root {
            match directory.metadata().await {
                Ok(metadata) if metadata.nlink() > 0 => {}
                _ => return Stop::Again,
            }
        }
        Stop::Fail(object_error(location, error))
    }
}

/// Removes the directories in a directory in which there is nothing but directories. Returns the first other file that
/// it finds, and stops there.
fn remove_empty(
    directory: &InodeRef,
    prefix: Path,
) -> BoxFuture<'_, uringfs::Result<Option<Path>>> {
    async move {
        let mut entries = directory.read_dir().await?;
        while let Some(entry) = entries.next_entry().await? {
            let path = child(&prefix, &entry.name);
            if !entry.kind.is_dir() {
                return Ok(Some(path));
            }
            let name = OsString::from_vec(entry.name);
            let inner = match directory.lookup(&name).await {
                Ok((inner, _)) => inner,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(error),
            };
            if let Some(found) = remove_empty(&inner, path).await? {
                return Ok(Some(found));
            }
            // If it is not empty any more, the caller's attempt to remove the outer one finds out.
            let _ = directory.remove_dir(&name).await;
        }
        Ok(None)
    }
    .boxed()
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
