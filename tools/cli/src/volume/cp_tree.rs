//! The walk of `cp`: directories, links, hard links, special files. An error of one file is reported, and the copy
//! continues with the others.

use super::copy_progress::CopyProgress;
use super::destination::{CreatedFiles, is_same_name};
use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::exclude::ExcludeOptions;
use super::exit_codes::{NO_SPACE, refused};
use super::file_data::FileData;
use super::files::Files;
use super::hard_links::{HardLinks, LinkAction};
use super::open_volume::{is_directory, lookup, lookup_with};
use super::overwrite::{NameAction, OverwriteOptions};
use super::replace_options::ReplaceOptions;
use super::verbose::{VerboseOptions, quoted};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, join, parent, with_path};
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Rename, SetXattr};
use uringfs::{Errno, Error as VolumeError};
use uringfs_lab::{Error, ErrorKind};

/// The options for what is copied besides the data of files.
#[derive(clap::Args, Clone, Copy)]
pub struct AttributeOptions {
    /// Copy directories recursively, and links, devices, FIFOs and sockets as such
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,

    /// Copy owners, modes with set-ID bits, ACLs, and times
    #[arg(short, long)]
    preserve: bool,

    /// Copy everything: as -rp, with hard links and all extended attributes
    #[arg(short, long)]
    archive: bool,

    /// Copy symbolic links themselves, not their targets
    #[arg(short = 'P', long)]
    no_dereference: bool,
}

impl AttributeOptions {
    pub fn is_recursive(self) -> bool {
        self.recursive || self.archive
    }

    pub fn preserves(self) -> bool {
        self.preserve || self.archive
    }

    pub fn is_archive(self) -> bool {
        self.archive
    }

    /// Whether a source that is a link stands for its target.
    pub fn follows_links(self) -> bool {
        !self.is_recursive() && !self.no_dereference
    }
}

/// A copy that runs.
pub struct CopyJob<'c> {
    pub source: &'c Files,
    /// The destination; the same as the source if `is_one_volume`.
    pub volume: &'c Files,
    pub is_one_volume: bool,
    pub attributes: AttributeOptions,
    pub overwrite: OverwriteOptions,
    pub replace: ReplaceOptions,
    pub exclude: ExcludeOptions,
    pub verbose: VerboseOptions,
    pub umask: u16,
    /// The directory for files until they are complete.
    pub staging: Vec<u8>,
    pub next: u64,
    pub data: FileData,
    pub progress: CopyProgress,
    pub created: CreatedFiles,
    pub links: HardLinks<InodeNumber, VolumePath>,
    /// Source and target of new directories, which get their attributes last: new names in them change their times.
    pub directories: Vec<(VolumePath, VolumePath)>,
    pub errors: &'c ErrorSink,
}

/// A source file, and the path and action for its copy.
struct Copy<'p> {
    from: &'p VolumePath,
    number: InodeNumber,
    inode: Inode,
    to: VolumePath,
    action: NameAction,
}

/// A source directory whose entries are copied one after the other.
struct OpenDirectory {
    entries: Entries,
    from: VolumePath,
    to: VolumePath,
}

impl<'c> CopyJob<'c> {
    /// Copies a source and everything below it. Uses no recursion, as trees may be deep.
    ///
    /// # Errors
    /// The user stopped the command, or the volume is full. Other errors are reported.
    pub fn copy_tree(&mut self, from: &VolumePath, to: VolumePath) -> Result<(), Error> {
        let mut visited = VisitedDirectories::default();
        let follow = if self.attributes.follows_links() { Follow::Yes } else { Follow::No };
        let top = self.copy_entry(from, to, follow);
        let mut stack = Vec::from_iter(self.continue_after(top)?.flatten());
        while let Some(directory) = stack.last_mut() {
            let next = directory.entries.next_with_path(&directory.from, self.errors);
            let Some((from, entry)) = next else {
                stack.pop();
                continue;
            };
            if entry.kind == FileType::Directory
                && self.errors.record(visited.visit(&from, entry.inode)).is_none()
            {
                continue;
            }
            let to = directory.to.in_same_volume(join(&directory.to.bytes, &entry.name));
            let copied = self.copy_entry(&from, to, Follow::No);
            stack.extend(self.continue_after(copied)?.flatten());
        }
        Ok(())
    }

    /// Reports the error of one file. Returns an interrupt, and the error of a full volume: the files that are left would
    /// fail, too.
    fn continue_after<T>(&self, done: Result<T, Error>) -> Result<Option<T>, Error> {
        match done {
            Err(error)
                if error.kind() == ErrorKind::Interrupted || error.exit_code() == NO_SPACE =>
            {
                Err(error)
            }
            done => Ok(self.errors.record(done)),
        }
    }

