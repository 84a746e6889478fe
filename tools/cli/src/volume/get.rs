//! `uringfs get`: files and trees out of a volume. A file is written under another name in its
//! directory and renamed when it is whole; holes stay holes.

use super::flight::{Flight, Landed, PIECE};
use super::transfer::Transfer;
use super::{Complaints, Entries, Place, Xattr, glob, last_name, open, show};
use crate::output::print;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File as HostFile, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use uringfs::{
    Access, Buffer, FileKind, Follow, Inode, InodeNumber, OpenOptions, Time, Volume, VolumeError,
};
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path, with wildcards; a directory with all that is in it
    #[arg(required = true, value_name = "TARGET:/path")]
    sources: Vec<OsString>,

    /// A directory to put them in, the name of a single one, or - for standard output
    #[arg(value_name = "DEST")]
    destination: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.sources)?;
    let volume = open(&places[0].target, Access::Read)?;
    let places = glob::expand_all(&volume, &places)?;
    if arguments.destination == Path::new("-") {
        return show::print_contents(&volume, &places);
    }
    let targets = targets(&places, &arguments.destination)?;
    let mut get = Get {
        volume: &volume,
        place: &places[0],
        destination: &arguments.destination,
        flight: Flight::new()?,
        transfer: Transfer::begin()?,
        reading: HashMap::new(),
        next: 0,
        known: HashMap::new(),
        links: Vec::new(),
        lost: HashSet::new(),
        directories: Vec::new(),
        complaints: Complaints::default(),
    };
    let done = get.all(&places, targets);
    get.clean_up();
    done?;
    print(&get.transfer.report(arguments.json))?;
    Ok(get.complaints.exit_code())
}

/// What each place becomes: a name in the directory, or the destination itself.
fn targets(places: &[Place], destination: &Path) -> Result<Vec<PathBuf>, Error> {
    if !destination.is_dir() {
        if places.len() > 1 {
            let what = "is no directory; make it, to get several files";
            return Err(Error::input(format!("{}: {what}", destination.display())));
        }
        return Ok(vec![destination.to_owned()]);
    }
    let name = |place: &Place| match last_name(&place.path) {
        Some(name) => destination.join(OsStr::from_bytes(name)),
        // All that is in a volume goes into the directory itself.
        None => destination.to_owned(),
    };
    Ok(places.iter().map(name).collect())
}

struct Get<'v> {
    volume: &'v Volume,
    place: &'v Place,
    /// As the user wrote it.
    destination: &'v Path,
    flight: Flight<Piece>,
    transfer: Transfer,
    reading: HashMap<u64, Reading>,
    next: u64,
    /// Where files of several names are.
    known: HashMap<InodeNumber, PathBuf>,
    /// Their further names, made when all files are there.
    links: Vec<(PathBuf, PathBuf)>,
    /// What the files would be that cannot be read.
    lost: HashSet<PathBuf>,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(PathBuf, Attributes)>,
    /// Of what the volume cannot give. What goes wrong outside of it ends the command.
    complaints: Complaints,
}

/// A part of a file.
struct Piece {
    file: u64,
    offset: u64,
}

struct Reading {
    source: Vec<u8>,
    host: HostFile,
    staged: PathBuf,
    target: PathBuf,
    attributes: Attributes,
    pieces: usize,
    is_all_asked: bool,
    /// A part of it cannot be read, so that nothing becomes of it.
    is_lost: bool,
}

/// What is kept of a file besides its bytes.
struct Attributes {
    inode: Inode,
    xattrs: Vec<Xattr>,
}

