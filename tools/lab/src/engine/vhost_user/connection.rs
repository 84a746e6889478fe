//! Connects to a server, and finds out what disk it has.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use blkio::Blkio;
use uringfs::Errno;

use crate::Error;
use crate::targets::{Target, TargetInfo, Volumes, inspect};

/// The least block of a virtio disk.
const SECTOR_BYTES: u64 = 512;
/// How long a server may take to greet. It leaves a second client waiting while it has one.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// Inspects a target: the disk that the server at a socket has.
///
/// # Errors
/// There is no socket, no server, or none of vhost-user-blk.
pub fn inspect_socket(
    target: &Target,
    writes: bool,
    volumes: &mut Volumes,
) -> Result<TargetInfo, Error> {
    match target {
        Target::Path(path) => {
            require_socket(path)?;
            let disk = connect(path, writes)?;
            let size = disk.get_u64("capacity").map_err(|error| no_disk(path, &error))?;
            // The content of the disk is unknown, and counts as data, so that nothing is overwritten by mistake.
            let content = Some("the disk of a server");
            Ok(TargetInfo::Device { size, alignment: SECTOR_BYTES, content })
        }
        Target::InVolume(_) | Target::Virtual(_) => inspect(target, writes, volumes),
    }
}

/// Refuses what is no socket.
fn require_socket(path: &Path) -> Result<(), Error> {
    let named = path.display();
    let line = match path.metadata() {
        Ok(found) if found.file_type().is_socket() => return Ok(()),
        Ok(_) => {
            format!("{named}: is no socket; with engine vhost-user name the socket of a server")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            format!(
                "{named}: there is no such socket; start the server first (uringfs serve vhost-user-blk)"
            )
        }
        Err(error) => return Err(Error::input(named.to_string()).because(error)),
    };
    Err(Error::input(line))
}

/// Connects to the server at a socket.
///
/// # Errors
/// No server listens there, it speaks another protocol, or it has another client.
pub fn connect(path: &Path, writes: bool) -> Result<Blkio, Error> {
    let name = path.to_str().ok_or_else(|| {
        Error::input(format!("{}: the name of a socket must be UTF-8", path.display()))
    })?;
    let prepare = || -> blkio::Result<Blkio> {
        let mut disk = Blkio::new("virtio-blk-vhost-user")?;
        disk.set_str("path", name)?;
        disk.set_bool("read-only", !writes)?;
        Ok(disk)
    };
    let mut disk = prepare().map_err(|error| no_disk(path, &error))?;
    // The crate has no timeout. A thread that waits for ever ends with the program.
    let (send, receive) = channel();
    let thread = std::thread::Builder::new().name("vhost-connect".into());
    let work = move || {
        let connected = disk.connect();
        let _ = send.send(connected.map(|()| disk));
    };
    thread.spawn(work).map_err(|error| Error::run("cannot start a thread").because(error))?;
    match receive.recv_timeout(GREETING_TIMEOUT) {
        Ok(connected) => connected.map_err(|error| no_disk(path, &error)),
        Err(RecvTimeoutError::Timeout) => Err(Error::in_use(format!(
            "{}: the server does not answer; it serves one client at a time, and may have another one",
            path.display()
        ))),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::run(format!("{}: the connecting thread has ended", path.display())))
        }
    }
}

/// The error of a server that has no disk for us.
pub fn no_disk(path: &Path, error: &blkio::Error) -> Error {
    let named = path.display();
    let errno = Errno::from_raw_os_error(error.errno().raw_os_error());
    Error::input(match errno {
        Errno::CONNREFUSED => format!("{named}: no server listens there; start it again"),
        Errno::ROFS => format!("{named}: the disk of this server is read-only"),
        Errno::ACCESS => format!("{named}: you may not write to this socket"),
        _ => format!("{named}: its server has no disk by vhost-user-blk: {}", error.message()),
    })
}
