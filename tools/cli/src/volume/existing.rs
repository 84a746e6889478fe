//! What `put` and `get` do with what is there already, and the files that none of them touches: those of
//! the volume itself.

use super::host::{Identity, identity};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs::FileKind;
use uringfs_lab::Error;

/// What the user wants.
#[derive(clap::Args, Clone, Copy)]
pub struct Existing {
    /// Leave what is there as it is
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,

    /// Replace devices, FIFOs and sockets that are there, too
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
}

/// How something new comes to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The name is free.
    Make,
    /// What has the name gives way.
    Replace,
    /// A directory that is there: what is in the new one goes into it.
    Fill,
    /// What is there stays.
    Leave,
}

impl Existing {
    /// The rule, where something of the kind `there` has the name that something of the kind `new` is to get;
    /// or why it cannot.
    pub fn turn(self, there: FileKind, new: FileKind) -> Result<Turn, &'static str> {
        let is_special = !matches!(there, FileKind::File | FileKind::Symlink);
        match (there, new) {
            (FileKind::Directory, FileKind::Directory) => Ok(Turn::Fill),
            (FileKind::Directory, _) => Err("what is there is a directory"),
            (_, FileKind::Directory) => Err("what is there is no directory"),
            _ if self.no_clobber => Ok(Turn::Leave),
            _ if is_special && !self.force && !is_like(there, new) => {
                Err("what is there is neither a file nor a link; -f replaces it")
            }
            _ => Ok(Turn::Replace),
        }
    }

    /// Whether what is there stays as it is, directories with their attributes.
    pub fn leaves(self) -> bool {
        self.no_clobber
    }
}

fn is_like(one: FileKind, other: FileKind) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

/// The files that a volume is in: its image by any name, or what a loop device has below it.
pub struct Image(Vec<Identity>);

impl Image {
    /// Of the volume at a path.
    pub fn of(target: &OsStr) -> Result<Self, Error> {
        let target = Path::new(target);
        let mut files = Vec::new();
        let mut next = Some(target.to_owned());
        while let Some(found) = next.take().map(|path| path.metadata()) {
            // A file below a device may have no name any more.
            let Ok(found) = found else { break };
            if files.contains(&identity(&found)) {
                break;
            }
            files.push(identity(&found));
            if found.file_type().is_block_device() {
                next = backing_file(found.rdev());
            }
        }
        match files.is_empty() {
            true => Err(Error::run(format!("{}: is not there any more", target.display()))),
            false => Ok(Self(files)),
        }
    }

    pub fn has(&self, found: &Metadata) -> bool {
        self.0.contains(&identity(found))
    }

    /// Whether it is what this reads or writes.
    pub fn has_open(&self, descriptor: &impl AsFd) -> io::Result<bool> {
        let found = std::fs::File::from(descriptor.as_fd().try_clone_to_owned()?).metadata()?;
        Ok(self.has(&found))
    }
}

/// The file below a loop device, or below the one that a partition is on.
fn backing_file(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let path = [node.join("loop/backing_file"), node.parent()?.join("loop/backing_file")]
        .iter()
        .find_map(|path| std::fs::read(path).ok())?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some(OsStr::from_bytes(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_gives_way_as_the_rule_says() {
        use FileKind::*;
        let rule = |no_clobber, force| Existing { no_clobber, force };
        let plain = rule(false, false);
        for new in [File, Symlink, Fifo, BlockDevice(1)] {
            for there in [File, Symlink] {
                assert_eq!(plain.turn(there, new), Ok(Turn::Replace));
                assert_eq!(rule(true, false).turn(there, new), Ok(Turn::Leave));
            }
            for rule in [plain, rule(true, false), rule(false, true)] {
                assert!(rule.turn(Directory, new).is_err() && rule.turn(new, Directory).is_err());
                assert_eq!(rule.turn(Directory, Directory), Ok(Turn::Fill));
            }
        }
        assert_eq!(plain.turn(BlockDevice(1), BlockDevice(2)), Ok(Turn::Replace));
        assert!(plain.turn(Fifo, File).is_err() && plain.turn(Socket, Fifo).is_err());
        assert_eq!(rule(false, true).turn(Fifo, File), Ok(Turn::Replace));
    }
}
