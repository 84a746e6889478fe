//! What a file that is made takes over from its directory, as on Linux: the group, where the directory's
//! set-group-ID bit says so, and access control lists.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::catalog::Key;
use crate::error::Error;
use crate::inode::{FileKind, Inode, InodeNumber};
use crate::records::{Records, Stop};

/// The list of who may do what to a file.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The list that files get which are made in a directory.
pub(crate) const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// What is made in the directory gets its group; of a file, that it runs as its group.
pub(crate) const SET_GROUP: u16 = 0o2000;

/// The format's version in front of the entries (`linux/posix_acl_xattr.h`).
const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// Whom an entry is for. A list has them in this order.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
/// The most that named users and any group may do.
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    tag: U16,
    permissions: U16,
    /// The user's or group's number, where the tag is of a named one.
    id: U32,
}

/// An access control list (POSIX.1e draft 17), as its extended attribute has it.
pub(crate) struct AccessList(Vec<Entry>);

impl AccessList {
    /// None for what is none: a list has one entry each for the owner, the group and all others, and a
    /// mask if it names anybody else.
    pub(crate) fn parse(value: &[u8]) -> Option<AccessList> {
        let entries = <[Entry]>::ref_from_bytes(value.strip_prefix(&VERSION)?).ok()?;
        let count = |tag| entries.iter().filter(|entry| entry.tag.get() == tag).count();
        let names = count(USER) + count(GROUP);
        let is_whole = [OWNER, OWNING_GROUP, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (names == 0 || count(MASK) == 1)
            && names + count(MASK) + 3 == entries.len();
        let is_in_order = entries.is_sorted_by_key(|entry| entry.tag.get());
        let is_possible = entries.iter().all(|entry| entry.permissions.get() <= 7);
        (is_whole && is_in_order && is_possible).then(|| AccessList(entries.to_vec()))
    }

    /// Takes from owner, group and others what a mode does not give them, and from the mode what the
    /// list does not.
    fn meet(&mut self, mode: &mut u16) {
        // What the mode says of a group is the mask, where there is one.
        let has_mask = self.0.iter().any(|entry| entry.tag.get() == MASK);
        let group = if has_mask { MASK } else { OWNING_GROUP };
        for (tag, shift) in [(OWNER, 6), (group, 3), (OTHERS, 0)] {
            for entry in self.0.iter_mut().filter(|entry| entry.tag.get() == tag) {
                let both = entry.permissions.get() & (*mode >> shift);
                entry.permissions.set(both);
                *mode = *mode & !(7 << shift) | both << shift;
            }
        }
    }

    /// Whether it says more than a mode can.
    fn says_more(&self) -> bool {
        self.0.len() > 3
    }

    fn value(&self) -> Vec<u8> {
        [&VERSION[..], self.0.as_bytes()].concat()
    }
}

impl Records<'_> {
    /// Gives a file that is being made what its directory hands on.
    pub(crate) fn inherit(
        &mut self,
        (directory, parent): (InodeNumber, &Inode),
        number: InodeNumber,
        new: &mut Inode,
    ) -> Result<(), Stop> {
        if parent.permissions & SET_GROUP != 0 {
            new.group = parent.group;
            if new.kind == FileKind::Directory {
                new.permissions |= SET_GROUP;
            }
        }
        if new.kind == FileKind::Symlink {
            return Ok(());
        }
        let Some(value) = self.get(Key::Xattr(directory.0, DEFAULT_LIST))? else { return Ok(()) };
        let Some(mut list) = AccessList::parse(&value) else {
            let what = "the directory's default access control list; set it anew, or remove it";
            return Err(Error::damaged(what).into());
        };
        if new.kind == FileKind::Directory {
            self.put(Key::Xattr(number.0, DEFAULT_LIST), value);
        }
        list.meet(&mut new.permissions);
        if list.says_more() {
            self.put(Key::Xattr(number.0, ACCESS_LIST), list.value());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, permissions, id): &(u16, u16, u32)| Entry {
            tag: (*tag).into(),
            permissions: (*permissions).into(),
            id: (*id).into(),
        };
        AccessList(entries.iter().map(entry).collect()).value()
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let [owner, user, group, mask, others] = [
            (OWNER, 7, u32::MAX),
            (USER, 6, 1000),
            (OWNING_GROUP, 5, u32::MAX),
            (MASK, 7, u32::MAX),
            (OTHERS, 0, u32::MAX),
        ];
        for entries in [&[owner, group, others][..], &[owner, user, group, mask, others]] {
            let value = value(entries);
            assert_eq!(AccessList::parse(&value).unwrap().value(), value);
            for length in 0..value.len() {
                assert!(AccessList::parse(&value[..length]).is_none(), "{length}");
            }
            assert!(AccessList::parse(&[&[3], &value[1..]].concat()).is_none());
        }
        for entries in [
            &[owner, user, group, others][..],
            &[owner, group, user, mask, others],
            &[owner, owner, group, others],
            &[owner, group, mask, mask, others],
            &[owner, group, others, (0x40, 7, 0)],
            &[(OWNER, 8, u32::MAX), group, others],
        ] {
            assert!(AccessList::parse(&value(entries)).is_none(), "{entries:?}");
        }
    }

    #[test]
    fn a_list_and_a_mode_leave_what_both_give() {
        let met = |entries: &[(u16, u16, u32)], mut mode| {
            let mut list = AccessList::parse(&value(entries)).unwrap();
            list.meet(&mut mode);
            let given = list.0.iter().map(|entry| entry.permissions.get()).collect::<Vec<_>>();
            (mode, given, list.says_more())
        };
        let plain = [(OWNER, 7, 0), (OWNING_GROUP, 5, 0), (OTHERS, 4, 0)];
        assert_eq!(met(&plain, 0o4666), (0o4644, vec![6, 4, 4], false));
        let named =
            [(OWNER, 7, 0), (USER, 7, 1000), (OWNING_GROUP, 4, 0), (MASK, 6, 0), (OTHERS, 1, 0)];
        assert_eq!(met(&named, 0o755), (0o741, vec![7, 7, 4, 4, 1], true));
    }
}