    /// Copies one file, or creates one directory and returns it for its entries.
    fn copy_entry(
        &mut self,
        from: &VolumePath,
        to: VolumePath,
        follow: Follow,
    ) -> Result<Option<OpenDirectory>, Error> {
        self.progress.check_stop()?;
        if self.exclude.excludes(&from.bytes) {
            return Ok(None);
        }
        let found = lookup_with(self.source, &from.bytes, follow);
        let (number, inode) = found.map_err(|error| with_path(from, error))?;
        let is_directory = inode.kind == FileType::Directory;
        if !self.attributes.is_recursive() && is_directory {
            return Err(refused(format!("{from}: is a directory; use cp -r to copy it")));
        }
        if !self.attributes.is_recursive() && !is_file_or_link(inode.kind) {
            return Err(refused(format!("{from}: is not a regular file; use cp -r to copy it")));
        }
        let action = self.action(from, number, &to, &inode)?;
        if action == NameAction::Skip {
            self.progress.counts.skipped += 1;
            return Ok(None);
        }
        if action != NameAction::Merge {
            self.verbose.print(&[&quoted(from), b" -> ", &quoted(&to)])?;
        }
        let copy = Copy { from, number, inode, to, action };
        match is_directory {
            true => self.copy_directory(copy).map(Some),
            false => self.copy_file(copy).map(|()| None),
        }
    }

