//! Names and inodes: each name's inode is there and of that kind, each inode has as many names as it
//! says, or is noted as one without. Inodes are counted a window at a time, with one pass over the
//! names for each window.

use super::findings::FindingTarget;
use super::fixes::{delete, put};
use super::paths::Parents;
use super::reader::{Name, RecordIter, inode_of, name_of, number_of};
use super::report::CheckStep;
use super::round::Round;
use crate::catalog::{Key, Table};
use crate::error::Error;
use crate::namespace::directory::encode_entry;
use crate::records::inode::{FileKind, Inode, InodeNumber};

const ROOT: u64 = InodeNumber::ROOT.0;
/// Names of directories in the wrong places that one round looks at.
const MAX_MISPLACED: usize = 10_000;

/// What is counted of an inode.
pub(super) struct InodeCounts {
    pub(super) number: u64,
    /// Of a directory, the one that it says it is in.
    pub(super) parent: u64,
    /// Names it says it has.
    pub(super) links: u32,
    /// Names it has: of a directory, only the one in its parent.
    pub(super) names: u32,
    /// Directories in it.
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
        self.kind == FileKind::Directory.mode_bits().0
    }
}

/// Inodes in order of their numbers, and the numbers among which there are no others.
struct InodeWindow {
    inodes: Vec<InodeCounts>,
    numbers: std::ops::Range<u64>,
    /// Names of directories elsewhere than in their parents, or second ones there.
    misplaced: Vec<Name>,
}

impl InodeWindow {
    /// The inode of a number within the window.
    fn find(&mut self, number: u64) -> Option<&mut InodeCounts> {
        let at = self.inodes.binary_search_by_key(&number, |counts| counts.number).ok()?;
        Some(&mut self.inodes[at])
    }
}

impl Round<'_> {
    /// Checks names and inodes against each other; answers each directory's parent.
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
                    (self.progress)(CheckStep::Names, done);
                }
                if let Some(name) = name_of(found?) {
                    self.count(&mut window, name)?;
                }
            }
            self.resolve_misplaced(&mut window)?;
            self.check_window(&window)?;
            first = window.numbers.end;
            if first == u64::MAX {
                (self.progress)(CheckStep::Names, done);
                return Ok(parents);
            }
        }
    }

    /// Which inodes are noted as nameless.
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
                    let what = "it is noted as unused, and is not there";
                    self.findings.fixable(
                        FindingTarget::Inode(number),
                        what,
                        "noted no more",
                        changes,
                    );
                }
            }
        }
        Ok(())
    }

    /// Counts a name where it stands, and what it names.
    fn count(&mut self, window: &mut InodeWindow, name: Name) -> Result<(), Error> {
        let is_directory = name.kind == FileKind::Directory;
        if window.numbers.contains(&name.directory) {
            match window.find(name.directory) {
                Some(counts) if counts.is_directory() => {
                    counts.directories += u32::from(is_directory);
                }
                Some(_) => {
                    let target = FindingTarget::Name(name.directory, name.name.clone());
                    let changes = vec![delete(Key::Name(name.directory, &name.name))];
                    let what = "it stands in what is no directory";
                    self.findings.fixable(target, what, "taken from there", changes);
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
            let Some(kind) = FileKind::of_mode(counts.kind, 0) else { return Ok(()) };
            let record = encode_entry(InodeNumber(name.inode), kind);
            let changes = vec![put(Key::Name(name.directory, &name.name), record)];
            self.findings.fixable(
                target,
                "it is of another kind than its name says",
                "set",
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

    /// A name stands in a directory that is not there: it is made again, to hold what it held. The root
    /// is by whoever judges it.
    fn restore_directory(&mut self, number: u64) {
        if number == ROOT {
            return;
        }
        let mut inode = Inode::new(FileKind::Directory, 0o700);
        inode.parent = InodeNumber::ROOT;
        let changes = vec![put(Key::Inode(number), inode.to_record())];
        let what = "its inode is lost, and it is a directory that holds something";
        self.findings.fixable(
            FindingTarget::Inode(number),
            what,
            "made again, with mode 0700",
            changes,
        );
    }

    /// A name names what is not there. What is left of a file or a directory is kept.
    fn restore_inode(&mut self, name: &Name) -> Result<(), Error> {
        if self.findings.changes_inode(name.inode) {
            return Ok(());
        }
        let target = FindingTarget::Name(name.directory, name.name.clone());
        match name.kind {
            FileKind::Directory => {
                let mut inode = Inode::new(FileKind::Directory, 0o700);
                inode.parent = InodeNumber(name.directory);
                let changes = vec![put(Key::Inode(name.inode), inode.to_record())];
                let cure = "made again, with mode 0700";
                self.findings.fixable(target, "the directory's inode is lost", cure, changes);
            }
            FileKind::File if self.has_extents(name.inode)? => {
                self.recreate_inode(name.inode, target)?
            }
            _ => {
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                self.findings.fixable(target, "it names nothing", "removed", changes);
            }
        }
        Ok(())
    }

    fn has_extents(&self, inode: u64) -> Result<bool, Error> {
        Ok(RecordIter::for_inode(self.catalog, Table::Extents, inode).next().transpose()?.is_some())
    }

    /// Decides which names of directories are theirs: the one in the parent, else the first.
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
                let what = "the directory says that it is in another";
                self.findings.fixable(target, what, "set", changes);
            } else {
                let changes = vec![delete(Key::Name(name.directory, &name.name))];
                let what = "the directory has another name, too";
                self.findings.fixable(target, what, "this one removed", changes);
            }
        }
        Ok(())
    }

    /// An inode that was there a moment ago.
    pub(super) fn inode(&self, number: u64) -> Result<Inode, Error> {
        let found =
            RecordIter::for_inode(self.catalog, Table::Inodes, number).next().transpose()?;
        let gone = || Error::damaged(format!("inode {number} is gone while it is checked"));
        Ok(found.and_then(|found| inode_of(&found)).ok_or_else(gone)?.1)
    }

    fn check_window(&mut self, window: &InodeWindow) -> Result<(), Error> {
        if window.numbers.contains(&ROOT) && !window.inodes.iter().any(|one| one.number == ROOT) {
            let mut root = Inode::new(FileKind::Directory, 0o755);
            root.parent = InodeNumber::ROOT;
            let changes = vec![put(Key::Inode(ROOT), root.to_record())];
            let what = "the inode of the root is lost";
            self.findings.fixable(
                FindingTarget::Volume,
                what,
                "made again, with mode 0755",
                changes,
            );
        }
        window.inodes.iter().try_for_each(|counts| self.check_links(counts))
    }
}
