//! A volume is written by one program or read by many: `flock` on the device, which each asks for.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, fstat, major, minor};
use rustix::io::Errno;
use uringfs_device::{Device, Reach};

use crate::error::{Error, ErrorKind};

/// What other programs may do with a volume that is open.
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
}

impl Lock {
    /// Takes the lock. That of a program which has ended is waited for.
    ///
    /// # Errors
    /// `Refused` (EBUSY) when another program has the volume open.
    pub(crate) fn take(device: &Device, others: Others) -> Result<Lock, Error> {
        let lock = Lock { device: device.clone() };
        let Reach::Descriptor(descriptor) = device.core().backend().reach() else {
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
        // Not left to the descriptor, which reactors that do not turn keep open.
        if let Reach::Descriptor(descriptor) = self.device.core().backend().reach() {
            let _ = flock(descriptor, FlockOperation::Unlock);
        }
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
