//! `uringfs put`: files and trees of the machine into a volume. A file is written under another
//! name and moved when it is whole; commits take a name only with the bytes it stands for. What cannot
//! be put is told, and the others go on.

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

/// The access control list that what is made in a directory gets.
const DEFAULT_ACL_XATTR: &str = "system.posix_acl_default";

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files and directories; - is standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,

    /// TARGET:/path: a directory to put them in, or the name of a single one
    #[arg(value_name = "TARGET:/path")]
    destination: OsString,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives its exit code.
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
        writing: HashMap::new(),
        next: 0,
        created: HashSet::new(),
        links: HardLinks::new(),
        directories: Vec::new(),
        errors: PutErrors::default(),
    };
    let done = put.run(&arguments.sources, targets);
    // In any case: nothing half-written stays.
    let clean = put.clean_up();
    let PutJob { progress, errors, .. } = put;
    let closed = sync(&volume, &path.target);
    let done = done.and(clean).and(closed);
    let code = errors.finish(done.is_ok() && progress.counts.is_empty());
    done?;
    let code = code?;
    print(&progress.report(arguments.json))?;
    Ok(code)
}

/// Files that could not be put.
#[derive(Default)]
struct PutErrors {
    /// The first, as long as it is the only one.
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

    /// The exit code: that of the one thing that could not be done, if nothing else was, or 1.
    fn finish(self, is_nothing_done: bool) -> Result<u8, Error> {
        match self.first {
            Some(error) if is_nothing_done => return Err(error),
            Some(error) => crate::output::print_error(&error.to_string()),
            None => return Ok(self.are_several.into()),
        }
        Ok(1)
    }
}

/// What each source becomes: a name in the directory that the path is, or the path itself.
fn targets(
    volume: &Volume,
    sources: &[OsString],
    destination: &VolumePath,
) -> Result<Vec<Vec<u8>>, Error> {
    if !is_directory(volume, &destination.bytes) {
        if sources.len() > 1 || destination.bytes.ends_with(b"/") {
            let what = format!("{destination}: is no directory; make it with uringfs mkdir");
            return Err(Error::input(what));
        }
        return Ok(vec![destination.bytes.clone()]);
    }
    let name = |source: &OsString| {
        if source == "-" {
            let what = format!("{destination}: is a directory; say what - is to be called in it");
            return Err(Error::input(what));
        }
        let path = Path::new(source);
        let named = path.file_name().map(ToOwned::to_owned).or_else(|| {
            let whole = path.canonicalize().ok()?;
            Some(whole.file_name()?.to_owned())
        });
        match named {
            Some(name) => Ok(join(&destination.bytes, name.as_bytes())),
            None => Err(Error::input(format!("{}: has no name to put it under", path.display()))),
        }
    };
    sources.iter().map(name).collect()
}

struct PutJob<'v> {
    volume: &'v Volume,
    destination: &'v VolumePath,
    image: ImageFiles,
    overwrite: OverwriteOptions,
    /// Where files lie until they are whole.
    staging: Vec<u8>,
    pipeline: Pipeline<Chunk>,
    progress: CopyProgress,
    /// Files of which chunks are on their way, or still to be read.
    writing: HashMap<u64, PartialFile>,
    next: u64,
    /// What this command has put, except directories: nothing of it is replaced.
    created: HashSet<InodeNumber>,
    links: HardLinks<FileId, NewName>,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(Vec<u8>, Inode)>,
    errors: PutErrors,
}

/// A part of a file.
struct Chunk {
    file: u64,
    length: u64,
}

/// A file's name in the volume, and how it comes to it.
#[derive(Clone)]
struct NewName {
    target: Vec<u8>,
    action: NameAction,
}

/// A directory whose names have their turn, one after the other.
struct OpenDirectory {
    below: PathBuf,
    target: Vec<u8>,
    /// This command has made it: nothing is in it yet.
    is_new: bool,
    /// From the last one on.
    names: Vec<OsString>,
}

