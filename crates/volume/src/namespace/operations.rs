//! The operations on names, each a closure that runs in a [`Transaction`] and may run again.
//!
//! The life of a create, as an example:
//!
//! 1. `with_retries` (`core/retry.rs`) runs [`find_or_make`] under the volume's lock, on records in memory: the
//!    overlay of uncommitted changes, then the record cache.
//! 2. The transaction walks the path (`namespace/path.rs`). At a record that is not in memory it stops. The lock
//!    is released, the catalog is read, by this thread or, for a task, by the catalog thread, and the transaction
//!    runs again. Changes that are committed meanwhile are merged into what was read.
//! 3. It makes the checks of the system call and notes three records: the name, the inode, and the directory's
//!    inode. The group and the ACL are inherited (`namespace/inherit.rs`).
//! 4. The catalog's room for the next commit is reserved (`core/catalog_preallocation.rs`); a full catalog waits
//!    for a commit, or fails with ENOSPC. Then all three records go into the overlay in one step, and every
//!    caller sees the file.
//! 5. Nothing has been written. The next commit does that: at a sync, or when many records wait.

use uringfs_device::Errno;

use crate::error::{Error, quoted};
use crate::namespace::credentials::Credentials;
use crate::namespace::directory::{EntryBatch, Link, Rename, already_exists};
use crate::namespace::inherit::SET_GROUP;
use crate::namespace::open_options::OpenOptions;
use crate::namespace::path::{Follow, InodeAt, NameAt, Parent};
use crate::namespace::transaction::{Retry, Transaction};
use crate::open_file::open_file::OpenFile;
use crate::records::inode::{FileType, Inode, InodeNumber, Time};

type Outcome<T> = Result<T, Retry>;

pub(crate) fn inode(
    at: InodeAt<'_>,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Inode)> {
    move |transaction| {
        let number = transaction.inode_at(at)?;
        Ok((number, transaction.current_inode(number)?))
    }
}

/// The inode of a name in a directory, and of `.` and `..`.
pub(crate) fn lookup(
    directory: InodeNumber,
    name: &[u8],
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Inode)> {
    move |transaction| {
        let parent = transaction.directory(directory, name)?.parent;
        let number = match name {
            b"." => directory,
            b".." => parent,
            _ => transaction.lookup(directory, name)?.0,
        };
        Ok((number, transaction.current_inode(number)?))
    }
}

/// The inode of this number, which the caller has pinned.
pub(crate) fn pinned(
    number: InodeNumber,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<InodeNumber> {
    move |_| Ok(number)
}

/// As [`inode`], unless the inode is being reclaimed.
pub(crate) fn live_inode(
    number: InodeNumber,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Inode)> {
    move |transaction| {
        let inode = transaction.current_inode(number)?;
        let is_kept =
            || transaction.pins.contains(number) || transaction.find_open(number).is_some();
        match inode.links > 0 || is_kept() {
            true => Ok((number, inode)),
            false => {
                let what = format!("inode {} has lost its last name", number.0);
                Err(Error::refused(Errno::NOENT, what).into())
            }
        }
    }
}

/// Makes an inode, and returns its number and its attributes.
pub(crate) fn make_inode(
    at: NameAt<'_>,
    new: &Inode,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Inode)> {
    let mut make = make(at, new);
    move |transaction| {
        let number = make(transaction)?;
        Ok((number, transaction.inode(number)?))
    }
}

/// Makes a file without a name.
pub(crate) fn make_unnamed(
    directory: InodeNumber,
    new: &Inode,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Inode)> {
    move |transaction| {
        let number = transaction.create_unnamed(directory, new.clone())?;
        Ok((number, transaction.inode(number)?))
    }
}

pub(crate) fn make(
    at: NameAt<'_>,
    new: &Inode,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<InodeNumber> {
    move |transaction| {
        let parent = transaction.name_at(at)?;
        make_in(transaction, at.bytes(), &parent, new)
    }
}

fn make_in(
    transaction: &mut Transaction<'_>,
    path: &[u8],
    parent: &Parent,
    new: &Inode,
) -> Outcome<InodeNumber> {
    if parent.name.is_empty() {
        return Err(already_exists(path).into());
    }
    let is_directory = new.kind == FileType::Directory;
    require_no_slash(transaction, parent, is_directory)?;
    let mut new = new.clone();
    (new.size, new.blocks) = (new.target.len() as u64, 0);
    transaction.create(parent.directory, &parent.name, new)
}

/// Resolves a path, including a symbolic link at its end.
pub(crate) fn find(path: &[u8]) -> impl FnMut(&mut Transaction<'_>) -> Outcome<InodeNumber> {
    move |transaction| transaction.resolve(path, Follow::Yes)
}

/// Resolves a path, or creates the file, behind a dangling link at the path's end if there is one.
pub(crate) fn find_or_make(
    path: &[u8],
    new: &Inode,
    options: OpenOptions,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<InodeNumber> {
    // A file that must be new is not made behind a link.
    let follow = if options.create_new { Follow::No } else { Follow::Yes };
    move |transaction| match transaction.resolve(path, follow) {
        Ok(_) if options.create_new => Err(already_exists(path).into()),
        Err(Retry::Fail(error)) if error.errno() == Errno::NOENT => {
            let parent = transaction.parent_following(path, follow)?;
            if parent.ends_in_slash {
                return Err(Error::refused(Errno::ISDIR, no_such_directory(&parent)).into());
            }
            let number = make_in(transaction, path, &parent, new)?;
            let mut inode = transaction.inode(number)?;
            if options.credentials != Credentials::Superuser && inode.group != new.group {
                // The creator may not be in that group, so the file must not run as it.
                inode.permissions &= !(inode.set_id_bits() & SET_GROUP);
                transaction.put_inode(number, &inode);
            }
            Ok(number)
        }
        found => found,
    }
}

pub(crate) fn link(
    at: InodeAt<'_>,
    new: NameAt<'_>,
    how: Link,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let number = transaction.inode_at(at)?;
        let parent = transaction.name_at(new)?;
        require_no_slash(transaction, &parent, false)?;
        transaction.link(number, parent.directory, &parent.name, how)
    }
}

pub(crate) fn remove(at: NameAt<'_>) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let parent = transaction.name_at(at)?;
        if parent.ends_in_slash {
            transaction.require_directory(&parent)?;
        }
        transaction.unlink(parent.directory, &parent.name)
    }
}

pub(crate) fn remove_directory(at: NameAt<'_>) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let parent = transaction.name_at(at)?;
        transaction.remove_directory(parent.directory, &parent.name)
    }
}

