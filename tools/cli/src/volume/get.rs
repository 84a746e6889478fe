//! `uringfs get`: copies files and trees out of a volume. A file is written under a temporary name in its
//! directory and renamed when it is complete; holes stay holes. An error of one file is reported, and the copy
//! continues with the others.

use super::archive_options::archive_options;
use super::copy_progress::{CopyProgress, Xattr};
use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::exclude::ExcludeOptions;
use super::exit_codes::{refused, with_cause_code};
use super::files::{Files, OpenFile};
use super::get_destination::{GetDestination, create_error, write_into};
use super::get_staging::StagedEntry;
use super::glob::GlobOptions;
use super::hard_links::{HardLinks, LinkAction};
use super::host::{self, FileId, HostTree, PathHandle, file_id};
use super::image::ImageFiles;
use super::open_volume::{lookup, open_at};
use super::overwrite::{NameAction, OverwriteOptions};
use super::pipeline::{CHUNK_BYTES, DEVICE_TOO_SHORT, FinishedChunk, Pipeline};
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::verbose::{VerboseOptions, quoted, quoted_host};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, with_path};
use super::{cat, format, total_bytes};
use crate::output::print_error;
use rustix::fs::{
    AtFlags, CWD, FileType as HostType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmodat,
    linkat, mkdirat, mknodat, openat, setxattr, symlinkat, utimensat,
};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File as HostFile, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::Buffer;
use uringfs::device::Access;
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Time};
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(args = archive_options())]
pub struct Arguments {
    /// TARGET:/path; directories are copied recursively
    #[arg(required = true, value_name = "TARGET:/path")]
    sources: Vec<OsString>,

    /// A directory to copy into, the name of the new file or directory, or - for standard output. A device, FIFO or socket
    /// gets the contents of the file, and a symbolic link is followed
    #[arg(value_name = "DEST")]
    destination: PathBuf,

    #[command(flatten)]
    glob: GlobOptions,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    #[command(flatten)]
    exclude: ExcludeOptions,

    #[command(flatten)]
    verbose: VerboseOptions,

    /// Do not copy what grants privileges: set-ID bits, devices, security.* and trusted.* attributes
    #[arg(long)]
    no_privileges: bool,

    #[command(flatten)]
    quiet: QuietOptions,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.sources)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let paths = arguments.glob.expand_all(&volume, &paths)?;
    let destination =
        GetDestination::new(&volume, &paths, &arguments.destination, arguments.overwrite)?;
    let (tree, targets) = match destination {
        GetDestination::StandardOutput => return cat::print_contents(&volume, &paths),
        GetDestination::Existing(path) => return write_into(&volume, &paths[0], &path).map(|()| 0),
        GetDestination::Names(tree, targets) => (tree, targets),
    };
    let mut get = GetJob {
        volume: &volume,
        source: &paths[0],
        image: ImageFiles::of_volume(&paths[0].target)?,
        tree,
        overwrite: arguments.overwrite,
        exclude: arguments.exclude,
        verbose: arguments.verbose,
        no_privileges: arguments.no_privileges,
        is_root: nix::unistd::geteuid().is_root(),
        pipeline: Pipeline::new()?,
        progress: CopyProgress::start(arguments.quiet, || total_bytes::of_volume(&volume, &paths))?,
        files: HashMap::new(),
        next: 0,
        created: HashSet::new(),
        links: HardLinks::new(),
        visited: VisitedDirectories::default(),
        directories: Vec::new(),
        left_out: Cell::new(0),
        errors: ErrorSink::default(),
    };
    let done = get.run(&paths, targets);
    done.map_err(|error| error.when_interrupted(STOPPED))?;
    if get.left_out.get() > 0 {
        let attributes =
            format::count(get.left_out.get(), "extended attribute", "extended attributes");
        let why = "this user or the destination's file system cannot have them";
        print_error(&format!("note: {attributes} left out: {why}"));
    }
    let code = get.errors.exit_code_of_copy(get.progress.counts.is_empty());
    get.progress.print_report(arguments.quiet, arguments.json, code)?;
    Ok(code)
}

