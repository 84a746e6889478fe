//! Access control lists, as Linux has them (POSIX.1e draft 17): checks them, and keeps a file's list and its mode in
//! step. Enforces nothing: that is for the program that passes a user's calls on.

use rustix::io::Errno;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::catalog::Key;
use crate::error::Error;
use crate::namespace::directory::shown;
use crate::namespace::transaction::{Records, Stop};
use crate::records::inode::InodeNumber;

/// The list of who may do what to a file.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The list that files get which are made in a directory.
pub(crate) const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

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
/// The number in entries that need none, and nobody's.
const NOBODY: u32 = u32::MAX;
/// What of a mode a list has, too.
const PERMISSIONS: u16 = 0o777;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    tag: U16,
    permissions: U16,
    /// The user's or group's number, where the tag is of a named one.
    id: U32,
}

impl Entry {
    fn is_named(&self) -> bool {
        [USER, GROUP].contains(&self.tag.get())
    }
}

/// An access control list (POSIX.1e draft 17), as its extended attribute has it.
pub(crate) struct AccessList(Vec<Entry>);

impl AccessList {
    /// None for what is none: a list has one entry each for the owner, the group and all others, and a
    /// mask if it names anybody else. Numbers of entries that need none are dropped.
    pub(crate) fn parse(value: &[u8]) -> Option<AccessList> {
        let entries = <[Entry]>::ref_from_bytes(value.strip_prefix(&VERSION)?).ok()?;
        let count = |tag| entries.iter().filter(|entry| entry.tag.get() == tag).count();
        let names = count(USER) + count(GROUP);
        let is_whole = [OWNER, OWNING_GROUP, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (names == 0 || count(MASK) == 1)
            && names + count(MASK) + 3 == entries.len();
        let is_in_order = entries.is_sorted_by_key(|entry| entry.tag.get());
        let is_possible = entries.iter().all(|entry| {
            entry.permissions.get() <= 7 && !(entry.is_named() && entry.id.get() == NOBODY)
        });
        let kept = |entry: &Entry| match entry.is_named() {
            true => *entry,
            false => Entry { id: NOBODY.into(), ..*entry },
        };
        (is_whole && is_in_order && is_possible)
            .then(|| AccessList(entries.iter().map(kept).collect()))
    }

    /// The entries that a mode's permissions stand for, each with its shift in the mode. The group's bits of a mode
    /// are the mask, if there is one.
    fn of_mode(&mut self) -> impl Iterator<Item = (&mut Entry, u32)> {
        let has_mask = self.0.iter().any(|entry| entry.tag.get() == MASK);
        self.0.iter_mut().filter_map(move |entry| match entry.tag.get() {
            OWNER => Some((entry, 6)),
            OWNING_GROUP if !has_mask => Some((entry, 3)),
            MASK => Some((entry, 3)),
            OTHERS => Some((entry, 0)),
            _ => None,
        })
    }

    /// Takes from owner, group and others what a mode does not give them, and from the mode what the
    /// list does not.
    pub(crate) fn meet(&mut self, mode: &mut u16) {
        *mode &= self.mode(*mode);
        self.take_mode(*mode);
    }

    /// A mode with this list's permissions instead of its own (`posix_acl_equiv_mode`).
    fn mode(&mut self, was: u16) -> u16 {
        let permissions = self.of_mode().map(|(entry, shift)| entry.permissions.get() << shift);
        was & !PERMISSIONS | permissions.sum::<u16>()
    }

    /// Has it say what a mode says (`posix_acl_chmod`).
    fn take_mode(&mut self, mode: u16) {
        self.of_mode().for_each(|(entry, shift)| entry.permissions.set(mode >> shift & 7));
    }

    /// Whether it says more than a mode can.
    pub(crate) fn says_more(&self) -> bool {
        self.0.len() > 3
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        [&VERSION[..], self.0.as_bytes()].concat()
    }
}

impl Records<'_> {
    /// Sets the mode by an access list that a file is given, and answers the value to keep of a list: none of one
    /// without entries, and none of an access list that says no more than the mode (`posix_acl_update_mode`).
    ///
    /// # Errors
    /// EINVAL for what is no list.
    pub(crate) fn take_list(
        &mut self,
        number: InodeNumber,
        name: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, Stop> {
        if value.is_empty() || value == VERSION {
            return Ok(None);
        }
        let Some(mut list) = AccessList::parse(value) else {
            let what = format!("what {} is to be is no access control list", shown(name));
            return Err(Error::refused(Errno::INVAL, what).into());
        };
        if name == ACCESS_LIST {
            self.change_inode(number, |inode| inode.permissions = list.mode(inode.permissions))?;
            if !list.says_more() {
                return Ok(None);
            }
        }
        Ok(Some(list.value()))
    }

    /// Has the access list of a file, if it has one, say what its mode says now.
    pub(crate) fn follow_mode(&mut self, number: InodeNumber, mode: u16) -> Result<(), Stop> {
        let key = Key::Xattr(number.0, ACCESS_LIST);
        let Some(value) = self.get(key)? else { return Ok(()) };
        let Some(mut list) = AccessList::parse(&value) else {
            let what = "the file's access control list; set it anew, or remove it";
            return Err(Error::damaged(what).into());
        };
        list.take_mode(mode);
        self.put(key, list.value());
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
            &[owner, (USER, 6, NOBODY), group, mask, others],
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