struct PartialFile {
    file: File,
    number: InodeNumber,
    /// Which file of the machine it is; none is standard input.
    source: Option<FileId>,
    staged: Vec<u8>,
    name: NewName,
    inode: Inode,
    /// What it ends with if that is a hole: the file becomes at least as long.
    size: u64,
    /// Set when all is written: a write takes capabilities away.
    xattrs: Vec<Xattr>,
    chunks: usize,
    is_all_read: bool,
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
            self.report_input_error(done)?;
        }
        let finished = self.pipeline.drain();
        self.on_finished(finished)?;
        for (path, inode) in std::mem::take(&mut self.directories).iter().rev() {
            let done = self.with_path(path, self.set_attributes(path, inode));
            self.report_input_error(done)?;
        }
        Ok(())
    }

    /// What is made here gets nothing from it, whatever the root hands on: all comes from its source.
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

    /// Tells what is wrong with one file. What is wrong with the volume or the machine, or a Ctrl-C,
    /// stays an error.
    fn report_input_error(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        match done {
            Err(error) if error.kind() == ErrorKind::Input => self.errors.report(error),
            done => done?,
        }
        Ok(())
    }

    /// Everything from a path on, without recursion: trees may be deep.
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
                failed => self.report_input_error(failed.map(drop))?,
            }
        }
        Ok(())
    }

    /// One of them; a directory's names come next.
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

    /// How something of this kind comes to a name that may be there.
    fn action(&self, target: &[u8], kind: FileKind) -> Result<NameAction, Error> {
        let path = || self.destination.in_same_volume(target.to_vec());
        let is_just_put =
            || Error::input(format!("{}: is what this command has just put there", path()));
        if self.writing.values().any(|writing| writing.name.target == target) {
            return Err(is_just_put());
        }
        let (number, existing) = match self.volume.inode(target, Follow::No) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(NameAction::Create),
            found => self.with_path(target, found)?,
        };
        if self.created.contains(&number) {
            return Err(is_just_put());
        }
        // A directory goes where a link leads that was there before.
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

    /// Puts what is neither a file nor a directory.
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

    /// A copy has its name: others become links to it.
    fn copy_done(
        &mut self,
        number: InodeNumber,
        source: Option<FileId>,
        first: &NewName,
    ) -> Result<(), Error> {
        self.created.insert(number);
        for name in source.map_or(Vec::new(), |source| self.links.copy_done(&source)) {
            let done = self.put_link(first, &name);
            self.report_input_error(done)?;
        }
        Ok(())
    }

    fn copy_failed(&mut self, source: FileId, first: &NewName) -> Result<(), Error> {
        for name in self.links.copy_failed(&source) {
            let lost = self.first_name_failed(first, &name);
            self.report_input_error(Err(lost))?;
        }
        Ok(())
    }

    fn first_name_failed(&self, first: &NewName, name: &NewName) -> Error {
        let [name, first] =
            [name, first].map(|name| self.destination.in_same_volume(name.target.clone()));
        Error::input(format!("{name}: is another name of {first}, which could not be put"))
    }

    /// Gives a file that this command has put one more name.
    fn put_link(&mut self, first: &NewName, name: &NewName) -> Result<(), Error> {
        let staged = self.new_staged_path();
        self.with_path(&name.target, self.volume.link(&first.target, &staged))?;
        self.rename_into_place(&staged, name)?;
        self.progress.counts.links += 1;
        Ok(())
    }

    /// Those that volumes have; what else the machine's file systems have is left out.
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
        self.writing.get_mut(&id).expect("it has begun").xattrs = xattrs;
        let copied = self.copy(id, &host, source, &ranges);
        let ended = self.end_of_input(id, copied.is_ok());
        copied.and(ended)
    }

    /// Copies what has data, and then all that comes behind the size that was found: a file may grow, and
    /// those of `/proc` say that they have none.
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
        // A file that does not grow is asked once more, for a block.
        let probe = found..found + 4096;
        if self.copy_range(id, host, source, probe.clone())? {
            self.copy_range(id, host, source, probe.end..u64::MAX)?;
        }
        if ranges.last().map_or(0, |range| range.end) < found {
            // It ends in a hole; or was cut off meanwhile.
            let size = host.metadata().map_err(|error| source.cannot_read(error))?.len();
            self.writing.get_mut(&id).expect("it has begun").size = size.min(found);
        }
        Ok(())
    }

    /// Whether all of it was there.
    fn copy_range(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &SourceFile,
        range: Range<u64>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if self.writing[&id].has_failed {
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
            // Also at the end: a Ctrl-C ends the program that writes into the pipe, too.
            self.progress.check_stop()?;
            let read = read.map_err(unreadable)?;
            if read == 0 || self.writing[&id].has_failed {
                return self.end_of_input(id, true);
            }
            drop(buffer.split_off(read));
            self.write_chunk(id, buffer, at)?;
            at += read as u64;
        }
    }

    /// Begins a file under another name.
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
        let writing = PartialFile {
            file,
            number,
            source,
            staged,
            name,
            inode,
            size: 0,
            xattrs: Vec::new(),
            chunks: 0,
            is_all_read: false,
            has_failed: false,
        };
        self.writing.insert(id, writing);
        Ok(id)
    }

    fn write_chunk(&mut self, id: u64, buffer: Buffer, offset: u64) -> Result<(), Error> {
        let finished = self.pipeline.wait_for_slot();
        self.on_finished(finished)?;
        let chunk = Chunk { file: id, length: buffer.len() as u64 };
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.chunks += 1;
        let started = self.pipeline.write(&writing.file, buffer, offset, chunk);
        started.map_err(|error| self.write_error(error))
    }

    /// Nothing more is to be written to it.
    fn end_of_input(&mut self, id: u64, is_whole: bool) -> Result<(), Error> {
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.is_all_read = true;
        writing.has_failed |= !is_whole;
        self.finish_if_written(id)
    }

    fn on_finished(
        &mut self,
        finished: io::Result<Vec<FinishedChunk<Chunk>>>,
    ) -> Result<(), Error> {
        for FinishedChunk { context: chunk, result, .. } in
            finished.map_err(|error| self.write_error(error))?
        {
            let writing = self.writing.get_mut(&chunk.file).expect("it has chunks on their way");
            writing.chunks -= 1;
            if result != Ok(chunk.length) && !writing.has_failed {
                writing.has_failed = true;
                let path = self.destination.in_same_volume(writing.name.target.clone());
                let why = match result {
                    // There may be room for others.
                    Err(Errno::NOSPC) => self.volume.shortage().to_string(),
                    Err(errno) => errno.to_string(),
                    Ok(written) => format!("{written} of {} bytes were written", chunk.length),
                };
                self.errors.report(Error::run(format!("{path}: cannot be written: {why}")));
            }
            let done = self.finish_if_written(chunk.file);
            self.report_input_error(done)?;
        }
        Ok(())
    }

    /// Gives it its name when all of it is there; what has failed goes.
    fn finish_if_written(&mut self, id: u64) -> Result<(), Error> {
        let writing = &self.writing[&id];
        if writing.chunks > 0 || !writing.is_all_read {
            return Ok(());
        }
        let writing = self.writing.remove(&id).expect("it was just there");
        let (source, name) = (writing.source, writing.name.clone());
        if !writing.has_failed {
            let done = self.finish_file(writing);
            if done.is_ok() {
                return done;
            }
            self.report_input_error(done)?;
        } else {
            self.with_path(&name.target, self.volume.remove(&writing.staged))?;
        }
        source.map_or(Ok(()), |source| self.copy_failed(source, &name))
    }

    fn finish_file(&mut self, writing: PartialFile) -> Result<(), Error> {
        let PartialFile { file, number, source, staged, name, inode, size, xattrs, .. } = writing;
        let target = &name.target;
        if file.size() < size {
            let longer = self.pipeline.block_on(file.set_size(size));
            longer.map_err(|errno| self.write_error(errno.into()))?;
        }
        if file.size() > 0 {
            // Writing has changed its times.
            self.with_path(target, self.set_attributes(&staged, &inode))?;
        }
        self.set_xattrs(&xattrs, &staged, Follow::No, target)?;
        self.rename_into_place(&staged, &name)?;
        self.progress.add_file(file.size());
        self.copy_done(number, source, &name)
    }

    /// What is whole gets its name.
    fn rename_into_place(&mut self, staged: &[u8], name: &NewName) -> Result<(), Error> {
        let how =
            if name.action == NameAction::Create { Rename::NoReplace } else { Rename::Replace };
        self.with_path(&name.target, self.volume.rename(staged, &name.target, how))
    }

    /// Of a file or a directory, which may be there as a link to one.
    fn set_attributes(&self, path: &[u8], inode: &Inode) -> Result<(), VolumeError> {
        self.volume.set_attributes(path, Follow::Yes, |its| {
            its.permissions = inode.permissions;
            (its.user, its.group) = (inode.user, inode.group);
            (its.accessed, its.modified) = (inode.accessed, inode.modified);
        })
    }

    /// A name that nobody else uses.
    fn new_staged_path(&mut self) -> Vec<u8> {
        self.next += 1;
        join(&self.staging, self.next.to_string().as_bytes())
    }

    /// Removes what has not become whole.
    fn clean_up(&mut self) -> Result<(), Error> {
        // Nobody writes any more to what is about to be removed.
        let _ = self.pipeline.drain();
        self.writing.clear();
        self.with_path(&self.staging, remove_leftovers(self.volume))
    }

    fn with_path<T>(&self, path: &[u8], result: Result<T, VolumeError>) -> Result<T, Error> {
        result.map_err(|error| {
            let path = self.destination.in_same_volume(path.to_vec());
            match error.kind() {
                // Others can be put where this one cannot.
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

/// The directory that a source is in, and its name there; of what has none, the source itself.
fn open_tree(source: &Path) -> io::Result<(HostTree, PathBuf)> {
    // A slash at the end follows a name.
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
    Error::input(format!("{source}: is the volume's own image, and cannot go into itself"))
}

/// Reads until the buffer is full or nothing more comes; answers how much that was.
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