/// The state after Ctrl-C.
const STOPPED: &str = "the files copied so far stay, and no file is incomplete";

struct GetJob<'v> {
    volume: &'v Files,
    source: &'v VolumePath,
    image: ImageFiles,
    tree: HostTree,
    overwrite: OverwriteOptions,
    exclude: ExcludeOptions,
    verbose: VerboseOptions,
    no_privileges: bool,
    is_root: bool,
    pipeline: Pipeline<Chunk>,
    progress: CopyProgress,
    files: HashMap<u64, PartialFile>,
    next: u64,
    /// Files that this command has created, except directories. They are never replaced.
    created: HashSet<FileId>,
    links: HardLinks<InodeNumber, NewName>,
    /// The directories visited from the current source on.
    visited: VisitedDirectories,
    /// Directories get their attributes last: new names in them change their times.
    directories: Vec<(PathBuf, Attributes)>,
    /// Extended attributes that could not be set.
    left_out: Cell<u64>,
    errors: ErrorSink,
}

/// A part of a file, in bytes.
struct Chunk {
    file: u64,
    offset: u64,
}

/// The path of a new file below the destination, and what to do about an existing file there.
#[derive(Clone)]
struct NewName {
    target: PathBuf,
    action: NameAction,
}

/// A file that is being copied.
struct PartialFile {
    source: Vec<u8>,
    number: InodeNumber,
    host: HostFile,
    staged: StagedEntry,
    name: NewName,
    attributes: Attributes,
    chunks: usize,
    is_all_requested: bool,
    /// A part could not be copied: the file is given up.
    has_failed: bool,
}

/// The attributes of a file to copy besides its data.
struct Attributes {
    inode: Inode,
    xattrs: Vec<Xattr>,
}

/// A source directory whose entries are copied one after the other.
struct OpenDirectory {
    path: VolumePath,
    target: PathBuf,
    /// Created by this command: names in it cannot exist yet.
    is_new: bool,
    entries: Entries,
}

