//! `uringfs put`: files and trees of the machine into a volume. A file is written under another
//! name and moved when it is whole; commits take a name only with the bytes it stands for. What cannot
//! be put is told, and the others go on.

use super::flight::{Flight, Landed, PIECE};
use super::source::{attributes, cannot_read, data, look, xattrs};
use super::transfer::Transfer;
use super::{Place, STAGING, Xattr, close, is_directory, join, open, remove_staging};
use crate::output::print;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{File as HostFile, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::{
    Access, Buffer, File, FileKind, Follow, Inode, OpenOptions, Rename, SetXattr, Volume,
    VolumeError,
};
use uringfs_lab::{Error, ErrorKind};

/// The access control list that what is made in a directory gets.
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files and directories; - is standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,

    /// TARGET:/path: a directory to put them in, or the name of a single one
    #[arg(value_name = "TARGET:/path")]
    destination: OsString,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let place = Place::parse(&arguments.destination)?;
    // What cannot be read is said before anything is written.
    for source in arguments.sources.iter().filter(|source| *source != "-") {
        look(Path::new(source))?;
    }
    let volume = open(&place.target, Access::ReadWrite)?;
    let targets = targets(&volume, &arguments.sources, &place)?;
    let mut put = Put {
        volume: &volume,
        place: &place,
        flight: Flight::new()?,
        transfer: Transfer::begin()?,
        writing: HashMap::new(),
        next: 0,
        known: HashMap::new(),
        awaited: HashSet::new(),
        links: Vec::new(),
        directories: Vec::new(),
        failures: Failures::default(),
    };
    let done = put.all(&arguments.sources, targets);
    // In any case: nothing half-written stays.
    let clean = put.clean_up();
    let Put { transfer, failures, .. } = put;
    let closed = close(&volume, &place.target);
    done.and(clean).and(closed)?;
    let code = failures.end(transfer.done.is_nothing())?;
    print(&transfer.report(arguments.json))?;
    Ok(code)
}

/// Files that could not be put.
#[derive(Default)]
struct Failures {
    /// The first, as long as it is the only one.
    first: Option<Error>,
    are_several: bool,
}

impl Failures {
    fn tell(&mut self, error: Error) {
        if self.first.is_none() && !self.are_several {
            self.first = Some(error);
            return;
        }
        self.are_several = true;
        for error in self.first.take().into_iter().chain([error]) {
            crate::complain(&error.to_string());
        }
    }

    /// The exit code: that of the one thing that could not be done, if nothing else was, or 1.
    fn end(self, is_nothing_done: bool) -> Result<u8, Error> {
        match self.first {
            Some(error) if is_nothing_done => return Err(error),
            Some(error) => crate::complain(&error.to_string()),
            None => return Ok(self.are_several.into()),
        }
        Ok(1)
    }
}

/// What each source becomes: a name in the directory that the place is, or the place itself.
fn targets(volume: &Volume, sources: &[OsString], place: &Place) -> Result<Vec<Vec<u8>>, Error> {
    if !is_directory(volume, &place.path) {
        if sources.len() > 1 || place.path.ends_with(b"/") {
            let what = format!("{place}: is no directory; make it with uringfs mkdir");
            return Err(Error::input(what));
        }
        return Ok(vec![place.path.clone()]);
    }
    let name = |source: &OsString| {
        if source == "-" {
            let what = format!("{place}: is a directory; say what - is to be called in it");
            return Err(Error::input(what));
        }
        let path = Path::new(source);
        let named = path.file_name().map(ToOwned::to_owned).or_else(|| {
            let whole = path.canonicalize().ok()?;
            Some(whole.file_name()?.to_owned())
        });
        match named {
            Some(name) => Ok(join(&place.path, name.as_bytes())),
            None => Err(Error::input(format!("{}: has no name to put it under", path.display()))),
        }
    };
    sources.iter().map(name).collect()
}

