//! The eventfds of a front end: notifications of the driver, and interrupts.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{read, write};

/// Takes a descriptor of the front end, which neither a read nor a write may then block. One that is no eventfd could be
/// readable for ever.
///
/// # Errors
/// EINVAL if it is no eventfd.
pub(crate) fn accept(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let kind = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if kind.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let flags = fcntl_getfl(&descriptor)?;
    fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(descriptor)
}

/// Notes its events as seen.
pub(crate) fn reset(event: &OwnedFd) {
    // Another reader may have been faster.
    let _ = read(event, &mut [0; 8]);
}

/// Signals it.
pub(crate) fn signal(event: &OwnedFd) {
    // A counter that is full is signalled already.
    let _ = write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn only_eventfds_are_taken_and_none_blocks() {
        for path in ["/dev/zero", "/proc/self/maps"] {
            let file = fs::File::open(path).unwrap();
            assert!(accept(file.into()).is_err(), "{path}");
        }
        let event = accept(eventfd(0, EventfdFlags::empty()).unwrap()).unwrap();
        reset(&event);
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        signal(&event);
        reset(&event);
        reset(&event);
    }
}
