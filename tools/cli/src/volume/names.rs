//! `uringfs mkdir`, `rm`, `mv`, `ln` and `chmod`: names in a volume, as the system's commands of
//! these names treat them.

use super::complaints::Complaints;
use super::entered::Entered;
use super::entries::Entries;
use super::existing::{Existing, Turn};
use super::glob;
use super::opening::{close, is_directory, open};
use super::place::{Place, join, last_name};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::{Access, FileKind, Follow, Rename, Volume, VolumeError};
use uringfs_lab::Error;

/// What `mkdir` takes.
#[derive(clap::Args)]
pub struct MkdirArguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// With the directories above it; no error if it is there
    #[arg(short)]
    parents: bool,
}

/// Runs `mkdir`; gives its exit code.
pub fn mkdir(arguments: MkdirArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let complaints = Complaints::default();
    for place in &places {
        complaints.told(match arguments.parents {
            true => make_parents(&volume, place),
            false => volume.make_directory(&place.path, 0o755).map_err(|error| place.said(error)),
        });
    }
    close(&volume, &places[0].target)?;
    Ok(complaints.exit_code())
}

fn make_parents(volume: &Volume, place: &Place) -> Result<(), Error> {
    let mut path = b"/".to_vec();
    for name in place.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        path = join(&path, name);
        match volume.make_directory(&path, 0o755) {
            Err(error) if error.errno() == Errno::EXIST && is_directory(volume, &path) => {}
            made => made.map_err(|error| place.at(path.clone()).said(error))?,
        }
    }
    Ok(())
}

/// What `rm` takes.
#[derive(clap::Args)]
pub struct RmArguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Directories, too, with all that is in them
    #[arg(short)]
    recursive: bool,
}

/// Runs `rm`; gives its exit code.
pub fn rm(arguments: RmArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let complaints = Complaints::default();
    for place in glob::expand_each(&volume, &places, &complaints) {
        complaints.told(remove(&volume, &place, arguments.recursive, &complaints));
    }
    close(&volume, &places[0].target)?;
    Ok(complaints.exit_code())
}

fn remove(
    volume: &Volume,
    place: &Place,
    recursive: bool,
    complaints: &Complaints,
) -> Result<(), Error> {
    // Of a link with a slash behind it the link: what it leads to is not removed.
    let found = volume.inode(without_slashes(&place.path), Follow::No);
    let (_, inode) = found.map_err(|error| place.said(error))?;
    if inode.kind != FileKind::Directory {
        volume.remove(&place.path).map_err(|error| place.said(error))?;
    } else if !recursive {
        return Err(Error::input(format!("{place}: is a directory; rm -r removes it")));
    } else if last_name(&place.path).is_none() {
        return Err(Error::input(format!("{place}: cannot be removed; name what is in it")));
    } else {
        remove_tree(volume, place, complaints);
    }
    Ok(())
}

/// A path without the slashes that it ends in; the root has none to lose.
fn without_slashes(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte != b'/') {
        Some(last) => &path[..=last],
        None => path,
    }
}

/// Removes a directory and what is in it, as far as that can be, without recursion: trees may be deep.
fn remove_tree(volume: &Volume, top: &Place, complaints: &Complaints) {
    let mut entered = Entered::default();
    // Each with whether what is in it has had its turn.
    let mut left = vec![(top.clone(), false)];
    while let Some((place, is_done)) = left.pop() {
        if is_done {
            let removed = volume.remove_directory(&place.path);
            let is_left = |error: &VolumeError| error.errno() == Errno::NOTEMPTY;
            // What stays in it has been told of.
            if complaints.exit_code() == 0 || !removed.as_ref().is_err_and(is_left) {
                complaints.told(removed.map_err(|error| place.said(error)));
            }
            continue;
        }
        left.push((place.clone(), true));
        for (inner, entry) in Entries::of(volume, &place.path).places(&place, complaints) {
            match entry.kind {
                FileKind::Directory => {
                    let is_new = complaints.told(entered.enter(&inner, entry.inode)).is_some();
                    left.extend(is_new.then_some((inner, false)));
                }
                _ => {
                    let removed = volume.remove(&inner.path);
                    complaints.told(removed.map_err(|error| inner.said(error)));
                }
            }
        }
    }
}

