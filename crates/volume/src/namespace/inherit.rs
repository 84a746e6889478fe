//! Inheritance of a new file from its directory, as on Linux: the group, if the directory's set-group-ID bit is set,
//! and access control lists.

use crate::catalog::Key;
use crate::error::Error;
use crate::namespace::acl::{ACCESS_ACL, DEFAULT_ACL, PosixAcl};
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileType, Inode, InodeNumber};

/// The set-group-ID bit. On a directory: new files inherit its group. On a file: it runs as its group.
pub(crate) const SET_GROUP: u16 = 0o2000;

impl Transaction<'_> {
    /// Applies the inheritance to a new file.
    pub(crate) fn inherit(
        &mut self,
        (directory, parent): (InodeNumber, &Inode),
        number: InodeNumber,
        new: &mut Inode,
    ) -> Result<(), Retry> {
        if parent.permissions & SET_GROUP != 0 {
            new.group = parent.group;
            if new.kind == FileType::Directory {
                new.permissions |= SET_GROUP;
            }
        }
        if new.kind == FileType::Symlink {
            return Ok(());
        }
        let Some(value) = self.get(Key::Xattr(directory.0, DEFAULT_ACL))? else { return Ok(()) };
        let Some(mut acl) = PosixAcl::parse(value) else {
            let what = "the directory's default access control list is damaged; set it again, or remove it";
            return Err(Error::damaged(what).into());
        };
        if new.kind == FileType::Directory {
            let value = value.to_vec();
            self.put(Key::Xattr(number.0, DEFAULT_ACL), value);
        }
        acl.intersect_mode(&mut new.permissions);
        if acl.is_extended() {
            self.put(Key::Xattr(number.0, ACCESS_ACL), acl.value());
        }
        Ok(())
    }
}
