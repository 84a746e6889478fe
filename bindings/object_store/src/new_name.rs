//! How an object gets its name: the directories that it needs are made, and empty ones make room.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use object_store::Result;
use object_store::path::Path;
use uringfs::Errno;
use uringfs::volume::{DirectoryStream, FileType, Inode, InodeRef, Link, Rename};

use crate::error::{NameConflict, generic, no_name, object_error, precondition};
use crate::tree::{Place, Tree, child, is_absent};

/// Attempts of a change whose name or directories other calls change meanwhile, such as a delete of the last object in
/// a directory.
const MAX_ATTEMPTS: u32 = 1000;
/// The longest path of a volume.
const MAX_PATH_BYTES: usize = 4096;
const DIRECTORY_MODE: u16 = 0o755;

/// How an object gets its name.
#[derive(Clone, Copy)]
pub(crate) enum NewName<'a> {
    /// A file without a name gets it.
    Link(&'a InodeRef, Link),
    /// The name of a regular file in this directory becomes it.
    Move(&'a InodeRef, &'a OsStr, Rename),
}

impl NewName<'_> {
    async fn make(self, place: &Place<'_>) -> uringfs::Result<()> {
        let (directory, name) = (place.directory(), place.name());
        match self {
            NewName::Link(inode, how) => inode.link_with(directory, name, how).await,
            NewName::Move(old, old_name, how) => {
                let (moved, metadata) = old.lookup(old_name).await?;
                if !metadata.is_file() {
                    return Err(Errno::NOENT.into());
                }
                // By now the name may be another file's, or a directory's.
                old.rename_only(old_name, moved.number(), directory, name, how).await
            }
        }
    }
}

/// Why a name was not made.
enum Stop {
    /// A directory was removed meanwhile, or an empty one was in the way: try again.
    Again,
    Fail(object_store::Error),
}

