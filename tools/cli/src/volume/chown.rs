//! `uringfs chown`: who owns files in a volume.

use super::complaints::Complaints;
use super::entered::Entered;
use super::entries::Entries;
use super::glob;
use super::opening::{close, open};
use super::place::Place;
use nix::unistd::{Group, User};
use std::ffi::OsString;
use uringfs::{Access, FileKind, Follow, Volume};
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Numbers, or names of this machine: USER, USER:GROUP or :GROUP
    #[arg(value_parser = owner)]
    owner: Owner,

    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// All that is in directories, too
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Symbolic links themselves, and not what they lead to
    #[arg(long = "no-dereference")]
    links: bool,
}

/// Who is to own them; none stays who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    user: Option<u32>,
    group: Option<u32>,
}

fn owner(text: &str) -> Result<Owner, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let is_named = |name: &&str| !name.is_empty();
    let user = Some(user).filter(is_named).map(user_of).transpose()?;
    let group = Some(group).filter(is_named).map(group_of).transpose()?;
    match (user, group) {
        (None, None) => Err("expected USER, USER:GROUP or :GROUP, as in 1000:100".into()),
        (user, group) => Ok(Owner { user, group }),
    }
}

fn user_of(name: &str) -> Result<u32, String> {
    let known = || User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    name.parse().ok().or_else(known).ok_or_else(|| format!("there is no user {name}"))
}

fn group_of(name: &str) -> Result<u32, String> {
    let known = || Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    name.parse().ok().or_else(known).ok_or_else(|| format!("there is no group {name}"))
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let follow = if arguments.links { Follow::No } else { Follow::Yes };
    let complaints = Complaints::default();
    for place in glob::expand_each(&volume, &places, &complaints) {
        let set = complaints.told(set(&volume, &place, follow, arguments.owner));
        if arguments.recursive && set.is_some() {
            complaints.told(set_below(&volume, &place, arguments.owner, &complaints));
        }
    }
    close(&volume, &places[0].target)?;
    Ok(complaints.exit_code())
}

fn set(volume: &Volume, place: &Place, follow: Follow, owner: Owner) -> Result<(), Error> {
    let Owner { user, group } = owner;
    let set = volume.set_attributes(&place.path, follow, |inode| inode.set_owner(user, group));
    set.map_err(|error| place.said(error))
}

/// All that is in a directory, without recursion: trees may be deep. Links below are not followed.
fn set_below(
    volume: &Volume,
    top: &Place,
    owner: Owner,
    complaints: &Complaints,
) -> Result<(), Error> {
    let found = volume.inode(&top.path, Follow::No).map_err(|error| top.said(error))?;
    let mut entered = Entered::default();
    let mut left = Vec::from_iter((found.1.kind == FileKind::Directory).then(|| top.clone()));
    while let Some(directory) = left.pop() {
        for (place, entry) in Entries::of(volume, &directory.path).places(&directory, complaints) {
            complaints.told(set(volume, &place, Follow::No, owner));
            if entry.kind == FileKind::Directory
                && complaints.told(entered.enter(&place, entry.inode)).is_some()
            {
                left.push(place);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        let is = |text, user, group| assert_eq!(owner(text), Ok(Owner { user, group }), "{text}");
        is("7", Some(7), None);
        is("7:8", Some(7), Some(8));
        is(":8", None, Some(8));
        is("root:", Some(0), None);
        is("root:root", Some(0), Some(0));
        for bad in ["", ":", "no such user", "1:no such group", "-1", "4294967296"] {
            assert!(owner(bad).is_err(), "{bad}");
        }
    }
}
