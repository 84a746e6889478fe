//! Names: directories, what they hold, and what becomes of a file when its last name goes. Works on
//! records in memory and in the catalog; knows nothing of paths, open files and blocks.
//!
//! Keys: an inode's is its number, a name's its directory's number and its bytes. Numbers are
//! big-endian, so that a directory's names lie together and in order.

use rustix::io::Errno;

use crate::catalog::{Catalog, Key, Table};
use crate::changes::{Known, Pending};
use crate::error::Error;
use crate::inode::{FileKind, Inode, InodeNumber, LONGEST_TARGET, Time};

/// Bytes of the longest name.
pub const LONGEST_NAME: usize = 255;
/// The most names a file has: ext4's, which programs expect to be refused at some point.
const MOST_LINKS: u32 = 65_000;
/// Records asked of the catalog at once.
const BATCH: usize = 1024;

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

/// What has lost its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is to be destroyed, now or when it is closed"]
pub(crate) struct Orphan(pub(crate) InodeNumber);

/// Some records of an inode.
pub(crate) struct Scanned {
    /// Keys and values.
    pub(crate) records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where more may follow, if not all have been told.
    next: Option<Vec<u8>>,
}

/// The volume's records, as they are now.
pub(crate) struct Records<'v> {
    pub(crate) catalog: &'v Catalog,
    pub(crate) pending: &'v mut Pending,
}

