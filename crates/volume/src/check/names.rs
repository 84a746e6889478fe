//! Pass: names against inodes. The inode of each name exists and is of its kind. Each inode has as many names as its
//! link count, or is an orphan. Inodes are counted in windows, with one pass over the names for each window.

use super::findings::FindingTarget;
use super::fixes::{delete, put};
use super::paths::Parents;
use super::reader::{Name, RecordIter, inode_of, name_of, number_of};
use super::report::CheckStep;
use super::round::Round;
use crate::catalog::{Key, Table};
use crate::error::Error;
use crate::namespace::directory::encode_entry;
use crate::records::inode::{FileType, Inode, InodeNumber};

const ROOT: u64 = InodeNumber::ROOT.0;
/// Misplaced names of directories that one round repairs.
const MAX_MISPLACED: usize = 10_000;

/// Counts for one inode.
pub(super) struct InodeCounts {
    pub(super) number: u64,
    /// The parent that a directory's inode has.
    pub(super) parent: u64,
    /// The link count of the inode.
    pub(super) links: u32,
    /// Names found: of a directory, only the one in its parent.
    pub(super) names: u32,
    /// Directories found in it.
    pub(super) directories: u32,
    /// `S_IFMT` of its mode.
    kind: u16,
    pub(super) is_orphan: bool,
}

impl InodeCounts {
    fn new(number: u64, inode: &Inode) -> InodeCounts {
        InodeCounts {
            number,
            parent: inode.parent.0,
            links: inode.links,
            names: 0,
            directories: 0,
            kind: inode.kind.mode_bits().0,
            is_orphan: false,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory.mode_bits().0
    }
}

/// Inodes in order, and the range of numbers that has no others.
struct InodeWindow {
    inodes: Vec<InodeCounts>,
    numbers: std::ops::Range<u64>,
    /// Names of directories outside their parents, or second names in them.
    misplaced: Vec<Name>,
}

impl InodeWindow {
    /// The inode of a number in the window.
    fn find(&mut self, number: u64) -> Option<&mut InodeCounts> {
        let at = self.inodes.binary_search_by_key(&number, |counts| counts.number).ok()?;
        Some(&mut self.inodes[at])
    }
}

impl Round<'_> {
    /// Compares names and inodes. Returns the parent of each directory.
    pub(super) fn check_names(&mut self) -> Result<Parents, Error> {
        let mut parents = Parents::new();
        let catalog = self.catalog;
        let mut inodes = RecordIter::new(catalog, Table::Inodes).peekable();
        let (mut first, mut done) = (0, 0);
        loop {
            let mut window =
                InodeWindow { inodes: Vec::new(), numbers: first..u64::MAX, misplaced: Vec::new() };
            while window.inodes.len() < self.bounds.inodes
                && let Some(found) = inodes.next()
            {
                let Some((number, inode)) = inode_of(&found?) else { continue };
                let counts = InodeCounts::new(number, &inode);
                if counts.is_directory() {
                    self.report.directories += 1;
                    parents.insert(number, counts.parent);
                } else {
                    self.report.files += 1;
                }
                window.inodes.push(counts);
            }
            if inodes.peek().is_some()
                && let Some(last) = window.inodes.last()
            {
                window.numbers.end = last.number + 1;
            }
            self.note_orphans(&mut window)?;
            for found in RecordIter::new(catalog, Table::Names) {
                done += 1;
                if done % 1024 == 0 {
                    (self.progress)(CheckStep::Names, done)?;
                }
                if let Some(name) = name_of(found?) {
                    self.count(&mut window, name)?;
                }
            }
            self.resolve_misplaced(&mut window)?;
            self.check_window(&window)?;
            first = window.numbers.end;
            if first == u64::MAX {
                (self.progress)(CheckStep::Names, done)?;
                return Ok(parents);
            }
        }
    }

    /// Marks as orphans the inodes that have an orphan record.
    fn note_orphans(&mut self, window: &mut InodeWindow) -> Result<(), Error> {
        for found in RecordIter::new(self.catalog, Table::Orphans) {
            let found = found?;
            let Some(number) = number_of(&found.key) else { continue };
            if !window.numbers.contains(&number) {
                continue;
            }
            match window.find(number) {
                Some(counts) => counts.is_orphan = true,
                None => {
                    let changes = vec![delete(Key::Orphan(number))];
                    let what = "it is recorded as an orphan, but does not exist";
                    self.findings.fixable(
                        FindingTarget::Inode(number),
                        what,
                        "the record removed",
                        changes,
                    );
                }
            }
        }
        Ok(())
    }

