//! `uringfs get`: files and trees out of a volume. A file is written under another name in its
//! directory and renamed when it is whole; holes stay holes. What cannot be got is told, and the others
//! go on.

use super::complaints::Complaints;
use super::entered::Entered;
use super::entries::Entries;
use super::existing::{Existing, Image, Turn};
use super::flight::{ENDS_EARLY, Flight, Landed, PIECE};
use super::hard_links::{HardLinks, Name};
use super::host::{self, Handle, Identity, Tree, identity};
use super::opening::open;
use super::place::{Place, last_name};
use super::staged::Staged;
use super::transfer::Transfer;
use super::transfer::Xattr;
use super::{glob, show};
use crate::output::print;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmodat, linkat,
    mkdirat, mknodat, openat, setxattr, symlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File as HostFile, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::{
    Access, Buffer, File, FileKind, Follow, Inode, InodeNumber, OpenOptions, Time, Volume,
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

    #[command(flatten)]
    existing: Existing,

    /// Leave out what gives rights: set-ID bits, devices, security.* and trusted.* attributes
    #[arg(long)]
    no_privileges: bool,

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
    let (tree, targets) = targets(&volume, &places, &arguments.destination)?;
    let mut get = Get {
        volume: &volume,
        place: &places[0],
        image: Image::of(&places[0].target)?,
        tree,
        existing: arguments.existing,
        no_privileges: arguments.no_privileges,
        is_root: nix::unistd::geteuid().is_root(),
        flight: Flight::new()?,
        transfer: Transfer::begin()?,
        reading: HashMap::new(),
        next: 0,
        made: HashSet::new(),
        links: HardLinks::new(),
        entered: Entered::default(),
        directories: Vec::new(),
        complaints: Complaints::default(),
    };
    get.all(&places, targets)?;
    print(&get.transfer.report(arguments.json))?;
    Ok(get.complaints.exit_code())
}

/// Where all of it goes, and what each place becomes there: a name in the directory that the destination is,
/// or the destination itself.
fn targets(
    volume: &Volume,
    places: &[Place],
    destination: &Path,
) -> Result<(Tree, Vec<PathBuf>), Error> {
    if let Ok(tree) = Tree::open(destination) {
        let name = |place: &Place| match last_name(&place.path) {
            Some(name) => PathBuf::from(OsStr::from_bytes(name)),
            // All that is in a volume goes into the directory itself.
            None => PathBuf::new(),
        };
        return Ok((tree, places.iter().map(name).collect()));
    }
    let is_no_directory = |what: &str| {
        Err(Error::input(format!("{}: is no directory; {what}", destination.display())))
    };
    let [place] = places else { return is_no_directory("make it, to get several files") };
    let is_for_directories = destination.as_os_str().as_bytes().ends_with(b"/");
    if is_for_directories && !super::opening::is_directory(volume, &place.path) {
        return is_no_directory("make it first");
    }
    let name = destination.file_name().map(PathBuf::from);
    let parent = destination.parent().unwrap_or(Path::new(""));
    match (Tree::open(parent), name) {
        (Ok(tree), Some(name)) => Ok((tree, vec![name])),
        (Err(error), Some(_)) => Err(cannot_make(destination).because(error)),
        (_, None) => is_no_directory("make it first"),
    }
}

struct Get<'v> {
    volume: &'v Volume,
    place: &'v Place,
    image: Image,
    tree: Tree,
    existing: Existing,
    no_privileges: bool,
    is_root: bool,
    flight: Flight<Piece>,
    transfer: Transfer,
    reading: HashMap<u64, Reading>,
    next: u64,
    /// What this command has made, except directories: nothing of it is replaced.
    made: HashSet<Identity>,
    links: HardLinks<InodeNumber, Link>,
    /// From the path on that has its turn.
    entered: Entered,
    /// Get their attributes last: names made in them change their times.
    directories: Vec<(PathBuf, Attributes)>,
    complaints: Complaints,
}

/// A part of a file.
struct Piece {
    file: u64,
    offset: u64,
}

