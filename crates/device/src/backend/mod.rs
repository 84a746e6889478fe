//! Where data lives: an ordinary [`mod@file`], a [`block`] device, [`memory`],
//! nothing ([`null`]), a simulated device ([`sim`]); and how one is named
//! ([`Target`]).

mod descriptor;
mod discard;
mod size;
mod sysfs;
mod target;

pub mod block;
pub mod file;
pub mod in_use;
pub mod memory;
pub mod null;
pub mod sim;

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::device::{Access, Backend};

pub use size::parse_size;
pub use target::Target;

/// How long a device that somebody has is asked for again: the kernel takes the files out of a ring some
/// moments after the process that had it has ended.
const PATIENCE: Duration = Duration::from_millis(500);

/// The back end for what `path` names: a block device or an ordinary file. What is mounted, swap, or in
/// the kernel's use in another way, is not opened for writing, nor is the file of a loop device that is so
/// (see [`in_use`]).
///
/// # Errors
/// In one line what stands in the way, with the path and what to do about it.
pub fn open(path: &Path, access: Access) -> io::Result<Box<dyn Backend>> {
    let metadata = std::fs::metadata(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(errno) => explain(path, access, errno),
        None => error,
    })?;
    if access == Access::ReadWrite && (file::serves(&metadata) || block::serves(&metadata)) {
        refuse_used(path)?;
    }
    if file::serves(&metadata) {
        Ok(Box::new(file::File::open(path, access)?))
    } else if block::serves(&metadata) {
        Ok(Box::new(block::Block::open(path, access)?))
    } else if metadata.is_dir() {
        Err(explain(path, access, Errno::ISDIR))
    } else {
        // Not opened to see: opening a pipe waits for its other end.
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is neither a file nor a block device; name one of these", path.display()),
        ))
    }
}

/// Refuses what somebody has, with a little patience.
fn refuse_used(path: &Path) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while let Some(user) = in_use::user(path) {
        if Instant::now() >= until {
            let what =
                format!("{} {user}; end that first, or open it for reading only", path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        sleep(PATIENCE / 50);
    }
    Ok(())
}

/// One line for people: the path, what is wrong with it, what to do.
fn explain(path: &Path, access: Access, errno: Errno) -> io::Error {
    let path = path.display();
    let writing = access == Access::ReadWrite;
    let text = match errno {
        Errno::NOENT => format!("{path} does not exist; check the name, or make an image first"),
        Errno::EXIST => format!("{path} exists already; remove it or choose another name"),
        Errno::ISDIR => format!("{path} is a directory; name a file or a block device"),
        Errno::NOTDIR => format!("{path}: a part of the path is not a directory; check the name"),
        Errno::ACCESS | Errno::PERM if writing => {
            format!("{path}: no permission to write; change its mode or owner, or run as its owner")
        }
        Errno::ACCESS | Errno::PERM => {
            format!("{path}: no permission to read; change its mode or owner, or run as its owner")
        }
        Errno::ROFS => {
            format!("{path} is read-only; open it for reading only, or make it writable")
        }
        Errno::BUSY => format!(
            "{path} is mounted or in use by another program; unmount or stop that first, \
             or open it for reading only"
        ),
        Errno::TXTBSY => format!("{path} is being executed; stop the program first"),
        Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => {
            format!("{path}: there is no device behind this name; attach it first")
        }
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            format!("{path}: no room for it ({errno}); free some, or choose a smaller size")
        }
        Errno::MFILE | Errno::NFILE => {
            format!("{path}: too many open files; close some, or raise the limit (ulimit -n)")
        }
        errno => format!("{path}: {errno}"),
    };
    io::Error::new(io::Error::from(errno).kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path, access: Access) -> String {
        let error = open(path, access).err().expect("refused").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(!error.contains('\n'), "{error}");
        error
    }

    #[test]
    fn what_cannot_be_a_device_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let missing = error(&folder.path().join("missing"), Access::Read);
        assert!(missing.contains("does not exist"), "{missing}");
        let directory = error(folder.path(), Access::Read);
        assert!(directory.contains("is a directory"), "{directory}");
        let character = error(Path::new("/dev/null"), Access::ReadWrite);
        assert!(character.contains("neither a file nor a block device"), "{character}");
        let below = folder.path().join("file");
        std::fs::write(&below, "x").unwrap();
        let below = error(&below.join("deeper"), Access::Read);
        assert!(below.contains("not a directory"), "{below}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let path = Path::new("/dev/some");
        for (errno, advice) in [
            (Errno::BUSY, "unmount"),
            (Errno::ROFS, "for reading only"),
            (Errno::ACCESS, "run as its owner"),
            (Errno::MFILE, "ulimit -n"),
        ] {
            let text = explain(path, Access::ReadWrite, errno).to_string();
            assert!(text.contains(advice) && text.contains("/dev/some"), "{text}");
        }
        let kind = explain(path, Access::ReadWrite, Errno::BUSY).kind();
        assert_eq!(kind, io::ErrorKind::ResourceBusy);
    }
}
