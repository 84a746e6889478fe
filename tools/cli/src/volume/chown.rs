//! `uringfs chown`: changes the user and group of files in a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open_at, sync};
use super::owners::{OwnerNames, group_id, user_id};
use super::size_options::long_help;
use super::verbose::{VerboseOptions, quoted};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, with_path};
use nix::unistd::User;
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{FileType, Follow};
use uringfs_lab::Error;

/// The arguments of the command. As in coreutils, only `--help` prints help.
#[derive(clap::Args)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct Arguments {
    /// USER, USER:GROUP, :GROUP, or USER: for the user's login group; numbers, or names of users and groups of this
    /// machine
    #[arg(value_parser = parse_owner)]
    owner: Owner,

    #[command(flatten)]
    options: ChownOptions,
}

/// The paths and options of `chown` and `chgrp`.
#[derive(clap::Args)]
pub struct ChownOptions {
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

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// The new user and group. None leaves the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: Option<OwnerId>,
    pub group: Option<OwnerId>,
}

/// A user or group, and how messages call it: as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerId {
    number: u32,
    name: String,
}

impl OwnerId {
    fn user(name: &str) -> Result<Self, String> {
        Ok(Self { number: user_id(name)?, name: name.to_owned() })
    }

    pub fn group(name: &str) -> Result<Self, String> {
        Ok(Self { number: group_id(name)?, name: name.to_owned() })
    }
}

fn parse_owner(text: &str) -> Result<Owner, String> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let is_named = |name: &&str| !name.is_empty();
    if !user.is_empty() && text.ends_with(':') {
        let known = User::from_name(user).ok().flatten();
        let known =
            known.ok_or_else(|| format!("unknown user {user}: give a group, as in {user}:100"))?;
        let gid = known.gid.as_raw();
        let name = OwnerNames::default().group(gid).map_or_else(|| gid.to_string(), str::to_owned);
        return Ok(Owner {
            user: Some(OwnerId::user(user)?),
            group: Some(OwnerId { number: gid, name }),
        });
    }
    let user = Some(user).filter(is_named).map(OwnerId::user).transpose()?;
    let group = Some(group).filter(is_named).map(OwnerId::group).transpose()?;
    match (user, group) {
        (None, None) => Err("expected USER, USER:GROUP or :GROUP, as in 1000:100".into()),
        (user, group) => Ok(Owner { user, group }),
    }
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    change_all(arguments.options, arguments.owner)
}

/// Changes the owners of files. Returns the exit code.
pub fn change_all(options: ChownOptions, owner: Owner) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&options.paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let follow = if options.no_dereference { Follow::No } else { Follow::Yes };
    let errors = ErrorSink::default();
    let names = RefCell::default();
    let job = ChownJob { volume: &volume, owner, verbose: options.verbose, errors: &errors, names };
    for path in options.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        let set = errors.record(job.change(&path, follow));
        if options.recursive && set.is_some() {
            errors.record(job.change_below(&path));
        }
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

struct ChownJob<'c> {
    volume: &'c Files,
    owner: Owner,
    verbose: VerboseOptions,
    errors: &'c ErrorSink,
    names: RefCell<OwnerNames>,
}

impl ChownJob<'_> {
    fn change(&self, path: &VolumePath, follow: Follow) -> Result<(), Error> {
        let number = |id: &Option<OwnerId>| id.as_ref().map(|id| id.number);
        let (user, group) = (number(&self.owner.user), number(&self.owner.group));
        let before = Cell::new(None);
        let set = self.volume.set_attributes(as_path(&path.bytes), follow, |inode| {
            before.set(Some((inode.user, inode.group)));
            inode.set_owner(user, group);
        });
        set.map_err(|error| with_path(path, error))?;
        match before.get().filter(|_| self.verbose.is_on()) {
            Some(before) => self.report(path, before),
            None => Ok(()),
        }
    }

    /// Prints the lines of coreutils.
    fn report(&self, path: &VolumePath, (old_user, old_group): (u32, u32)) -> Result<(), Error> {
        let Owner { user, group } = &self.owner;
        let mut names = self.names.borrow_mut();
        let old_user_name =
            names.user(old_user).map_or_else(|| old_user.to_string(), str::to_owned);
        let old_group_name =
            names.group(old_group).map_or_else(|| old_group.to_string(), str::to_owned);
        let is_changed = user.as_ref().is_some_and(|new| new.number != old_user)
            || group.as_ref().is_some_and(|new| new.number != old_group);
        let (what, old, new) = match (user, group) {
            (Some(user), Some(group)) => (
                "ownership",
                format!("{old_user_name}:{old_group_name}"),
                format!("{}:{}", user.name, group.name),
            ),
            (Some(user), None) => ("ownership", old_user_name, user.name.clone()),
            (None, Some(group)) => ("group", old_group_name, group.name.clone()),
            (None, None) => unreachable!("parse_owner returns at least one"),
        };
        let quoted = quoted(path);
        let (lead, rest) = match is_changed {
            true => ("changed ", format!(" from {old} to {new}")),
            false => ("", format!(" retained as {old}")),
        };
        self.verbose.print(&[lead.as_bytes(), what.as_bytes(), b" of ", &quoted, rest.as_bytes()])
    }

    /// Changes all entries below a directory. Follows no links. Uses no recursion, as trees may be deep.
    fn change_below(&self, top: &VolumePath) -> Result<(), Error> {
        let found = lookup(self.volume, &top.bytes).map_err(|error| with_path(top, error))?;
        let mut visited = VisitedDirectories::default();
        let mut left = Vec::from_iter((found.1.kind == FileType::Directory).then(|| top.clone()));
        while let Some(directory) = left.pop() {
            let entries = Entries::new(self.volume, &directory.bytes);
            for (path, entry) in entries.with_paths(&directory, self.errors) {
                self.errors.record(self.change(&path, Follow::No));
                if entry.kind == FileType::Directory
                    && self.errors.record(visited.visit(&path, entry.inode)).is_some()
                {
                    left.push(path);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        let number = |id: Option<OwnerId>| id.map(|id| id.number);
        let is = |text, user, group| {
            let owner = parse_owner(text).unwrap();
            assert_eq!((number(owner.user), number(owner.group)), (user, group), "{text}");
        };
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
