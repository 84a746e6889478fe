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
