//! The names of users and groups on this machine.

use nix::unistd::{Gid, Group, Uid, User};
use std::collections::HashMap;

/// Names by their numbers. Each is looked up once.
#[derive(Default)]
pub struct OwnerNames {
    users: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Option<String>>,
}

impl OwnerNames {
    /// The name of a user, if there is one.
    pub fn user(&mut self, number: u32) -> Option<&str> {
        let find = || User::from_uid(Uid::from_raw(number)).ok().flatten().map(|user| user.name);
        self.users.entry(number).or_insert_with(find).as_deref()
    }

    /// The name of a group, if there is one.
    pub fn group(&mut self, number: u32) -> Option<&str> {
        let find = || Group::from_gid(Gid::from_raw(number)).ok().flatten().map(|group| group.name);
        self.groups.entry(number).or_insert_with(find).as_deref()
    }
}

/// The number of a user, by its name or as it is.
pub fn user_id(name: &str) -> Result<u32, String> {
    let known = || User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    name.parse().ok().or_else(known).ok_or_else(|| format!("unknown user {name}"))
}

/// The number of a group, by its name or as it is.
pub fn group_id(name: &str) -> Result<u32, String> {
    let known = || Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    name.parse().ok().or_else(known).ok_or_else(|| format!("unknown group {name}"))
}