/// The parent, the name and the number of a directory. Follows no link at the path's end.
pub(crate) fn name_of_directory(
    path: &[u8],
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<(InodeNumber, Vec<u8>, InodeNumber)> {
    move |transaction| {
        let Parent { directory, name, .. } = transaction.name_at(NameAt::Path(path))?;
        if name.is_empty() {
            return Err(Error::refused(Errno::BUSY, "the path has no name to remove").into());
        }
        let (number, inode) = transaction.lookup(directory, &name)?;
        match inode.kind {
            FileType::Directory => Ok((directory, name, number)),
            _ => Err(Error::refused(Errno::NOTDIR, "it is not a directory").into()),
        }
    }
}

pub(crate) fn rename(
    at: NameAt<'_>,
    new: NameAt<'_>,
    how: Rename,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let source = transaction.name_at(at)?;
        let target = transaction.name_at(new)?;
        // The slash after a new name is about the inode that moves there.
        let is_new = how != Rename::Exchange;
        if source.ends_in_slash || (is_new && target.ends_in_slash) {
            transaction.require_directory(&source)?;
        }
        if !is_new && target.ends_in_slash {
            transaction.require_directory(&target)?;
        }
        let (source, target) =
            ((source.directory, &source.name[..]), (target.directory, &target.name[..]));
        transaction.rename(source, target, how).map_err(|stop| {
            match transaction.find(source.0, source.1) {
                Ok(None) => stop.of_path(at.bytes()),
                _ => stop.of_path(new.bytes()),
            }
        })
    }
}

/// Refuses a slash after a new name, except for a directory.
///
/// # Errors
/// ENOENT: a path that ends in a slash must lead to a directory.
fn require_no_slash(
    transaction: &Transaction<'_>,
    parent: &Parent,
    is_directory: bool,
) -> Outcome<()> {
    let is_refused = parent.ends_in_slash && !is_directory;
    if is_refused && transaction.find(parent.directory, &parent.name)?.is_none() {
        return Err(Error::refused(Errno::NOENT, no_such_directory(parent)).into());
    }
    Ok(())
}

fn no_such_directory(parent: &Parent) -> String {
    let name = quoted(&parent.name);
    format!("there is no directory {name}: only a directory's name ends in a slash")
}

pub(crate) fn set_attributes(
    at: InodeAt<'_>,
    set: impl Fn(&mut Inode),
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let number = transaction.inode_at(at)?;
        let (mut has_new_owner, mut new_mode) = (false, None);
        transaction.change_inode(number, |inode| {
            let was = inode.clone();
            inode.changed = Time::now();
            set(inode);
            (inode.kind, inode.size, inode.blocks) = (was.kind, was.size, was.blocks);
            (inode.links, inode.target, inode.parent) = (was.links, was.target, was.parent);
            (inode.is_staging, inode.change_cookie) = (was.is_staging, was.change_cookie);
            inode.permissions &= 0o7777;
            new_mode = (inode.permissions != was.permissions).then_some(inode.permissions);
            has_new_owner = inode.kind != FileType::Directory
                && (inode.user, inode.group) != (was.user, was.group);
        })?;
        if let Some(mode) = new_mode {
            transaction.update_acl_mode(number, mode)?;
        }
        if has_new_owner {
            transaction.remove_capability(number)?;
        }
        Ok(())
    }
}

/// Strips the privileges that a write strips on Linux: `security.capability`, and set-ID bits unless the writer is
/// the superuser.
pub(crate) fn strip_privileges(
    file: &OpenFile,
    is_superuser: bool,
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<()> {
    move |transaction| {
        let had_capability = transaction.remove_capability(file.number)?;
        if !had_capability {
            file.set_may_have_capability(false);
        }
        let clears_set_id = !is_superuser && transaction.inode(file.number)?.set_id_bits() != 0;
        if had_capability || clears_set_id {
            transaction.change_inode(file.number, |inode| {
                if !is_superuser {
                    inode.strip_privileges();
                }
                inode.changed = Time::now();
            })?;
        }
        Ok(())
    }
}

/// The number of the directory that a path leads to.
pub(crate) fn directory(path: &[u8]) -> impl FnMut(&mut Transaction<'_>) -> Outcome<InodeNumber> {
    move |transaction| {
        let number = transaction.resolve(path, Follow::Yes)?;
        if transaction.inode(number)?.kind != FileType::Directory {
            let what = format!("{} is not a directory", quoted(path));
            return Err(Error::refused(Errno::NOTDIR, what).into());
        }
        Ok(number)
    }
}

pub(crate) fn entries(
    directory: InodeNumber,
    after: &[u8],
) -> impl FnMut(&mut Transaction<'_>) -> Outcome<EntryBatch> {
    move |transaction| transaction.entries(directory, after)
}