impl Records<'_> {
    /// A record as it is now.
    pub(crate) fn get(&self, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
        match self.pending.get(key) {
            Known::Value(value) => Ok(Some(value.to_vec())),
            Known::Gone => Ok(None),
            Known::Nothing => self.catalog.get(key),
        }
    }

    /// Records of an inode from a key on, in order.
    pub(crate) fn scan(&self, inode: InodeNumber, from: Key<'_>) -> Result<Scanned, Error> {
        self.scan_from(from.table(), inode, from.bytes())
    }

    /// Those that come behind `scanned`.
    pub(crate) fn scan_on(
        &self,
        table: Table,
        inode: InodeNumber,
        scanned: &Scanned,
    ) -> Result<Option<Scanned>, Error> {
        let next = scanned.next.clone();
        next.map(|from| self.scan_from(table, inode, from)).transpose()
    }

    fn scan_from(&self, table: Table, inode: InodeNumber, from: Vec<u8>) -> Result<Scanned, Error> {
        let mut found = Vec::new();
        let mut damaged = None;
        for record in self.catalog.scan_each(table, from.clone(), Some(inode.0), BATCH)? {
            match record.value {
                Ok(value) => found.push((record.key, value)),
                Err(error) if found.is_empty() => return Err(error.at(record.key)),
                // Told when it is the first.
                Err(_) => {
                    damaged = Some(record.key);
                    break;
                }
            }
        }
        // Changes behind the last are told with the records there.
        let next = match found.last() {
            _ if damaged.is_some() => damaged,
            Some((last, _)) if found.len() == BATCH => Some([&last[..], &[0]].concat()),
            _ => None,
        };
        let end = next.clone().unwrap_or_else(|| (inode.0 + 1).to_be_bytes().to_vec());
        Ok(Scanned { records: self.pending.lay_over(table, &(from..end), found), next })
    }

    pub(crate) fn put(&mut self, key: Key<'_>, value: Vec<u8>) {
        self.pending.current().put(key, value);
    }

    pub(crate) fn delete(&mut self, key: Key<'_>) {
        self.pending.current().delete(key);
    }

    /// An inode.
    ///
    /// # Errors
    /// ENOENT when there is none; what the catalog says.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Inode, Error> {
        match self.get(Key::Inode(number.0))? {
            Some(record) => {
                Inode::of_record(&record).map_err(|error| error.of(format!("inode {}", number.0)))
            }
            None => Err(Error::refused(Errno::NOENT, format!("there is no inode {}", number.0))),
        }
    }

    pub(crate) fn put_inode(&mut self, number: InodeNumber, inode: &Inode) {
        self.put(Key::Inode(number.0), inode.to_record());
    }

    /// What a name names, if anything.
    pub(crate) fn find(
        &self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<InodeNumber>, Error> {
        let record = self.get(Key::Name(directory.0, name))?;
        record.map(|record| entry_of(&record).map(|(inode, _)| inode)).transpose()
    }

    /// The same.
    ///
    /// # Errors
    /// ENOENT when it names nothing.
    pub(crate) fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<InodeNumber, Error> {
        self.find(directory, name)?.ok_or_else(|| absent(name))
    }

    /// Names of a directory behind `after`, in order of their bytes: some, or none when there are
    /// no more.
    pub(crate) fn entries(
        &self,
        directory: InodeNumber,
        after: &[u8],
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let mut from = Key::Name(directory.0, after).bytes();
        if !after.is_empty() {
            from.push(0);
        }
        let mut scanned = self.scan_from(Table::Names, directory, from)?;
        // All that the catalog has of a batch may be gone by now.
        while scanned.records.is_empty()
            && let Some(more) = self.scan_on(Table::Names, directory, &scanned)?
        {
            scanned = more;
        }
        let entry = |(key, record): (Vec<u8>, Vec<u8>)| {
            let (inode, kind) = entry_of(&record)?;
            Ok(DirectoryEntry { name: key[8..].to_vec(), inode, kind })
        };
        scanned.records.into_iter().map(entry).collect()
    }

    /// Makes a file of any kind and gives it its first name.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR, ENAMETOOLONG, EINVAL; ENOENT when the directory is gone.
    pub(crate) fn create(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        number: InodeNumber,
        mut inode: Inode,
    ) -> Result<(), Error> {
        let mut parent = self.directory_for(directory, name)?;
        if self.find(directory, name)?.is_some() {
            return Err(exists(name));
        }
        if inode.target.len() > LONGEST_TARGET {
            return Err(Error::refused(Errno::NAMETOOLONG, "the target is longer than 4095 bytes"));
        }
        if inode.kind == FileKind::Directory {
            inode.parent = directory;
            parent.links += 1;
        }
        self.enter(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(())
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
    ) -> Result<(), Error> {
        let mut parent = self.directory_for(directory, name)?;
        let mut inode = self.inode(number)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::refused(Errno::PERM, "a directory has one name only"));
        }
        if inode.links == 0 {
            return Err(Error::refused(Errno::NOENT, "the file has lost its last name"));
        }
        if inode.links >= MOST_LINKS {
            return Err(Error::refused(Errno::MLINK, "the file has 65000 names"));
        }
        if self.find(directory, name)?.is_some() {
            return Err(exists(name));
        }
        inode.links += 1;
        inode.changed = Time::now();
        self.enter(directory, &mut parent, name, number, inode.kind);
        self.put_inode(directory, &parent);
        self.put_inode(number, &inode);
        Ok(())
    }

    /// Takes a name from a file that is no directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR.
    pub(crate) fn unlink(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<Orphan>, Error> {
        let mut parent = self.directory_for(directory, name)?;
        let number = self.lookup(directory, name)?;
        let inode = self.inode(number)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::refused(Errno::ISDIR, format!("{} is a directory", shown(name))));
        }
        self.leave(directory, &mut parent, name);
        self.put_inode(directory, &parent);
        Ok(self.lose_name(number, inode))
    }

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub(crate) fn remove_directory(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<Orphan>, Error> {
        let mut parent = self.directory_for(directory, name)?;
        let number = self.lookup(directory, name)?;
        let inode = self.empty_directory(number, name)?;
        self.leave(directory, &mut parent, name);
        parent.links -= 1;
        self.put_inode(directory, &parent);
        Ok(self.lose_name(number, inode))
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
    ) -> Result<Option<Orphan>, Error> {
        self.directory_for(source.0, source.1)?;
        self.directory_for(target.0, target.1)?;
        let moved = self.lookup(source.0, source.1)?;
        let there = self.find(target.0, target.1)?;
        let moved_kind = self.inode(moved)?.kind;
        if moved_kind == FileKind::Directory {
            self.refuse_loop(moved, target.0)?;
        }
        let orphan = match (there, how) {
            (Some(_), Rename::NoReplace) => return Err(exists(target.1)),
            (None, Rename::Exchange) => return Err(absent(target.1)),
            // Two names of one file: nothing is to be done, says POSIX.
            (Some(there), _) if there == moved => return Ok(None),
            (Some(there), Rename::Exchange) => {
                let there_kind = self.inode(there)?.kind;
                if there_kind == FileKind::Directory {
                    self.refuse_loop(there, source.0)?;
                }
                self.change_name(source, moved_kind, Some((there, there_kind)))?;
                self.change_name(target, there_kind, Some((moved, moved_kind)))?;
                self.settle_in(there, source.0)?;
                self.settle_in(moved, target.0)?;
                return Ok(None);
            }
            (Some(there), Rename::Replace) => {
                let inode = match moved_kind {
                    FileKind::Directory => self.empty_directory(there, target.1)?,
                    _ => self.inode(there)?,
                };
                if inode.kind == FileKind::Directory && moved_kind != FileKind::Directory {
                    let what = format!("{} is a directory", shown(target.1));
                    return Err(Error::refused(Errno::ISDIR, what));
                }
                self.change_name(target, inode.kind, None)?;
                self.lose_name(there, inode)
            }
            (None, _) => None,
        };
        self.change_name(source, moved_kind, None)?;
        let mut parent = self.inode(target.0)?;
        parent.links += u32::from(moved_kind == FileKind::Directory);
        self.enter(target.0, &mut parent, target.1, moved, moved_kind);
        self.put_inode(target.0, &parent);
        self.settle_in(moved, target.0)?;
        Ok(orphan)
    }

    /// Takes an inode that nothing names from the records, with all that belongs to it but its
    /// extents, which the caller has taken.
    pub(crate) fn destroy(&mut self, orphan: Orphan) -> Result<(), Error> {
        let number = orphan.0;
        let mut scanned = Some(self.scan(number, Key::Xattr(number.0, b""))?);
        while let Some(batch) = scanned {
            for (key, _) in &batch.records {
                self.delete(Key::Xattr(number.0, &key[8..]));
            }
            scanned = self.scan_on(Table::Xattrs, number, &batch)?;
        }
        self.delete(Key::Inode(number.0));
        self.delete(Key::Orphan(number.0));
        Ok(())
    }

    /// What a name stands in, if it can have this name.
    fn directory_for(&self, directory: InodeNumber, name: &[u8]) -> Result<Inode, Error> {
        check_name(name)?;
        let inode = self.inode(directory)?;
        if inode.kind != FileKind::Directory {
            return Err(Error::refused(Errno::NOTDIR, "what it should be in is no directory"));
        }
        if inode.links == 0 {
            return Err(Error::refused(Errno::NOENT, "the directory has been removed"));
        }
        Ok(inode)
    }

    fn empty_directory(&self, number: InodeNumber, name: &[u8]) -> Result<Inode, Error> {
        let inode = self.inode(number)?;
        if inode.kind != FileKind::Directory {
            let what = format!("{} is no directory", shown(name));
            return Err(Error::refused(Errno::NOTDIR, what));
        }
        if !self.entries(number, b"")?.is_empty() {
            let what = format!("{} holds something; remove that first", shown(name));
            return Err(Error::refused(Errno::NOTEMPTY, what));
        }
        Ok(inode)
    }

    /// EINVAL when `directory` is `moved` or lies in it.
    fn refuse_loop(&self, moved: InodeNumber, directory: InodeNumber) -> Result<(), Error> {
        let mut at = directory;
        while at != InodeNumber::ROOT {
            if at == moved {
                return Err(Error::refused(Errno::INVAL, "a directory cannot come into itself"));
            }
            at = self.inode(at)?.parent;
        }
        Ok(())
    }

    /// Puts another in the place of what a name names, or takes the name away.
    fn change_name(
        &mut self,
        (directory, name): (InodeNumber, &[u8]),
        was: FileKind,
        becomes: Option<(InodeNumber, FileKind)>,
    ) -> Result<(), Error> {
        let mut parent = self.inode(directory)?;
        parent.links -= u32::from(was == FileKind::Directory);
        match becomes {
            None => self.leave(directory, &mut parent, name),
            Some((number, kind)) => {
                parent.links += u32::from(kind == FileKind::Directory);
                self.enter(directory, &mut parent, name, number, kind);
            }
        }
        self.put_inode(directory, &parent);
        Ok(())
    }

    /// Notes where what was moved is now.
    fn settle_in(&mut self, number: InodeNumber, directory: InodeNumber) -> Result<(), Error> {
        let mut inode = self.inode(number)?;
        inode.changed = Time::now();
        if inode.kind == FileKind::Directory {
            inode.parent = directory;
        }
        self.put_inode(number, &inode);
        Ok(())
    }

    fn enter(
        &mut self,
        directory: InodeNumber,
        parent: &mut Inode,
        name: &[u8],
        number: InodeNumber,
        kind: FileKind,
    ) {
        self.put(Key::Name(directory.0, name), name_record(number, kind));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    fn leave(&mut self, directory: InodeNumber, parent: &mut Inode, name: &[u8]) {
        self.delete(Key::Name(directory.0, name));
        (parent.modified, parent.changed) = (Time::now(), Time::now());
    }

    /// A name fewer. Without the last it is an orphan, and would be found as one after a crash.
    fn lose_name(&mut self, number: InodeNumber, mut inode: Inode) -> Option<Orphan> {
        inode.links = match inode.kind {
            FileKind::Directory => 0,
            _ => inode.links.saturating_sub(1),
        };
        inode.changed = Time::now();
        self.put_inode(number, &inode);
        if inode.links > 0 {
            return None;
        }
        self.put(Key::Orphan(number.0), Vec::new());
        Some(Orphan(number))
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
        return Err(Error::refused(Errno::INVAL, format!("{} is no name", shown(name))));
    }
    Ok(())
}

/// What a name names, as it stands in the catalog.
pub(crate) fn name_record(number: InodeNumber, kind: FileKind) -> Vec<u8> {
    let (bits, _) = kind.mode_bits();
    [&number.0.to_be_bytes()[..], &bits.to_be_bytes()].concat()
}

pub(crate) fn entry_of(record: &[u8]) -> Result<(InodeNumber, FileKind), Error> {
    let parsed = record.split_first_chunk::<8>().and_then(|(number, bits)| {
        let bits = u16::from_be_bytes(bits.try_into().ok()?);
        Some((InodeNumber(u64::from_be_bytes(*number)), FileKind::of_mode(bits, 0)?))
    });
    parsed.ok_or_else(|| Error::damaged("a name's record cannot be read"))
}

fn absent(name: &[u8]) -> Error {
    Error::refused(Errno::NOENT, format!("{} is not there", shown(name)))
}

fn exists(name: &[u8]) -> Error {
    Error::refused(Errno::EXIST, format!("{} is there already", shown(name)))
}

/// A name as people can read it.
pub(crate) fn shown(name: &[u8]) -> String {
    format!("'{}'", name.escape_ascii())
}