impl GetJob<'_> {
    fn run(&mut self, paths: &[VolumePath], targets: Vec<PathBuf>) -> Result<(), Error> {
        for (path, target) in paths.iter().zip(targets) {
            self.get_tree(path.clone(), target)?;
        }
        let finished = self.pipeline.drain();
        self.on_finished(finished)?;
        for (target, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let handle = self.tree.find(target).map_err(|error| self.create_error(target, error));
            if let Some(handle) = self.errors.record(handle) {
                self.set_attributes(&handle.path(), target, attributes);
            }
        }
        Ok(())
    }

    /// Copies a source and everything below it. Uses no recursion, as trees may be deep.
    fn get_tree(&mut self, path: VolumePath, target: PathBuf) -> Result<(), Error> {
        self.visited = VisitedDirectories::default();
        let mut stack = Vec::from_iter(self.get_entry(path, target, false)?);
        while let Some(directory) = stack.last_mut() {
            let Some((path, entry)) =
                directory.entries.next_with_path(&directory.path, &self.errors)
            else {
                stack.pop();
                continue;
            };
            if matches!(&entry.name[..], b"" | b"." | b"..") || entry.name.contains(&b'/') {
                let what = format!("{}: contains an invalid name", directory.path);
                self.errors.record::<()>(Err(Error::run(what)));
                continue;
            }
            let target = directory.target.join(OsStr::from_bytes(&entry.name));
            let is_new = directory.is_new;
            stack.extend(self.get_entry(path, target, is_new)?);
        }
        Ok(())
    }

    /// Copies one file, or creates one directory and returns it for its entries.
    fn get_entry(
        &mut self,
        path: VolumePath,
        target: PathBuf,
        is_new: bool,
    ) -> Result<Option<OpenDirectory>, Error> {
        self.progress.check_stop()?;
        if self.exclude.excludes(&path.bytes) {
            return Ok(None);
        }
        let found = lookup(self.volume, &path.bytes).map_err(|error| with_path(&path, error));
        let Some((number, inode)) = self.errors.record(found) else { return Ok(None) };
        if inode.kind == FileType::Directory
            && self.errors.record(self.visited.visit(&path, number)).is_none()
        {
            return Ok(None);
        }
        let is_device =
            matches!(inode.kind, FileType::BlockDevice(_) | FileType::CharacterDevice(_));
        if self.no_privileges && is_device {
            return Ok(None);
        }
        let action = if is_new { Ok(NameAction::Create) } else { self.action(&target, inode.kind) };
        let Some(action) = self.errors.record(action) else { return Ok(None) };
        if self.verbose.is_on() && !matches!(action, NameAction::Skip | NameAction::Merge) {
            let to = quoted_host(&self.tree.display_path(&target));
            self.verbose.print(&[&quoted(&path), b" -> ", &to])?;
        }
        match (inode.kind, action) {
            (_, NameAction::Skip) => {
                self.progress.counts.skipped += 1;
                let kept = quoted_host(&self.tree.display_path(&target));
                return self.verbose.print(&[b"skipped ", &kept]).map(|()| None);
            }
            (FileType::Directory, _) => {
                let attributes = self.attributes(&path, inode);
                return Ok(self.get_directory(path, target, attributes, action));
            }
            _ => {}
        }
        let name = NewName { target, action };
        match self.links.add_name(number, inode.links, &name) {
            LinkAction::Copy => {
                let attributes = self.attributes(&path, inode);
                match attributes.inode.kind {
                    FileType::File => self.get_file(path, number, name, attributes)?,
                    _ => self.get_special(number, name, attributes),
                }
            }
            LinkAction::Wait => {}
            LinkAction::Link(first) => self.get_link(&first, &name),
            LinkAction::Fail(first) => self.report_first_name_failed(&first, &name),
        }
        Ok(None)
    }

    /// The action for a new file of this kind at a path that may exist.
    fn action(&self, target: &Path, kind: FileType) -> Result<NameAction, Error> {
        let cannot = |why: &str| self.create_error(target, why);
        if self.files.values().any(|partial| partial.name.target == target) {
            return Err(cannot(JUST_CREATED));
        }
        let existing = match self.tree.find(target).and_then(|handle| handle.metadata()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NameAction::Create),
            existing => existing.map_err(|error| self.create_error(target, error))?,
        };
        // Replacing a link to the image would lose the image, too.
        let is_image = |path: &Path| path.metadata().is_ok_and(|found| self.image.contains(&found));
        if self.image.contains(&existing)
            || existing.is_symlink() && is_image(&self.tree.display_path(target))
        {
            let shown = self.tree.display_path(target);
            let what = "it is the image that is being read";
            return Err(refused(format!("{}: cannot be created: {what}", for_message(&shown))));
        }
        if self.created.contains(&file_id(&existing)) {
            return Err(cannot(JUST_CREATED));
        }
        let existing =
            kind_of(&existing).ok_or_else(|| cannot("the existing file has an unknown type"))?;
        self.overwrite.action(existing, kind).map_err(cannot)
    }

    fn attributes(&self, path: &VolumePath, inode: Inode) -> Attributes {
        let source = &path.bytes;
        let ok = |result| self.errors.record(result).into_iter();
        let names = self
            .volume
            .list_xattrs(as_path(source), Follow::No)
            .map_err(|error| with_path(path, error));
        let value = |name: Vec<u8>| {
            let value = self.volume.get_xattr(as_path(source), Follow::No, &name);
            value.map(|value| (name, value)).map_err(|error| with_path(path, error))
        };
        let xattrs = self.errors.record(names).into_iter().flatten();
        Attributes { inode, xattrs: xattrs.flat_map(|name| ok(value(name))).collect() }
    }

    fn get_directory(
        &mut self,
        path: VolumePath,
        target: PathBuf,
        attributes: Attributes,
        action: NameAction,
    ) -> Option<OpenDirectory> {
        let is_new = action == NameAction::Create;
        if is_new {
            let created = self
                .tree
                .parent(&target)
                .and_then(|(parent, name)| Ok(mkdirat(&*parent, name, Mode::RWXU)?));
            let created = created.map_err(|error| self.create_error(&target, error));
            self.errors.record(created)?;
        }
        if is_new || !self.overwrite.skips_existing() {
            self.directories.push((target.clone(), attributes));
        }
        self.progress.counts.directories += 1;
        let entries = Entries::new(self.volume, &path.bytes);
        Some(OpenDirectory { path, target, is_new, entries })
    }

    /// Copies a link, device, FIFO or socket.
    fn get_special(&mut self, number: InodeNumber, name: NewName, attributes: Attributes) {
        let created =
            StagedEntry::create(&mut self.tree, &name.target, &mut self.next, |at, name| {
                create_special(at, name, &attributes.inode)
            });
        let done = created.and_then(|(staged, ())| {
            let handle = staged.open_path()?;
            let found = handle.metadata()?;
            if kind_of(&found) != Some(attributes.inode.kind) || found.nlink() != 1 {
                return Err(io::Error::other("it was replaced by another file during the copy"));
            }
            self.set_attributes(&handle.path(), &name.target, &attributes);
            staged.rename(&name.target, name.action)?;
            Ok(file_id(&found))
        });
        match self.errors.record(done.map_err(|error| self.create_error(&name.target, error))) {
            Some(created) => {
                self.progress.counts.others += 1;
                self.copy_done(number, name, created);
            }
            None => self.copy_failed(number, &name),
        }
    }

    /// A copy has its name: creates the links that wait for it.
    fn copy_done(&mut self, number: InodeNumber, first: NewName, created: FileId) {
        self.created.insert(created);
        for name in self.links.copy_done(&number) {
            self.get_link(&first, &name);
        }
    }

    fn copy_failed(&mut self, number: InodeNumber, first: &NewName) {
        for name in self.links.copy_failed(&number) {
            self.report_first_name_failed(first, &name);
        }
    }

    fn report_first_name_failed(&self, first: &NewName, name: &NewName) {
        let first = self.tree.display_path(&first.target);
        let why =
            format!("it is a hard link to {}, which could not be created", for_message(&first));
        self.errors.record::<()>(Err(self.create_error(&name.target, why)));
    }

    /// Creates a hard link to a file that this command has created.
    fn get_link(&mut self, first: &NewName, name: &NewName) {
        let linked = self.tree.parent(&first.target).and_then(|(directory, first_name)| {
            let make = |at: &PathHandle, staged: &str| {
                linkat(&*directory, first_name, at, staged, AtFlags::empty())
            };
            let (staged, ()) =
                StagedEntry::create(&mut self.tree, &name.target, &mut self.next, make)?;
            if !self.created.contains(&file_id(&staged.open_path()?.metadata()?)) {
                let why = "its first name was replaced by another file during the copy";
                return Err(io::Error::other(why));
            }
            staged.rename(&name.target, name.action)
        });
        let linked = linked.map_err(|error| self.create_error(&name.target, error));
        if self.errors.record(linked).is_some() {
            self.progress.counts.links += 1;
        }
    }

    fn get_file(
        &mut self,
        path: VolumePath,
        number: InodeNumber,
        name: NewName,
        mut attributes: Attributes,
    ) -> Result<(), Error> {
        let opened = self.volume.open(as_path(&path.bytes), Opening::Read);
        let begun = opened.map_err(|error| with_path(&path, error)).and_then(|file| {
            // Only the owner can open the partial file, so no other user reads it before its mode is set.
            let mode = Mode::from_raw_mode(u32::from(attributes.inode.permissions) & 0o600);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let make = |at: &PathHandle, name: &str| openat(at, name, flags, mode);
            let created = StagedEntry::create(&mut self.tree, &name.target, &mut self.next, make);
            created
                .map(|created| (file, created))
                .map_err(|error| self.create_error(&name.target, error))
        });
        let Some((file, (staged, host))) = self.errors.record(begun) else {
            self.copy_failed(number, &name);
            return Ok(());
        };
        // Of a mounted volume it may have changed meanwhile.
        attributes.inode.size = file.len();
        let id = self.next;
        let partial = PartialFile {
            source: path.bytes,
            number,
            host: host.into(),
            staged,
            name,
            attributes,
            chunks: 0,
            is_all_requested: false,
            has_failed: false,
        };
        self.files.insert(id, partial);
        self.request_all(id, &file)?;
        self.files.get_mut(&id).expect("the file has begun").is_all_requested = true;
        self.finish_if_whole(id);
        Ok(())
    }

    /// Starts the reads of all data of a file.
    fn request_all(&mut self, id: u64, file: &OpenFile) -> Result<(), Error> {
        let mut at = 0;
        loop {
            let data = match file.next_data(at) {
                Ok(Some(data)) => data,
                Ok(None) => return Ok(()),
                Err(errno) => {
                    self.fail_read(id, errno);
                    return Ok(());
                }
            };
            at = data.end;
            for offset in data.step_by(CHUNK_BYTES) {
                self.progress.check_stop()?;
                let finished = self.pipeline.wait_for_slot();
                self.on_finished(finished)?;
                let buffer = Buffer::zeroed((at - offset).min(CHUNK_BYTES as u64) as usize);
                let partial = self.files.get_mut(&id).expect("the file has begun");
                if partial.has_failed {
                    return Ok(());
                }
                partial.chunks += 1;
                let started = self.pipeline.read(file, buffer, offset, Chunk { file: id, offset });
                started.map_err(|error| self.read_error(error))?;
            }
        }
    }

    fn on_finished(
        &mut self,
        finished: io::Result<Vec<FinishedChunk<Chunk>>>,
    ) -> Result<(), Error> {
        for FinishedChunk { context: chunk, result, buffer } in
            finished.map_err(|error| self.read_error(error))?
        {
            let partial = self.files.get_mut(&chunk.file).expect("the file has chunks in flight");
            partial.chunks -= 1;
            self.progress.add_chunk(buffer.len() as u64);
            match result {
                Ok(read) if read == buffer.len() as u64 => {
                    if let Err(error) = partial.host.write_all_at(&buffer, chunk.offset) {
                        let error = self.create_error(&self.files[&chunk.file].name.target, error);
                        self.fail(chunk.file, error);
                    }
                }
                Ok(_) => self.fail_read(chunk.file, DEVICE_TOO_SHORT),
                Err(errno) => self.fail_read(chunk.file, errno),
            }
            self.finish_if_whole(chunk.file);
        }
        Ok(())
    }

    /// Gives up a file of which a part cannot be read.
    fn fail_read(&mut self, id: u64, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) {
        let path = self.source.in_same_volume(self.files[&id].source.clone());
        self.fail(id, Error::run(format!("{path}: cannot be read")).because(why));
    }

    fn fail(&mut self, id: u64, error: Error) {
        let partial = self.files.get_mut(&id).expect("the file has begun");
        // Only the first error of a file is reported.
        if !std::mem::replace(&mut partial.has_failed, true) {
            self.errors.record::<()>(Err(error));
        }
    }

    fn finish_if_whole(&mut self, id: u64) {
        let partial = &self.files[&id];
        if partial.chunks > 0 || !partial.is_all_requested {
            return;
        }
        let PartialFile { number, host, staged, name, attributes, has_failed, .. } =
            self.files.remove(&id).expect("the file has begun");
        if has_failed {
            self.copy_failed(number, &name);
            return;
        }
        let size = attributes.inode.size;
        let done = host.set_len(size).and_then(|()| {
            self.set_attributes(&host::fd_path(&host), &name.target, &attributes);
            let created = file_id(&host.metadata()?);
            staged.rename(&name.target, name.action)?;
            Ok(created)
        });
        match self.errors.record(done.map_err(|error| self.create_error(&name.target, error))) {
            Some(created) => {
                self.progress.add_file();
                self.copy_done(number, name, created);
            }
            None => self.copy_failed(number, &name),
        }
    }

    /// Sets the attributes of a new file, and reports those that cannot be set. Sets owners only as root, and skips
    /// extended attributes that the file system or the user's privileges do not allow.
    fn set_attributes(&self, handle: &Path, target: &Path, its: &Attributes) {
        let Attributes { inode, xattrs } = its;
        let report = |what: &str, set: io::Result<()>| {
            let shown = self.tree.display_path(target);
            let failed = |error: io::Error| {
                Error::run(format!("{}: cannot set {what}", for_message(&shown))).because(error)
            };
            self.errors.record(set.map_err(failed));
        };
        if self.is_root {
            let set = std::os::unix::fs::chown(handle, Some(inode.user), Some(inode.group));
            report("owner", set);
        }
        for (name, value) in xattrs {
            if self.no_privileges && grants_privileges(name) {
                continue;
            }
            match setxattr(handle, &name[..], value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM) => self.left_out.set(self.left_out.get() + 1),
                set => {
                    let what = format!("attribute {}", for_message(OsStr::from_bytes(name)));
                    report(&what, set.map_err(Into::into));
                }
            }
        }
        if inode.kind != FileType::Symlink {
            // After the owner: a change of the owner clears the set-ID bits.
            let set = handle.metadata().and_then(|found| {
                let mode = Mode::from_raw_mode(self.permissions(inode, &found).into());
                Ok(chmodat(CWD, handle, mode, AtFlags::empty())?)
            });
            report("mode", set);
        }
        let time =
            |time: Time| Timespec { tv_sec: time.seconds(), tv_nsec: time.nanoseconds().into() };
        let times = Timestamps {
            last_access: time(inode.accessed),
            last_modification: time(inode.modified),
        };
        report("times", utimensat(CWD, handle, &times, AtFlags::empty()).map_err(Into::into));
    }

    /// The permissions to set. Set-ID bits are kept only if user and group are those of the source.
    fn permissions(&self, inode: &Inode, found: &Metadata) -> u16 {
        let mut permissions = inode.permissions;
        if self.no_privileges || found.uid() != inode.user {
            permissions &= !0o4000;
        }
        if self.no_privileges || found.gid() != inode.group {
            permissions &= !0o2000;
        }
        permissions
    }

    fn create_error(
        &self,
        target: &Path,
        why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        with_cause_code(create_error(&self.tree.display_path(target)).because(why))
    }

    fn read_error(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be read", for_message(&self.source.target))).because(error)
    }
}

const JUST_CREATED: &str = "it was already created by this command";

fn kind_of(found: &Metadata) -> Option<FileType> {
    FileType::from_mode(found.mode() as u16, found.rdev())
}

/// Whether an extended attribute can grant privileges.
fn grants_privileges(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Creates a link, device, FIFO or socket.
fn create_special(at: &PathHandle, name: &str, inode: &Inode) -> rustix::io::Result<()> {
    let (kind, device) = match inode.kind {
        FileType::Symlink => return symlinkat(&inode.target[..], at, name),
        FileType::BlockDevice(device) => (HostType::BlockDevice, device),
        FileType::CharacterDevice(device) => (HostType::CharacterDevice, device),
        FileType::Socket => (HostType::Socket, 0),
        _ => (HostType::Fifo, 0),
    };
    mknodat(at, name, kind, Mode::RUSR | Mode::WUSR, device)
}
