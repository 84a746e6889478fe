//! A volume is written by one or read by many. Other programs are kept out by `flock` on the device,
//! which each asks for; within this one, where clones of a [`Device`] share a lock, a list is kept.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, flock, fstat, major, minor};
use rustix::io::Errno;
use uringfs_device::{Device, DeviceIndex, Reach};
use uringfs_reactor::ForkMark;

use crate::error::{Error, ErrorKind};

/// What others may do with a volume that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Open it for reading, as this one has.
    MayRead,
    /// Nothing.
    KeepOut,
}

/// How long the kernel may keep a dead program's lock: it lets go of a ring's registered files in the
/// background (`io_ring_exit_work` in io_uring/io_uring.c), once their requests have ended.
const LINGERING: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(5);

/// Keeps others out until it is dropped.
pub(crate) struct Lock {
    device: Device,
    /// Its line in [`HELD`].
    held: Held,
    fork: ForkMark,
}

/// What this process holds.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    bytes: Bytes,
    others: Others,
    /// Whose descriptor has the kernel's lock.
    device: DeviceIndex,
}

/// Which bytes a device reaches, by whatever path it was opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    File {
        device: u64,
        inode: u64,
    },
    Block {
        number: u64,
    },
    /// Memory of this process, that one device has.
    Memory(DeviceIndex),
}

impl Lock {
    /// Takes the lock. That of a program which has ended is waited for.
    ///
    /// # Errors
    /// `Refused` (EBUSY) when another program, or another `Volume` of this one, is in the way.
    pub(crate) fn take(device: &Device, others: Others) -> Result<Lock, Error> {
        let reach = device.core().backend().reach();
        let held = Held::take(device, reach, others)?;
        let lock = Lock { device: device.clone(), held, fork: ForkMark::default() };
        let Reach::Descriptor(descriptor) = reach else {
            // Nobody else reaches memory of this process.
            return Ok(lock);
        };
        let how = match others {
            Others::MayRead => FlockOperation::NonBlockingLockShared,
            Others::KeepOut => FlockOperation::NonBlockingLockExclusive,
        };
        let until = Instant::now() + LINGERING;
        loop {
            match flock(descriptor, how) {
                Ok(()) => return Ok(lock),
                Err(Errno::AGAIN) if !is_held_by_living(descriptor) && Instant::now() < until => {
                    std::thread::sleep(STEP);
                }
                Err(Errno::AGAIN) => {
                    let what = "another program has the volume open; close it there first";
                    return Err(Error::new(ErrorKind::Refused(Errno::BUSY), what));
                }
                Err(errno) => return Err(Error::io("locking the volume", errno)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            // The kernel's lock is one for the parent and its child.
            return;
        }
        let all = &mut *HELD.lock();
        let line = all.iter().position(|held| *held == self.held).expect("it was put there");
        all.swap_remove(line);
        if all.iter().any(|held| held.device == self.held.device) {
            return;
        }
        // Not left to the descriptor, which reactors that do not turn keep open.
        if let Reach::Descriptor(descriptor) = self.device.core().backend().reach() {
            let _ = flock(descriptor, FlockOperation::Unlock);
        }
    }
}

impl Held {
    fn take(device: &Device, reach: Reach<'_>, others: Others) -> Result<Held, Error> {
        let bytes = Bytes::of(device, reach)
            .map_err(|errno| Error::io("asking which file the volume is in", errno))?;
        let held = Held { bytes, others, device: device.index() };
        let all = &mut *HELD.lock();
        let is_in_the_way = |other: &Held| {
            other.bytes == bytes && (other.others == Others::KeepOut || others == Others::KeepOut)
        };
        if all.iter().any(is_in_the_way) {
            let what = "this program has the volume open already; use a clone of that `Volume`";
            return Err(Error::new(ErrorKind::Refused(Errno::BUSY), what));
        }
        all.push(held);
        Ok(held)
    }
}

impl Bytes {
    fn of(device: &Device, reach: Reach<'_>) -> Result<Bytes, Errno> {
        let Reach::Descriptor(descriptor) = reach else {
            return Ok(Bytes::Memory(device.index()));
        };
        let status = fstat(descriptor)?;
        Ok(match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => Bytes::Block { number: status.st_rdev },
            _ => Bytes::File { device: status.st_dev, inode: status.st_ino },
        })
    }
}

/// Whether a program that has not ended holds a lock on this file, as far as it can be told.
fn is_held_by_living(descriptor: BorrowedFd<'_>) -> bool {
    let (Ok(status), Ok(locks)) = (fstat(descriptor), std::fs::read_to_string("/proc/locks"))
    else {
        return true;
    };
    let (device, inode) = (status.st_dev, status.st_ino);
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    // 7: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
    let holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let process = words.nth(4)?;
        (words.next()? == file).then(|| process.to_owned())
    });
    holders.into_iter().any(|process| is_living(&process))
}

fn is_living(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"));
    // Behind the name, which ends with the last parenthesis, stands the state.
    let state = status.ok().and_then(|line| line.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
