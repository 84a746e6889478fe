//! What can be done to names, each as an operation on records: see `records` for how it comes to its end.

use rustix::io::Errno;

use crate::error::Error;
use crate::namespace::credentials::Credentials;
use crate::namespace::directory::{DirectoryEntry, Rename, shown};
use crate::namespace::inherit::SET_GROUP;
use crate::namespace::open_options::OpenOptions;
use crate::namespace::path::{Follow, Parent};
use crate::namespace::transaction::{Records, Stop};
use crate::open_file::open_file::OpenFile;
use crate::records::inode::{FileKind, Inode, InodeNumber, Time};

type Outcome<T> = Result<T, Stop>;

pub(crate) fn inode(
    path: &[u8],
    follow: Follow,
) -> impl FnMut(&mut Records<'_>) -> Outcome<(InodeNumber, Inode)> {
    move |records| {
        let number = records.resolve(path, follow)?;
        Ok((number, records.inode_now(number)?))
    }
}

pub(crate) fn make(
    path: &[u8],
    new: &Inode,
) -> impl FnMut(&mut Records<'_>) -> Outcome<InodeNumber> {
    move |records| {
        let parent = records.parent(path)?;
        if parent.name.is_empty() {
            return Err(Error::refused(Errno::EXIST, "it is there already").into());
        }
        let is_directory = new.kind == FileKind::Directory;
        refuse_slash(records, &parent, is_directory)?;
        let mut new = new.clone();
        (new.size, new.blocks) = (new.target.len() as u64, 0);
        records.create(parent.directory, &parent.name, new)
    }
}

/// What a path leads to.
pub(crate) fn find(path: &[u8]) -> impl FnMut(&mut Records<'_>) -> Outcome<InodeNumber> {
    move |records| records.resolve(path, Follow::Yes)
}

/// The same, made if it leads to nothing.
pub(crate) fn find_or_make(
    path: &[u8],
    new: &Inode,
    options: OpenOptions,
) -> impl FnMut(&mut Records<'_>) -> Outcome<InodeNumber> {
    move |records| match find(path)(records) {
        Ok(_) if options.exclusive => {
            Err(Error::refused(Errno::EXIST, "it is there already").into())
        }
        Err(Stop::Refused(error)) if error.errno() == Errno::NOENT => {
            let number = make(path, new)(records)?;
            let mut inode = records.inode(number)?;
            if options.credentials != Credentials::Trusted && inode.group != new.group {
                // It does not run as a group that whoever made it may not be in.
                inode.permissions &= !(inode.lent_rights() & SET_GROUP);
                records.put_inode(number, &inode);
            }
            Ok(number)
        }
        found => found,
    }
}

pub(crate) fn link(path: &[u8], new: &[u8]) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let number = records.resolve(path, Follow::No)?;
        let parent = records.parent(new)?;
        refuse_slash(records, &parent, false)?;
        records.link(number, parent.directory, &parent.name)
    }
}

pub(crate) fn remove(path: &[u8]) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let parent = records.parent(path)?;
        if parent.ends_in_slash {
            records.require_directory(&parent)?;
        }
        records.unlink(parent.directory, &parent.name)
    }
}

pub(crate) fn remove_directory(path: &[u8]) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let parent = records.parent(path)?;
        records.remove_directory(parent.directory, &parent.name)
    }
}

pub(crate) fn rename(
    path: &[u8],
    new: &[u8],
    how: Rename,
) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let source = records.parent(path)?;
        let target = records.parent(new)?;
        // Behind a new name the slash says what is moved.
        let is_new = how != Rename::Exchange;
        if source.ends_in_slash || (is_new && target.ends_in_slash) {
            records.require_directory(&source)?;
        }
        if !is_new && target.ends_in_slash {
            records.require_directory(&target)?;
        }
        let (source, target) =
            ((source.directory, &source.name[..]), (target.directory, &target.name[..]));
        records.rename(source, target, how)
    }
}

/// Refuses a new name with a slash behind it of anything but a directory.
///
/// # Errors
/// ENOENT: nothing is there that the slash could stand behind.
fn refuse_slash(records: &Records<'_>, parent: &Parent, is_directory: bool) -> Outcome<()> {
    let is_refused = parent.ends_in_slash && !is_directory;
    if is_refused && records.find(parent.directory, &parent.name)?.is_none() {
        let name = shown(&parent.name);
        let what = format!("there is no directory {name}: only a directory's name ends in a slash");
        return Err(Error::refused(Errno::NOENT, what).into());
    }
    Ok(())
}

pub(crate) fn set_attributes(
    path: &[u8],
    follow: Follow,
    set: impl Fn(&mut Inode),
) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let number = records.resolve(path, follow)?;
        let (mut is_given_away, mut new_mode) = (false, None);
        records.change_inode(number, |inode| {
            let was = inode.clone();
            inode.changed = Time::now();
            set(inode);
            (inode.kind, inode.size, inode.blocks) = (was.kind, was.size, was.blocks);
            (inode.links, inode.target, inode.parent) = (was.links, was.target, was.parent);
            inode.is_staging = was.is_staging;
            inode.permissions &= 0o7777;
            new_mode = (inode.permissions != was.permissions).then_some(inode.permissions);
            is_given_away = inode.kind != FileKind::Directory
                && (inode.user, inode.group) != (was.user, was.group);
        })?;
        if let Some(mode) = new_mode {
            records.follow_mode(number, mode)?;
        }
        if is_given_away {
            records.take_capability(number)?;
        }
        Ok(())
    }
}

/// Takes away what a writer takes away, as on Linux: what a program may do more than whoever runs it, and,
/// unless the writer is trusted, that it runs as its owner or group.
pub(crate) fn take_rights(
    file: &OpenFile,
    is_trusted: bool,
) -> impl FnMut(&mut Records<'_>) -> Outcome<()> {
    move |records| {
        let had_capability = records.take_capability(file.number)?;
        if !had_capability {
            file.note_capability(false);
        }
        let lends = !is_trusted && records.inode(file.number)?.lent_rights() != 0;
        if had_capability || lends {
            records.change_inode(file.number, |inode| {
                if !is_trusted {
                    inode.take_rights();
                }
                inode.changed = Time::now();
            })?;
        }
        Ok(())
    }
}

pub(crate) fn entries(
    path: &[u8],
    after: &[u8],
) -> impl FnMut(&mut Records<'_>) -> Outcome<Vec<DirectoryEntry>> {
    move |records| {
        let number = records.resolve(path, Follow::Yes)?;
        if records.inode(number)?.kind != FileKind::Directory {
            return Err(Error::refused(Errno::NOTDIR, "it is no directory").into());
        }
        records.entries(number, after)
    }
}
