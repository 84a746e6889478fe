//! A lock by a name, for devices without a descriptor that could have an `flock`, such as exports of NBD servers: one
//! writer or many readers among the processes of a network namespace.
//!
//! Each holder listens on a socket of Linux's abstract namespace, whose name says the lock, its kind and the process.
//! `/proc/net/unix` lists them. The lock ends when the holder shuts the socket down, or with its last descriptor, also
//! that of a killed process. (The child of a fork has a copy of the descriptor.) A second name, which is bound for a
//! moment, makes "look, then bind" one step.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    shutdown, socket_with,
};
use uringfs_device::Errno;

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Other readers may hold it too.
    Shared,
    /// One holder.
    Exclusive,
}

/// The meaning of conflicting holders of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// The lock cannot be acquired.
    Respected,
    /// Nothing: they are excluded in another way.
    Ignored,
}

/// The longest wait for a process that looks for holders. It takes microseconds, unless the process is stopped.
const GUARD_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A lock that is held until its release. In the child of a fork it is the parent's.
#[derive(Debug)]
pub(crate) struct NamedLock {
    socket: OwnedFd,
}

/// A process that holds a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedHolder {
    /// As the name of its socket says: any process can bind that name.
    pub(crate) process: u32,
    kind: LockKind,
    /// The inode of its socket.
    inode: u64,
}

impl NamedLock {
    /// Acquires the lock. Conflicting holders keep theirs if they are ignored.
    ///
    /// # Errors
    /// EBUSY with a process that holds it, if one does. EBUSY without one after [`GUARD_TIMEOUT`].
    pub(crate) fn acquire(
        name: &str,
        kind: LockKind,
        others: Others,
    ) -> Result<NamedLock, (Errno, Option<NamedHolder>)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let failed = |errno| (errno, None);
        let _guard = guard(name).map_err(failed)?;
        let conflicts = |holder: &NamedHolder| {
            others == Others::Respected
                && (LockKind::Exclusive == kind || LockKind::Exclusive == holder.kind)
        };
        if let Some(holder) = holders(name).map_err(failed)?.into_iter().find(conflicts) {
            return Err((Errno::BUSY, Some(holder)));
        }
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let kind = match kind {
            LockKind::Shared => "shared",
            LockKind::Exclusive => "exclusive",
        };
        let socket = bound(&format!("{}{kind}/{process}/{count}", prefix(name))).map_err(failed)?;
        listen(&socket, 0).map_err(|errno| failed(errno.into()))?;
        Ok(NamedLock { socket })
    }

    pub(crate) fn release(&self) {
        // It cannot fail: the socket listens.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A process that holds the lock. A process that another one merely names in its socket does not count, as far as this
/// one may see that.
pub(crate) fn holder(name: &str) -> Option<NamedHolder> {
    holders(name).ok()?.into_iter().find(NamedHolder::may_have_socket)
}

impl NamedHolder {
    /// Whether the process has the socket open, or does not let this process know.
    fn may_have_socket(&self) -> bool {
        let socket = format!("socket:[{}]", self.inode);
        match std::fs::read_dir(format!("/proc/{}/fd", self.process)) {
            Ok(files) => files.flatten().any(|file| {
                std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&socket))
            }),
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        }
    }
}

/// The beginning of the names of all sockets of a lock. A socket's name has at most 107 bytes, a lock's name any
/// number.
fn prefix(name: &str) -> String {
    format!("uringfs/lock/{:032x}/", fnv1a(name.as_bytes()))
}

