//! `uringfs put`: files and trees of the machine into a volume. A file is written under another
//! name and moved when it is whole; commits take a name only with the bytes it stands for.

use super::flight::{Flight, Landed, PIECE};
use super::transfer::Transfer;
use super::{Entries, Place, close, is_directory, join, open};
use crate::output::print;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File as HostFile, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::{
    Access, Buffer, File, FileKind, Follow, Inode, OpenOptions, Rename, Time, Volume, VolumeError,
};
use uringfs_lab::Error;

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

/// Where files are until they are whole. What a killed `put` left there, the next one removes.
const STAGING: &[u8] = b"/.uringfs-put";

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
        links: Vec::new(),
        directories: Vec::new(),
    };
    put.clean_up()?;
    let done = put.all(&arguments.sources, targets);
    // In any case: nothing half-written stays.
    let clean = put.clean_up();
    let Put { transfer, .. } = put;
    let closed = close(&volume, &place.target);
    done.and(clean).and(closed)?;
    print(&transfer.report(arguments.json))?;
    Ok(0)
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

fn look(path: &Path) -> Result<Metadata, Error> {
    path.symlink_metadata().map_err(|error| cannot_read(path, error))
}

fn cannot_read(path: &Path, error: io::Error) -> Error {
    Error::input(format!("{}: cannot be read", path.display())).because(error)
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
    /// Their further names, made when all files are there.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(Vec<u8>, Inode)>,
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
    pieces: usize,
    is_all_read: bool,
}

