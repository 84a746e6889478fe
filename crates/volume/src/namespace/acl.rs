//! POSIX access control lists as on Linux (POSIX.1e draft 17): parses them, and keeps a file's list and its mode in
//! step. Does not check access: the caller of this crate does that.
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use uringfs_device::Errno;

use crate::catalog::Key;
use crate::error::{Error, quoted};
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::InodeNumber;

/// The access list of a file.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The list that new files of a directory inherit.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The version of the format, in front of the entries (`linux/posix_acl_xattr.h`).
const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// Tags of entries, in the order in which a list has them.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
/// The upper bound on the permissions of named users and all groups.
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries that are not of a named user or group.
const UNDEFINED_ID: u32 = u32::MAX;
/// The bits of a mode that a list has too.
const PERMISSION_BITS: u16 = 0o777;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AclEntry {
    tag: U16,
    permissions: U16,
    /// The uid or gid of a named entry.
    id: U32,
}

impl AclEntry {
    fn is_named(&self) -> bool {
        [USER, GROUP].contains(&self.tag.get())
    }
}

/// An access control list, as its extended attribute stores it.
pub(crate) struct PosixAcl(Vec<AclEntry>);

impl PosixAcl {
    /// `None` for a malformed list. A list has one entry each for owner, group and others, and a mask if it names
    /// further users or groups. Clears the ids of entries that need none.
    pub(crate) fn parse(value: &[u8]) -> Option<PosixAcl> {
        let entries = <[AclEntry]>::ref_from_bytes(value.strip_prefix(&VERSION)?).ok()?;
        let count = |tag| entries.iter().filter(|entry| entry.tag.get() == tag).count();
        let names = count(USER) + count(GROUP);
        let is_whole = [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (names == 0 || count(MASK) == 1)
            && names + count(MASK) + 3 == entries.len();
        let is_in_order = entries.is_sorted_by_key(|entry| entry.tag.get());
        let is_possible = entries.iter().all(|entry| {
            entry.permissions.get() <= 7 && !(entry.is_named() && entry.id.get() == UNDEFINED_ID)
        });
        let kept = |entry: &AclEntry| match entry.is_named() {
            true => *entry,
            false => AclEntry { id: UNDEFINED_ID.into(), ..*entry },
        };
        (is_whole && is_in_order && is_possible)
            .then(|| PosixAcl(entries.iter().map(kept).collect()))
    }

    /// The entries that correspond to a mode's permissions, each with its shift in the mode. The mode's group bits are
    /// those of the mask, if there is one.
    fn mode_entries(&mut self) -> impl Iterator<Item = (&mut AclEntry, u32)> {
        let has_mask = self.0.iter().any(|entry| entry.tag.get() == MASK);
        self.0.iter_mut().filter_map(move |entry| match entry.tag.get() {
            USER_OBJ => Some((entry, 6)),
            GROUP_OBJ if !has_mask => Some((entry, 3)),
            MASK => Some((entry, 3)),
            OTHER => Some((entry, 0)),
            _ => None,
        })
    }

    /// Removes from the entries of owner, group and others what the mode does not grant, and from the mode what the
    /// list does not grant.
    pub(crate) fn intersect_mode(&mut self, mode: &mut u16) {
        *mode &= self.equivalent_mode(*mode);
        self.set_mode(*mode);
    }

    /// `was` with this list's permissions (`posix_acl_equiv_mode`).
    fn equivalent_mode(&mut self, was: u16) -> u16 {
        let permissions =
            self.mode_entries().map(|(entry, shift)| entry.permissions.get() << shift);
        was & !PERMISSION_BITS | permissions.sum::<u16>()
    }

    /// Sets the entries that correspond to a mode (`posix_acl_chmod`).
    fn set_mode(&mut self, mode: u16) {
        self.mode_entries().for_each(|(entry, shift)| entry.permissions.set(mode >> shift & 7));
    }

    /// True if a mode cannot express the list.
    pub(crate) fn is_extended(&self) -> bool {
        self.0.len() > 3
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        [&VERSION[..], self.0.as_bytes()].concat()
    }
}

impl Transaction<'_> {
    /// Sets a file's mode from a new access list. Returns the value to store: `None` for an empty list, and for an
    /// access list that a mode can express (`posix_acl_update_mode`).
    ///
    /// # Errors
    /// EINVAL for a malformed list.
    pub(crate) fn apply_acl(
        &mut self,
        number: InodeNumber,
        name: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, Retry> {
        if value.is_empty() || value == VERSION {
            return Ok(None);
        }
        let Some(mut acl) = PosixAcl::parse(value) else {
            let what = format!("the value of {} is not an access control list", quoted(name));
            return Err(Error::refused(Errno::INVAL, what).into());
        };
        if name == ACCESS_ACL {
            self.change_inode(number, |inode| {
                inode.permissions = acl.equivalent_mode(inode.permissions)
            })?;
            if !acl.is_extended() {
                return Ok(None);
            }
        }
        Ok(Some(acl.value()))
    }

    /// Sets the access list of a file from its new mode, if it has one.
    pub(crate) fn update_acl_mode(&mut self, number: InodeNumber, mode: u16) -> Result<(), Retry> {
        let key = Key::Xattr(number.0, ACCESS_ACL);
        let Some(value) = self.get(key)? else { return Ok(()) };
        let Some(mut acl) = PosixAcl::parse(value) else {
            let what = "the file's access control list is damaged; set it again, or remove it";
            return Err(Error::damaged(what).into());
        };
        acl.set_mode(mode);
        self.put(key, acl.value());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, permissions, id): &(u16, u16, u32)| AclEntry {
            tag: (*tag).into(),
            permissions: (*permissions).into(),
            id: (*id).into(),
        };
        PosixAcl(entries.iter().map(entry).collect()).value()
    }