impl Get<'_> {
    fn all(&mut self, places: &[Place], targets: Vec<PathBuf>) -> Result<(), Error> {
        for (place, target) in places.iter().zip(targets) {
            self.tree(&place.path, target)?;
        }
        let landed = self.flight.finish();
        self.land(landed)?;
        for (first, name) in std::mem::take(&mut self.links) {
            self.transfer.check()?;
            if self.lost.contains(&first) {
                let what = format!("{}: is the same file as {}", name.display(), first.display());
                self.complaints.told::<()>(Err(Error::run(what).because("it cannot be read")));
                continue;
            }
            let staged = self.staged(&name);
            let linked = std::fs::hard_link(&first, &staged);
            let linked = linked.and_then(|()| std::fs::rename(&staged, &name));
            linked.map_err(|error| cannot_make(&name, error))?;
            // Two names of one file: renaming leaves both.
            let _ = std::fs::remove_file(&staged);
            self.transfer.done.links += 1;
        }
        for (path, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            set_attributes(path, attributes).map_err(|error| cannot_make(path, error))?;
        }
        Ok(())
    }

    /// Everything from a path on, without recursion: trees may be deep.
    fn tree(&mut self, source: &[u8], target: PathBuf) -> Result<(), Error> {
        let mut left = vec![(source.to_vec(), target)];
        while let Some((source, target)) = left.pop() {
            self.transfer.check()?;
            let found = self.volume.inode(&source, Follow::No);
            let Some((number, inode)) = self.told(&source, found) else { continue };
            let kind = inode.kind;
            if kind != FileKind::Directory && self.is_further_name(number, &inode, &target) {
                continue;
            }
            let attributes = Attributes { inode, xattrs: self.xattrs(&source) };
            match kind {
                FileKind::Directory => {
                    self.directory(&target, attributes)?;
                    let first = left.len();
                    let place = self.place.at(source);
                    let entries = Entries::of(self.volume, &place.path);
                    for (inner, entry) in entries.places(&place, &self.complaints) {
                        let name = entry.name;
                        if name == b"." || name == b".." || name.contains(&b'/') {
                            return Err(Error::run(format!(
                                "{place}: holds a name that cannot be"
                            )));
                        }
                        left.push((inner.path, target.join(OsStr::from_bytes(&name))));
                    }
                    left[first..].reverse();
                }
                FileKind::File => self.file(source, target, attributes)?,
                _ => {
                    let staged = self.staged(&target);
                    let made = make_other(&staged, &attributes.inode)
                        .and_then(|()| set_attributes(&staged, &attributes))
                        .and_then(|()| std::fs::rename(&staged, &target));
                    made.map_err(|error| {
                        let _ = std::fs::remove_file(&staged);
                        cannot_make(&target, error)
                    })?;
                    self.transfer.done.others += 1;
                }
            }
        }
        Ok(())
    }

    fn xattrs(&self, source: &[u8]) -> Vec<Xattr> {
        let names = self.told(source, self.volume.xattrs(source, Follow::No));
        let value = |name: Vec<u8>| {
            let value = self.volume.xattr(source, Follow::No, &name);
            Some((name, self.told(source, value)?))
        };
        names.unwrap_or_default().into_iter().filter_map(value).collect()
    }

    fn directory(&mut self, target: &Path, attributes: Attributes) -> Result<(), Error> {
        // Any other link may have come out of the volume, and lead anywhere.
        let found = match target == self.destination {
            true => target.metadata(),
            false => target.symlink_metadata(),
        };
        if !found.is_ok_and(|found| found.is_dir()) {
            let made = DirBuilder::new().mode(0o700).create(target);
            made.map_err(|error| cannot_make(target, error))?;
        }
        self.directories.push((target.to_owned(), attributes));
        self.transfer.done.directories += 1;
        Ok(())
    }

    /// Whether the file is here under another name already.
    fn is_further_name(&mut self, number: InodeNumber, inode: &Inode, target: &Path) -> bool {
        if inode.links < 2 {
            return false;
        }
        let first = self.known.entry(number).or_insert_with(|| target.to_owned());
        let is_further = first != target;
        if is_further {
            self.links.push((first.clone(), target.to_owned()));
        }
        is_further
    }

    fn file(
        &mut self,
        source: Vec<u8>,
        target: PathBuf,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let opened = self.volume.open(&source, OpenOptions::direct());
        let Some(file) = self.told(&source, opened) else {
            self.lost.insert(target);
            return Ok(());
        };
        let staged = self.staged(&target);
        let host = HostFile::create_new(&staged).map_err(|error| cannot_make(&target, error))?;
        let id = self.next;
        let (pieces, is_all_asked, is_lost) = (0, false, false);
        let reading =
            Reading { source, host, staged, target, attributes, pieces, is_all_asked, is_lost };
        self.reading.insert(id, reading);
        let mut at = 0;
        // No data is left where only a hole is.
        'asked: while let Ok(start) = file.seek_data(at) {
            at = file.seek_hole(start).unwrap_or(file.size());
            for offset in (start..at).step_by(PIECE) {
                self.transfer.check()?;
                let landed = self.flight.make_room();
                self.land(landed)?;
                let buffer = Buffer::zeroed((at - offset).min(PIECE as u64) as usize);
                let reading = self.reading.get_mut(&id).expect("it has begun");
                if reading.is_lost {
                    break 'asked;
                }
                reading.pieces += 1;
                let started = self.flight.read(&file, buffer, offset, Piece { file: id, offset });
                started.map_err(|error| self.failed(error))?;
            }
        }
        self.reading.get_mut(&id).expect("it has begun").is_all_asked = true;
        self.finish_if_whole(id)
    }

    fn land(&mut self, landed: io::Result<Vec<Landed<Piece>>>) -> Result<(), Error> {
        for Landed { piece, result, buffer } in landed.map_err(|error| self.failed(error))? {
            let reading = self.reading.get_mut(&piece.file).expect("it has pieces on their way");
            reading.pieces -= 1;
            let is_whole = |read: &u64| *read == buffer.len() as u64;
            match result.and_then(|read| Some(read).filter(is_whole).ok_or(Errno::IO)) {
                Ok(_) => {
                    let written = reading.host.write_all_at(&buffer, piece.offset);
                    written.map_err(|error| cannot_make(&reading.target, error))?;
                }
                Err(errno) if !reading.is_lost => {
                    reading.is_lost = true;
                    let what = format!("{}: cannot be read", self.place.at(reading.source.clone()));
                    self.complaints.told::<()>(Err(Error::run(what).because(errno)));
                }
                Err(_) => {}
            }
            self.finish_if_whole(piece.file)?;
        }
        Ok(())
    }

    fn finish_if_whole(&mut self, id: u64) -> Result<(), Error> {
        let reading = &self.reading[&id];
        if reading.pieces > 0 || !reading.is_all_asked {
            return Ok(());
        }
        if reading.is_lost {
            remove_staged(reading);
            self.lost.insert(reading.target.clone());
            self.reading.remove(&id);
            return Ok(());
        }
        let made = reading
            .host
            .set_len(reading.attributes.inode.size)
            .and_then(|()| set_attributes(&reading.staged, &reading.attributes))
            .and_then(|()| std::fs::rename(&reading.staged, &reading.target));
        made.map_err(|error| cannot_make(&reading.target, error))?;
        self.transfer.arrived(reading.attributes.inode.size);
        self.reading.remove(&id);
        Ok(())
    }

    /// A name that nobody else uses, in the directory of another.
    fn staged(&mut self, target: &Path) -> PathBuf {
        self.next += 1;
        let name = format!(".uringfs-get-{}-{}", std::process::id(), self.next);
        target.with_file_name(name)
    }

    /// Removes what has not become whole.
    fn clean_up(&mut self) {
        self.reading.values().for_each(remove_staged);
    }

    /// What the volume gives; nothing, once it was told why.
    fn told<T>(&self, path: &[u8], result: Result<T, VolumeError>) -> Option<T> {
        let result = result.map_err(|error| self.place.at(path.to_vec()).said(error));
        self.complaints.told(result)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be read", self.place.target.display())).because(error)
    }
}

