//! `uringfs chown`: changes the user and group of files in a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open, sync};
use super::owners::{group_id, user_id};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, with_path};
use clap::{Arg, ArgAction};
use nix::unistd::User;
use std::ffi::OsString;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs::volume::{FileType, Follow};
use uringfs_lab::Error;

/// The arguments of the command. As in coreutils, only `--help` prints help.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    arg = Arg::new("help").long("help").help("Print help").action(ArgAction::Help).display_order(1000)
)]
pub struct Arguments {
    /// USER, USER:GROUP, :GROUP, or USER: for the user's login group; numbers, or names of users and groups of this
    /// machine
    #[arg(value_parser = parse_owner)]
    owner: Owner,

    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Change directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Change symbolic links themselves, not their targets
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
}

/// The new user and group. None leaves the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    user: Option<u32>,
    group: Option<u32>,
}

fn parse_owner(text: &str) -> Result<Owner, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let is_named = |name: &&str| !name.is_empty();
    if !user.is_empty() && text.ends_with(':') {
        let known = User::from_name(user).ok().flatten();
        let known =
            known.ok_or_else(|| format!("unknown user {user}: give a group, as in {user}:100"))?;
        return Ok(Owner { user: Some(known.uid.as_raw()), group: Some(known.gid.as_raw()) });
    }
    let user = Some(user).filter(is_named).map(user_id).transpose()?;
    let group = Some(group).filter(is_named).map(group_id).transpose()?;
    match (user, group) {
        (None, None) => Err("expected USER, USER:GROUP or :GROUP, as in 1000:100".into()),
        (user, group) => Ok(Owner { user, group }),
    }
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    let errors = ErrorSink::default();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        let set = errors.record(set_owner(&volume, &path, follow, arguments.owner));
        if arguments.recursive && set.is_some() {
            errors.record(set_recursive(&volume, &path, arguments.owner, &errors));
        }
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn set_owner(
    volume: &Volume,
    path: &VolumePath,
    follow: Follow,
    owner: Owner,
) -> Result<(), Error> {
    let Owner { user, group } = owner;
    let set =
        volume.set_attributes(as_path(&path.bytes), follow, |inode| inode.set_owner(user, group));
    set.map_err(|error| with_path(path, error))
}

/// Changes all entries below a directory. Follows no links. Uses no recursion, as trees may be deep.
fn set_recursive(
    volume: &Volume,
    top: &VolumePath,
    owner: Owner,
    errors: &ErrorSink,
) -> Result<(), Error> {
    let found = lookup(volume, &top.bytes).map_err(|error| with_path(top, error))?;
    let mut visited = VisitedDirectories::default();
    let mut left = Vec::from_iter((found.1.kind == FileType::Directory).then(|| top.clone()));
    while let Some(directory) = left.pop() {
        for (path, entry) in Entries::new(volume, &directory.bytes).with_paths(&directory, errors) {
            errors.record(set_owner(volume, &path, Follow::No, owner));
            if entry.kind == FileType::Directory
                && errors.record(visited.visit(&path, entry.inode)).is_some()
            {
                left.push(path);
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
        let is =
            |text, user, group| assert_eq!(parse_owner(text), Ok(Owner { user, group }), "{text}");
        is("7", Some(7), None);
        is("7:8", Some(7), Some(8));
        is(":8", None, Some(8));
        is("root:", Some(0), Some(0));
        is("root:root", Some(0), Some(0));
        for bad in ["", ":", "no such user", "1:no such group", "-1", "4294967296"] {
            assert!(parse_owner(bad).is_err(), "{bad}");
        }
    }
}