impl Put<'_> {
    fn all(&mut self, sources: &[OsString], targets: Vec<Vec<u8>>) -> Result<(), Error> {
        self.said(STAGING, self.volume.make_directory(STAGING, 0o700))?;
        for (source, target) in sources.iter().zip(targets) {
            match source == "-" {
                true => self.standard_input(target)?,
                false => self.tree(Path::new(source), target)?,
            }
        }
        let landed = self.flight.finish();
        self.land(landed)?;
        for (first, name) in std::mem::take(&mut self.links) {
            self.transfer.check()?;
            let staged = self.staged();
            self.said(&name, self.volume.link(&first, &staged))?;
            self.said(&name, self.volume.rename(&staged, &name, Rename::Replace))?;
            self.transfer.done.links += 1;
        }
        for (path, inode) in std::mem::take(&mut self.directories).iter().rev() {
            self.said(path, self.set_attributes(path, inode))?;
        }
        Ok(())
    }

    /// Everything from a path on, without recursion: trees may be deep.
    fn tree(&mut self, source: &Path, target: Vec<u8>) -> Result<(), Error> {
        let mut left = vec![(source.to_owned(), target)];
        while let Some((source, target)) = left.pop() {
            self.transfer.check()?;
            let found = look(&source)?;
            let inode = attributes(&source, &found)?;
            match inode.kind {
                FileKind::Directory => {
                    self.directory(&target, inode)?;
                    let names = source.read_dir().and_then(|names| {
                        names.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
                    });
                    let mut names = names.map_err(|error| cannot_read(&source, error))?;
                    names.sort_unstable_by(|one, other| other.cmp(one));
                    let both =
                        |name: OsString| (source.join(&name), join(&target, name.as_bytes()));
                    left.extend(names.into_iter().map(both));
                }
                _ if self.is_further_name(&found, &target) => {}
                FileKind::File => self.file(&source, &found, target, inode)?,
                _ => {
                    let staged = self.staged();
                    self.said(&target, self.volume.make(&staged, inode))?;
                    self.said(&target, self.volume.rename(&staged, &target, Rename::Replace))?;
                    self.transfer.done.others += 1;
                }
            }
        }
        Ok(())
    }

    fn directory(&mut self, target: &[u8], inode: Inode) -> Result<(), Error> {
        match self.volume.make_directory(target, 0o700) {
            Err(error) if error.errno() == Errno::EXIST && is_directory(self.volume, target) => {}
            made => self.said(target, made)?,
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
        let first = self.known.entry((found.dev(), found.ino())).or_insert_with(|| target.to_vec());
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
        let id = self.begin(target, inode)?;
        for range in &ranges {
            let mut at = range.start;
            while at < range.end {
                self.transfer.check()?;
                let mut buffer = Buffer::zeroed((range.end - at).min(PIECE as u64) as usize);
                let read = fill(&mut buffer, |part, done| host.read_at(part, at + done as u64));
                let read = read.map_err(unreadable)?;
                if read == 0 {
                    // Somebody has cut it off meanwhile.
                    break;
                }
                drop(buffer.split_off(read));
                self.write(id, buffer, at)?;
                at += read as u64;
            }
        }
        if ranges.last().map_or(0, |range| range.end) < found.len() {
            // What ends in a hole gets its length by its last byte.
            self.write(id, Buffer::zeroed(1), found.len() - 1)?;
        }
        self.end(id)
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
            if read == 0 {
                return self.end(id);
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
        let file = self.said(&target, self.volume.open(&staged, OpenOptions::default()))?;
        let pieces = 0;
        let writing = Writing { file, staged, target, inode, pieces, is_all_read: false };
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
    fn end(&mut self, id: u64) -> Result<(), Error> {
        let writing = self.writing.get_mut(&id).expect("it has begun");
        writing.is_all_read = true;
        self.finish_if_whole(id)
    }

    fn land(&mut self, landed: io::Result<Vec<Landed<Piece>>>) -> Result<(), Error> {
        for Landed { piece, result, .. } in landed.map_err(|error| self.failed(error))? {
            let writing = self.writing.get_mut(&piece.file).expect("it has pieces on their way");
            writing.pieces -= 1;
            if result != Ok(piece.length) {
                let place = self.place.at(writing.target.clone());
                let why = match result {
                    Err(Errno::NOSPC) => "the volume is full; remove something".into(),
                    Err(errno) => errno.to_string(),
                    Ok(written) => format!("{written} of {} bytes were written", piece.length),
                };
                return Err(Error::run(format!("{place}: cannot be written: {why}")));
            }
            self.finish_if_whole(piece.file)?;
        }
        Ok(())
    }

    fn finish_if_whole(&mut self, id: u64) -> Result<(), Error> {
        let writing = &self.writing[&id];
        if writing.pieces > 0 || !writing.is_all_read {
            return Ok(());
        }
        let Writing { file, staged, target, inode, .. } =
            self.writing.remove(&id).expect("it was just there");
        if file.size() > 0 {
            // Writing has changed its times.
            self.said(&target, self.set_attributes(&staged, &inode))?;
        }
        self.said(&target, self.volume.rename(&staged, &target, Rename::Replace))?;
        self.transfer.arrived(file.size());
        Ok(())
    }

    fn set_attributes(&self, path: &[u8], inode: &Inode) -> Result<(), VolumeError> {
        self.volume.set_attributes(path, Follow::No, |its| {
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
        if !is_directory(self.volume, STAGING) {
            return Ok(());
        }
        for entry in Entries::of(self.volume, STAGING) {
            let entry = self.said(STAGING, entry)?;
            self.said(STAGING, self.volume.remove(join(STAGING, &entry.name)))?;
        }
        self.said(STAGING, self.volume.remove_directory(STAGING))
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

/// Where a file has data: all of it, or what lies between its holes.
fn data(host: &HostFile, found: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = found.len();
    if found.blocks() * 512 >= size {
        return Ok(Vec::from_iter((size > 0).then_some(0..size)));
    }
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let start = match seek(host, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(host, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// What a file of the machine is in a volume.
fn attributes(path: &Path, found: &Metadata) -> Result<Inode, Error> {
    let kind = FileKind::of_mode(found.mode() as u16, found.rdev())
        .ok_or_else(|| Error::input(format!("{}: is of no known kind", path.display())))?;
    let mut inode = Inode::new(kind, found.mode() as u16 & 0o7777);
    (inode.user, inode.group) = (found.uid(), found.gid());
    let time = |seconds: i64, nanoseconds: i64| {
        Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    };
    inode.accessed = time(found.atime(), found.atime_nsec());
    inode.modified = time(found.mtime(), found.mtime_nsec());
    if kind == FileKind::Symlink {
        let target = path.read_link().map_err(|error| cannot_read(path, error))?;
        let target = PathBuf::into_os_string(target).into_vec();
        (inode.size, inode.target) = (target.len() as u64, target.into());
    }
    Ok(inode)
}
