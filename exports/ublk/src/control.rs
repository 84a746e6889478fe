//! The driver behind `/dev/ublk-control`.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, test_kill_process};
use uringfs::reactor::{Command, Require, run_command};
use uringfs::{Buffer, Errno, Reactor, ReactorOptions};
use zerocopy::IntoBytes;

use crate::abi::{ControlCommand, NO_QUEUE};
use crate::driver::{ControlRequest, Driver, PAUSE_MS, channel_path};

const PATH: &str = "/dev/ublk-control";

/// The control device, with a ring for its commands.
pub(crate) struct ControlDevice {
    reactor: Reactor,
    file: Arc<OwnedFd>,
}

impl ControlDevice {
    /// Opens it.
    ///
    /// # Errors
    /// NotFound without the driver; PermissionDenied; Unsupported without io_uring.
    pub(crate) fn open() -> io::Result<ControlDevice> {
        let file = open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let file = Arc::new(file.map_err(|errno| open_error(errno.into()))?);
        let options = ReactorOptions::new().commands(true).require(Require::Ring);
        Ok(ControlDevice { reactor: Reactor::new(options)?, file })
    }
}

fn open_error(errno: Errno) -> io::Error {
    let advice = match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => {
            "load the driver with `modprobe ublk_drv`; kernels since Linux 6.5 that are built with CONFIG_BLK_DEV_UBLK \
             have it, in Debian those since 6.12"
        }
        Errno::ACCESS | Errno::PERM => {
            "be root, or let the administrator give you this device, and use unprivileged disks"
        }
        _ => return io::Error::new(errno.kind(), format!("{PATH}: {errno}")),
    };
    io::Error::new(errno.kind(), format!("{PATH}: {errno}; {advice}"))
}

impl Driver for ControlDevice {
    type Channel = OwnedFd;

    fn run(&mut self, request: ControlRequest<'_>) -> Result<(), Errno> {
        let ControlRequest { operation, device, data, has_path, memory } = request;
        let path = if has_path { channel_path(device) } else { String::new() };
        let mut buffer = Buffer::zeroed(path.len() + memory.len());
        buffer[..path.len()].copy_from_slice(path.as_bytes());
        buffer[path.len()..].copy_from_slice(memory);
        let argument = ControlCommand {
            device,
            queue: NO_QUEUE,
            length: buffer.len() as u16,
            address: buffer.pointer().as_ptr().addr() as u64,
            data,
            path_length: path.len() as u16,
            ..ControlCommand::default()
        };
        // SAFETY: the commands of this device access no memory but `length` bytes at the address in their argument,
        // which are the buffer, and only until they end. The command is run once.
        let command = unsafe { Command::new(self.file.clone(), [buffer, Buffer::zeroed(0)]) };
        let mut command = Box::new(command);
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(argument.as_bytes());
        command.set(operation, bytes);
        let (result, mut command) = self.reactor.block_on(run_command(command));
        memory.copy_from_slice(&command.buffers()[0][path.len()..]);
        result.map(drop)
    }

    fn devices(&mut self) -> io::Result<Vec<u32>> {
        let mut devices = Vec::new();
        for entry in fs::read_dir("/dev")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
            devices.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        Ok(devices)
    }

    fn open(&mut self, device: u32) -> Result<OwnedFd, Errno> {
        Ok(open(channel_path(device), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn is_alive(&self, process: i32) -> bool {
        let found = Pid::from_raw(process).map(test_kill_process);
        matches!(found, Some(Ok(()) | Err(rustix::io::Errno::PERM)))
    }

    fn pause(&mut self) {
        thread::sleep(Duration::from_millis(PAUSE_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_driver_is_an_error_of_one_line_with_advice() {
        let error = open_error(Errno::NOENT);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let line = error.to_string();
        assert!(line.starts_with("/dev/ublk-control: No such file"), "{line}");
        assert!(line.contains("`modprobe ublk_drv`") && line.contains("Linux 6.5"), "{line}");
        assert!(!line.contains('\n'));
        let line = open_error(Errno::ACCESS).to_string();
        assert!(line.contains("be root") && !line.contains('\n'), "{line}");
        assert!(open_error(Errno::MFILE).to_string().starts_with("/dev/ublk-control: "));
    }
}