/// What `mv` takes.
#[derive(clap::Args)]
pub struct MvArguments {
    /// TARGET:/path
    #[arg(value_name = "TARGET:/path")]
    source: OsString,

    /// TARGET:/path: a directory to move it into, or its new name
    #[arg(value_name = "TARGET:/new")]
    destination: OsString,

    #[command(flatten)]
    existing: Existing,
}

/// Runs `mv`; gives its exit code.
pub fn mv(arguments: MvArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&[arguments.source, arguments.destination])?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let to = within(&volume, &places[0], &places[1]);
    let found = [&places[0], &to].map(|place| volume.inode(&place.path, Follow::No));
    if let [Ok((_, moved)), Ok((_, there))] = found {
        let turn = arguments.existing.turn(there.kind, moved.kind);
        if turn.map_err(|why| Error::input(format!("{to}: {why}")))? == Turn::Leave {
            return Ok(0);
        }
    }
    let moved = volume.rename(&places[0].path, &to.path, Rename::Replace);
    moved.map_err(|error| about_both(&places[0], &to, error))?;
    close(&volume, &places[0].target)?;
    Ok(0)
}

/// What `ln` takes.
#[derive(clap::Args)]
pub struct LnArguments {
    /// TARGET:/path of a file; with -s, what the link is to lead to, as it is to stand in it
    source: OsString,

    /// TARGET:/path: a directory to make the link in, or its name
    #[arg(value_name = "TARGET:/new")]
    destination: OsString,

    /// A symbolic link
    #[arg(short)]
    symbolic: bool,
}

/// Runs `ln`; gives its exit code.
pub fn ln(arguments: LnArguments) -> Result<u8, Error> {
    if arguments.symbolic {
        let place = Place::parse(&arguments.destination)?;
        let volume = open(&place.target, Access::ReadWrite)?;
        let leads_to = arguments.source.as_bytes();
        let place = within(&volume, &place.at(leads_to.to_vec()), &place);
        let made = volume.make_symlink(leads_to, &place.path);
        made.map_err(|error| place.said(error))?;
        close(&volume, &place.target)?;
    } else {
        let places = Place::parse_all(&[arguments.source, arguments.destination])?;
        let volume = open(&places[0].target, Access::ReadWrite)?;
        let to = within(&volume, &places[0], &places[1]);
        let linked = volume.link(&places[0].path, &to.path);
        linked.map_err(|error| about_both(&places[0], &to, error))?;
        close(&volume, &places[0].target)?;
    }
    Ok(0)
}

/// The name itself, or in a directory the name that `source` has.
fn within(volume: &Volume, source: &Place, destination: &Place) -> Place {
    match last_name(&source.path) {
        Some(name) if is_directory(volume, &destination.path) => {
            destination.at(join(&destination.path, name))
        }
        _ => destination.clone(),
    }
}

fn about_both(source: &Place, destination: &Place, error: VolumeError) -> Error {
    super::place::said(&format!("{source} to {destination}"), error)
}

/// What `chmod` takes.
#[derive(clap::Args)]
pub struct ChmodArguments {
    /// Permissions in octal digits, as in 644
    #[arg(value_parser = octal)]
    mode: u16,

    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,
}

fn octal(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o7777) => Ok(mode),
        _ => Err("expected octal digits up to 7777, as in 644".into()),
    }
}

/// Runs `chmod`; gives its exit code.
pub fn chmod(arguments: ChmodArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let complaints = Complaints::default();
    for place in glob::expand_each(&volume, &places, &complaints) {
        let set = volume.set_attributes(&place.path, Follow::Yes, |inode| {
            inode.permissions = arguments.mode;
        });
        complaints.told(set.map_err(|error| place.said(error)));
    }
    close(&volume, &places[0].target)?;
    Ok(complaints.exit_code())
}
