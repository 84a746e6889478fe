//! Claims targets for the runs of this process, so that another process, which would disturb them, is refused.
//!
//! A claim is a socket in Linux's abstract namespace, named by the device and the inode: it ends with the process, and
//! leaves no file. Programs other than this one are not kept away. A process shares its claims among its runs, and does not give them
//! back: a child that has not executed its program yet would still hold one. A comparison claims for another build of this
//! program, too, which it starts with an environment variable.

use super::target::Target;
use crate::Error;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use uringfs::device::backend::nvme::block_device_of;

/// Says to a child that its parent has claimed the targets.
pub(crate) const CLAIMED_BY_PARENT: &str = "URINGFS_BENCH_CLAIMED";

/// The claims of this process.
static CLAIMS: Mutex<BTreeMap<String, UnixListener>> = Mutex::new(BTreeMap::new());

/// Claims the files and devices that hold the bytes of these targets until the process ends. Targets that do not exist have no
/// claim.
///
/// # Errors
/// Another process has claimed one.
pub fn claim<'a>(targets: impl Iterator<Item = &'a Target>) -> Result<(), Error> {
    if std::env::var_os(CLAIMED_BY_PARENT).is_some() {
        return Ok(());
    }
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    for path in targets.filter_map(Target::path) {
        let Some(name) = socket_name(path).filter(|name| !claims.contains_key(name)) else {
            continue;
        };
        let socket = bind(&name).map_err(|error| refusal(path, &name, error))?;
        claims.insert(name, socket);
    }
    Ok(())
}

/// The name of the claim on a regular file or a block device; the character device of an NVMe namespace has that of its block device. The number of a deleted file may be that of a later one, which was
/// born at another time.
fn socket_name(path: &Path) -> Option<String> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
    let (device, rdev) =
        ((found.stx_dev_major, found.stx_dev_minor), (found.stx_rdev_major, found.stx_rdev_minor));
    let born = found.stx_btime;
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::CharacterDevice => socket_name(&block_device_of(path)?),
        FileType::BlockDevice => Some(format!("uringfs-bench/device/{}:{}", rdev.0, rdev.1)),
        FileType::RegularFile => Some(format!(
            "uringfs-bench/file/{}:{}/{}.{}/{}",
            device.0, device.1, born.tv_sec, born.tv_nsec, found.stx_ino
        )),
        _ => None,
    }
}

fn bind(name: &str) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

fn refusal(path: &Path, name: &str, error: std::io::Error) -> Error {
    if error.kind() != ErrorKind::AddrInUse {
        return Error::run(format!("{}: cannot be claimed for this run", path.display()))
            .because(error);
    }
    let process = owner(name).map_or(String::new(), |process| format!(" of process {process}"));
    Error::in_use(format!(
        "{}: another run{process} uses it, and each would disturb the other; wait for its end",
        path.display()
    ))
}

/// The process that has a claim. Claims accept no connection, and the kernel queues 128 or so of those that others have made for
/// this question. After that the process stays unknown, as waiting for room would never end.
fn owner(name: &str) -> Option<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
    socket_peercred(&socket).ok().map(|peer| peer.pid.as_raw_pid())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each refusal leaves a connection that the claim does not accept.
    #[test]
    fn any_number_of_refusals_ends() {
        // The greatest queue that the kernel allows, and more.
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = socket_name(file.path()).unwrap();
        let _claim = bind(&name).unwrap();
        let refused = || refusal(file.path(), &name, bind(&name).unwrap_err()).to_string();
        assert!(refused().contains(&format!("of process {}", std::process::id())));
        (0..=most).for_each(|_| drop(refused()));
        let last = refused();
        assert!(last.contains("another run uses it"), "{last}");
    }

    #[test]
    fn a_process_shares_its_claims_and_others_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let target = Target::Path(file.path().into());
        let name = socket_name(file.path()).unwrap();
        claim([&target, &target].into_iter()).unwrap();
        claim(std::iter::once(&target)).unwrap();
        let error = refusal(file.path(), &name, bind(&name).unwrap_err());
        let expected = format!("of process {}", std::process::id());
        assert!(error.to_string().contains(&expected) && error.exit_code() == 6, "{error}");
    }

    #[test]
    fn what_holds_no_bytes_has_no_claim() {
        for name in ["/nonexistent", "/dev/null", "/tmp"] {
            assert!(socket_name(Path::new(name)).is_none(), "{name}");
        }
    }
}
