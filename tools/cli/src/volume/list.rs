//! `uringfs ls`, `tree` and `df`: what is in a volume, and how much room it has.

use super::complaints::Complaints;
use super::entered::Entered;
use super::entries::Entries;
use super::opening::{is_directory, open};
use super::place::Place;
use super::size::BLOCK;
use super::{glob, words};
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use uringfs::{Access, DirectoryEntry, FileKind, Follow, Volume};
use uringfs_lab::Error;

/// What `ls` takes.
#[derive(clap::Args)]
pub struct LsArguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Mode, links, owners, size and time (UTC) of each
    #[arg(short)]
    long: bool,

    /// All that is in directories, too
    #[arg(short = 'R')]
    recursive: bool,
}

/// Runs `ls`; gives its exit code.
pub fn ls(arguments: LsArguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::Read)?;
    let complaints = Complaints::default();
    let found = glob::expand_each(&volume, &places, &complaints);
    let is_alone = found.len() == 1 && !arguments.recursive;
    let is_listed = |place: &Place| match arguments.long {
        // A link is shown then, not what it leads to.
        true => {
            let found = volume.inode(&place.path, Follow::No);
            found.is_ok_and(|(_, inode)| inode.kind == FileKind::Directory)
        }
        false => is_directory(&volume, &place.path),
    };
    let (directories, files): (Vec<Place>, Vec<Place>) = found.into_iter().partition(is_listed);
    for place in &files {
        if let Some(line) = complaints.told(line(&volume, place, &place.path, arguments.long)) {
            print_bytes(&line)?;
        }
    }
    let mut is_first = files.is_empty();
    for top in directories {
        let mut entered = Entered::default();
        // What is still to be shown, the next one last.
        let mut left = vec![top];
        while let Some(directory) = left.pop() {
            let mut text = Vec::new();
            if !is_alone {
                text.extend_from_slice(if is_first { b"" } else { b"\n" });
                text.extend(words::shown(&directory.path));
                text.extend_from_slice(b":\n");
            }
            is_first = false;
            let first = left.len();
            let entries = Entries::of(&volume, &directory.path);
            for (place, entry) in entries.places(&directory, &complaints) {
                let line = line(&volume, &place, &entry.name, arguments.long);
                text.extend(complaints.told(line).unwrap_or_default());
                if arguments.recursive
                    && entry.kind == FileKind::Directory
                    && complaints.told(entered.enter(&place, entry.inode)).is_some()
                {
                    left.push(place);
                }
            }
            left[first..].reverse();
            print_bytes(&text)?;
        }
    }
    Ok(complaints.exit_code())
}

/// A name, with what is known of the file if that was asked for.
fn line(volume: &Volume, place: &Place, name: &[u8], long: bool) -> Result<Vec<u8>, Error> {
    let mut line = Vec::new();
    if long || name == place.path {
        let found = volume.inode(&place.path, Follow::No);
        let (_, inode) = found.map_err(|error| place.said(error))?;
        if long {
            line = format!(
                "{} {:>3} {:>5} {:>5} {:>12} {} ",
                words::mode(&inode),
                inode.links,
                inode.user,
                inode.group,
                inode.size,
                words::time(inode.modified),
            )
            .into_bytes();
        }
        line.extend(words::shown(name));
        if long && inode.kind == FileKind::Symlink {
            line.extend_from_slice(b" -> ");
            line.extend(words::shown(&inode.target));
        }
    } else {
        line.extend(words::shown(name));
    }
    line.push(b'\n');
    Ok(line)
}

/// What `tree` takes.
#[derive(clap::Args)]
pub struct TreeArguments {
    /// TARGET:/path
    #[arg(value_name = "TARGET:/path")]
    path: OsString,
}

/// Runs `tree`; gives its exit code.
pub fn tree(arguments: TreeArguments) -> Result<u8, Error> {
    let place = Place::parse(&arguments.path)?;
    let volume = open(&place.target, Access::Read)?;
    let mut text = words::shown(&place.path);
    text.push(b'\n');
    let (mut directories, mut others) = (0u64, 0u64);
    let mut entered = Entered::default();
    // What is still to be shown, the next one last: each with what it is led in by.
    let complaints = Complaints::default();
    let branches = |directory: &Place, lead: &str| branches(&volume, directory, lead, &complaints);
    let mut left = branches(&place, "");
    left.reverse();
    while let Some(Branch { place, entry, lead, is_last }) = left.pop() {
        let (knot, line) = if is_last { ("`-- ", "    ") } else { ("|-- ", "|   ") };
        text.extend_from_slice(lead.as_bytes());
        text.extend_from_slice(knot.as_bytes());
        text.extend(words::shown(&entry.name));
        text.push(b'\n');
        if entry.kind == FileKind::Directory {
            if complaints.told(entered.enter(&place, entry.inode)).is_some() {
                directories += 1;
                left.extend(branches(&place, &(lead + line)).into_iter().rev());
            }
        } else {
            others += 1;
        }
    }
    text.extend_from_slice(format!("\n{directories} directories, {others} files\n").as_bytes());
    print_bytes(&text)?;
    Ok(complaints.exit_code())
}

/// A name in a tree.
struct Branch {
    place: Place,
    entry: DirectoryEntry,
    lead: String,
    is_last: bool,
}

fn branches(
    volume: &Volume,
    directory: &Place,
    lead: &str,
    complaints: &Complaints,
) -> Vec<Branch> {
    let found = Entries::of(volume, &directory.path).places(directory, complaints);
    let branch = |(place, entry)| Branch { place, entry, lead: lead.to_owned(), is_last: false };
    let mut all: Vec<Branch> = found.map(branch).collect();
    if let Some(last) = all.last_mut() {
        last.is_last = true;
    }
    all
}

/// What `df` takes.
#[derive(clap::Args)]
pub struct DfArguments {
    /// A file or a block device with a volume
    target: OsString,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `df`; gives its exit code.
pub fn df(arguments: DfArguments) -> Result<u8, Error> {
    let volume = open(&arguments.target, Access::Read)?;
    let space = Space::of(&volume);
    let text = match arguments.json {
        true => format!("{:#}\n", space.json()),
        false => format!(
            "{}: {} of {} used, {} free\n",
            arguments.target.display(),
            words::size(space.size - space.free),
            words::size(space.size),
            words::size(space.free),
        ),
    };
    print(&text)?;
    Ok(0)
}

/// A volume's room, in bytes.
pub struct Space {
    pub size: u64,
    /// What files can still have; what is kept for the catalog counts as used.
    pub free: u64,
}

impl Space {
    pub fn of(volume: &Volume) -> Self {
        let found = volume.statistics();
        Self { size: found.blocks * BLOCK, free: found.free_blocks * BLOCK }
    }

    fn json(&self) -> Value {
        json!({"size": self.size, "used": self.size - self.free, "free": self.free})
    }
}
