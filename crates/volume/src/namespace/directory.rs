//! Names: directories, what they hold, and what becomes of a file when its last name goes. Works on
//! records; knows nothing of paths, open files and blocks.
//!
//! Keys: an inode's is its number, a name's its directory's number and its bytes. Numbers are
//! big-endian, so that a directory's names lie together and in order.

use rustix::io::Errno;

use crate::catalog::{Key, Table};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Orphan, Retry, Transaction};
use crate::records::inode::{FileKind, Inode, InodeNumber, LONGEST_TARGET, Time};

/// Bytes of the longest name.
pub const LONGEST_NAME: usize = 255;
/// The most names a file has: ext4's, which programs expect to be refused at some point.
const MAX_LINKS: u32 = 65_000;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name: any bytes but `/` and 0.
    pub name: Vec<u8>,
    /// What it names.
    pub inode: InodeNumber,
    /// The kind of it; a device's number is not told.
    pub kind: FileKind,
}

/// What a rename may do to a name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// Take its place.
    Replace,
    /// Nothing: EEXIST.
    NoReplace,
    /// Change places with it.
    Exchange,
}

impl Transaction<'_> {
    /// What a name names, if anything.
    pub(crate) fn find(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<InodeNumber>, Retry> {
        let record = self.get(Key::Name(directory.0, name))?;
        let entry = record.map(|record| parse_entry(&record)).transpose();
        Ok(entry.map_err(|error| error.of(quoted(name)))?.map(|(inode, _)| inode))
    }

    /// The same, with its inode.
    ///
    /// # Errors
    /// ENOENT when it names nothing, EINVAL and ENAMETOOLONG for what is no name; as [`Self::child_inode`].
    pub(crate) fn lookup(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(InodeNumber, Inode), Retry> {
        check_name(name)?;
        let number = self.find(directory, name)?.ok_or_else(|| not_found(name))?;
        Ok((number, self.child_inode(directory, number)?))
    }

    /// The inode of what a directory holds.
    ///
    /// # Errors
    /// `Damaged` for a directory that is not in that one: it may hold itself, so that a walk would not end.
    fn child_inode(&self, directory: InodeNumber, number: InodeNumber) -> Result<Inode, Retry> {
        let inode = self.inode(number)?;
        let is_elsewhere = number == InodeNumber::ROOT || inode.parent != directory;
        if inode.kind == FileKind::Directory && is_elsewhere {
            let (named_in, is_in) = (directory.0, inode.parent.0);
            let what = format!("directory {} is in {is_in}, and named in {named_in}", number.0);
            return Err(Error::damaged(format!("{what}: check the volume")).into());
        }
        Ok(inode)
    }

    /// Names of a directory behind `after`, in order of their bytes: some, or none when there are
    /// no more.
    ///
    /// # Errors
    /// `Damaged` where the next name is, behind which the listing can go on; what the catalog says.
    pub(crate) fn entries(
        &self,
        directory: InodeNumber,
        after: &[u8],
    ) -> Result<Vec<DirectoryEntry>, Retry> {
        let mut from = Key::Name(directory.0, after).bytes();
        if !after.is_empty() {
            from.push(0);
        }
        let records = loop {
            match self.batch(Table::Names, directory, from)? {
                // All that the catalog had of these has gone since.
                (records, Some(next)) if records.is_empty() => from = next,
                (records, _) => break records,
            }
        };
        let mut entries = Vec::with_capacity(records.len());
        for (mut key, record) in records {
            match directory_entry(&key[8..], &record) {
                Ok(entry) => entries.push(entry),
                // Told when it is the first.
                Err(_) if !entries.is_empty() => break,
                Err(error) => {
                    if key.len() == 8 {
                        // Behind an empty name the listing would begin again: on behind the next that is none.
                        key.push(0);
                    }
                    return Err(error.of(format!("directory {}", directory.0)).at(key).into());
                }
            }
        }
        Ok(entries)
    }

    /// Makes a file of any kind and gives it its first name.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR, ENAMETOOLONG, EINVAL; ENOENT when the directory is gone.
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
        if inode.target.len() > LONGEST_TARGET {
            return Err(
                Error::refused(Errno::NAMETOOLONG, "the target is longer than 4095 bytes").into()
            );
        }
        if inode.kind == FileKind::Directory {
            inode.parent = directory;
            parent.links = parent.links.saturating_add(1);
        }
        let Some(number) = InodeNumber::of(self.effects.next_inode) else {
            let what = "every number that a file can have was given: check the volume";
            return Err(Error::new(ErrorKind::NoSpace, what).into());
        };
        self.effects.next_inode += 1;
        self.inherit((directory, &parent), number, &mut inode)?;
        self.add_entry(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(number)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`Self::create`]; EPERM for a directory, EMLINK for one name too many.
    pub(crate) fn link(
        &mut self,
        number: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        let mut inode = self.inode(number)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::refused(Errno::PERM, "a directory has one name only").into());
        }
        if inode.links == 0 {
            return Err(Error::refused(Errno::NOENT, "the file has lost its last name").into());
        }
        if inode.links >= MAX_LINKS {
            return Err(Error::refused(Errno::MLINK, "the file has 65000 names").into());
        }
        if self.find(directory, name)?.is_some() {
            return Err(already_exists(name).into());
        }
        inode.links += 1;
        inode.changed = Time::now();
        self.add_entry(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(())
    }

    /// Takes a name from a file that is no directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR.
    pub(crate) fn unlink(&mut self, directory: InodeNumber, name: &[u8]) -> Result<(), Retry> {
        let mut parent = self.parent_inode(directory, name)?;
        let (number, inode) = self.lookup(directory, name)?;
        if inode.kind == FileKind::Directory {
            return Err(
                Error::refused(Errno::ISDIR, format!("{} is a directory", quoted(name))).into()
            );
        }
        self.remove_entry(directory, &mut parent, name);
        self.put_inode(directory, &parent);
        self.drop_link(number, inode);
        Ok(())
    }

    /// Removes a directory that holds nothing.
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

    /// Moves a name, and what it names.
    ///
    /// # Errors
    /// As [`Self::create`] and [`Self::remove_directory`]; EINVAL when a directory would come into
    /// itself.
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
        if moved_kind == FileKind::Directory {
            self.refuse_cycle(moved, target.0)?;
        }
        match (there, how) {
            (Some(_), Rename::NoReplace) => return Err(already_exists(target.1).into()),
            (None, Rename::Exchange) => return Err(not_found(target.1).into()),
            // Two names of one file: nothing is to be done, says POSIX.
            (Some((there, _)), _) if there == moved => return Ok(()),
            (Some((there, Inode { kind: there_kind, .. })), Rename::Exchange) => {
                if there_kind == FileKind::Directory {
                    self.refuse_cycle(there, source.0)?;
                }
                self.replace_entry(source, moved_kind, Some((there, there_kind)))?;
                self.replace_entry(target, there_kind, Some((moved, moved_kind)))?;
                self.set_parent(there, source.0)?;
                self.set_parent(moved, target.0)?;
                return Ok(());
            }
            (Some((there, inode)), Rename::Replace) => {
                if moved_kind == FileKind::Directory {
                    self.require_empty_directory(there, &inode, target.1)?;
                }
                if inode.kind == FileKind::Directory && moved_kind != FileKind::Directory {
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
        let more = u32::from(moved_kind == FileKind::Directory);
        parent.links = parent.links.saturating_add(more);
        self.add_entry(target.0, &mut parent, target.1, moved, moved_kind);
        self.put_inode(target.0, &parent);
        self.set_parent(moved, target.0)
    }

    /// What a name stands in, if it can have this name.
    fn parent_inode(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, Retry> {
        check_name(name)?;
        let inode = self.inode(directory)?;
        if inode.kind != FileKind::Directory {
            return Err(
                Error::refused(Errno::NOTDIR, "what it should be in is no directory").into()
            );
        }
        if inode.links == 0 {
            return Err(Error::refused(Errno::NOENT, "the directory has been removed").into());
        }
        Ok(inode)
    }

    fn require_empty_directory(
        &self,
        number: InodeNumber,
        inode: &Inode,
        name: &[u8],
    ) -> Result<(), Retry> {
        if inode.kind != FileKind::Directory {
            let what = format!("{} is no directory", quoted(name));
            return Err(Error::refused(Errno::NOTDIR, what).into());
        }
        if !self.entries(number, b"")?.is_empty() {
            let what = format!("{} holds something; remove that first", quoted(name));
            return Err(Error::refused(Errno::NOTEMPTY, what).into());
        }
        Ok(())
    }

    /// EINVAL when `directory` is `moved` or lies in it.
    fn refuse_cycle(&self, moved: InodeNumber, directory: InodeNumber) -> Result<(), Retry> {
        let (mut at, mut marked, mut steps) = (directory, None, 0u64);
        while at != InodeNumber::ROOT {
            if at == moved {
                return Err(
                    Error::refused(Errno::INVAL, "a directory cannot come into itself").into()
                );
            }
            // Where parents lie in a circle one that was marked comes again: Brent's algorithm.
            if marked == Some(at) {
                let what = format!("directory {} lies in itself: check the volume", at.0);
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

    /// Puts another in the place of what a name names, or takes the name away.
    fn replace_entry(
        &mut self,
        (directory, name): (InodeNumber, &[u8]),
        was: FileKind,
        becomes: Option<(InodeNumber, FileKind)>,
    ) -> Result<(), Retry> {
        let mut parent = self.inode(directory)?;
        let fewer = u32::from(was == FileKind::Directory);
        parent.links = parent.links.saturating_sub(fewer);
        match becomes {
            None => self.remove_entry(directory, &mut parent, name),
            Some((number, kind)) => {
                let more = u32::from(kind == FileKind::Directory);
                parent.links = parent.links.saturating_add(more);
                self.add_entry(directory, &mut parent, name, number, kind);
            }
        }
        self.put_inode(directory, &parent);
        Ok(())
    }

    /// Notes where what was moved is now.
    fn set_parent(&mut self, number: InodeNumber, directory: InodeNumber) -> Result<(), Retry> {
        let mut inode = self.inode(number)?;
        inode.changed = Time::now();
        if inode.kind == FileKind::Directory {
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
        kind: FileKind,
    ) {
        self.put(Key::Name(directory.0, name), encode_entry(number, kind));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    fn remove_entry(&mut self, directory: InodeNumber, parent: &mut Inode, name: &[u8]) {
        self.delete(Key::Name(directory.0, name));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    /// A name fewer. Without the last it is an orphan, and would be found as one after a crash.
    fn drop_link(&mut self, number: InodeNumber, mut inode: Inode) {
        inode.links = match inode.kind {
            FileKind::Directory => 0,
            _ => inode.links.saturating_sub(1),
        };
        inode.changed = Time::now();
        self.put_inode(number, &inode);
        if inode.links == 0 {
            self.put(Key::Orphan(number.0), Vec::new());
            self.effects.orphans.push(Orphan(number));
        }
    }
}

/// Refuses what is no name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > LONGEST_NAME {
        let what = format!("a name of {} bytes: 255 are the most", name.len());
        return Err(Error::refused(Errno::NAMETOOLONG, what));
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Error::refused(Errno::INVAL, format!("{} is no name", quoted(name))));
    }
    Ok(())
}

/// What a name names, as it stands in the catalog.
pub(crate) fn encode_entry(number: InodeNumber, kind: FileKind) -> Vec<u8> {
    let (bits, _) = kind.mode_bits();
    [&number.0.to_be_bytes()[..], &bits.to_be_bytes()].concat()
}

pub(crate) fn parse_entry(record: &[u8]) -> Result<(InodeNumber, FileKind), Error> {
    let parsed = record.split_first_chunk::<8>().and_then(|(number, bits)| {
        let bits = u16::from_be_bytes(bits.try_into().ok()?);
        Some((InodeNumber::of(u64::from_be_bytes(*number))?, FileKind::of_mode(bits, 0)?))
    });
    parsed.ok_or_else(|| Error::damaged("a name's record cannot be read"))
}

/// What a directory holds, as its record tells.
fn directory_entry(name: &[u8], record: &[u8]) -> Result<DirectoryEntry, Error> {
    check_name(name).map_err(|flaw| Error::damaged(flaw.to_string()))?;
    let (inode, kind) = parse_entry(record)?;
    Ok(DirectoryEntry { name: name.to_vec(), inode, kind })
}

fn not_found(name: &[u8]) -> Error {
    Error::refused(Errno::NOENT, format!("{} is not there", quoted(name)))
}

fn already_exists(name: &[u8]) -> Error {
    Error::refused(Errno::EXIST, format!("{} is there already", quoted(name)))
}

/// A name as people can read it.
pub(crate) fn quoted(name: &[u8]) -> String {
    format!("'{}'", name.escape_ascii())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::error::ErrorKind;
    use crate::namespace::transaction::ReadResults;
    use crate::records::overlay::{Changes, Pending};

    #[test]
    fn directories_that_lie_in_each_other_are_damage_and_not_a_walk_without_end() {
        let (mut overlay, mut changes) = (Pending::new(0), Changes::default());
        // The second lies in the third, that in the fourth, and that in the third again.
        for (number, parent) in [(2, 3), (3, 4), (4, 3)] {
            let mut inode = Inode::new(FileKind::Directory, 0o755);
            inode.parent = InodeNumber(parent);
            changes.put(Key::Inode(number), inode.to_record());
        }
        overlay.apply(changes);
        let (open, results) = (HashMap::new(), ReadResults::default());
        let transaction = Transaction::new(&overlay, &open, &results, 10, 10);
        match transaction.refuse_cycle(InodeNumber(9), InodeNumber(2)) {
            Err(Retry::Fail(error)) => assert_eq!(error.kind(), ErrorKind::Damaged),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_of_what_cannot_be_is_damage() {
        for (number, is_possible) in
            [(0, false), (1, true), (u64::MAX - 1, true), (u64::MAX, false)]
        {
            let found = parse_entry(&encode_entry(InodeNumber(number), FileKind::File));
            assert_eq!(found.is_ok(), is_possible, "{number}");
        }
    }
}
