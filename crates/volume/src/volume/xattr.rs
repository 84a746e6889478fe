//! Extended attributes: values under names that begin with a namespace (`xattr(7)`).

use std::path::Path;

use uringfs_device::Errno;

use crate::catalog::{Key, Table};
use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, OfPath, quoted};
use crate::namespace::acl::{ACCESS_ACL, DEFAULT_ACL};
use crate::namespace::path::{Follow, InodeAt, bytes};
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileType, Inode, InodeNumber, Time};
use crate::volume::volume::Volume;

/// The longest name, with its namespace (`XATTR_NAME_MAX`).
const MAX_NAME_BYTES: usize = 255;
/// The largest value (`XATTR_SIZE_MAX`).
const MAX_VALUE_BYTES: usize = 65_536;
/// All names of a file, each with a terminating zero (`XATTR_LIST_MAX`).
const MAX_LIST_BYTES: usize = 65_536;

/// The privileges that a program file grants when it runs (`capabilities(7)`).
const CAPABILITY: &[u8] = b"security.capability";

/// Conditions for setting an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetXattr {
    /// Sets it in either case.
    #[default]
    Either,
    /// EEXIST if it exists (`XATTR_CREATE`).
    Create,
    /// ENODATA if it does not exist (`XATTR_REPLACE`).
    Replace,
}

impl Volume {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA when the file has no attribute of this name; EOPNOTSUPP for a name outside `user.`, `trusted.`,
    /// `security.` and `system.posix_acl_*`; ERANGE for an empty name or one of more than 255 bytes; other errors of
    /// paths.
    pub fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, Error> {
        run_blocking(self.shared.run_transaction(
            WaitMode::Blocking,
            get(InodeAt::Path(bytes(&path), follow), name.as_ref()),
        ))
        .of_path(bytes(&path))
    }

    /// The names of a file's extended attributes, in the order of their bytes.
    ///
    /// # Errors
    /// Errors of paths.
    pub fn list_xattrs(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
    ) -> Result<Vec<Vec<u8>>, Error> {
        run_blocking(
            self.shared
                .run_transaction(WaitMode::Blocking, list(InodeAt::Path(bytes(&path), follow))),
        )
        .of_path(bytes(&path))
    }

    /// Sets an extended attribute.
    ///
    /// Access control lists behave as on Linux. `system.posix_acl_access` and the mode stay in step: setting a list
    /// sets the mode's permissions, and a list that grants no more than the mode is not stored. An empty list removes the
    /// attribute, and `how` does not apply to lists. The set-group-ID bit stays: to clear it for a caller outside the
    /// group use [`Volume::set_attributes`].
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_volume::*; pub use uringfs_volume as volume; }
    /// use uringfs::volume::{Follow, SetXattr};
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// volume.write("/file", "x")?;
    /// volume.set_xattr("/file", Follow::Yes, "user.origin", b"scanner", SetXattr::Create)?;
    /// assert_eq!(volume.get_xattr("/file", Follow::Yes, "user.origin")?, b"scanner");
    /// assert_eq!(volume.list_xattrs("/file", Follow::Yes)?, [b"user.origin"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::get_xattr`]; EEXIST and ENODATA as `how` says; E2BIG for a value of more than 65536 bytes; ENOSPC when
    /// the file's attribute names would together exceed 65536 bytes; EINVAL for a malformed access control list; EPERM
    /// for `user.` on anything but files and directories, EACCES for a default list on anything but a directory,
    /// EOPNOTSUPP for a list on a symbolic link.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        run_blocking(self.change(
            WaitMode::Blocking,
            set(InodeAt::Path(bytes(&path), follow), name.as_ref(), value, how),
        ))
        .of_path(bytes(&path))
    }

    /// Removes an extended attribute. Removing an access control list leaves the mode as it is, and succeeds if there
    /// is none.
    ///
    /// # Errors
    /// As [`Self::get_xattr`] and [`Self::set_xattr`].
    pub fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        run_blocking(
            self.change(
                WaitMode::Blocking,
                remove(InodeAt::Path(bytes(&path), follow), name.as_ref()),
            ),
        )
        .of_path(bytes(&path))
    }
}

pub(crate) fn get(
    at: InodeAt<'_>,
    name: &[u8],
) -> impl FnMut(&mut Transaction<'_>) -> Result<Vec<u8>, Retry> {
    move |transaction| {
        let number = transaction.inode_at(at)?;
        let name = check_name(name)?;
        let value = transaction.get(Key::Xattr(number.0, name))?;
        value.map(<[u8]>::to_vec).ok_or_else(|| no_attribute(name))
    }
}

pub(crate) fn list(
    at: InodeAt<'_>,
) -> impl FnMut(&mut Transaction<'_>) -> Result<Vec<Vec<u8>>, Retry> {
    move |transaction| {
        let number = transaction.inode_at(at)?;
        transaction.xattr_names(number)
    }
}

