//! `uringfs put`: copies files and trees of the host into a volume. A file is written under a staging name
//! and renamed when it is complete; a commit contains a name only together with the file's data. An error of one
//! file is reported, and the copy continues with the others.

use super::copy_progress::{CopyProgress, Xattr};
use super::hard_links::{HardLinks, LinkAction};
use super::host::{FileId, HostTree, file_id};
use super::image::ImageFiles;
use super::open_volume::{is_directory, open, sync};
use super::overwrite::{NameAction, OverwriteOptions};
use super::pipeline::{CHUNK_BYTES, FinishedChunk, Pipeline};
use super::put_staging::{remove_leftovers, unused_staging_name};
use super::source_file::{SourceFile, cannot_read, data_ranges};
use super::volume_path::{VolumePath, join, with_path};
use crate::output::print;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::{
    Access, Buffer, File, FileKind, Follow, Inode, InodeNumber, OpenOptions, Rename, SetXattr,
    Volume, VolumeError, VolumeErrorKind,
};
use uringfs_lab::{Error, ErrorKind};

/// The attribute for the ACL that new files in a directory inherit.
const DEFAULT_ACL_XATTR: &str = "system.posix_acl_default";

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files and directories; - reads standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,

    /// TARGET:/path of a directory to copy into, or of the new file
    #[arg(value_name = "TARGET:/path")]
    destination: OsString,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = VolumePath::parse(&arguments.destination)?;
    let volume = open(&path.target, Access::ReadWrite)?;
    let targets = targets(&volume, &arguments.sources, &path)?;
    let mut put = PutJob {
        volume: &volume,
        destination: &path,
        image: ImageFiles::of_volume(&path.target)?,
        overwrite: arguments.overwrite,
        staging: Vec::new(),
        pipeline: Pipeline::new()?,
        progress: CopyProgress::start()?,
        files: HashMap::new(),
        next: 0,
        created: HashSet::new(),
        links: HardLinks::new(),
        directories: Vec::new(),
        errors: PutErrors::default(),
    };
    let done = put.run(&arguments.sources, targets);
    // In any case, so that no partial file stays.
    let cleaned_up = put.clean_up();
    let PutJob { progress, errors, .. } = put;
    let synced = sync(&volume, &path.target);
    let done = done.and(cleaned_up).and(synced);
    let code = errors.finish(done.is_ok() && progress.counts.is_empty());
    done?;
    let code = code?;
    print(&progress.report(arguments.json))?;
    Ok(code)
}

/// The errors of files that could not be copied.
#[derive(Default)]
struct PutErrors {
    /// The first error, as long as it is the only one.
    first: Option<Error>,
    are_several: bool,
}

impl PutErrors {
    fn report(&mut self, error: Error) {
        if self.first.is_none() && !self.are_several {
            self.first = Some(error);
            return;
        }
        self.are_several = true;
        for error in self.first.take().into_iter().chain([error]) {
            crate::output::print_error(&error.to_string());
        }
    }

    /// The exit code: 1 if there are errors. Returns the error itself if it is the only one and nothing was copied.
    fn finish(self, is_nothing_done: bool) -> Result<u8, Error> {
        match self.first {
            Some(error) if is_nothing_done => return Err(error),
            Some(error) => crate::output::print_error(&error.to_string()),
            None => return Ok(self.are_several.into()),
        }
        Ok(1)
    }
}

/// The path in the volume for each source: a name in the destination if that is a directory, else the destination.
fn targets(
    volume: &Volume,
    sources: &[OsString],
    destination: &VolumePath,
) -> Result<Vec<Vec<u8>>, Error> {
    if !is_directory(volume, &destination.bytes) {
        if sources.len() > 1 || destination.bytes.ends_with(b"/") {
            let what = format!("{destination}: is not a directory; create it with uringfs mkdir");
            return Err(Error::input(what));
        }
        return Ok(vec![destination.bytes.clone()]);
    }
    let name = |source: &OsString| {
        if source == "-" {
            let what =
                format!("{destination}: is a directory; give a file name for standard input");
            return Err(Error::input(what));
        }
        let path = Path::new(source);
        let named = path.file_name().map(ToOwned::to_owned).or_else(|| {
            let whole = path.canonicalize().ok()?;
            Some(whole.file_name()?.to_owned())
        });
        match named {
            Some(name) => Ok(join(&destination.bytes, name.as_bytes())),
            None => {
                let what = "cannot derive a name; give the destination name";
                Err(Error::input(format!("{}: {what}", path.display())))
            }
        }
    };
    sources.iter().map(name).collect()
}