fn remove_staged(reading: &Reading) {
    // What cannot be removed either has its cause told already.
    let _ = std::fs::remove_file(&reading.staged);
}

/// Makes what is neither a file nor a directory.
fn make_other(path: &Path, inode: &Inode) -> io::Result<()> {
    let (kind, device) = match inode.kind {
        FileKind::Symlink => {
            return std::os::unix::fs::symlink(OsStr::from_bytes(&inode.target), path);
        }
        FileKind::BlockDevice(device) => (FileType::BlockDevice, device),
        FileKind::CharacterDevice(device) => (FileType::CharacterDevice, device),
        FileKind::Socket => (FileType::Socket, 0),
        _ => (FileType::Fifo, 0),
    };
    Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)?)
}

/// Owners only where the user may give files away, and extended attributes where the file system and the
/// user's rights allow them.
fn set_attributes(path: &Path, Attributes { inode, xattrs }: &Attributes) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(inode.user), Some(inode.group))?;
    }
    for (name, value) in xattrs {
        match lsetxattr(path, &name[..], value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            set => set?,
        }
    }
    // After the owners: to change those takes the set-ID bits away.
    if inode.kind != FileKind::Symlink {
        std::fs::set_permissions(path, Permissions::from_mode(inode.permissions.into()))?;
    }
    let time = |time: Time| Timespec {
        tv_sec: time.0.div_euclid(1_000_000_000),
        tv_nsec: time.0.rem_euclid(1_000_000_000),
    };
    let times =
        Timestamps { last_access: time(inode.accessed), last_modification: time(inode.modified) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn cannot_make(path: &Path, error: io::Error) -> Error {
    Error::run(format!("{}: cannot be made", path.display())).because(error)
}
