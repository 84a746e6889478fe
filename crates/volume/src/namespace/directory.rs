//! Directories: their entries, and the link counts and orphans that follow from changes of them. Works on records,
//! without paths, open files and blocks.
//!
//! Keys: an inode's key is its number, an entry's key is its directory's number and its name. Numbers are
//! big-endian, so that the entries of a directory are adjacent and in order.

use uringfs_device::Errno;

use crate::catalog::{Key, Table};
use crate::error::{Error, ErrorKind, quoted};
use crate::namespace::transaction::{Orphan, Retry, Transaction};
use crate::records::inode::{FileType, Inode, InodeNumber, MAX_TARGET_BYTES, Time};

/// The longest name.
pub const MAX_NAME_BYTES: usize = 255;
/// The most links of a file: ext4's limit, because programs expect one.
const MAX_LINKS: u32 = 65_000;

/// An entry that a [`DirectoryStream`](crate::DirectoryStream) returns: name, inode and kind, without a path.
/// [`DirEntry`](crate::DirEntry) is the one of [`Volume::read_dir`](crate::Volume::read_dir).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name: any bytes but `/` and 0.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub inode: InodeNumber,
    /// The kind of the inode; a device's number is 0 here.
    pub kind: FileType,
}

/// Adjacent entries of a directory.
#[derive(Debug)]
pub(crate) struct EntryBatch {
    pub(crate) entries: Vec<DirectoryEntry>,
    /// Whether no entry follows.
    pub(crate) is_last: bool,
}

/// The behaviour of a rename if the new name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rename {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails with EEXIST.
    NoReplace,
    /// Exchanges the two.
    Exchange,
    /// Replaces it, and leaves a whiteout under the old name: a character device of number 0, by which an overlay file
    /// system hides the name in the layers below (`RENAME_WHITEOUT`).
    Whiteout,
    /// As [`Rename::Whiteout`], but fails with EEXIST if the new name exists.
    WhiteoutNoReplace,
}

/// The behaviour of [`InodeRef::link_with`](crate::InodeRef::link_with) if the new name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// Fails with EEXIST.
    #[default]
    NoReplace,
    /// Replaces it, unless it is a directory.
    Replace,
    /// Replaces it if it is the name of the file with this number: a compare-and-swap, as no other file ever has the
    /// number. ESTALE if it is the name of another, ENOENT if it does not exist.
    ReplaceOnly(InodeNumber),
    /// As [`Link::ReplaceOnly`], and if no write to it has begun since it had this
    /// [`Metadata::change_cookie`](crate::Metadata::change_cookie). ESTALE otherwise.
    ReplaceUnchanged {
        /// The number of the file.
        number: InodeNumber,
        /// Its change cookie.
        change_cookie: u64,
    },
}

impl Rename {
    fn leaves_whiteout(self) -> bool {
        matches!(self, Rename::Whiteout | Rename::WhiteoutNoReplace)
    }
}

