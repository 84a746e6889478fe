//! Walks the sources: directories, links, hard links, special files. An error of one file is reported, and the
//! copy continues with the others.

use crate::volume::copy_progress::Xattr;
use crate::volume::exit_codes::refused;
use crate::volume::hard_links::LinkAction;
use crate::volume::host::{FileId, HostTree, file_id};
use crate::volume::open_volume::{is_directory, lookup};
use crate::volume::overwrite::NameAction;
use crate::volume::put_staging::make_staging_directory;
use crate::volume::quoting::for_message;
use crate::volume::source_file::{SourceFile, cannot_read};
use crate::volume::verbose::{quoted, quoted_host};
use crate::volume::volume_path::{as_path, join};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uringfs::Errno;
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Rename, SetXattr};
use uringfs_lab::{Error, ErrorKind};

use super::job::{NewName, OpenDirectory, PutJob, refuse_image};

impl PutJob<'_> {
    pub(super) fn run(&mut self, sources: &[OsString], targets: Vec<Vec<u8>>) -> Result<(), Error> {
        self.staging = self.with_path(b"/", make_staging_directory(self.volume))?;
        for (source, target) in sources.iter().zip(targets) {
            let done = match source == "-" {
                true => self.put_stdin(target),
                false => self.put_tree(Path::new(source), target),
            };
            self.continue_after(done)?;
        }
        let finished = self.pipeline.drain();
        self.on_finished(finished)?;
        for (path, inode) in std::mem::take(&mut self.directories).iter().rev() {
            let done = self.with_path(path, self.set_attributes(path, inode));
            self.continue_after(done)?;
        }
        Ok(())
    }

    /// Reports the error of one file, so that the copy continues. An error of the volume or the machine, or a
    /// Ctrl-C, is returned.
    pub(super) fn continue_after(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        match done {
            Err(error) if error.kind() == ErrorKind::Input => self.errors.report(error),
            done => done?,
        }
        Ok(())
    }

    /// Copies a source and everything below it. Uses no recursion, as trees may be deep.
    fn put_tree(&mut self, source: &Path, target: Vec<u8>) -> Result<(), Error> {
        let (tree, below) = open_tree(source).map_err(|error| cannot_read(source, error))?;
        let mut stack = Vec::from_iter(self.put_entry(&tree, below, target, false)?);
        while let Some(directory) = stack.last_mut() {
            let Some(name) = directory.names.pop() else {
                stack.pop();
                continue;
            };
            let (below, target) =
                (directory.below.join(&name), join(&directory.target, name.as_bytes()));
            match self.put_entry(&tree, below, target, directory.is_new) {
                Ok(found) => stack.extend(found),
                failed => self.continue_after(failed.map(drop))?,
            }
        }
        Ok(())
    }

    /// Copies one file, or creates one directory and returns it for its names.
    fn put_entry(
        &mut self,
        tree: &HostTree,
        below: PathBuf,
        target: Vec<u8>,
        is_new: bool,
    ) -> Result<Option<OpenDirectory>, Error> {
        self.progress.check_stop()?;
        if self.exclude.excludes(below.as_os_str().as_bytes()) {
            return Ok(None);
        }
        let source = SourceFile::find(tree, &below)?;
        let inode = source.attributes()?;
        if inode.kind == FileType::File && self.image.contains(&source.metadata) {
            return Err(refuse_image(&for_message(&source.path).to_string()));
        }
        let action = if is_new { NameAction::Create } else { self.action(&target, inode.kind)? };
        if self.verbose.is_on() && !matches!(action, NameAction::Skip | NameAction::Merge) {
            let to = quoted(&self.destination.in_same_volume(target.clone()));
            self.verbose.print(&[&quoted_host(&source.path), b" -> ", &to])?;
        }
        match (inode.kind, action) {
            (_, NameAction::Skip) => return self.skip(&target).map(|()| None),
            (FileType::Directory, _) => {
                return self.put_directory(&source, below, target, inode, action).map(Some);
            }
            _ => {}
        }
        let (file, names) = (file_id(&source.metadata), source.metadata.nlink());
        let name = NewName { target, action };
        match self.links.add_name(file, u32::try_from(names).unwrap_or(u32::MAX), &name) {
            LinkAction::Copy => {
                let done = match inode.kind {
                    FileType::File => self.put_file(&source, name.clone(), inode),
                    _ => self.put_special(&source, &name, inode),
                };
                if done.is_err() {
                    self.copy_failed(file, &name)?;
                }
                done?;
            }
            LinkAction::Wait => {}
            LinkAction::Link(first) => self.put_link(&first, &name)?,
            LinkAction::Fail(first) => return Err(self.first_name_failed(&first, &name)),
        }
        Ok(None)
    }

    /// Keeps an existing file.
    pub(super) fn skip(&mut self, target: &[u8]) -> Result<(), Error> {
        self.progress.counts.skipped += 1;
        let kept = quoted(&self.destination.in_same_volume(target.to_vec()));
        self.verbose.print(&[b"skipped ", &kept])
    }

    /// The action for a new file of this kind at a path that may exist.
    pub(super) fn action(&self, target: &[u8], kind: FileType) -> Result<NameAction, Error> {
        let path = || self.destination.in_same_volume(target.to_vec());
        let already_written =
            || refused(format!("{}: was already written by this command", path()));
        if self.files.values().any(|partial| partial.name.target == target) {
            return Err(already_written());
        }
        let (number, existing) = match lookup(self.volume, target) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(NameAction::Create),
            found => self.with_path(target, found)?,
        };
        if self.created.contains(&number) {
            return Err(already_written());
        }
        // A directory is merged into the target of an existing link.
        if kind == FileType::Directory && is_directory(self.volume, target) {
            return Ok(NameAction::Merge);
        }
        let action = self.overwrite.action(existing.kind, kind);
        action.map_err(|why| refused(format!("{}: {why}", path())))
    }

    fn put_directory(
        &mut self,
        source: &SourceFile,
        below: PathBuf,
        target: Vec<u8>,
        inode: Inode,
        action: NameAction,
    ) -> Result<OpenDirectory, Error> {
        let (xattrs, names) = (source.xattrs()?, source.names_reversed()?);
        let is_new = action == NameAction::Create;
        if is_new {
            let staged = self.new_staged_path();
            self.with_path(&target, self.volume.create_dir_with_mode(as_path(&staged), 0o700))?;
            self.with_path(
                &target,
                self.volume.rename_with(as_path(&staged), as_path(&target), Rename::NoReplace),
            )?;
        }
        if is_new || !self.overwrite.skips_existing() {
            self.set_xattrs(&xattrs, &target, Follow::Yes, &target)?;
            self.directories.push((target.clone(), inode));
        }
        self.progress.counts.directories += 1;
        Ok(OpenDirectory { below, target, is_new, names })
    }

    /// Copies a link, device, FIFO or socket.
    fn put_special(
        &mut self,
        source: &SourceFile,
        name: &NewName,
        inode: Inode,
    ) -> Result<(), Error> {
        let xattrs = source.xattrs()?;
        let staged = self.new_staged_path();
        let number = self.with_path(&name.target, self.volume.mknod(as_path(&staged), &inode))?;
        self.set_xattrs(&xattrs, &staged, Follow::No, &name.target)?;
        self.rename_into_place(&staged, name)?;
        self.progress.counts.others += 1;
        self.copy_done(number, Some(file_id(&source.metadata)), name)
    }

    /// A copy has its name: creates the links that wait for it.
    pub(super) fn copy_done(
        &mut self,
        number: InodeNumber,
        source: Option<FileId>,
        first: &NewName,
    ) -> Result<(), Error> {
        self.created.insert(number);
        for name in source.map_or(Vec::new(), |source| self.links.copy_done(&source)) {
            let done = self.put_link(first, &name);
            self.continue_after(done)?;
        }
        Ok(())
    }

    pub(super) fn copy_failed(&mut self, source: FileId, first: &NewName) -> Result<(), Error> {
        for name in self.links.copy_failed(&source) {
            let lost = self.first_name_failed(first, &name);
            self.continue_after(Err(lost))?;
        }
        Ok(())
    }

    fn first_name_failed(&self, first: &NewName, name: &NewName) -> Error {
        let [name, first] =
            [name, first].map(|name| self.destination.in_same_volume(name.target.clone()));
        refused(format!("{name}: is a hard link to {first}, which could not be copied"))
    }

    /// Creates a hard link to a file that this command has created.
    fn put_link(&mut self, first: &NewName, name: &NewName) -> Result<(), Error> {
        let staged = self.new_staged_path();
        self.with_path(
            &name.target,
            self.volume.hard_link(as_path(&first.target), as_path(&staged)),
        )?;
        self.rename_into_place(&staged, name)?;
        self.progress.counts.links += 1;
        Ok(())
    }

    /// Sets the extended attributes that volumes support, and skips others.
    pub(super) fn set_xattrs(
        &self,
        xattrs: &[Xattr],
        path: &[u8],
        follow: Follow,
        target: &[u8],
    ) -> Result<(), Error> {
        for (name, value) in xattrs {
            match self.volume.set_xattr(as_path(path), follow, name, value, SetXattr::Either) {
                Err(error) if error.errno() == Errno::OPNOTSUPP => {}
                set => self.with_path(target, set)?,
            }
        }
        Ok(())
    }
}

/// The directory of a source, and its name there. A source without a name is the directory itself.
fn open_tree(source: &Path) -> io::Result<(HostTree, PathBuf)> {
    // A path with a slash or a dot at the end follows a link.
    let is_directory =
        source.as_os_str().as_bytes().ends_with(b"/") || names_contents(source.as_os_str());
    match source.file_name() {
        Some(name) if !is_directory => {
            let parent = source.parent().unwrap_or(Path::new(""));
            Ok((HostTree::open(parent)?, name.into()))
        }
        _ => Ok((HostTree::open(source)?, PathBuf::new())),
    }
}

/// Whether a source ends in `.`: it names the contents of a directory.
pub(super) fn names_contents(source: &OsStr) -> bool {
    source == "." || source.as_bytes().ends_with(b"/.")
}