pub(crate) fn set(
    at: InodeAt<'_>,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> impl FnMut(&mut Transaction<'_>) -> Result<(), Retry> {
    move |transaction| {
        let number = transaction.find_for_change(at, name)?;
        if value.len() > MAX_VALUE_BYTES {
            let what = format!("a value of {} bytes: the maximum is 65536", value.len());
            return Err(Error::refused(Errno::TOOBIG, what).into());
        }
        let is_there = transaction.get(Key::Xattr(number.0, name))?.is_some();
        let stored = match (is_there, how) {
            _ if is_acl(name) => transaction.apply_acl(number, name, value)?,
            (true, SetXattr::Create) => {
                let what = format!("the attribute {} already exists", quoted(name));
                return Err(Error::refused(Errno::EXIST, what).into());
            }
            (false, SetXattr::Replace) => return Err(no_attribute(name)),
            _ => Some(value.to_vec()),
        };
        match stored {
            Some(value) => {
                if !is_there {
                    transaction.check_list_length(number, name)?;
                }
                transaction.put(Key::Xattr(number.0, name), value);
            }
            None if is_there => transaction.delete(Key::Xattr(number.0, name)),
            None => {}
        }
        if name == CAPABILITY
            && let Some(open) = transaction.find_open(number)
        {
            open.set_may_have_capability(true);
        }
        Ok(())
    }
}

/// Sets attributes of the inode that an operation makes, in the same transaction.
pub(crate) fn set_on_new(
    mut make: impl FnMut(&mut Transaction<'_>) -> Result<(InodeNumber, Inode), Retry>,
    xattrs: &[(&[u8], &[u8])],
) -> impl FnMut(&mut Transaction<'_>) -> Result<(InodeNumber, Inode), Retry> {
    move |transaction| {
        let (number, mut inode) = make(transaction)?;
        for (name, value) in xattrs {
            set(InodeAt::Number(number), name, value, SetXattr::Either)(transaction)?;
            inode = transaction.inode(number)?;
        }
        Ok((number, inode))
    }
}

pub(crate) fn remove(
    at: InodeAt<'_>,
    name: &[u8],
) -> impl FnMut(&mut Transaction<'_>) -> Result<(), Retry> {
    move |transaction| {
        let number = transaction.find_for_change(at, name)?;
        match transaction.get(Key::Xattr(number.0, name))? {
            Some(_) => transaction.delete(Key::Xattr(number.0, name)),
            // The list may be in the mode alone.
            None if is_acl(name) => {}
            None => return Err(no_attribute(name)),
        }
        Ok(())
    }
}

impl Transaction<'_> {
    fn xattr_names(&self, number: InodeNumber) -> Result<Vec<Vec<u8>>, Retry> {
        let all = self.all(Table::Xattrs, number)?;
        Ok(all.into_iter().map(|(key, _)| key[8..].to_vec()).collect())
    }

    /// Checks that one more name does not make the list of names too long.
    fn check_list_length(&self, number: InodeNumber, name: &[u8]) -> Result<(), Retry> {
        let names = self.xattr_names(number)?;
        let listed: usize = names.iter().map(|name| name.len() + 1).sum();
        if listed + name.len() + 1 > MAX_LIST_BYTES {
            let what = "the names of its attributes would be longer than 65536 bytes";
            return Err(Error::refused(Errno::NOSPC, what).into());
        }
        Ok(())
    }

    /// Finds an inode to change one of its attributes; updates the inode's change time.
    fn find_for_change(&mut self, at: InodeAt<'_>, name: &[u8]) -> Result<InodeNumber, Retry> {
        let number = self.inode_at(at)?;
        let mut inode = self.inode(number)?;
        check_kind(check_name(name)?, &inode)?;
        inode.changed = Time::now();
        self.put_inode(number, &inode);
        Ok(number)
    }

    /// Removes `security.capability`. False if the file has none.
    pub(crate) fn remove_capability(&mut self, number: InodeNumber) -> Result<bool, Retry> {
        let is_there = self.has_capability(number)?;
        if is_there {
            self.delete(Key::Xattr(number.0, CAPABILITY));
        }
        Ok(is_there)
    }

    /// True if the file has `security.capability`.
    pub(crate) fn has_capability(&self, number: InodeNumber) -> Result<bool, Retry> {
        Ok(self.get(Key::Xattr(number.0, CAPABILITY))?.is_some())
    }
}

/// Checks that a name can be one of an attribute.
fn check_name(name: &[u8]) -> Result<&[u8], Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let what = format!("an attribute's name of {} bytes: 1 to 255 are allowed", name.len());
        return Err(Error::refused(Errno::RANGE, what));
    }
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_known =
        NAMESPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    match is_known && !name.contains(&0) || is_acl(name) {
        true => Ok(name),
        false => {
            let what = format!(
                "the attribute {}: names begin with user., trusted. or security., or are \
                 system.posix_acl_access or system.posix_acl_default",
                quoted(name)
            );
            Err(Error::refused(Errno::OPNOTSUPP, what))
        }
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Checks that a file of this kind can have the attribute, as Linux does.
fn check_kind(name: &[u8], inode: &Inode) -> Result<(), Error> {
    let refuse = |errno, what: &str| Err(Error::refused(errno, what));
    match inode.kind {
        FileType::File | FileType::Directory if !is_acl(name) => Ok(()),
        FileType::Symlink if is_acl(name) => {
            refuse(Errno::OPNOTSUPP, "a symbolic link has no access control list")
        }
        FileType::Directory => Ok(()),
        _ if name == DEFAULT_ACL => {
            refuse(Errno::ACCESS, "only a directory has a default access control list")
        }
        _ if name.starts_with(b"user.") => {
            refuse(Errno::PERM, "only files and directories have user attributes")
        }
        _ => Ok(()),
    }
}

fn no_attribute(name: &[u8]) -> Retry {
    Error::refused(Errno::NODATA, format!("there is no attribute {}", quoted(name))).into()
}
