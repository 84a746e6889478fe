//! Error messages for paths that cannot be opened.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;
use uringfs_errno::Errno;

use crate::interface::backend::Access;

/// The time to wait for a device that is in use: the kernel closes the files of a ring only some moments
/// after its process has exited.
pub(super) const IN_USE_TIMEOUT: Duration = Duration::from_millis(500);

/// [`open_error`] for a path that is to be created.
pub(super) fn create_error(path: &Path, errno: Errno) -> io::Error {
    match errno {
        Errno::NOENT => {
            let text = format!("{}: its directory does not exist; create it first", path.display());
            io::Error::new(io::ErrorKind::NotFound, text)
        }
        Errno::ACCESS | Errno::PERM => {
            let directory = match path.parent() {
                Some(directory) if directory != Path::new("") => directory,
                _ => Path::new("."),
            };
            let (path, directory) = (path.display(), directory.display());
            let advice = permission_advice(geteuid().is_root());
            let text = format!(
                "{path}: no permission to create files in the directory {directory}; {advice}, or choose another \
                 directory"
            );
            io::Error::new(io::ErrorKind::PermissionDenied, text)
        }
        Errno::ROFS => {
            let path = path.display();
            let text = format!(
                "{path}: cannot be created in a read-only file system; choose another directory"
            );
            io::Error::new(io::ErrorKind::ReadOnlyFilesystem, text)
        }
        errno => open_error(path, Access::ReadWrite, errno),
    }
}

/// One line with the path, the problem, and what to do.
pub(super) fn open_error(path: &Path, access: Access, errno: Errno) -> io::Error {
    let path = path.display();
    let writing = access == Access::ReadWrite;
    let text = match errno {
        Errno::NOENT => format!("{path} does not exist; check the name"),
        Errno::EXIST => format!("{path} exists already; remove it or choose another name"),
        Errno::ISDIR => format!("{path} is a directory; name a file or a block device"),
        Errno::NOTDIR => format!("{path}: a part of the path is not a directory; check the name"),
        Errno::ACCESS | Errno::PERM => {
            let action = if writing { "write" } else { "read" };
            let advice = permission_advice(writing && geteuid().is_root());
            format!("{path}: no permission to {action}; {advice}")
        }
        Errno::ROFS => {
            format!("{path} is read-only; make it writable, or use it for reading only")
        }
        Errno::BUSY => {
            format!("{path} is mounted or in use by another program; unmount or stop that first")
        }
        Errno::TXTBSY => format!("{path} is being executed; stop the program first"),
        Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => {
            format!("{path}: there is no device behind this name; attach it first")
        }
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            format!("{path}: no space for it ({errno}); free some space, or choose a smaller size")
        }
        Errno::MFILE | Errno::NFILE => {
            format!("{path}: too many open files; close some, or raise the limit (ulimit -n)")
        }
        errno => format!("{path}: {errno}"),
    };
    io::Error::new(io::Error::from(errno).kind(), text)
}

/// Advice about a missing permission. Modes and owners do not stop root from writing.
fn permission_advice(is_root_writing: bool) -> &'static str {
    match is_root_writing {
        true => "root, too, cannot write to an immutable file (see lsattr) or a read-only device",
        false => "change its mode or owner, or run as its owner",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_errors_include_advice() {
        let path = Path::new("/dev/some");
        for (errno, advice) in [
            (Errno::BUSY, "unmount"),
            (Errno::ROFS, "for reading only"),
            (Errno::MFILE, "ulimit -n"),
        ] {
            let text = open_error(path, Access::ReadWrite, errno).to_string();
            assert!(text.contains(advice) && text.contains("/dev/some"), "{text}");
        }
        let text = open_error(path, Access::Read, Errno::ACCESS).to_string();
        assert!(text.contains("no permission to read; change its mode"), "{text}");
        let text = open_error(path, Access::ReadWrite, Errno::PERM).to_string();
        assert!(text.contains("no permission to write; "), "{text}");
        assert!(permission_advice(true).contains("immutable"));
        assert!(permission_advice(false).contains("run as its owner"));
        let text = create_error(path, Errno::NOENT).to_string();
        assert!(text.contains("create it first") && text.contains("/dev/some"), "{text}");
        let text = create_error(path, Errno::ROFS).to_string();
        assert!(!text.contains("for reading only"), "{text}");
        let error = create_error(path, Errno::ACCESS);
        assert!(error.to_string().contains("create files in the directory /dev; "), "{error}");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let text = create_error(Path::new("some"), Errno::ACCESS).to_string();
        assert!(text.contains("in the directory .; "), "{text}");
        let kind = open_error(path, Access::ReadWrite, Errno::BUSY).kind();
        assert_eq!(kind, io::ErrorKind::ResourceBusy);
    }
}