struct Put<'v> {
    volume: &'v Volume,
    place: &'v Place,
    flight: Flight<Piece>,
    transfer: Transfer,
    /// Files of which pieces are on their way, or still to be read.
    writing: HashMap<u64, Writing>,
    next: u64,
    /// What files of several names are called here.
    known: HashMap<(u64, u64), Vec<u8>>,
    /// Which of these names do not stand for their file yet. Those that failed stay here.
    awaited: HashSet<Vec<u8>>,
    /// Their further names, made when all files are there.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(Vec<u8>, Inode)>,
    failures: Failures,
}

/// A part of a file.
struct Piece {
    file: u64,
    length: u64,
}

struct Writing {
    file: File,
    staged: Vec<u8>,
    target: Vec<u8>,
    inode: Inode,
    /// What it ends with if that is a hole: the file becomes at least as long.
    size: u64,
    /// Set when all is written: a write takes capabilities away.
    xattrs: Vec<Xattr>,
    pieces: usize,
    is_all_read: bool,
    has_failed: bool,
}

impl Put<'_> {
    fn all(&mut self, sources: &[OsString], targets: Vec<Vec<u8>>) -> Result<(), Error> {
        self.said(STAGING, self.make_staging())?;
        for (source, target) in sources.iter().zip(targets) {
            match source == "-" {
                true => {
                    let done = self.standard_input(target);
                    self.go_on(done)?;
                }
                false => self.tree(Path::new(source), target)?,
            }
        }
        let landed = self.flight.finish();
        self.land(landed)?;
        for (first, name) in std::mem::take(&mut self.links) {
            self.transfer.check()?;
            let done = self.link(&first, &name);
            self.go_on(done)?;
        }
        for (path, inode) in std::mem::take(&mut self.directories).iter().rev() {
            let done = self.said(path, self.set_attributes(path, inode));
            self.go_on(done)?;
        }
        Ok(())
    }

    /// What is made here gets nothing from it, whatever the root hands on: all comes from its source.
    fn make_staging(&self) -> Result<(), VolumeError> {
        self.volume.make_directory(STAGING, 0o700)?;
        self.volume.set_attributes(STAGING, Follow::No, |its| its.permissions = 0o700)?;
        match self.volume.remove_xattr(STAGING, Follow::No, DEFAULT_LIST) {
            Err(error) if error.errno() == Errno::NODATA => Ok(()),
            removed => removed,
        }
    }

    /// Tells what is wrong with one file. What is wrong with the volume or the machine, or a Ctrl-C,
    /// stays an error.
    fn go_on(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        match done {
            Err(error) if error.kind() == ErrorKind::Input => self.failures.tell(error),
            done => done?,
        }
        Ok(())
    }

    fn link(&mut self, first: &[u8], name: &[u8]) -> Result<(), Error> {
        if self.awaited.contains(first) {
            // What was there before may be there still: another file.
            let [name, first] = [name, first].map(|path| self.place.at(path.to_vec()));
            let what = format!("{name}: is another name of {first}, which could not be put");
            return Err(Error::input(what));
        }
        let staged = self.staged();
        self.said(name, self.volume.link(first, &staged))?;
        self.said(name, self.volume.rename(&staged, name, Rename::Replace))?;
        self.transfer.done.links += 1;
        Ok(())
    }

    /// Everything from a path on, without recursion: trees may be deep.
    fn tree(&mut self, source: &Path, target: Vec<u8>) -> Result<(), Error> {
        let mut left = vec![(source.to_owned(), target)];
        while let Some((source, target)) = left.pop() {
            self.transfer.check()?;
            let done = self.one(&source, target, &mut left);
            self.go_on(done)?;
        }
        Ok(())
    }

    /// One of them; what is in a directory comes next.
    fn one(
        &mut self,
        source: &Path,
        target: Vec<u8>,
        left: &mut Vec<(PathBuf, Vec<u8>)>,
    ) -> Result<(), Error> {
        let found = look(source)?;
        let inode = attributes(source, &found)?;
        match inode.kind {
            FileKind::Directory => {
                let xattrs = xattrs(source).map_err(|error| cannot_read(source, error))?;
                self.directory(&target, inode)?;
                self.set_xattrs(&xattrs, &target, Follow::Yes, &target)?;
                let names = source.read_dir().and_then(|names| {
                    names.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
                });
                let mut names = names.map_err(|error| cannot_read(source, error))?;
                names.sort_unstable_by(|one, other| other.cmp(one));
                let both = |name: OsString| (source.join(&name), join(&target, name.as_bytes()));
                left.extend(names.into_iter().map(both));
                Ok(())
            }
            _ if self.is_further_name(&found, &target) => Ok(()),
            FileKind::File => self.file(source, &found, target, inode),
            _ => {
                let xattrs = xattrs(source).map_err(|error| cannot_read(source, error))?;
                let staged = self.staged();
                self.said(&target, self.volume.make(&staged, inode))?;
                self.set_xattrs(&xattrs, &staged, Follow::No, &target)?;
                self.name(&staged, &target)?;
                self.transfer.done.others += 1;
                Ok(())
            }
        }
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
                set => self.said(target, set)?,
            }
        }
        Ok(())
    }

    fn directory(&mut self, target: &[u8], inode: Inode) -> Result<(), Error> {
        if !is_directory(self.volume, target) {
            let staged = self.staged();
            self.said(target, self.volume.make_directory(&staged, 0o700))?;
            self.said(target, self.volume.rename(&staged, target, Rename::NoReplace))?;
        }
        self.directories.push((target.to_vec(), inode));
        self.transfer.done.directories += 1;
        Ok(())
    }

    /// Whether the file is here under another name already.
    fn is_further_name(&mut self, found: &Metadata, target: &[u8]) -> bool {
        if found.nlink() < 2 {
            return false;
        }
        let first = self.known.entry((found.dev(), found.ino())).or_insert_with(|| {
            self.awaited.insert(target.to_vec());
            target.to_vec()
        });
        let is_further = first != target;
        if is_further {
            self.links.push((first.clone(), target.to_vec()));
        }
        is_further
    }

    fn file(
        &mut self,
        source: &Path,
        found: &Metadata,
        target: Vec<u8>,
        inode: Inode,
    ) -> Result<(), Error> {
        let unreadable = |error| cannot_read(source, error);
        let host = HostFile::open(source).map_err(unreadable)?;
        let ranges = data(&host, found).map_err(unreadable)?;
        let xattrs = xattrs(source).map_err(unreadable)?;
        let id = self.begin(target, inode)?;
        let ends_in_hole = ranges.last().map_or(0, |range| range.end) < found.len();
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.size = if ends_in_hole { found.len() } else { 0 };
        writing.xattrs = xattrs;
        let copied = self.copy(id, &host, &ranges, unreadable);
        let ended = self.end(id, copied.is_ok());
        copied.and(ended)
    }

    fn copy(
        &mut self,
        id: u64,
        host: &HostFile,
        ranges: &[Range<u64>],
        unreadable: impl Fn(io::Error) -> Error,
    ) -> Result<(), Error> {
        for range in ranges {
            let mut at = range.start;
            while at < range.end && !self.writing[&id].has_failed {
                self.transfer.check()?;
                let mut buffer = Buffer::zeroed((range.end - at).min(PIECE as u64) as usize);
                let read = fill(&mut buffer, |part, done| host.read_at(part, at + done as u64));
                let read = read.map_err(&unreadable)?;
                if read == 0 {
                    // Somebody has cut it off meanwhile.
                    break;
                }
                drop(buffer.split_off(read));
                self.write(id, buffer, at)?;
                at += read as u64;
            }
        }
        Ok(())
    }

    fn standard_input(&mut self, target: Vec<u8>) -> Result<(), Error> {
        let id = self.begin(target, Inode::new(FileKind::File, 0o644))?;
        let (mut input, mut at) = (io::stdin().lock(), 0);
        loop {
            let mut buffer = Buffer::zeroed(PIECE);
            let read = fill(&mut buffer, |part, _| input.read(part))
                .map_err(|error| Error::run("standard input: cannot be read").because(error))?;
            // Also at the end: a Ctrl-C ends who writes into the pipe, too.
            self.transfer.check()?;
            if read == 0 || self.writing[&id].has_failed {
                return self.end(id, true);
            }
            drop(buffer.split_off(read));
            self.write(id, buffer, at)?;
            at += read as u64;
        }
    }

    /// Begins a file under another name.
    fn begin(&mut self, target: Vec<u8>, inode: Inode) -> Result<u64, Error> {
        let (staged, id) = (self.staged(), self.next);
        self.said(&target, self.volume.make(&staged, inode.clone()))?;
        let file = self.said(&target, self.volume.open(&staged, OpenOptions::direct()))?;
        let writing = Writing {
            file,
            staged,
            target,
            inode,
            size: 0,
            xattrs: Vec::new(),
            pieces: 0,
            is_all_read: false,
            has_failed: false,
        };
        self.writing.insert(id, writing);
        Ok(id)
    }

    fn write(&mut self, id: u64, buffer: Buffer, offset: u64) -> Result<(), Error> {
        let landed = self.flight.make_room();
        self.land(landed)?;
        let piece = Piece { file: id, length: buffer.len() as u64 };
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.pieces += 1;
        let started = self.flight.write(&writing.file, buffer, offset, piece);
        started.map_err(|error| self.failed(error))
    }

    /// Nothing more is to be written to it.
    fn end(&mut self, id: u64, is_whole: bool) -> Result<(), Error> {
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.is_all_read = true;
        writing.has_failed |= !is_whole;
        self.finish_if_written(id)
    }

    fn land(&mut self, landed: io::Result<Vec<Landed<Piece>>>) -> Result<(), Error> {
        for Landed { piece, result, .. } in landed.map_err(|error| self.failed(error))? {
            let writing = self.writing.get_mut(&piece.file).expect("it has pieces on their way");
            writing.pieces -= 1;
            if result != Ok(piece.length) && !writing.has_failed {
                writing.has_failed = true;
                let place = self.place.at(writing.target.clone());
                let cannot = |why: &dyn std::fmt::Display| {
                    Error::run(format!("{place}: cannot be written: {why}"))
                };
                match result {
                    // There may be room for others.
                    Err(Errno::NOSPC) => self.failures.tell(cannot(&self.volume.shortage())),
                    Err(errno) => return Err(cannot(&errno)),
                    Ok(written) => {
                        let why = format!("{written} of {} bytes were written", piece.length);
                        return Err(cannot(&why));
                    }
                }
            }
            let done = self.finish_if_written(piece.file);
            self.go_on(done)?;
        }
        Ok(())
    }

    /// Gives it its name when all of it is there; what has failed goes.
    fn finish_if_written(&mut self, id: u64) -> Result<(), Error> {
        let writing = &self.writing[&id];
        if writing.pieces > 0 || !writing.is_all_read {
            return Ok(());
        }
        let Writing { file, staged, target, inode, size, xattrs, has_failed, .. } =
            self.writing.remove(&id).expect("it was just there");
        if has_failed {
            return self.said(&target, self.volume.remove(&staged));
        }
        if file.size() < size {
            let longer = self.flight.wait(file.set_size(size));
            longer.map_err(|errno| self.failed(errno.into()))?;
        }
        if file.size() > 0 {
            // Writing has changed its times.
            self.said(&target, self.set_attributes(&staged, &inode))?;
        }
        self.set_xattrs(&xattrs, &staged, Follow::No, &target)?;
        self.name(&staged, &target)?;
        self.transfer.arrived(file.size());
        Ok(())
    }

    /// What is whole gets its name.
    fn name(&mut self, staged: &[u8], target: &[u8]) -> Result<(), Error> {
        self.said(target, self.volume.rename(staged, target, Rename::Replace))?;
        self.awaited.remove(target);
        Ok(())
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
    fn staged(&mut self) -> Vec<u8> {
        self.next += 1;
        join(STAGING, self.next.to_string().as_bytes())
    }

    /// Removes what has not become whole.
    fn clean_up(&mut self) -> Result<(), Error> {
        // Nobody writes any more to what is about to be removed.
        let _ = self.flight.finish();
        self.writing.clear();
        self.said(STAGING, remove_staging(self.volume))
    }

    fn said<T>(&self, path: &[u8], result: Result<T, VolumeError>) -> Result<T, Error> {
        result.map_err(|error| self.place.at(path.to_vec()).said(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be written", self.place.target.display())).because(error)
    }
}

/// Reads until the buffer is full or nothing more comes; answers how much that was.
fn fill(
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