struct PutJob<'v> {
    volume: &'v Volume,
    destination: &'v VolumePath,
    image: ImageFiles,
    overwrite: OverwriteOptions,
    /// The directory for files until they are complete.
    staging: Vec<u8>,
    pipeline: Pipeline<Chunk>,
    progress: CopyProgress,
    /// Files that have chunks in flight or still to be read.
    files: HashMap<u64, PartialFile>,
    next: u64,
    /// Files that this command has created, except directories. They are never replaced.
    created: HashSet<InodeNumber>,
    links: HardLinks<FileId, NewName>,
    /// Directories get their attributes last: new names in them change their times.
    directories: Vec<(Vec<u8>, Inode)>,
    errors: PutErrors,
}

/// A part of a file, in bytes.
struct Chunk {
    file: u64,
    length: u64,
}

/// The path of a new file in the volume, and what to do about an existing file there.
#[derive(Clone)]
struct NewName {
    target: Vec<u8>,
    action: NameAction,
}

/// A source directory whose names are copied one after the other.
struct OpenDirectory {
    below: PathBuf,
    target: Vec<u8>,
    /// Created by this command: names in it cannot exist yet.
    is_new: bool,
    /// The names that are left, in reverse order.
    names: Vec<OsString>,
}

/// A file that is being copied.
struct PartialFile {
    file: File,
    number: InodeNumber,
    /// The source file; None for standard input.
    source: Option<FileId>,
    staged: Vec<u8>,
    name: NewName,
    inode: Inode,
    /// The minimum size at the end, for a file that ends with a hole.
    size: u64,
    /// Set after all writes: a write removes capabilities.
    xattrs: Vec<Xattr>,
    chunks: usize,
    is_fully_read: bool,
    has_failed: bool,
}