/// FNV-1a of 128 bits: the same in every version of the library.
fn fnv1a(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

fn guard(name: &str) -> Result<OwnedFd, Errno> {
    let (name, until) = (prefix(name) + "guard", Instant::now() + GUARD_TIMEOUT);
    loop {
        match bound(&name) {
            Err(Errno::ADDRINUSE) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Err(Errno::ADDRINUSE) => return Err(Errno::BUSY),
            done => return done,
        }
    }
}

fn bound(name: &str) -> Result<OwnedFd, Errno> {
    let socket = new_socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn holders(name: &str) -> Result<Vec<NamedHolder>, Errno> {
    let sockets = std::fs::read("/proc/net/unix");
    let sockets = sockets.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(parse(&String::from_utf8_lossy(&sockets), &prefix(name), is_held))
}

/// Whether a socket is not shut down.
fn is_held(socket: &str) -> bool {
    let connected = SocketAddrUnix::new_abstract_name(socket.as_bytes())
        .map_err(Errno::from)
        .and_then(|address| Ok(connect(new_socket()?, &address)?));
    // EAGAIN: others have asked before, and no connection is ever accepted.
    connected != Err(Errno::CONNREFUSED)
}

/// A line of `/proc/net/unix` ends with the inode and the name of the socket, in which `@` stands for the NUL of an abstract name.
fn parse(sockets: &str, prefix: &str, is_held: impl Fn(&str) -> bool) -> Vec<NamedHolder> {
    let holder = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let name = words.next()?.strip_prefix('@')?;
        let inode = words.next()?.parse().ok()?;
        let (kind, rest) = name.strip_prefix(prefix)?.split_once('/')?;
        let kind = match kind {
            "shared" => LockKind::Shared,
            "exclusive" => LockKind::Exclusive,
            _ => return None,
        };
        let process = rest.split_once('/')?.0.parse().ok()?;
        is_held(name).then_some(NamedHolder { process, kind, inode })
    };
    sockets.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no other test, and no other run, has.
    fn name(of: &str) -> String {
        format!("{of} {}", std::process::id())
    }

    #[test]
    fn a_writer_excludes_all_others() {
        let name = name("writer");
        let writer = NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
        for kind in [LockKind::Shared, LockKind::Exclusive] {
            let (errno, holder) = NamedLock::acquire(&name, kind, Others::Respected).unwrap_err();
            assert_eq!(errno, Errno::BUSY);
            assert_eq!(holder.unwrap().process, std::process::id());
        }
        drop(writer);
        assert_eq!(holder(&name), None);
        NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
    }

    #[test]
    fn a_holder_that_ignores_others_is_found_beside_them() {
        let name = name("ignored");
        let old = NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
        let new = NamedLock::acquire(&name, LockKind::Exclusive, Others::Ignored).unwrap();
        drop(old);
        assert!(holder(&name).is_some());
        NamedLock::acquire(&name, LockKind::Shared, Others::Respected).unwrap_err();
        drop(new);
        assert_eq!(holder(&name), None);
    }

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_a_released_lock() {
        let name = name("copy");
        let lock = NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
        let _copy = lock.socket.try_clone().unwrap();
        assert!(holder(&name).is_some() && holder(&name).is_some());
        lock.release();
        assert_eq!(holder(&name), None);
        NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
    }

    #[test]
    fn readers_exclude_a_writer() {
        let (name, other) = (name("readers"), name("another"));
        let readers =
            [0, 1].map(|_| NamedLock::acquire(&name, LockKind::Shared, Others::Respected).unwrap());
        NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap_err();
        NamedLock::acquire(&other, LockKind::Exclusive, Others::Respected).unwrap();
        let [one, two] = readers;
        drop(one);
        NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap_err();
        drop(two);
        NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected).unwrap();
    }

    #[test]
    fn of_writers_that_come_at_once_one_gets_the_lock() {
        let name = name("at once");
        for _ in 0..50 {
            let acquire = || NamedLock::acquire(&name, LockKind::Exclusive, Others::Respected);
            let got = std::thread::scope(|scope| {
                let all = [0; 4].map(|_| scope.spawn(acquire));
                all.map(|one| one.join().unwrap())
            });
            assert_eq!(got.iter().filter(|one| one.is_ok()).count(), 1);
        }
    }

    #[test]
    fn lines_of_other_sockets_name_no_holder() {
        let prefix = prefix("a");
        let line = |name: &str| format!("0000: 00000002 00000000 00000000 0001 01 4711 {name}\n");
        let all = [
            line(&format!("@{prefix}shared/7/0")),
            line(&format!("@{prefix}guard")),
            line(&format!("@{prefix}exclusive/x/0")),
            line(&format!("{prefix}shared/8/0")),
            "0000: 00000002 00000000 00000000 0001 01 4712\n".into(),
        ];
        let found = parse(&all.concat(), &prefix, |_| true);
        let expected = NamedHolder { process: 7, kind: LockKind::Shared, inode: 4711 };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_socket_that_names_another_process_keeps_the_lock_and_is_no_holder() {
        let name = name("false name");
        let socket = bound(&format!("{}exclusive/1/0", prefix(&name))).unwrap();
        listen(&socket, 0).unwrap();
        NamedLock::acquire(&name, LockKind::Shared, Others::Respected).unwrap_err();
        // An ordinary user cannot see what process 1 has open.
        assert_eq!(holder(&name).is_none(), std::fs::read_dir("/proc/1/fd").is_ok());
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv1a(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv1a(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
