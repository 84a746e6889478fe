//! `uringfs put`: files and trees of the machine into a volume. A file is written under another
//! name and moved when it is whole; commits take a name only with the bytes it stands for. What cannot
//! be put is told, and the others go on.

use super::existing::{Existing, Image, Turn};
use super::flight::{Flight, Landed, PIECE};
use super::hard_links::{HardLinks, Name};
use super::host::{Identity, Tree, identity};
use super::opening::{close, is_directory, open};
use super::place::{Place, join};
use super::source::{Source, cannot_read, data};
use super::staging::free_staging;
use super::staging::remove_staging;
use super::transfer::Transfer;
use super::transfer::Xattr;
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

    #[command(flatten)]
    existing: Existing,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let place = Place::parse(&arguments.destination)?;
    let volume = open(&place.target, Access::ReadWrite)?;
    let targets = targets(&volume, &arguments.sources, &place)?;
    let mut put = Put {
        volume: &volume,
        place: &place,
        image: Image::of(&place.target)?,
        existing: arguments.existing,
        staging: Vec::new(),
        flight: Flight::new()?,
        transfer: Transfer::begin()?,
        writing: HashMap::new(),
        next: 0,
        made: HashSet::new(),
        links: HardLinks::new(),
        directories: Vec::new(),
        failures: Failures::default(),
    };
    let done = put.all(&arguments.sources, targets);
    // In any case: nothing half-written stays.
    let clean = put.clean_up();
    let Put { transfer, failures, .. } = put;
    let closed = close(&volume, &place.target);
    let done = done.and(clean).and(closed);
    let code = failures.end(done.is_ok() && transfer.done.is_nothing());
    done?;
    let code = code?;
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
            crate::output::complain(&error.to_string());
        }
    }

    /// The exit code: that of the one thing that could not be done, if nothing else was, or 1.
    fn end(self, is_nothing_done: bool) -> Result<u8, Error> {
        match self.first {
            Some(error) if is_nothing_done => return Err(error),
            Some(error) => crate::output::complain(&error.to_string()),
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
    image: Image,
    existing: Existing,
    /// Where files lie until they are whole.
    staging: Vec<u8>,
    flight: Flight<Piece>,
    transfer: Transfer,
    /// Files of which pieces are on their way, or still to be read.
    writing: HashMap<u64, Writing>,
    next: u64,
    /// What this command has put, except directories: nothing of it is replaced.
    made: HashSet<InodeNumber>,
    links: HardLinks<Identity, Link>,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(Vec<u8>, Inode)>,
    failures: Failures,
}

/// A part of a file.
struct Piece {
    file: u64,
    length: u64,
}

/// A file's name in the volume, and how it comes to it.
#[derive(Clone)]
struct Link {
    target: Vec<u8>,
    turn: Turn,
}

/// A directory whose names have their turn, one after the other.
struct Level {
    below: PathBuf,
    target: Vec<u8>,
    /// This command has made it: nothing is in it yet.
    is_new: bool,
    /// From the last one on.
    names: Vec<OsString>,
}

struct Writing {
    file: File,
    number: InodeNumber,
    /// Which file of the machine it is; none is standard input.
    source: Option<Identity>,
    staged: Vec<u8>,
    link: Link,
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
        self.staging = self.said(b"/", self.make_staging())?;
        for (source, target) in sources.iter().zip(targets) {
            let done = match source == "-" {
                true => self.standard_input(target),
                false => self.tree(Path::new(source), target),
            };
            self.go_on(done)?;
        }
        let landed = self.flight.finish();
        self.land(landed)?;
        for (path, inode) in std::mem::take(&mut self.directories).iter().rev() {
            let done = self.said(path, self.set_attributes(path, inode));
            self.go_on(done)?;
        }
        Ok(())
    }

    /// What is made here gets nothing from it, whatever the root hands on: all comes from its source.
    fn make_staging(&self) -> Result<Vec<u8>, VolumeError> {
        let path = free_staging(self.volume)?;
        let inode = Inode { is_staging: true, ..Inode::new(FileKind::Directory, 0o700) };
        self.volume.make(&path, inode)?;
        self.volume.set_attributes(&path, Follow::No, |its| its.permissions = 0o700)?;
        match self.volume.remove_xattr(&path, Follow::No, DEFAULT_LIST) {
            Err(error) if error.errno() != Errno::NODATA => Err(error),
            _ => Ok(path),
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

    /// Everything from a path on, without recursion: trees may be deep.
    fn tree(&mut self, source: &Path, target: Vec<u8>) -> Result<(), Error> {
        let (tree, below) = open_tree(source).map_err(|error| cannot_read(source, error))?;
        let mut levels = Vec::from_iter(self.one(&tree, below, target, false)?);
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let (below, target) = (level.below.join(&name), join(&level.target, name.as_bytes()));
            match self.one(&tree, below, target, level.is_new) {
                Ok(found) => levels.extend(found),
                failed => self.go_on(failed.map(drop))?,
            }
        }
        Ok(())
    }

    /// One of them; a directory's names come next.
    fn one(
        &mut self,
        tree: &Tree,
        below: PathBuf,
        target: Vec<u8>,
        is_new: bool,
    ) -> Result<Option<Level>, Error> {
        self.transfer.check()?;
        let source = Source::find(tree, &below)?;
        let inode = source.attributes()?;
        if inode.kind == FileKind::File && self.image.has(&source.found) {
            return Err(is_image(&source.path.display().to_string()));
        }
        let turn = if is_new { Turn::Make } else { self.turn(&target, inode.kind)? };
        match (inode.kind, turn) {
            (_, Turn::Leave) => return Ok(None),
            (FileKind::Directory, _) => {
                return self.directory(&source, below, target, inode, turn).map(Some);
            }
            _ => {}
        }
        let (file, names) = (identity(&source.found), source.found.nlink());
        let link = Link { target, turn };
        match self.links.meet(file, u32::try_from(names).unwrap_or(u32::MAX), &link) {
            Name::First => {
                let done = match inode.kind {
                    FileKind::File => self.file(&source, link.clone(), inode),
                    _ => self.other(&source, &link, inode),
                };
                if done.is_err() {
                    self.is_lost(file, &link)?;
                }
                done?;
            }
            Name::Waits => {}
            Name::LinkTo(first) => self.link(&first, &link)?,
            Name::Lost(first) => return Err(self.lost(&first, &link)),
        }
        Ok(None)
    }

    /// How something of this kind comes to a name that may be there.
    fn turn(&self, target: &[u8], kind: FileKind) -> Result<Turn, Error> {
        let place = || self.place.at(target.to_vec());
        let is_just_put =
            || Error::input(format!("{}: is what this command has just put there", place()));
        if self.writing.values().any(|writing| writing.link.target == target) {
            return Err(is_just_put());
        }
        let (number, there) = match self.volume.inode(target, Follow::No) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(Turn::Make),
            found => self.said(target, found)?,
        };
        if self.made.contains(&number) {
            return Err(is_just_put());
        }
        // A directory goes where a link leads that was there before.
        if kind == FileKind::Directory && is_directory(self.volume, target) {
            return Ok(Turn::Fill);
        }
        let turn = self.existing.turn(there.kind, kind);
        turn.map_err(|why| Error::input(format!("{}: {why}", place())))
    }

    fn directory(
        &mut self,
        source: &Source,
        below: PathBuf,
        target: Vec<u8>,
        inode: Inode,
        turn: Turn,
    ) -> Result<Level, Error> {
        let (xattrs, names) = (source.xattrs()?, source.names()?);
        let is_new = turn == Turn::Make;
        if is_new {
            let staged = self.staged();
            self.said(&target, self.volume.make_directory(&staged, 0o700))?;
            self.said(&target, self.volume.rename(&staged, &target, Rename::NoReplace))?;
        }
        if is_new || !self.existing.leaves() {
            self.set_xattrs(&xattrs, &target, Follow::Yes, &target)?;
            self.directories.push((target.clone(), inode));
        }
        self.transfer.done.directories += 1;
        Ok(Level { below, target, is_new, names })
    }

    /// Puts what is neither a file nor a directory.
    fn other(&mut self, source: &Source, link: &Link, inode: Inode) -> Result<(), Error> {
        let xattrs = source.xattrs()?;
        let staged = self.staged();
        let number = self.said(&link.target, self.volume.make(&staged, inode))?;
        self.set_xattrs(&xattrs, &staged, Follow::No, &link.target)?;
        self.name(&staged, link)?;
        self.transfer.done.others += 1;
        self.is_there(number, Some(identity(&source.found)), link)
    }

    /// A copy has its name: others become links to it.
    fn is_there(
        &mut self,
        number: InodeNumber,
        source: Option<Identity>,
        first: &Link,
    ) -> Result<(), Error> {
        self.made.insert(number);
        for link in source.map_or(Vec::new(), |source| self.links.is_there(&source)) {
            let done = self.link(first, &link);
            self.go_on(done)?;
        }
        Ok(())
    }

    fn is_lost(&mut self, source: Identity, first: &Link) -> Result<(), Error> {
        for link in self.links.is_lost(&source) {
            let lost = self.lost(first, &link);
            self.go_on(Err(lost))?;
        }
        Ok(())
    }

    fn lost(&self, first: &Link, link: &Link) -> Error {
        let [name, first] = [link, first].map(|link| self.place.at(link.target.clone()));
        Error::input(format!("{name}: is another name of {first}, which could not be put"))
    }

    /// Gives a file that this command has put one more name.
    fn link(&mut self, first: &Link, link: &Link) -> Result<(), Error> {
        let staged = self.staged();
        self.said(&link.target, self.volume.link(&first.target, &staged))?;
        self.name(&staged, link)?;
        self.transfer.done.links += 1;
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
                set => self.said(target, set)?,
            }
        }
        Ok(())
    }

    fn file(&mut self, source: &Source, link: Link, inode: Inode) -> Result<(), Error> {
        let host = source.open()?;
        let ranges = data(&host, &source.found).map_err(|error| source.cannot_read(error))?;
        let xattrs = source.xattrs()?;
        let id = self.begin(Some(identity(&source.found)), link, inode)?;
        self.writing.get_mut(&id).expect("it has begun").xattrs = xattrs;
        let copied = self.copy(id, &host, source, &ranges);
        let ended = self.end(id, copied.is_ok());
        copied.and(ended)
    }

    /// Copies what has data, and then all that comes behind the size that was found: a file may grow, and
    /// those of `/proc` say that they have none.
    fn copy(
        &mut self,
        id: u64,
        host: &HostFile,
        source: &Source,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        let found = source.found.len();
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
        source: &Source,
        range: Range<u64>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if self.writing[&id].has_failed {
                return Ok(false);
            }
            self.transfer.check()?;
            let mut buffer = Buffer::zeroed((range.end - at).min(PIECE as u64) as usize);
            let read = fill(&mut buffer, |part, done| host.read_at(part, at + done as u64));
            let read = read.map_err(|error| source.cannot_read(error))?;
            let is_end = read < buffer.len();
            if read > 0 {
                drop(buffer.split_off(read));
                self.write(id, buffer, at)?;
                at += read as u64;
            }
            if is_end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn standard_input(&mut self, target: Vec<u8>) -> Result<(), Error> {
        let unreadable =
            |error: io::Error| Error::run("standard input: cannot be read").because(error);
        let input = io::stdin();
        if self.image.has_open(&input).map_err(unreadable)? {
            return Err(is_image("standard input"));
        }
        let turn = self.turn(&target, FileKind::File)?;
        if turn == Turn::Leave {
            return Ok(());
        }
        let inode = Inode::new(FileKind::File, 0o644);
        let (id, mut at) = (self.begin(None, Link { target, turn }, inode)?, 0);
        loop {
            let mut buffer = Buffer::zeroed(PIECE);
            let read = fill(&mut buffer, |part, _| {
                self.transfer.wait_for(&input)?;
                Ok(rustix::io::read(&input, part)?)
            });
            // Also at the end: a Ctrl-C ends the program that writes into the pipe, too.
            self.transfer.check()?;
            let read = read.map_err(unreadable)?;
            if read == 0 || self.writing[&id].has_failed {
                return self.end(id, true);
            }
            drop(buffer.split_off(read));
            self.write(id, buffer, at)?;
            at += read as u64;
        }
    }

    /// Begins a file under another name.
    fn begin(&mut self, source: Option<Identity>, link: Link, inode: Inode) -> Result<u64, Error> {
        let (staged, id) = (self.staged(), self.next);
        let number = self.said(&link.target, self.volume.make(&staged, inode.clone()))?;
        let file = self.said(&link.target, self.volume.open(&staged, OpenOptions::direct()))?;
        let writing = Writing {
            file,
            number,
            source,
            staged,
            link,
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
                let place = self.place.at(writing.link.target.clone());
                let why = match result {
                    // There may be room for others.
                    Err(Errno::NOSPC) => self.volume.shortage().to_string(),
                    Err(errno) => errno.to_string(),
                    Ok(written) => format!("{written} of {} bytes were written", piece.length),
                };
                self.failures.tell(Error::run(format!("{place}: cannot be written: {why}")));
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
        let writing = self.writing.remove(&id).expect("it was just there");
        let (source, link) = (writing.source, writing.link.clone());
        if !writing.has_failed {
            let done = self.finish(writing);
            if done.is_ok() {
                return done;
            }
            self.go_on(done)?;
        } else {
            self.said(&link.target, self.volume.remove(&writing.staged))?;
        }
        source.map_or(Ok(()), |source| self.is_lost(source, &link))
    }

    fn finish(&mut self, writing: Writing) -> Result<(), Error> {
        let Writing { file, number, source, staged, link, inode, size, xattrs, .. } = writing;
        let target = &link.target;
        if file.size() < size {
            let longer = self.flight.wait(file.set_size(size));
            longer.map_err(|errno| self.failed(errno.into()))?;
        }
        if file.size() > 0 {
            // Writing has changed its times.
            self.said(target, self.set_attributes(&staged, &inode))?;
        }
        self.set_xattrs(&xattrs, &staged, Follow::No, target)?;
        self.name(&staged, &link)?;
        self.transfer.arrived(file.size());
        self.is_there(number, source, &link)
    }

    /// What is whole gets its name.
    fn name(&mut self, staged: &[u8], link: &Link) -> Result<(), Error> {
        let how = if link.turn == Turn::Make { Rename::NoReplace } else { Rename::Replace };
        self.said(&link.target, self.volume.rename(staged, &link.target, how))
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
        join(&self.staging, self.next.to_string().as_bytes())
    }

    /// Removes what has not become whole.
    fn clean_up(&mut self) -> Result<(), Error> {
        // Nobody writes any more to what is about to be removed.
        let _ = self.flight.finish();
        self.writing.clear();
        self.said(&self.staging, remove_staging(self.volume))
    }

    fn said<T>(&self, path: &[u8], result: Result<T, VolumeError>) -> Result<T, Error> {
        result.map_err(|error| {
            let place = self.place.at(path.to_vec());
            match error.kind() {
                // Others can be put where this one cannot.
                VolumeErrorKind::Damaged => Error::input(place.to_string()).because(error),
                _ => place.said(error),
            }
        })
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be written", self.place.target.display())).because(error)
    }
}

/// The directory that a source is in, and its name there; of what has none, the source itself.
fn open_tree(source: &Path) -> io::Result<(Tree, PathBuf)> {
    // A slash at the end follows a link.
    let is_directory = source.as_os_str().as_bytes().ends_with(b"/");
    match source.file_name() {
        Some(name) if !is_directory => {
            let parent = source.parent().unwrap_or(Path::new(""));
            Ok((Tree::open(parent)?, name.into()))
        }
        _ => Ok((Tree::open(source)?, PathBuf::new())),
    }
}

fn is_image(source: &str) -> Error {
    Error::input(format!("{source}: is the volume's own image, and cannot go into itself"))
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