impl Transaction<'_> {
    /// The inode that a name is for, if the name exists.
    pub(crate) fn find(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<InodeNumber>, Retry> {
        let record = self.get(Key::Name(directory.0, name))?;
        let entry = record.map(parse_entry).transpose();
        Ok(entry.map_err(|error| error.context(quoted(name)))?.map(|(inode, _)| inode))
    }

    /// The inode that a name is for, and its number.
    ///
    /// # Errors
    /// ENOENT when the name does not exist, EINVAL and ENAMETOOLONG for an invalid name; as [`Self::child_inode`].
    pub(crate) fn lookup(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(InodeNumber, Inode), Retry> {
        check_name(name)?;
        let number = self.find(directory, name)?.ok_or_else(|| not_found(name))?;
        Ok((number, self.child_inode(directory, number)?))
    }

    /// The inode of an entry.
    ///
    /// # Errors
    /// `Damaged` for a directory whose parent is another one: it may be inside itself, and a walk would not end.
    fn child_inode(&self, directory: InodeNumber, number: InodeNumber) -> Result<Inode, Retry> {
        let inode = self.inode(number)?;
        let is_elsewhere = number == InodeNumber::ROOT || inode.parent != directory;
        if inode.kind == FileType::Directory && is_elsewhere {
            let (named_in, is_in) = (directory.0, inode.parent.0);
            let what = format!(
                "directory {} has a name in {named_in}, but its parent is {is_in}",
                number.0
            );
            return Err(Error::damaged(format!("{what}: check the volume")).into());
        }
        Ok(inode)
    }

    /// The names of a directory after `after`, in the order of their bytes: some of them, or the rest.
    ///
    /// # Errors
    /// `Damaged` if the next name is damaged; the listing can go on after it. Errors of the catalog.
    pub(crate) fn entries(
        &self,
        directory: InodeNumber,
        after: &[u8],
    ) -> Result<EntryBatch, Retry> {
        let mut from = Key::Name(directory.0, after).bytes();
        if !after.is_empty() {
            from.push(0);
        }
        let (records, mut is_last) = loop {
            match self.chunk(Table::Names, directory, from)? {
                // All of this chunk was deleted and is not committed: read on.
                (records, Some(next)) if records.is_empty() => from = next,
                (records, next) => break (records, next.is_none()),
            }
        };
        let mut entries = Vec::with_capacity(records.len());
        for (mut key, record) in records {
            match directory_entry(&key[8..], &record) {
                Ok(entry) => entries.push(entry),
                // A damaged entry is an error only at the front of a listing.
                Err(_) if !entries.is_empty() => {
                    is_last = false;
                    break;
                }
                Err(error) => {
                    if key.len() == 8 {
                        // After an empty name the listing would start over: go on after the next invalid name.
                        key.push(0);
                    }
                    return Err(error
                        .context(format!("directory {}", directory.0))
                        .with_key(key)
                        .into());
                }
            }
        }
        Ok(EntryBatch { entries, is_last })
    }

    /// Creates a file of any kind with its first name.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR, ENAMETOOLONG, EINVAL; ENOENT when the directory was removed.
    pub(crate) fn create(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        mut inode: Inode,
    ) -> Result<InodeNumber, Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        if self.find(directory, name)?.is_some() {
            return Err(already_exists(name).into());
        }
        if inode.target.len() > MAX_TARGET_BYTES {
            return Err(
                Error::refused(Errno::NAMETOOLONG, "the target is longer than 4095 bytes").into()
            );
        }
        if inode.kind == FileType::Directory {
            inode.parent = directory;
            parent.links = parent.links.saturating_add(1);
        }
        let number = self.next_inode_number()?;
        self.inherit((directory, &parent), number, &mut inode)?;
        self.add_entry(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(number)
    }

    /// Creates a file without a name, which inherits from a directory (`O_TMPFILE`).
    ///
    /// # Errors
    /// ENOTDIR; ENOENT when the directory was removed.
    pub(crate) fn create_unnamed(
        &mut self,
        directory: InodeNumber,
        mut inode: Inode,
    ) -> Result<InodeNumber, Retry> {
        let parent = require_not_removed(self.directory(directory, b"a file without a name")?)?;
        let number = self.next_inode_number()?;
        self.inherit((directory, &parent), number, &mut inode)?;
        inode.links = 0;
        self.put_inode(number, &inode);
        self.add_orphan(number);
        Ok(number)
    }

    fn next_inode_number(&mut self) -> Result<InodeNumber, Error> {
        let Some(number) = InodeNumber::new(self.effects.next_inode) else {
            let what = "no inode numbers are left: check the volume";
            return Err(Error::new(ErrorKind::NoSpace, what));
        };
        self.effects.next_inode += 1;
        Ok(number)
    }

    /// Adds a name to a file. It may be another file's, as `how` says.
    ///
    /// # Errors
    /// As [`Self::create`]; EPERM for a directory, EMLINK for too many names, EISDIR for the name of a directory; as
    /// `how` says.
    pub(crate) fn link(
        &mut self,
        number: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
        how: Link,
    ) -> Result<(), Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        let mut inode = self.inode(number)?;
        if inode.kind == FileType::Directory {
            return Err(Error::refused(Errno::PERM, "a directory has one name only").into());
        }
        if inode.links == 0 && !self.pins.is_linkable(number) {
            return Err(Error::refused(Errno::NOENT, "the file has lost its last name").into());
        }
        match (self.find(directory, name)?, how) {
            (None, Link::ReplaceOnly(_) | Link::ReplaceUnchanged { .. }) => {
                return Err(not_found(name).into());
            }
            (None, _) => {}
            (Some(_), Link::NoReplace) => return Err(already_exists(name).into()),
            (
                Some(there),
                Link::ReplaceOnly(expected) | Link::ReplaceUnchanged { number: expected, .. },
            ) if there != expected => return Err(other_file(name).into()),
            (Some(there), Link::ReplaceUnchanged { change_cookie, .. })
                if self.current_inode(there)?.change_cookie != change_cookie =>
            {
                let what = format!("{} has been written meanwhile", quoted(name));
                return Err(Error::refused(Errno::STALE, what).into());
            }
            // As in a rename, it is the name of this file already.
            (Some(there), _) if there == number => return Ok(()),
            (Some(there), _) => {
                let replaced = self.child_inode(directory, there)?;
                if replaced.kind == FileType::Directory {
                    let what = format!("{} is a directory", quoted(name));
                    return Err(Error::refused(Errno::ISDIR, what).into());
                }
                self.drop_link(there, replaced);
            }
        }
        if inode.links >= MAX_LINKS {
            return Err(Error::refused(Errno::MLINK, "the file has 65000 names").into());
        }
        if inode.links == 0 {
            self.delete(Key::Orphan(number.0));
            self.effects.named = Some(Orphan(number));
        }
        inode.links += 1;
        inode.changed = Time::now();
        self.add_entry(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(())
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR.
    pub(crate) fn unlink(&mut self, directory: InodeNumber, name: &[u8]) -> Result<(), Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        let (number, inode) = self.lookup(directory, name)?;
        if inode.kind == FileType::Directory {
            return Err(
                Error::refused(Errno::ISDIR, format!("{} is a directory", quoted(name))).into()
            );
        }
        self.remove_entry(directory, &mut parent, name);
        self.put_inode(directory, &parent);
        self.drop_link(number, inode);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub(crate) fn remove_directory(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        let (number, inode) = self.lookup(directory, name)?;
        self.require_empty_directory(number, &inode, name)?;
        self.remove_entry(directory, &mut parent, name);
        parent.links = parent.links.saturating_sub(1);
        self.put_inode(directory, &parent);
        self.drop_link(number, inode);
        Ok(())
    }

    /// Moves a name.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::remove_directory`]; EINVAL when a directory would move into itself.
    pub(crate) fn rename(
        &mut self,
        source: (InodeNumber, &[u8]),
        target: (InodeNumber, &[u8]),
        how: Rename,
    ) -> Result<(), Retry> {
        self.parent_inode(source.0, source.1)?;
        self.parent_inode(target.0, target.1)?;
        let (moved, Inode { kind: moved_kind, .. }) = self.lookup(source.0, source.1)?;
        let there = match self.find(target.0, target.1)? {
            Some(there) => Some((there, self.child_inode(target.0, there)?)),
            None => None,
        };
        if moved_kind == FileType::Directory {
            self.refuse_cycle(moved, target.0)?;
        }
        match (there, how) {
            (Some(_), Rename::NoReplace | Rename::WhiteoutNoReplace) => {
                return Err(already_exists(target.1).into());
            }
            (None, Rename::Exchange) => return Err(not_found(target.1).into()),
            // Two names of one file: POSIX says to do nothing.
            (Some((there, _)), _) if there == moved => return Ok(()),
            (Some((there, Inode { kind: there_kind, .. })), Rename::Exchange) => {
                if there_kind == FileType::Directory {
                    self.refuse_cycle(there, source.0)?;
                }
                self.replace_entry(source, moved_kind, Some((there, there_kind)))?;
                self.replace_entry(target, there_kind, Some((moved, moved_kind)))?;
                self.set_parent(there, source.0)?;
                self.set_parent(moved, target.0)?;
                return Ok(());
            }
            (Some((there, inode)), Rename::Replace | Rename::Whiteout) => {
                if moved_kind == FileType::Directory {
                    self.require_empty_directory(there, &inode, target.1)?;
                }
                if inode.kind == FileType::Directory && moved_kind != FileType::Directory {
                    let what = format!("{} is a directory", quoted(target.1));
                    return Err(Error::refused(Errno::ISDIR, what).into());
                }
                self.replace_entry(target, inode.kind, None)?;
                self.drop_link(there, inode);
            }
            (None, _) => {}
        }
        self.replace_entry(source, moved_kind, None)?;
        let mut parent = self.inode(target.0)?;
        let more = u32::from(moved_kind == FileType::Directory);
        parent.links = parent.links.saturating_add(more);
        self.add_entry(target.0, &mut parent, target.1, moved, moved_kind);
        self.put_inode(target.0, &parent);
        self.set_parent(moved, target.0)?;
        if how.leaves_whiteout() {
            self.create(source.0, source.1, Inode::new(FileType::CharacterDevice(0), 0))?;
        }
        Ok(())
    }

    /// # Errors
    /// ESTALE if the name is that of another inode; ENOENT.
    pub(crate) fn require_inode(
        &self,
        directory: InodeNumber,
        name: &[u8],
        expected: InodeNumber,
    ) -> Result<(), Retry> {
        match self.find(directory, name)? {
            Some(there) if there == expected => Ok(()),
            Some(_) => Err(other_file(name).into()),
            None => Err(not_found(name).into()),
        }
    }

    /// The inode of a directory that is to get the name or has it.
    fn parent_inode(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, Retry> {
        check_name(name)?;
        require_not_removed(self.directory(directory, name)?)
    }

    /// The inode of the directory of a name.
    ///
    /// # Errors
    /// ENOTDIR; as [`Self::inode`].
    pub(crate) fn directory(&self, number: InodeNumber, name: &[u8]) -> Result<Inode, Retry> {
        let inode = self.inode(number)?;
        match inode.kind {
            FileType::Directory => Ok(inode),
            _ => {
                let what = format!("the parent of {} is not a directory", quoted(name));
                Err(Error::refused(Errno::NOTDIR, what).into())
            }
        }
    }

    fn require_empty_directory(
        &self,
        number: InodeNumber,
        inode: &Inode,
        name: &[u8],
    ) -> Result<(), Retry> {
        if inode.kind != FileType::Directory {
            let what = format!("{} is not a directory", quoted(name));
            return Err(Error::refused(Errno::NOTDIR, what).into());
        }
        if !self.entries(number, b"")?.entries.is_empty() {
            let what = format!("{} is not empty; remove its entries first", quoted(name));
            return Err(Error::refused(Errno::NOTEMPTY, what).into());
        }
        Ok(())
    }

    /// EINVAL when `directory` is `moved` or is inside it.
    fn refuse_cycle(&self, moved: InodeNumber, directory: InodeNumber) -> Result<(), Retry> {
        let (mut at, mut marked, mut steps) = (directory, None, 0u64);
        while at != InodeNumber::ROOT {
            if at == moved {
                return Err(
                    Error::refused(Errno::INVAL, "a directory cannot move into itself").into()
                );
            }
            // Brent's algorithm: in a cycle of parents the walk meets the marked directory again.
            if marked == Some(at) {
                let what = format!("directory {} is inside itself: check the volume", at.0);
                return Err(Error::damaged(what).into());
            }
            steps += 1;
            if steps.is_power_of_two() {
                marked = Some(at);
            }
            at = self.inode(at)?.parent;
        }
        Ok(())
    }

    /// Makes an entry that names an inode of kind `was` name another inode, or removes it.
    fn replace_entry(
        &mut self,
        (directory, name): (InodeNumber, &[u8]),
        was: FileType,
        becomes: Option<(InodeNumber, FileType)>,
    ) -> Result<(), Retry> {
        let mut parent = self.inode(directory)?;
        let fewer = u32::from(was == FileType::Directory);
        parent.links = parent.links.saturating_sub(fewer);
        match becomes {
            None => self.remove_entry(directory, &mut parent, name),
            Some((number, kind)) => {
                let more = u32::from(kind == FileType::Directory);
                parent.links = parent.links.saturating_add(more);
                self.add_entry(directory, &mut parent, name, number, kind);
            }
        }
        self.put_inode(directory, &parent);
        Ok(())
    }

    /// Sets the parent of a moved inode.
    fn set_parent(&mut self, number: InodeNumber, directory: InodeNumber) -> Result<(), Retry> {
        let mut inode = self.inode(number)?;
        inode.changed = Time::now();
        if inode.kind == FileType::Directory {
            inode.parent = directory;
        }
        self.put_inode(number, &inode);
        Ok(())
    }

    fn add_entry(
        &mut self,
        directory: InodeNumber,
        parent: &mut Inode,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
    ) {
        self.put(Key::Name(directory.0, name), encode_entry(number, kind));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    fn remove_entry(&mut self, directory: InodeNumber, parent: &mut Inode, name: &[u8]) {
        self.delete(Key::Name(directory.0, name));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    /// Decrements the link count. At 0 the inode becomes an orphan, with a record by which it is found after a crash.
    fn drop_link(&mut self, number: InodeNumber, mut inode: Inode) {
        inode.links = match inode.kind {
            FileType::Directory => 0,
            _ => inode.links.saturating_sub(1),
        };
        inode.changed = Time::now();
        self.put_inode(number, &inode);
        if inode.links == 0 {
            self.add_orphan(number);
        }
    }

    /// Notes an inode without a name.
    fn add_orphan(&mut self, number: InodeNumber) {
        self.put(Key::Orphan(number.0), Vec::new());
        self.effects.orphans.push(Orphan(number));
    }
}

/// ENOENT for a directory that has been removed.
fn require_not_removed(directory: Inode) -> Result<Inode, Retry> {
    match directory.links {
        0 => Err(Error::refused(Errno::NOENT, "the directory has been removed").into()),
        _ => Ok(directory),
    }
}

/// Checks that a name is valid.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_NAME_BYTES {
        let what = format!("a name of {} bytes: the maximum is 255", name.len());
        return Err(Error::refused(Errno::NAMETOOLONG, what));
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Error::refused(Errno::INVAL, format!("{} is not a valid name", quoted(name))));
    }
    Ok(())
}

/// The record of an entry.
pub(crate) fn encode_entry(number: InodeNumber, kind: FileType) -> Vec<u8> {
    let (bits, _) = kind.mode_bits();
    [&number.0.to_be_bytes()[..], &bits.to_be_bytes()].concat()
}

pub(crate) fn parse_entry(record: &[u8]) -> Result<(InodeNumber, FileType), Error> {
    let parsed = record.split_first_chunk::<8>().and_then(|(number, bits)| {
        let bits = u16::from_be_bytes(bits.try_into().ok()?);
        Some((InodeNumber::new(u64::from_be_bytes(*number))?, FileType::from_mode(bits, 0)?))
    });
    parsed.ok_or_else(|| Error::damaged("a name's record cannot be read"))
}

/// Parses an entry, with its name.
fn directory_entry(name: &[u8], record: &[u8]) -> Result<DirectoryEntry, Error> {
    check_name(name).map_err(|flaw| Error::damaged(flaw.to_string()))?;
    let (inode, kind) = parse_entry(record)?;
    Ok(DirectoryEntry { name: name.to_vec(), inode, kind })
}

fn other_file(name: &[u8]) -> Error {
    let what = format!("{} is the name of another file by now", quoted(name));
    Error::refused(Errno::STALE, what)
}

fn not_found(name: &[u8]) -> Error {
    Error::refused(Errno::NOENT, format!("{} does not exist", quoted(name)))
}

/// The error for a name or a path that is taken.
pub(crate) fn already_exists(name: &[u8]) -> Error {
    Error::refused(Errno::EXIST, format!("{} already exists", quoted(name)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::error::ErrorKind;
    use crate::namespace::pins::Pins;
    use crate::namespace::transaction::ReadResults;
    use crate::records::overlay::{ChangeSet, Overlay};

    #[test]
    fn a_cycle_of_directories_is_damage_and_the_walk_ends() {
        let (mut overlay, mut changes) = (Overlay::new(0), ChangeSet::default());
        // 2 is inside 3, 3 inside 4, and 4 inside 3.
        for (number, parent) in [(2, 3), (3, 4), (4, 3)] {
            let mut inode = Inode::new(FileType::Directory, 0o755);
            inode.parent = InodeNumber(parent);
            changes.put(Key::Inode(number), inode.to_record());
        }
        overlay.apply(changes);
        let (open, pins) = (HashMap::new(), Pins::default());
        let results = ReadResults::default();
        let transaction = Transaction::new(&overlay, &open, &pins, &results, 10, 10);
        match transaction.refuse_cycle(InodeNumber(9), InodeNumber(2)) {
            Err(Retry::Fail(error)) => assert_eq!(error.kind(), ErrorKind::Damaged),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_entry_with_an_impossible_inode_number_is_damage() {
        for (number, is_possible) in
            [(0, false), (1, true), (u64::MAX - 1, true), (u64::MAX, false)]
        {
            let found = parse_entry(&encode_entry(InodeNumber(number), FileType::File));
            assert_eq!(found.is_ok(), is_possible, "{number}");
        }
    }
}