    /// The action for a new file at a path that may exist.
    fn action(
        &self,
        from: &VolumePath,
        number: InodeNumber,
        to: &VolumePath,
        new: &Inode,
    ) -> Result<NameAction, Error> {
        let kind = new.kind;
        if self.is_one_volume && kind == FileType::Directory && self.is_inside(number, to)? {
            return Err(refused(format!("{from}: cannot be copied into itself, {to}")));
        }
        let (existing, inode) = match lookup(self.volume, &to.bytes) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(NameAction::Create),
            found => found.map_err(|error| with_path(to, error))?,
        };
        self.created.check(to, existing)?;
        if kind == FileType::Directory && is_directory(self.volume, &to.bytes) {
            return Ok(NameAction::Merge);
        }
        let is_same = self.is_one_volume
            && (existing == number || is_same_name(self.volume, &from.bytes, &to.bytes));
        if is_same && !self.overwrite.skips_existing() {
            return Err(refused(format!("{from} and {to} are the same file")));
        }
        let action = self.overwrite.action(inode.kind, kind);
        match action.map_err(|why| refused(format!("{to}: {why}")))? {
            NameAction::Replace if self.replace.keeps(to, &inode, new) => Ok(NameAction::Skip),
            action => Ok(action),
        }
    }

    /// Whether a path is in the tree of a directory.
    fn is_inside(&self, directory: InodeNumber, path: &VolumePath) -> Result<bool, Error> {
        let mut at = parent(&path.bytes).to_vec();
        loop {
            let found = lookup_with(self.volume, &at, Follow::Yes);
            let (number, inode) = found.map_err(|error| with_path(path, error))?;
            if number == directory {
                return Ok(true);
            }
            if number == inode.parent {
                return Ok(false);
            }
            at.extend_from_slice(b"/..");
        }
    }

    fn copy_directory(&mut self, copy: Copy<'_>) -> Result<OpenDirectory, Error> {
        let Copy { from, inode, to, action, .. } = copy;
        if action == NameAction::Create {
            // Accessible to its user, whatever its mode will be.
            let made = self.volume.create_dir_with_mode(
                as_path(&to.bytes),
                u32::from(inode.permissions & 0o777 | 0o700),
            );
            made.map_err(|error| with_path(&to, error))?;
            self.directories.push((from.clone(), to.clone()));
        } else if self.attributes.preserves() && !self.overwrite.skips_existing() {
            self.directories.push((from.clone(), to.clone()));
        }
        self.progress.counts.directories += 1;
        let entries = Entries::new(self.source, &from.bytes);
        Ok(OpenDirectory { entries, from: from.clone(), to })
    }

    fn copy_file(&mut self, copy: Copy<'_>) -> Result<(), Error> {
        let names = if self.attributes.is_archive() { copy.inode.links } else { 1 };
        match self.links.add_name(copy.number, names, &copy.to) {
            LinkAction::Link(first) => {
                let staged = self.new_staged_path();
                let linked = self.volume.hard_link(as_path(&first.bytes), as_path(&staged));
                linked.map_err(|error| with_path(&copy.to, error))?;
                self.progress.counts.links += 1;
                return self.rename_into_place(&staged, &copy.to, copy.action);
            }
            LinkAction::Fail(first) => {
                let what =
                    format!("{}: is a hard link to {first}, which could not be copied", copy.to);
                return Err(refused(what));
            }
            LinkAction::Copy | LinkAction::Wait => {}
        }
        let copied = self.copy_contents(&copy);
        match &copied {
            Ok(()) => _ = self.links.copy_done(&copy.number),
            Err(_) => _ = self.links.copy_failed(&copy.number),
        }
        copied
    }

    /// Copies a file under a staging name, and renames it when it is complete.
    fn copy_contents(&mut self, copy: &Copy<'_>) -> Result<(), Error> {
        let Copy { from, inode, to, action, .. } = copy;
        let staged = self.new_staged_path();
        let mut new = Inode::new(inode.kind, 0o600);
        if inode.kind == FileType::Symlink {
            (new.size, new.target) = (inode.size, inode.target.clone());
        }
        let made =
            self.volume.mknod(as_path(&staged), &new).map_err(|error| with_path(to, error))?;
        let copied = match inode.kind {
            FileType::File => {
                self.data.copy((self.source, from), (self.volume, &staged, to), &mut self.progress)
            }
            _ => Ok(()),
        };
        let done = copied
            .and_then(|()| self.set_attributes(from, inode, (&staged, to), *action))
            .and_then(|()| self.rename_into_place(&staged, to, *action));
        if done.is_err() {
            // The staging directory is removed at the end, too.
            let _ = self.volume.remove_file(as_path(&staged));
            return done;
        }
        self.created.insert(made);
        match inode.kind {
            FileType::File => self.progress.add_file(),
            _ => self.progress.counts.others += 1,
        }
        Ok(())
    }

    /// Gives new directories their attributes.
    pub fn finish_directories(&mut self) {
        for (from, to) in std::mem::take(&mut self.directories).iter().rev() {
            let found = lookup(self.source, &from.bytes);
            let done = found.map_err(|error| with_path(from, error)).and_then(|(_, inode)| {
                self.set_attributes(from, &inode, (&to.bytes, to), NameAction::Create)
            });
            self.errors.record(done);
        }
    }

    /// Sets the attributes of a copy at a path, which is shown as `to`. Without -p a file that replaces another one has
    /// the owner and the mode of that.
    fn set_attributes(
        &self,
        from: &VolumePath,
        inode: &Inode,
        (path, to): (&[u8], &VolumePath),
        action: NameAction,
    ) -> Result<(), Error> {
        let error = |error| with_path(to, error);
        if self.attributes.preserves() {
            self.copy_xattrs(from, path, to)?;
            let set = |its: &mut Inode| {
                (its.permissions, its.user, its.group) =
                    (inode.permissions, inode.user, inode.group);
                (its.accessed, its.modified) = (inode.accessed, inode.modified);
            };
            return self.volume.set_attributes(as_path(path), Follow::No, set).map_err(error);
        }
        if inode.kind == FileType::Symlink {
            let set = |its: &mut Inode| its.permissions = inode.permissions;
            return self.volume.set_attributes(as_path(path), Follow::No, set).map_err(error);
        }
        let mut model = Inode::new(inode.kind, inode.permissions & 0o777 & !self.umask);
        if action == NameAction::Replace {
            let existing = lookup(self.volume, &to.bytes).map_err(error)?.1;
            if existing.kind == FileType::File {
                model = existing;
            }
        }
        let set = |its: &mut Inode| {
            (its.permissions, its.user, its.group) = (model.permissions, model.user, model.group);
        };
        self.volume.set_attributes(as_path(path), Follow::No, set).map_err(error)
    }

    /// Copies extended attributes: all with -a, and ACLs with -p.
    fn copy_xattrs(&self, from: &VolumePath, path: &[u8], to: &VolumePath) -> Result<(), Error> {
        let read = |error| with_path(from, error);
        for name in self.source.list_xattrs(as_path(&from.bytes), Follow::No).map_err(read)? {
            if self.attributes.is_archive() || name.starts_with(b"system.posix_acl_") {
                let value =
                    self.source.get_xattr(as_path(&from.bytes), Follow::No, &name).map_err(read)?;
                let set = self.volume.set_xattr(
                    as_path(path),
                    Follow::No,
                    &name,
                    &value,
                    SetXattr::Either,
                );
                set.map_err(|error| with_path(to, error))?;
            }
        }
        Ok(())
    }

    fn rename_into_place(
        &self,
        staged: &[u8],
        to: &VolumePath,
        action: NameAction,
    ) -> Result<(), Error> {
        let how = if action == NameAction::Create { Rename::NoReplace } else { Rename::Replace };
        let with_path = |error: VolumeError| with_path(to, error);
        self.volume.rename_with(as_path(staged), as_path(&to.bytes), how).map_err(with_path)
    }

    fn new_staged_path(&mut self) -> Vec<u8> {
        self.next += 1;
        join(&self.staging, self.next.to_string().as_bytes())
    }
}

fn is_file_or_link(kind: FileType) -> bool {
    matches!(kind, FileType::File | FileType::Symlink)
}
