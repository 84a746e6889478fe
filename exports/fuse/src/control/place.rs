//! Where control sockets are: `/run/uringfs/PROCESS/control` for root's servers, `$XDG_RUNTIME_DIR/uringfs/PROCESS/control`
//! for those of other users. The directory has mode 0700, and vanishes with the server.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

const NAME: &str = "control";

/// A socket on which this process will take requests. Dropping it removes it.
#[derive(Debug)]
pub struct ControlSocket {
    pub(crate) listener: UnixListener,
    directory: PathBuf,
}

impl ControlSocket {
    /// Makes the socket of this process, and removes those that killed servers have left. `None` if there is no place for
    /// it: an ordinary user has none without the environment variable `XDG_RUNTIME_DIR`.
    ///
    /// # Errors
    /// EADDRINUSE if this process has one already; EPERM if others can write to the place; those of `mkdir(2)`
    /// and `bind(2)`.
    pub fn bind() -> io::Result<Option<ControlSocket>> {
        match place_of_this_user() {
            Some(place) => ControlSocket::bind_in(&place).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn bind_in(place: &Path) -> io::Result<ControlSocket> {
        make_directory(place, 0o755)?;
        remove_stale(place)?;
        let directory = directory_of(place, std::process::id());
        make_directory(&directory, 0o700)?;
        let path = directory.join(NAME);
        if is_dead(&path) {
            // Of another process with the same number, which was killed.
            remove_if_there(&path)?;
        }
        let listener = UnixListener::bind(&path)?;
        let socket = ControlSocket { listener, directory };
        socket.listener.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = remove(&self.directory);
    }
}

/// The socket of a server by its process and its user. `None` if this user cannot know it.
pub(crate) fn socket_of(process: u32, user: u32) -> Option<PathBuf> {
    let place = match user {
        _ if user == geteuid().as_raw() => place_of_this_user()?,
        0 => root_place(),
        _ => PathBuf::from(format!("/run/user/{user}/uringfs")),
    };
    Some(directory_of(&place, process).join(NAME))
}

fn place_of_this_user() -> Option<PathBuf> {
    match geteuid().is_root() {
        true => Some(root_place()),
        false => user_place(std::env::var_os("XDG_RUNTIME_DIR")?),
    }
}

fn root_place() -> PathBuf {
    PathBuf::from("/run/uringfs")
}

fn user_place(runtime: OsString) -> Option<PathBuf> {
    let runtime = PathBuf::from(runtime);
    // The specification of base directories ignores others.
    runtime.is_absolute().then(|| runtime.join("uringfs"))
}

fn directory_of(place: &Path, process: u32) -> PathBuf {
    place.join(process.to_string())
}

/// Makes a directory, or takes one that only this user can change.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(path)?;
    let others = found.mode() & 0o777 & !mode;
    match found.is_dir() && found.uid() == geteuid().as_raw() && others & 0o077 == 0 {
        true => Ok(()),
        false => {
            let what = format!("{}: other users can change it", path.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
        }
    }
}

/// Removes the directories of servers that are gone.
fn remove_stale(place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        let process = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        let is_gone = |process| !Path::new(&format!("/proc/{process}")).exists();
        // A server of another PID namespace has another number here, and answers.
        if process.is_some_and(is_gone) && is_dead(&path.join(NAME)) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Whether nothing listens on a socket.
fn is_dead(path: &Path) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let connected = UnixStream::connect(path);
    connected.is_err_and(|error| matches!(error.kind(), ConnectionRefused | NotFound))
}

/// Removes a socket and its directory. Two servers may remove the same one.
fn remove(directory: &Path) -> io::Result<()> {
    remove_if_there(&directory.join(NAME))?;
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// No process has this number.
    const GONE: u32 = u32::MAX;

    #[test]
    fn a_socket_is_private_and_vanishes() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("uringfs");
        let socket = ControlSocket::bind_in(&place).unwrap();
        let mode = fs::metadata(&socket.directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(UnixStream::connect(socket.directory.join(NAME)).is_ok());
        let second = ControlSocket::bind_in(&place).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }

    #[test]
    fn sockets_of_killed_servers_are_replaced_and_swept() {
        let folder = tempfile::tempdir().unwrap();
        for process in [GONE, std::process::id()] {
            let directory = directory_of(folder.path(), process);
            DirBuilder::new().mode(0o700).create(&directory).unwrap();
            // As after a kill: nothing listens any more.
            drop(UnixListener::bind(directory.join(NAME)).unwrap());
        }
        let socket = ControlSocket::bind_in(folder.path()).unwrap();
        assert!(UnixStream::connect(socket.directory.join(NAME)).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("uringfs");
        let refused = || ControlSocket::bind_in(&place).unwrap_err().kind();
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(refused(), io::ErrorKind::PermissionDenied);
        fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink(folder.path(), &place).unwrap();
        assert_eq!(refused(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_relative_runtime_directory_is_ignored() {
        assert_eq!(user_place("run".into()), None);
        assert_eq!(user_place("/run/user/7".into()), Some("/run/user/7/uringfs".into()));
    }
}