impl PutJob<'_> {
    fn run(&mut self, sources: &[OsString], targets: Vec<Vec<u8>>) -> Result<(), Error> {
        self.staging = self.with_path(b"/", self.make_staging())?;
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

    /// Creates the staging directory, so that files in it inherit no group and no ACL from the root directory: all
    /// attributes come from the sources.
    fn make_staging(&self) -> Result<Vec<u8>, VolumeError> {
        let path = unused_staging_name(self.volume)?;
        let inode = Inode { is_staging: true, ..Inode::new(FileKind::Directory, 0o700) };
        self.volume.make(&path, inode)?;
        self.volume.set_attributes(&path, Follow::No, |its| its.permissions = 0o700)?;
        match self.volume.remove_xattr(&path, Follow::No, DEFAULT_ACL_XATTR) {
            Err(error) if error.errno() != Errno::NODATA => Err(error),
            _ => Ok(path),
        }
    }

    /// Reports the error of one file, so that the copy continues. An error of the volume or the machine, or a
    /// Ctrl-C, is returned.
    fn continue_after(&mut self, done: Result<(), Error>) -> Result<(), Error> {
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
        let source = SourceFile::find(tree, &below)?;
        let inode = source.attributes()?;
        if inode.kind == FileKind::File && self.image.contains(&source.metadata) {
            return Err(refuse_image(&source.path.display().to_string()));
        }
        let action = if is_new { NameAction::Create } else { self.action(&target, inode.kind)? };
        match (inode.kind, action) {
            (_, NameAction::Skip) => return Ok(None),
            (FileKind::Directory, _) => {
                return self.put_directory(&source, below, target, inode, action).map(Some);
            }
            _ => {}
        }
        let (file, names) = (file_id(&source.metadata), source.metadata.nlink());
        let name = NewName { target, action };
        match self.links.add_name(file, u32::try_from(names).unwrap_or(u32::MAX), &name) {
            LinkAction::Copy => {
                let done = match inode.kind {
                    FileKind::File => self.put_file(&source, name.clone(), inode),
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

    /// The action for a new file of this kind at a path that may exist.
    fn action(&self, target: &[u8], kind: FileKind) -> Result<NameAction, Error> {
        let path = || self.destination.in_same_volume(target.to_vec());
        let already_written =
            || Error::input(format!("{}: was already written by this command", path()));
        if self.files.values().any(|partial| partial.name.target == target) {
            return Err(already_written());
        }
        let (number, existing) = match self.volume.inode(target, Follow::No) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(NameAction::Create),
            found => self.with_path(target, found)?,
        };
        if self.created.contains(&number) {
            return Err(already_written());
        }
        // A directory is merged into the target of an existing link.
        if kind == FileKind::Directory && is_directory(self.volume, target) {
            return Ok(NameAction::Merge);
        }
        let action = self.overwrite.action(existing.kind, kind);
        action.map_err(|why| Error::input(format!("{}: {why}", path())))
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
            self.with_path(&target, self.volume.make_directory(&staged, 0o700))?;
            self.with_path(&target, self.volume.rename(&staged, &target, Rename::NoReplace))?;
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
        let number = self.with_path(&name.target, self.volume.make(&staged, inode))?;
        self.set_xattrs(&xattrs, &staged, Follow::No, &name.target)?;
        self.rename_into_place(&staged, name)?;
        self.progress.counts.others += 1;
        self.copy_done(number, Some(file_id(&source.metadata)), name)
    }

    /// A copy has its name: creates the links that wait for it.
    fn copy_done(
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

    fn copy_failed(&mut self, source: FileId, first: &NewName) -> Result<(), Error> {
        for name in self.links.copy_failed(&source) {
            let lost = self.first_name_failed(first, &name);
            self.continue_after(Err(lost))?;
        }
        Ok(())
    }

    fn first_name_failed(&self, first: &NewName, name: &NewName) -> Error {
        let [name, first] =
            [name, first].map(|name| self.destination.in_same_volume(name.target.clone()));
        Error::input(format!("{name}: is a hard link to {first}, which could not be copied"))
    }

    /// Creates a hard link to a file that this command has created.
    fn put_link(&mut self, first: &NewName, name: &NewName) -> Result<(), Error> {
        let staged = self.new_staged_path();
        self.with_path(&name.target, self.volume.link(&first.target, &staged))?;
        self.rename_into_place(&staged, name)?;
        self.progress.counts.links += 1;
        Ok(())
    }

    /// Sets the extended attributes that volumes support, and skips others.
    fn set_xattrs(
        &self,
        xattrs: &[Xattr],
        path: &[u8],
        follow: Follow,
        target: &[u8],
    ) -> Result<(), Error> {
        for (name, value) in xattrs {
            match self.volume.set_xattr(path, follow, name, value, SetXattr::Either) {
                Err(error) if error.errno() == Errno::OPNOTSUPP => {}
                set => self.with_path(target, set)?,
            }
        }
        Ok(())
    }

    fn put_file(&mut self, source: &SourceFile, name: NewName, inode: Inode) -> Result<(), Error> {
        let host = source.open()?;
        let ranges =
            data_ranges(&host, &source.metadata).map_err(|error| source.cannot_read(error))?;
        let xattrs = source.xattrs()?;
        let id = self.begin_file(Some(file_id(&source.metadata)), name, inode)?;
        self.files.get_mut(&id).expect("the file has begun").xattrs = xattrs;
        let copied = self.copy(id, &host, source, &ranges);
        let ended = self.end_of_input(id, copied.is_ok());
        copied.and(ended)
    }

    /// Copies the data ranges, and then everything after the size from the metadata: a file may grow, and files of
    /// `/proc` have a size of 0.
    fn copy(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &SourceFile,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        let found = source.metadata.len();
        for range in ranges {
            self.copy_range(id, host, source, range.clone())?;
        }
        // Probe one block first: a file that has not grown costs only this read.
        let probe = found..found + 4096;
        if self.copy_range(id, host, source, probe.clone())? {
            self.copy_range(id, host, source, probe.end..u64::MAX)?;
        }
        if ranges.last().map_or(0, |range| range.end) < found {
            // The file ends with a hole, or was truncated meanwhile.
            let size = host.metadata().map_err(|error| source.cannot_read(error))?.len();
            self.files.get_mut(&id).expect("the file has begun").size = size.min(found);
        }
        Ok(())
    }

    /// Copies a range. Returns whether the whole range could be read.
    fn copy_range(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &SourceFile,
        range: Range<u64>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if self.files[&id].has_failed {
                return Ok(false);
            }
            self.progress.check_stop()?;
            let mut buffer = Buffer::zeroed((range.end - at).min(CHUNK_BYTES as u64) as usize);
            let read = read_full(&mut buffer, |part, done| host.read_at(part, at + done as u64));
            let read = read.map_err(|error| source.cannot_read(error))?;
            let is_end = read < buffer.len();
            if read > 0 {
                drop(buffer.split_off(read));
                self.write_chunk(id, buffer, at)?;
                at += read as u64;
            }
            if is_end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn put_stdin(&mut self, target: Vec<u8>) -> Result<(), Error> {
        let unreadable =
            |error: io::Error| Error::run("standard input: cannot be read").because(error);
        let input = io::stdin();
        if self.image.contains_open_file(&input).map_err(unreadable)? {
            return Err(refuse_image("standard input"));
        }
        let action = self.action(&target, FileKind::File)?;
        if action == NameAction::Skip {
            return Ok(());
        }
        let inode = Inode::new(FileKind::File, 0o644);
        let (id, mut at) = (self.begin_file(None, NewName { target, action }, inode)?, 0);
        loop {
            let mut buffer = Buffer::zeroed(CHUNK_BYTES);
            let read = read_full(&mut buffer, |part, _| {
                self.progress.wait_readable(&input)?;
                Ok(rustix::io::read(&input, part)?)
            });
            // Also at the end of input: Ctrl-C ends the writer of the pipe, too.
            self.progress.check_stop()?;
            let read = read.map_err(unreadable)?;
            if read == 0 || self.files[&id].has_failed {
                return self.end_of_input(id, true);
            }
            drop(buffer.split_off(read));
            self.write_chunk(id, buffer, at)?;
            at += read as u64;
        }
    }

    /// Creates a file under a staging name.
    fn begin_file(
        &mut self,
        source: Option<FileId>,
        name: NewName,
        inode: Inode,
    ) -> Result<u64, Error> {
        let (staged, id) = (self.new_staged_path(), self.next);
        let number = self.with_path(&name.target, self.volume.make(&staged, inode.clone()))?;
        let file =
            self.with_path(&name.target, self.volume.open(&staged, OpenOptions::direct()))?;
        let partial = PartialFile {
            file,
            number,
            source,
            staged,
            name,
            inode,
            size: 0,
            xattrs: Vec::new(),
            chunks: 0,
            is_fully_read: false,
            has_failed: false,
        };
        self.files.insert(id, partial);
        Ok(id)
    }

    fn write_chunk(&mut self, id: u64, buffer: Buffer, offset: u64) -> Result<(), Error> {
        let finished = self.pipeline.wait_for_slot();
        self.on_finished(finished)?;
        let chunk = Chunk { file: id, length: buffer.len() as u64 };
        let partial = self.files.get_mut(&id).expect("the file has begun");
        partial.chunks += 1;
        let started = self.pipeline.write(&partial.file, buffer, offset, chunk);
        started.map_err(|error| self.write_error(error))
    }

    /// The source was read to its end, or failed.
    fn end_of_input(&mut self, id: u64, is_whole: bool) -> Result<(), Error> {
        let partial = self.files.get_mut(&id).expect("the file has begun");
        partial.is_fully_read = true;
        partial.has_failed |= !is_whole;
        self.finish_if_written(id)
    }

    fn on_finished(
        &mut self,
        finished: io::Result<Vec<FinishedChunk<Chunk>>>,
    ) -> Result<(), Error> {
        for FinishedChunk { context: chunk, result, .. } in
            finished.map_err(|error| self.write_error(error))?
        {
            let partial = self.files.get_mut(&chunk.file).expect("the file has chunks in flight");
            partial.chunks -= 1;
            if result != Ok(chunk.length) && !partial.has_failed {
                partial.has_failed = true;
                let path = self.destination.in_same_volume(partial.name.target.clone());
                let why = match result {
                    // Other files may still fit.
                    Err(Errno::NOSPC) => self.volume.shortage().to_string(),
                    Err(errno) => errno.to_string(),
                    Ok(written) => format!("short write: {written} of {} bytes", chunk.length),
                };
                self.errors.report(Error::run(format!("{path}: cannot be written: {why}")));
            }
            let done = self.finish_if_written(chunk.file);
            self.continue_after(done)?;
        }
        Ok(())
    }

    /// Renames the file if it is complete; removes it if it has failed.
    fn finish_if_written(&mut self, id: u64) -> Result<(), Error> {
        let partial = &self.files[&id];
        if partial.chunks > 0 || !partial.is_fully_read {
            return Ok(());
        }
        let partial = self.files.remove(&id).expect("the file has begun");
        let (source, name) = (partial.source, partial.name.clone());
        if !partial.has_failed {
            let done = self.finish_file(partial);
            if done.is_ok() {
                return done;
            }
            self.continue_after(done)?;
        } else {
            self.with_path(&name.target, self.volume.remove(&partial.staged))?;
        }
        source.map_or(Ok(()), |source| self.copy_failed(source, &name))
    }

    fn finish_file(&mut self, partial: PartialFile) -> Result<(), Error> {
        let PartialFile { file, number, source, staged, name, inode, size, xattrs, .. } = partial;
        let target = &name.target;
        if file.size() < size {
            let longer = self.pipeline.block_on(file.set_size(size));
            longer.map_err(|errno| self.write_error(errno.into()))?;
        }
        if file.size() > 0 {
            // Writes have changed the times.
            self.with_path(target, self.set_attributes(&staged, &inode))?;
        }
        self.set_xattrs(&xattrs, &staged, Follow::No, target)?;
        self.rename_into_place(&staged, &name)?;
        self.progress.add_file(file.size());
        self.copy_done(number, source, &name)
    }

    /// Renames a complete file to its path.
    fn rename_into_place(&mut self, staged: &[u8], name: &NewName) -> Result<(), Error> {
        let how =
            if name.action == NameAction::Create { Rename::NoReplace } else { Rename::Replace };
        self.with_path(&name.target, self.volume.rename(staged, &name.target, how))
    }

    /// Sets the attributes of a file, or of a directory, which may exist as a link to one.
    fn set_attributes(&self, path: &[u8], inode: &Inode) -> Result<(), VolumeError> {
        self.volume.set_attributes(path, Follow::Yes, |its| {
            its.permissions = inode.permissions;
            (its.user, its.group) = (inode.user, inode.group);
            (its.accessed, its.modified) = (inode.accessed, inode.modified);
        })
    }

    /// A new unique staging path.
    fn new_staged_path(&mut self) -> Vec<u8> {
        self.next += 1;
        join(&self.staging, self.next.to_string().as_bytes())
    }

    /// Removes partial files.
    fn clean_up(&mut self) -> Result<(), Error> {
        // No write may be in flight to a file that is about to be removed.
        let _ = self.pipeline.drain();
        self.files.clear();
        self.with_path(&self.staging, remove_leftovers(self.volume))
    }

    fn with_path<T>(&self, path: &[u8], result: Result<T, VolumeError>) -> Result<T, Error> {
        result.map_err(|error| {
            let path = self.destination.in_same_volume(path.to_vec());
            match error.kind() {
                // Only this file is affected; others can still be copied.
                VolumeErrorKind::Damaged => Error::input(path.to_string()).because(error),
                _ => with_path(&path, error),
            }
        })
    }

    fn write_error(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be written", self.destination.target.display()))
            .because(error)
    }
}

/// The directory of a source, and its name there. A source without a name is the directory itself.
fn open_tree(source: &Path) -> io::Result<(HostTree, PathBuf)> {
    // A path with a slash at the end follows a link.
    let is_directory = source.as_os_str().as_bytes().ends_with(b"/");
    match source.file_name() {
        Some(name) if !is_directory => {
            let parent = source.parent().unwrap_or(Path::new(""));
            Ok((HostTree::open(parent)?, name.into()))
        }
        _ => Ok((HostTree::open(source)?, PathBuf::new())),
    }
}

fn refuse_image(source: &str) -> Error {
    Error::input(format!("{source}: is the volume's own image, and cannot be copied into it"))
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn read_full(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], done) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
