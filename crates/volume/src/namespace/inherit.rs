//! What a file that is made takes over from its directory, as on Linux: the group, where the directory's
//! set-group-ID bit says so, and access control lists.

use crate::catalog::Key;
use crate::error::Error;
use crate::namespace::acl::{ACCESS_LIST, AccessList, DEFAULT_LIST};
use crate::namespace::transaction::{Records, Stop};
use crate::records::inode::{FileKind, Inode, InodeNumber};

/// What is made in the directory gets its group; of a file, that it runs as its group.
pub(crate) const SET_GROUP: u16 = 0o2000;

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
