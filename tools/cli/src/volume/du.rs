//! `uringfs du`: the room that files and directories take on the device.

use super::complaints::Complaints;
use super::entered::Entered;
use super::entries::Entries;
use super::opening::open;
use super::place::Place;
use super::{glob, words};
use crate::output::print_bytes;
use std::collections::HashSet;
use std::ffi::OsString;
use uringfs::{Access, FileKind, Follow, InodeNumber, Volume};
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Of each path only the sum
    #[arg(short, long)]
    summarize: bool,

    /// TARGET:/path, with wildcards; a directory with all that is in it
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,
}

/// Runs the command: a line a directory, in units of 1024 bytes, as the system's `du`. Gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::Read)?;
    let mut count = Count { volume: &volume, counted: HashSet::new(), entered: Entered::default() };
    let complaints = Complaints::default();
    for place in glob::expand_each(&volume, &places, &complaints) {
        count.entered = Entered::default();
        let mut above: Vec<Directory<'_>> = Vec::new();
        let mut next = Some(place.clone());
        // Without recursion: trees may be deep.
        loop {
            let mut bytes = 0;
            match next.take() {
                None => {}
                Some(inner) => match complaints.told(count.of(&inner)) {
                    Some(Found::Directory) => above.push(Directory::of(&volume, inner)),
                    Some(Found::Bytes(found)) if above.is_empty() => {
                        print_bytes(&line(found, &place))?;
                        break;
                    }
                    Some(Found::Bytes(found)) => bytes = found,
                    None if above.is_empty() => break,
                    None => {}
                },
            }
            let last = above.last_mut().expect("what is no directory has been printed");
            last.bytes += bytes;
            match last.entries.next_place(&last.place, &complaints) {
                Some((place, _)) => next = Some(place),
                None => {
                    let Directory { place, bytes, .. } = above.pop().expect("it was just there");
                    if !arguments.summarize || above.is_empty() {
                        print_bytes(&line(bytes, &place))?;
                    }
                    match above.last_mut() {
                        Some(last) => last.bytes += bytes,
                        None => break,
                    }
                }
            }
        }
    }
    Ok(complaints.exit_code())
}

/// One that is being counted.
struct Directory<'v> {
    place: Place,
    entries: Entries<'v>,
    bytes: u64,
}

impl<'v> Directory<'v> {
    fn of(volume: &'v Volume, place: Place) -> Self {
        let entries = Entries::of(volume, &place.path);
        Self { place, entries, bytes: 0 }
    }
}

enum Found {
    Directory,
    Bytes(u64),
}

struct Count<'v> {
    volume: &'v Volume,
    /// Files of several names, each counted under its first.
    counted: HashSet<InodeNumber>,
    /// From the path on that has its turn.
    entered: Entered,
}

impl Count<'_> {
    fn of(&mut self, place: &Place) -> Result<Found, Error> {
        let found = self.volume.inode(&place.path, Follow::No);
        let (number, inode) = found.map_err(|error| place.said(error))?;
        Ok(match inode.kind {
            FileKind::Directory => {
                self.entered.enter(place, number)?;
                Found::Directory
            }
            _ if inode.links > 1 && !self.counted.insert(number) => Found::Bytes(0),
            _ => Found::Bytes(inode.allocated()),
        })
    }
}

fn line(bytes: u64, place: &Place) -> Vec<u8> {
    let mut line = format!("{}\t", bytes.div_ceil(1024)).into_bytes();
    line.extend(words::shown(&place.path));
    line.push(b'\n');
    line
}
