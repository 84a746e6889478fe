//! `uringfs cat` and `uringfs stat`: a file's bytes, and what is known of it.

use super::complaints::Complaints;
use super::existing::Image;
use super::flight::{ENDS_EARLY, Flight, PIECE};
use super::opening::open;
use super::place::Place;
use super::{glob, words};
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use uringfs::{Access, Buffer, FileKind, Follow, Inode, InodeNumber, OpenOptions, Time, Volume};
use uringfs_lab::Error;

/// What `cat` takes.
#[derive(clap::Args)]
pub struct CatArguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,
}

/// Runs `cat`; gives its exit code.
pub fn cat(arguments: CatArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::Read)?;
    let complaints = Complaints::default();
    let places = glob::expand_each(&volume, &places, &complaints);
    print_each(&volume, &places, &complaints)?;
    Ok(complaints.exit_code())
}

/// Writes files to standard output, one after the other; gives the program's exit code.
pub fn print_contents(volume: &Volume, places: &[Place]) -> Result<u8, Error> {
    let complaints = Complaints::default();
    print_each(volume, places, &complaints)?;
    Ok(complaints.exit_code())
}

fn print_each(volume: &Volume, places: &[Place], complaints: &Complaints) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let unusable = |error| Error::run("cannot write to standard output").because(error);
    let Some(first) = places.first() else { return Ok(()) };
    if Image::of(&first.target)?.has_open(&out).map_err(unusable)? {
        return Err(Error::input("standard output: it is the image that is read"));
    }
    for place in places {
        match print_file(volume, place, &mut out) {
            // Who reads has had enough.
            Err(Failed::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(Failed::Output(error)) => return Err(unusable(error)),
            Err(Failed::Input(error)) => _ = complaints.told::<()>(Err(error)),
            Ok(()) => _ = complaints.told(Ok(())),
        }
    }
    Ok(())
}

enum Failed {
    Input(Error),
    Output(std::io::Error),
}

/// Pieces are read many at once, and written in their order.
fn print_file(volume: &Volume, place: &Place, out: &mut impl Write) -> Result<(), Failed> {
    let unreadable = |error: std::io::Error| {
        Failed::Input(Error::run(format!("{place}: cannot be read")).because(error))
    };
    let file = volume.open(&place.path, OpenOptions::direct());
    let file = file.map_err(|error| Failed::Input(place.said(error)))?;
    let mut flight = Flight::new().map_err(Failed::Input)?;
    let size = file.size();
    let (mut asked, mut printed) = (0, 0);
    let mut there = BTreeMap::new();
    while printed < size {
        let landed = match asked < size {
            true => flight.make_room(),
            false => flight.finish(),
        };
        for landed in landed.map_err(unreadable)? {
            let read = landed.result.map_err(|errno| unreadable(errno.into()))?;
            if read != landed.buffer.len() as u64 {
                return Err(unreadable(std::io::Error::other(ENDS_EARLY)));
            }
            there.insert(landed.piece, landed.buffer);
        }
        if asked < size {
            let buffer = Buffer::zeroed((size - asked).min(PIECE as u64) as usize);
            let length = buffer.len() as u64;
            flight.read(&file, buffer, asked, asked).map_err(unreadable)?;
            asked += length;
        }
        while let Some(buffer) = there.remove(&printed) {
            out.write_all(&buffer).map_err(Failed::Output)?;
            printed += buffer.len() as u64;
        }
    }
    out.flush().map_err(Failed::Output)
}

/// What `stat` takes.
#[derive(clap::Args)]
pub struct StatArguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `stat`; gives its exit code.
pub fn stat(arguments: StatArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::Read)?;
    let complaints = Complaints::default();
    let mut found = Vec::new();
    for place in glob::expand_each(&volume, &places, &complaints) {
        let about = volume.inode(&place.path, Follow::No);
        if let Some(about) = complaints.told(about.map_err(|error| place.said(error))) {
            found.push((about, place));
        }
    }
    if arguments.json {
        let all: Vec<Value> = found.iter().map(|(about, place)| json(place, about)).collect();
        print(&format!("{:#}\n", Value::from(all)))?;
    } else {
        let text: Vec<Vec<u8>> = found.iter().map(|(about, place)| text(place, about)).collect();
        print_bytes(&text.concat())?;
    }
    Ok(complaints.exit_code())
}

fn text(place: &Place, (number, inode): &(InodeNumber, Inode)) -> Vec<u8> {
    let mut text = words::shown(&place.path);
    if inode.kind == FileKind::Symlink {
        text.extend_from_slice(b" -> ");
        text.extend(words::shown(&inode.target));
    }
    let time = |time: Time| format!("{}.{:09}", words::time(time), time.nanoseconds());
    text.extend_from_slice(
        format!(
            "\n  {}, {} bytes, {} blocks of 512, inode {}, links {}\n  mode {:04o} ({}), user {}, group {}\n  \
             accessed {}\n  modified {}\n  changed  {}\n  created  {}\n",
            words::kind(inode.kind),
            inode.size,
            inode.allocated() / 512,
            number.0,
            inode.links,
            inode.permissions,
            words::mode(inode),
            inode.user,
            inode.group,
            time(inode.accessed),
            time(inode.modified),
            time(inode.changed),
            time(inode.created),
        )
        .as_bytes(),
    );
    text
}

/// Times in seconds since 1970, and the nanoseconds behind them. Names that are not UTF-8 have their foreign bytes replaced.
fn json(place: &Place, (number, inode): &(InodeNumber, Inode)) -> Value {
    let lossy = |bytes: &[u8]| OsStr::from_bytes(bytes).to_string_lossy().into_owned();
    let time = |time: Time| json!({ "seconds": time.seconds(), "nanoseconds": time.nanoseconds() });
    json!({
        "path": lossy(&place.path),
        "kind": words::kind(inode.kind),
        "size": inode.size,
        "blocks": inode.allocated() / 512,
        "inode": number.0,
        "links": inode.links,
        "mode": format!("{:04o}", inode.permissions),
        "user": inode.user,
        "group": inode.group,
        "accessed": time(inode.accessed),
        "modified": time(inode.modified),
        "changed": time(inode.changed),
        "created": time(inode.created),
        "target": (inode.kind == FileKind::Symlink).then(|| lossy(&inode.target)),
    })
}