/// A file's name, and how it comes to it.
#[derive(Clone)]
struct Link {
    target: PathBuf,
    turn: Turn,
}

struct Reading {
    source: Vec<u8>,
    number: InodeNumber,
    host: HostFile,
    staged: Staged,
    link: Link,
    attributes: Attributes,
    pieces: usize,
    is_all_asked: bool,
    /// A part of it could not be copied, so that nothing becomes of it.
    is_lost: bool,
}

/// What is kept of a file besides its bytes.
struct Attributes {
    inode: Inode,
    xattrs: Vec<Xattr>,
}

/// A directory whose names have their turn, one after the other.
struct Level<'v> {
    place: Place,
    target: PathBuf,
    /// This command has made it: nothing is in it yet.
    is_new: bool,
    entries: Entries<'v>,
}

impl<'v> Get<'v> {
    fn all(&mut self, places: &[Place], targets: Vec<PathBuf>) -> Result<(), Error> {
        for (place, target) in places.iter().zip(targets) {
            self.tree(place.clone(), target)?;
        }
        let landed = self.flight.finish();
        self.land(landed)?;
        for (target, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let held = self.tree.find(target).map_err(|error| self.cannot_make(target, error));
            if let Some(held) = self.complaints.told(held) {
                self.set_attributes(&held.path(), target, attributes);
            }
        }
        Ok(())
    }

    /// Everything from a path on, without recursion: trees may be deep.
    fn tree(&mut self, place: Place, target: PathBuf) -> Result<(), Error> {
        self.entered = Entered::default();
        let mut levels = Vec::from_iter(self.one(place, target, false)?);
        while let Some(level) = levels.last_mut() {
            let Some((place, entry)) = level.entries.next_place(&level.place, &self.complaints)
            else {
                levels.pop();
                continue;
            };
            if matches!(&entry.name[..], b"" | b"." | b"..") || entry.name.contains(&b'/') {
                let what = format!("{}: holds a name that cannot be", level.place);
                self.complaints.told::<()>(Err(Error::run(what)));
                continue;
            }
            let target = level.target.join(OsStr::from_bytes(&entry.name));
            let is_new = level.is_new;
            levels.extend(self.one(place, target, is_new)?);
        }
        Ok(())
    }