impl Tree {
    /// Makes the name of an object, and first the directories that it needs. Leaves no new directory empty when it
    /// fails.
    ///
    /// # Errors
    /// `InvalidPath` for the path of the store itself; [`NameConflict`] if one of the directories is an object, or the
    /// object a directory; `AlreadyExists` and `Precondition` as `new` says; errors of the volume.
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
        if let Ok(place) = self.place(location, &names).await {
            place.prune().await;
        }
        Err(generic(format!(
            "object {:?}: other calls changed its name or its directories {MAX_ATTEMPTS} times; try again",
            location.as_ref()
        )))
    }

    async fn make_place<'n>(
        &self,
        location: &Path,
        names: &'n [OsString],
    ) -> Result<Place<'n>, Stop> {
        let mut place = Place { directories: vec![self.root.clone()], names };
        let made = self.make_directories(location, &mut place).await;
        if let Err(Stop::Fail(_)) = made {
            place.prune().await;
        }
        made.map(|()| place)
    }

    async fn make_directories(&self, location: &Path, place: &mut Place<'_>) -> Result<(), Stop> {
        let names = place.names;
        for (depth, name) in names[..names.len() - 1].iter().enumerate() {
            let parent = place.directory();
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
            place.directories.push(inode);
        }
        Ok(())
    }

    /// Why a name could not be made in its directory. The directory may have been removed, or the name be that of
    /// another directory: one without objects makes room, one with objects is a conflict.
    async fn stop_at(
        &self,
        location: &Path,
        place: &Place<'_>,
        new: NewName<'_>,
        error: uringfs::Error,
    ) -> Stop {
        if matches!(new, NewName::Link(_, Link::ReplaceUnchanged { .. })) && is_absent(&error) {
            let what = "the object has been deleted meanwhile".to_owned();
            return Stop::Fail(precondition(location, what));
        }
        let errno = error.errno();
        if matches!(new, NewName::Move(..)) && errno == Errno::STALE {
            return Stop::Again;
        }
        if !matches!(errno, Errno::EXIST | Errno::ISDIR) {
            return self.stop(location, place.directory(), error).await;
        }
        match place.directory().lookup(place.name()).await {
            Ok((inode, metadata)) if metadata.is_dir() => make_room(location, place, &inode).await,
            Ok(_) if errno == Errno::EXIST => Stop::Fail(object_error(location, error)),
            // The directory that was in the way is gone.
            Ok(_) => Stop::Again,
            Err(gone) if is_absent(&gone) => Stop::Again,
            Err(error) => Stop::Fail(object_error(location, error)),
        }
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

/// Removes the directory that has the name of an object, if there are no objects in it.
async fn make_room(location: &Path, place: &Place<'_>, directory: &InodeRef) -> Stop {
    let emptied = match remove_empty(directory, location).await {
        Ok(Some(existing)) => return Stop::Fail(NameConflict::error(location, existing)),
        // If it is not empty any more, the next attempt finds out.
        Ok(None) => removed(place.directory().remove_dir(place.name()).await),
        Err(error) => Err(error),
    };
    match emptied {
        Ok(()) => Stop::Again,
        // Another call has removed it.
        Err(error) if is_absent(&error) => Stop::Again,
        Err(error) => Stop::Fail(object_error(location, error)),
    }
}

/// A directory whose entries are looked at, and its name in the one around it.
struct Level {
    name: OsString,
    directory: InodeRef,
    entries: DirectoryStream,
}

impl Level {
    async fn enter(name: OsString, directory: InodeRef) -> uringfs::Result<Level> {
        let entries = directory.read_dir().await?;
        Ok(Level { name, directory, entries })
    }
}

/// Removes the directories in a directory in which there is nothing but directories. Returns the first other file that
/// it finds, and stops there. Other programs may have nested them without a limit.
async fn remove_empty(directory: &InodeRef, prefix: &Path) -> uringfs::Result<Option<Path>> {
    let mut levels = vec![Level::enter(OsString::new(), directory.clone()).await?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next_entry().await? else {
            let name = std::mem::take(&mut level.name);
            levels.pop();
            if let Some(outer) = levels.last() {
                // If it is not empty any more, the caller's attempt to remove the outer one finds out.
                removed(outer.directory.remove_dir(name).await)?;
            }
            continue;
        };
        let name = OsString::from_vec(entry.name);
        if !entry.kind.is_dir() {
            let inner = levels[1..].iter().map(|level| &level.name).chain([&name]);
            let path = inner.fold(prefix.clone(), |path, name| child(&path, name.as_bytes()));
            return Ok(Some(path));
        }
        match level.directory.lookup(&name).await {
            Ok((inner, _)) => levels.push(Level::enter(name, inner).await?),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The error of removing a directory, unless other calls have removed it, replaced it or made something in it.
fn removed(result: uringfs::Result<()>) -> uringfs::Result<()> {
    result.or_else(|error| match error.errno() {
        Errno::NOTEMPTY | Errno::NOTDIR => Ok(()),
        _ if is_absent(&error) => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use object_store::Error;
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::{FormatOptions, Volume};

    use super::*;

    fn new_tree() -> Tree {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Tree::new(Volume::create_on(device, &FormatOptions::new()).unwrap().into())
    }

    /// The check after a failed link sees the name later than the link did.
    #[tokio::test]
    async fn a_directory_that_has_gone_since_it_was_in_the_way_is_no_failure() {
        let tree = new_tree();
        let path = Path::from("a");
        let names = tree.names(&path);
        let place = tree.place(&path, &names).await.unwrap();
        let file = Inode::new(FileType::File, 0o644);
        let (new, _) = tree.root.create_unnamed(&file).await.unwrap();
        let again = async |how, errno: Errno| {
            let stop = tree.stop_at(&path, &place, NewName::Link(&new, how), errno.into()).await;
            matches!(stop, Stop::Again)
        };
        assert!(again(Link::Replace, Errno::ISDIR).await);
        assert!(again(Link::NoReplace, Errno::EXIST).await);
        tree.root.create("a", &Inode::new(FileType::Directory, DIRECTORY_MODE)).await.unwrap();
        assert!(again(Link::NoReplace, Errno::EXIST).await);
        assert!(tree.root.lookup("a").await.is_err(), "it was empty");
        tree.root.create("a", &file).await.unwrap();
        assert!(again(Link::Replace, Errno::ISDIR).await);
        assert!(!again(Link::NoReplace, Errno::EXIST).await, "an object is there");
    }

    #[tokio::test]
    async fn a_removed_directory_is_not_in_the_way() {
        let tree = new_tree();
        let path = Path::from("a");
        let names = tree.names(&path);
        let place = tree.place(&path, &names).await.unwrap();
        let directory = Inode::new(FileType::Directory, DIRECTORY_MODE);
        let (removed, _) = tree.root.create("a", &directory).await.unwrap();
        tree.root.remove_dir("a").await.unwrap();
        assert!(matches!(make_room(&path, &place, &removed).await, Stop::Again));
    }

    /// The caller has found an object of that name before.
    #[tokio::test]
    async fn a_move_takes_no_directory_along() {
        let tree = new_tree();
        let directory = Inode::new(FileType::Directory, DIRECTORY_MODE);
        tree.root.create("a", &directory).await.unwrap();
        let old = NewName::Move(&tree.root, OsStr::new("a"), Rename::Replace);
        let moved = tree.make_name(&Path::from("b"), old).await;
        assert!(matches!(moved, Err(Error::NotFound { .. })), "{moved:?}");
        assert!(tree.root.lookup("a").await.unwrap().1.is_dir());
    }

    #[tokio::test]
    async fn empty_directories_make_room_however_deep_they_are() {
        let tree = new_tree();
        let directory = Inode::new(FileType::Directory, DIRECTORY_MODE);
        let mut at = tree.root.clone();
        for _ in 0..10_000 {
            at = at.create("a", &directory).await.unwrap().0;
        }
        let file = Inode::new(FileType::File, 0o644);
        let (new, _) = tree.root.create_unnamed(&file).await.unwrap();
        let link = NewName::Link(&new, Link::NoReplace);
        tree.make_name(&Path::from("a"), link).await.unwrap();
        assert!(tree.root.lookup("a").await.unwrap().1.is_file());
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_made_leaves_no_directories() {
        let tree = new_tree();
        let file = Inode::new(FileType::File, 0o644);
        let (new, _) = tree.root.create_unnamed(&file).await.unwrap();
        let long = Path::from(format!("new/inner/{}/object", "x".repeat(256)));
        let link = NewName::Link(&new, Link::NoReplace);
        assert!(tree.make_name(&long, link).await.is_err());
        assert!(tree.root.lookup("new").await.is_err());
    }
}