    #[test]
    fn a_malformed_list_is_refused() {
        let [owner, user, group, mask, others] = [
            (USER_OBJ, 7, u32::MAX),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, u32::MAX),
            (MASK, 7, u32::MAX),
            (OTHER, 0, u32::MAX),
        ];
        for entries in [&[owner, group, others][..], &[owner, user, group, mask, others]] {
            let value = value(entries);
            assert_eq!(PosixAcl::parse(&value).unwrap().value(), value);
            for length in 0..value.len() {
                assert!(PosixAcl::parse(&value[..length]).is_none(), "{length}");
            }
            assert!(PosixAcl::parse(&[&[3], &value[1..]].concat()).is_none());
        }
        for entries in [
            &[owner, user, group, others][..],
            &[owner, group, user, mask, others],
            &[owner, owner, group, others],
            &[owner, group, mask, mask, others],
            &[owner, group, others, (0x40, 7, 0)],
            &[(USER_OBJ, 8, u32::MAX), group, others],
            &[owner, (USER, 6, UNDEFINED_ID), group, mask, others],
        ] {
            assert!(PosixAcl::parse(&value(entries)).is_none(), "{entries:?}");
        }
    }

    #[test]
    fn intersecting_a_list_and_a_mode_leaves_common_permissions() {
        let met = |entries: &[(u16, u16, u32)], mut mode| {
            let mut acl = PosixAcl::parse(&value(entries)).unwrap();
            acl.intersect_mode(&mut mode);
            let given = acl.0.iter().map(|entry| entry.permissions.get()).collect::<Vec<_>>();
            (mode, given, acl.is_extended())
        };
        let plain = [(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 4, 0)];
        assert_eq!(met(&plain, 0o4666), (0o4644, vec![6, 4, 4], false));
        let named =
            [(USER_OBJ, 7, 0), (USER, 7, 1000), (GROUP_OBJ, 4, 0), (MASK, 6, 0), (OTHER, 1, 0)];
        assert_eq!(met(&named, 0o755), (0o741, vec![7, 7, 4, 4, 1], true));
    }
}