    /// One of them; a directory's names come next.
    fn one(
        &mut self,
        place: Place,
        target: PathBuf,
        is_new: bool,
    ) -> Result<Option<Level<'v>>, Error> {
        self.transfer.check()?;
        let found = self.volume.inode(&place.path, Follow::No).map_err(|error| place.said(error));
        let Some((number, inode)) = self.complaints.told(found) else { return Ok(None) };
        if inode.kind == FileKind::Directory
            && self.complaints.told(self.entered.enter(&place, number)).is_none()
        {
            return Ok(None);
        }
        let is_device =
            matches!(inode.kind, FileKind::BlockDevice(_) | FileKind::CharacterDevice(_));
        if self.no_privileges && is_device {
            return Ok(None);
        }
        let turn = if is_new { Ok(Turn::Make) } else { self.turn(&target, inode.kind) };
        let Some(turn) = self.complaints.told(turn) else { return Ok(None) };
        match (inode.kind, turn) {
            (_, Turn::Leave) => return Ok(None),
            (FileKind::Directory, _) => {
                let attributes = self.attributes(&place, inode);
                return Ok(self.directory(place, target, attributes, turn));
            }
            _ => {}
        }
        let link = Link { target, turn };
        match self.links.meet(number, inode.links, &link) {
            Name::First => {
                let attributes = self.attributes(&place, inode);
                match attributes.inode.kind {
                    FileKind::File => self.file(place, number, link, attributes)?,
                    _ => self.other(number, link, attributes),
                }
            }
            Name::Waits => {}
            Name::LinkTo(first) => self.link(&first, &link),
            Name::Lost(first) => self.tell_lost(&first, &link),
        }
        Ok(None)
    }

    /// How something of this kind comes to a name that may be there.
    fn turn(&self, target: &Path, kind: FileKind) -> Result<Turn, Error> {
        let cannot = |why: &str| self.cannot_make(target, why);
        if self.reading.values().any(|reading| reading.link.target == target) {
            return Err(cannot(JUST_MADE));
        }
        let there = match self.tree.find(target).and_then(|held| held.metadata()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Turn::Make),
            there => there.map_err(|error| self.cannot_make(target, error))?,
        };
        // To replace a link to the image would lose it, too.
        let is_image = |path: &Path| path.metadata().is_ok_and(|found| self.image.has(&found));
        if self.image.has(&there) || there.is_symlink() && is_image(&self.tree.shown(target)) {
            return Err(cannot("it is the image that is read"));
        }
        if self.made.contains(&identity(&there)) {
            return Err(cannot(JUST_MADE));
        }
        let there = kind_of(&there).ok_or_else(|| cannot("what is there is of no known kind"))?;
        self.existing.turn(there, kind).map_err(cannot)
    }

    fn attributes(&self, place: &Place, inode: Inode) -> Attributes {
        let source = &place.path;
        let told = |result| self.complaints.told(result).into_iter();
        let names = self.volume.xattrs(source, Follow::No).map_err(|error| place.said(error));
        let value = |name: Vec<u8>| {
            let value = self.volume.xattr(source, Follow::No, &name);
            value.map(|value| (name, value)).map_err(|error| place.said(error))
        };
        let xattrs = self.complaints.told(names).into_iter().flatten();
        Attributes { inode, xattrs: xattrs.flat_map(|name| told(value(name))).collect() }
    }

    fn directory(
        &mut self,
        place: Place,
        target: PathBuf,
        attributes: Attributes,
        turn: Turn,
    ) -> Option<Level<'v>> {
        let is_new = turn == Turn::Make;
        if is_new {
            let made = self
                .tree
                .parent(&target)
                .and_then(|(parent, name)| Ok(mkdirat(&*parent, name, Mode::RWXU)?));
            let made = made.map_err(|error| self.cannot_make(&target, error));
            self.complaints.told(made)?;
        }
        if is_new || !self.existing.leaves() {
            self.directories.push((target.clone(), attributes));
        }
        self.transfer.done.directories += 1;
        let entries = Entries::of(self.volume, &place.path);
        Some(Level { place, target, is_new, entries })
    }

    /// Makes what is neither a file nor a directory.
    fn other(&mut self, number: InodeNumber, link: Link, attributes: Attributes) {
        let made = Staged::make(&mut self.tree, &link.target, &mut self.next, |at, name| {
            make_other(at, name, &attributes.inode)
        });
        let done = made.and_then(|(staged, ())| {
            let held = staged.hold()?;
            let found = held.metadata()?;
            if kind_of(&found) != Some(attributes.inode.kind) || found.nlink() != 1 {
                return Err(io::Error::other("another file took its place"));
            }
            self.set_attributes(&held.path(), &link.target, &attributes);
            staged.rename(&link.target, link.turn)?;
            Ok(identity(&found))
        });
        match self.complaints.told(done.map_err(|error| self.cannot_make(&link.target, error))) {
            Some(made) => {
                self.transfer.done.others += 1;
                self.is_there(number, link, made);
            }
            None => self.is_lost(number, &link),
        }
    }

    /// A copy has its name: others become links to it.
    fn is_there(&mut self, number: InodeNumber, first: Link, made: Identity) {
        self.made.insert(made);
        for link in self.links.is_there(&number) {
            self.link(&first, &link);
        }
    }

    fn is_lost(&mut self, number: InodeNumber, first: &Link) {
        for link in self.links.is_lost(&number) {
            self.tell_lost(first, &link);
        }
    }

    fn tell_lost(&self, first: &Link, link: &Link) {
        let first = self.tree.shown(&first.target);
        let why = format!("it is the same file as {}, which could not be made", first.display());
        self.complaints.told::<()>(Err(self.cannot_make(&link.target, why)));
    }

    /// Gives a file that this command has made one more name.
    fn link(&mut self, first: &Link, link: &Link) {
        let linked = self.tree.parent(&first.target).and_then(|(directory, name)| {
            let make =
                |at: &Handle, staged: &str| linkat(&*directory, name, at, staged, AtFlags::empty());
            let (staged, ()) = Staged::make(&mut self.tree, &link.target, &mut self.next, make)?;
            if !self.made.contains(&identity(&staged.hold()?.metadata()?)) {
                return Err(io::Error::other("another file took the place of its first name"));
            }
            staged.rename(&link.target, link.turn)
        });
        let linked = linked.map_err(|error| self.cannot_make(&link.target, error));
        if self.complaints.told(linked).is_some() {
            self.transfer.done.links += 1;
        }
    }

    fn file(
        &mut self,
        place: Place,
        number: InodeNumber,
        link: Link,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let opened = self.volume.open(&place.path, OpenOptions::direct());
        let begun = opened.map_err(|error| place.said(error)).and_then(|file| {
            // Nobody but its owner has it while it is not whole, and nobody ever who is not to have it.
            let mode = Mode::from_raw_mode(u32::from(attributes.inode.permissions) & 0o600);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let make = |at: &Handle, name: &str| openat(at, name, flags, mode);
            let made = Staged::make(&mut self.tree, &link.target, &mut self.next, make);
            made.map(|made| (file, made)).map_err(|error| self.cannot_make(&link.target, error))
        });
        let Some((file, (staged, host))) = self.complaints.told(begun) else {
            self.is_lost(number, &link);
            return Ok(());
        };
        let id = self.next;
        let reading = Reading {
            source: place.path,
            number,
            host: host.into(),
            staged,
            link,
            attributes,
            pieces: 0,
            is_all_asked: false,
            is_lost: false,
        };
        self.reading.insert(id, reading);
        self.read(id, &file)?;
        self.reading.get_mut(&id).expect("it has begun").is_all_asked = true;
        self.finish_if_whole(id);
        Ok(())
    }

    /// Asks for all data of a file.
    fn read(&mut self, id: u64, file: &File) -> Result<(), Error> {
        let mut at = 0;
        loop {
            let data = file.seek_data(at).and_then(|start| Ok(start..file.seek_hole(start)?));
            let data = match data {
                Ok(data) => data,
                // Nothing but a hole is left.
                Err(Errno::NXIO) => return Ok(()),
                Err(errno) => {
                    self.lose(id, errno);
                    return Ok(());
                }
            };
            at = data.end;
            for offset in data.step_by(PIECE) {
                self.transfer.check()?;
                let landed = self.flight.make_room();
                self.land(landed)?;
                let buffer = Buffer::zeroed((at - offset).min(PIECE as u64) as usize);
                let reading = self.reading.get_mut(&id).expect("it has begun");
                if reading.is_lost {
                    return Ok(());
                }
                reading.pieces += 1;
                let started = self.flight.read(file, buffer, offset, Piece { file: id, offset });
                started.map_err(|error| self.failed(error))?;
            }
        }
    }

    fn land(&mut self, landed: io::Result<Vec<Landed<Piece>>>) -> Result<(), Error> {
        for Landed { piece, result, buffer } in landed.map_err(|error| self.failed(error))? {
            let reading = self.reading.get_mut(&piece.file).expect("it has pieces on their way");
            reading.pieces -= 1;
            match result {
                Ok(read) if read == buffer.len() as u64 => {
                    if let Err(error) = reading.host.write_all_at(&buffer, piece.offset) {
                        let error = self.cannot_make(&self.reading[&piece.file].link.target, error);
                        self.lose_because(piece.file, error);
                    }
                }
                Ok(_) => self.lose(piece.file, ENDS_EARLY),
                Err(errno) => self.lose(piece.file, errno),
            }
            self.finish_if_whole(piece.file);
        }
        Ok(())
    }

    /// A part of a file cannot be read.
    fn lose(&mut self, id: u64, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) {
        let place = self.place.at(self.reading[&id].source.clone());
        self.lose_because(id, Error::run(format!("{place}: cannot be read")).because(why));
    }

    fn lose_because(&mut self, id: u64, error: Error) {
        let reading = self.reading.get_mut(&id).expect("it has begun");
        // One reason is enough.
        if !std::mem::replace(&mut reading.is_lost, true) {
            self.complaints.told::<()>(Err(error));
        }
    }

    fn finish_if_whole(&mut self, id: u64) {
        let reading = &self.reading[&id];
        if reading.pieces > 0 || !reading.is_all_asked {
            return;
        }
        let Reading { number, host, staged, link, attributes, is_lost, .. } =
            self.reading.remove(&id).expect("it was just there");
        if is_lost {
            self.is_lost(number, &link);
            return;
        }
        let size = attributes.inode.size;
        let done = host.set_len(size).and_then(|()| {
            self.set_attributes(&host::path(&host), &link.target, &attributes);
            let made = identity(&host.metadata()?);
            staged.rename(&link.target, link.turn)?;
            Ok(made)
        });
        match self.complaints.told(done.map_err(|error| self.cannot_make(&link.target, error))) {
            Some(made) => {
                self.transfer.arrived(size);
                self.is_there(number, link, made);
            }
            None => self.is_lost(number, &link),
        }
    }

    /// All that can be set of what was made; what cannot is told. Owners only where the user may give files
    /// away, and extended attributes where the file system and the user's rights allow them.
    fn set_attributes(&self, held: &Path, target: &Path, its: &Attributes) {
        let Attributes { inode, xattrs } = its;
        let tell = |what: &str, set: io::Result<()>| {
            let shown = self.tree.shown(target);
            let failed = |error: io::Error| {
                Error::run(format!("{}: its {what} cannot be set", shown.display())).because(error)
            };
            self.complaints.told(set.map_err(failed));
        };
        if self.is_root {
            let set = std::os::unix::fs::chown(held, Some(inode.user), Some(inode.group));
            tell("owner", set);
        }
        for (name, value) in xattrs {
            if self.no_privileges && gives_rights(name) {
                continue;
            }
            match setxattr(held, &name[..], value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                set => {
                    let what = format!("attribute {}", OsStr::from_bytes(name).display());
                    tell(&what, set.map_err(Into::into));
                }
            }
        }
        if inode.kind != FileKind::Symlink {
            // After the owners: to change those takes the set-ID bits away.
            let set = held.metadata().and_then(|found| {
                let mode = Mode::from_raw_mode(self.permissions(inode, &found).into());
                Ok(chmodat(CWD, held, mode, AtFlags::empty())?)
            });
            tell("mode", set);
        }
        let time =
            |time: Time| Timespec { tv_sec: time.seconds(), tv_nsec: time.nanoseconds().into() };
        let times = Timestamps {
            last_access: time(inode.accessed),
            last_modification: time(inode.modified),
        };
        tell("times", utimensat(CWD, held, &times, AtFlags::empty()).map_err(Into::into));
    }

    /// The permissions of a file, with set-ID bits only for the user and the group that gave them.
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

    fn cannot_make(
        &self,
        target: &Path,
        why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        cannot_make(&self.tree.shown(target)).because(why)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be read", self.place.target.display())).because(error)
    }
}

const JUST_MADE: &str = "this command has just made it";

fn cannot_make(path: &Path) -> Error {
    Error::run(format!("{}: cannot be made", path.display()))
}

fn kind_of(found: &Metadata) -> Option<FileKind> {
    FileKind::of_mode(found.mode() as u16, found.rdev())
}

/// Whether an extended attribute can let somebody do more than before.
fn gives_rights(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Makes what is neither a file nor a directory.
fn make_other(at: &Handle, name: &str, inode: &Inode) -> rustix::io::Result<()> {
    let (kind, device) = match inode.kind {
        FileKind::Symlink => return symlinkat(&inode.target[..], at, name),
        FileKind::BlockDevice(device) => (FileType::BlockDevice, device),
        FileKind::CharacterDevice(device) => (FileType::CharacterDevice, device),
        FileKind::Socket => (FileType::Socket, 0),
        _ => (FileType::Fifo, 0),
    };
    mknodat(at, name, kind, Mode::RUSR | Mode::WUSR, device)
}