    /// Counts a name for its directory and for its inode.
    fn count(&mut self, window: &mut InodeWindow, name: Name) -> Result<(), Error> {
        let is_directory = name.kind == FileType::Directory;
        if window.numbers.contains(&name.directory) {
            match window.find(name.directory) {
                Some(counts) if counts.is_directory() => {
                    counts.directories += u32::from(is_directory);
                }
                Some(_) => {
                    let target = FindingTarget::Name(name.directory, name.name.clone());
                    let changes = vec![delete(Key::Name(name.directory, &name.name))];
                    let what = "its parent is not a directory";
                    self.findings.fixable(target, what, "removed", changes);
                }
                None => self.restore_directory(name.directory),
            }
        }
        if !window.numbers.contains(&name.inode) {
            return Ok(());
        }
        let Some(counts) = window.find(name.inode) else { return self.restore_inode(&name) };
        if counts.kind != name.kind.mode_bits().0 {
            let target = FindingTarget::Name(name.directory, name.name.clone());
            let Some(kind) = FileType::from_mode(counts.kind, 0) else { return Ok(()) };
            let record = encode_entry(InodeNumber(name.inode), kind);
            let changes = vec![put(Key::Name(name.directory, &name.name), record)];
            self.findings.fixable(
                target,
                "its inode is of another kind than its entry says",
                "corrected",
                changes,
            );
        }
        let is_misplaced = counts.is_directory()
            && (counts.parent != name.directory || counts.names > 0 || name.inode == ROOT);
        if !is_misplaced {
            counts.names += 1;
        } else if window.misplaced.len() < MAX_MISPLACED {
            window.misplaced.push(name);
        }
        Ok(())
    }

    /// Recreates a lost directory that still has names in it. `check_window` recreates the root.
    fn restore_directory(&mut self, number: u64) {
        if number == ROOT {
            return;
        }
        let mut inode = Inode::new(FileType::Directory, 0o700);
        inode.parent = InodeNumber::ROOT;
        let what = "it is a directory with names in it, but its inode is lost";
        self.findings.lost_inode(number, what, "recreated, with mode 0700", &inode);
    }

    /// Recreates the lost inode of a name, if it is a directory's or has extents; otherwise removes the name.
    fn restore_inode(&mut self, name: &Name) -> Result<(), Error> {
        if self.findings.is_known_lost(name.inode) {
            return Ok(());
        }
        match name.kind {
            FileType::Directory => {
                let mut inode = Inode::new(FileType::Directory, 0o700);
                inode.parent = InodeNumber(name.directory);
                let (what, cure) = ("the directory's inode is lost", "recreated, with mode 0700");
                self.findings.lost_inode(name.inode, what, cure, &inode);
            }
            FileType::File if self.has_extents(name.inode)? => self.recreate_inode(name.inode)?,
            _ => {
                let target = FindingTarget::Name(name.directory, name.name.clone());
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                self.findings.fixable(target, "its inode does not exist", "removed", changes);
            }
        }
        Ok(())
    }

    fn has_extents(&self, inode: u64) -> Result<bool, Error> {
        Ok(RecordIter::for_inode(self.catalog, Table::Extents, inode).next().transpose()?.is_some())
    }

    /// Decides which misplaced names directories keep: the one in the parent, else the first.
    fn resolve_misplaced(&mut self, window: &mut InodeWindow) -> Result<(), Error> {
        for name in std::mem::take(&mut window.misplaced) {
            let Some(counts) = window.find(name.inode) else { continue };
            let target = FindingTarget::Name(name.directory, name.name.clone());
            if name.inode != ROOT && counts.names == 0 {
                counts.names = 1;
                counts.parent = name.directory;
                let mut inode = self.inode(name.inode)?;
                inode.parent = InodeNumber(name.directory);
                let changes = vec![put(Key::Inode(name.inode), inode.to_record())];
                let what = "the directory's inode has another parent";
                self.findings.fixable(target, what, "corrected", changes);
            } else {
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                let what = "the directory has a second name";
                self.findings.fixable(target, what, "this one removed", changes);
            }
        }
        Ok(())
    }

    /// An inode that this round has found.
    pub(super) fn inode(&self, number: u64) -> Result<Inode, Error> {
        let found =
            RecordIter::for_inode(self.catalog, Table::Inodes, number).next().transpose()?;
        let gone = || Error::damaged(format!("inode {number} disappeared during the check"));
        Ok(found.and_then(|found| inode_of(&found)).ok_or_else(gone)?.1)
    }

    fn check_window(&mut self, window: &InodeWindow) -> Result<(), Error> {
        if window.numbers.contains(&ROOT) && !window.inodes.iter().any(|one| one.number == ROOT) {
            let mut root = Inode::new(FileType::Directory, 0o755);
            root.parent = InodeNumber::ROOT;
            let (what, cure) = ("the inode of the root is lost", "recreated, with mode 0755");
            self.findings.lost_inode(ROOT, what, cure, &root);
        }
        window.inodes.iter().try_for_each(|counts| self.check_links(counts))
    }
}
