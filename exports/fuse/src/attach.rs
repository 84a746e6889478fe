//! Attaches a connection to a directory: `mount(2)` for root, `fusermount3` for other users.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::ioctl::{Setter, opcode};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use uringfs::device::Device;

const DEVICE: &str = "/dev/fuse";
/// The type of the mount in `/proc/mounts`.
const TYPE: &str = "fuse.uringfs";
/// The type of the mount of a block device.
const BLOCK_TYPE: &str = "fuseblk.uringfs";
/// The program that mounts for ordinary users, from the package fuse3.
const HELPER: &str = "fusermount3";
/// The environment variable in which it finds its socket.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// A volume to mount, its directory, and the options of the mount.
pub(crate) struct Attachment<'a> {
    /// The first column of `/proc/mounts`.
    pub(crate) source: &'a OsStr,
    /// The device that the volume is on.
    pub(crate) device: &'a Device,
    pub(crate) directory: &'a Path,
    pub(crate) read_only: bool,
    /// Other users than the one that mounts may use it, too.
    pub(crate) allow_other: bool,
    /// Whether reads change access times.
    pub(crate) access_times: bool,
    /// Whether programs on it can be run.
    pub(crate) executable: bool,
    /// Whether set-ID bits have effect; for root only.
    pub(crate) set_id: bool,
    /// Whether device nodes are devices; for root only.
    pub(crate) devices: bool,
}

/// Mounts, and returns the connection. It never blocks.
///
/// # Errors
/// Those of `mount(2)`; what `fusermount3` reports.
pub(crate) fn attach(attachment: &Attachment<'_>) -> io::Result<OwnedFd> {
    let channel = match rustix::process::geteuid().is_root() {
        true if attachment.device.claim().is_some() => attach_block_device(attachment)?,
        true => attach_as_root(attachment)?,
        false => attach_by_helper(attachment)?,
    };
    set_nonblocking(&channel)?;
    Ok(channel)
}

pub(crate) fn set_nonblocking(channel: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(channel)?;
    Ok(rustix::fs::fcntl_setfl(channel, flags | OFlags::NONBLOCK)?)
}

/// Another descriptor of the connection, so that two threads read requests without sharing a file.
pub(crate) fn clone_channel(channel: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = open_device()?;
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of a descriptor, and writes nothing.
    let ioctl = unsafe { Setter::<CLONE, u32>::new(channel.as_raw_fd() as u32) };
    // SAFETY: the clone is a descriptor of /dev/fuse, for which the request is defined.
    unsafe { rustix::ioctl::ioctl(&clone, ioctl)? };
    Ok(clone)
}

/// Unmounts. With `lazy` the directory is free at once, and the kernel ends the connection with the last user.
///
/// # Errors
/// EBUSY while programs use it; the others of `umount2(2)`; what `fusermount3` reports.
pub(crate) fn detach(directory: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(directory, flags)?);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(directory);
    run_helper(&mut command)
}

/// Tells a mount from all others: the numbers of its device and its own. Before Linux 6.8 a later mount may get the
/// same ones, but only once the file system of this one is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountId([u32; 2], u64);

impl MountId {
    /// The mount that a directory shows. Its server is not asked.
    pub(crate) fn on(directory: &Path) -> io::Result<MountId> {
        const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let wanted = StatxFlags::MNT_ID | MNT_ID_UNIQUE;
        let found = statx(CWD, directory, AtFlags::STATX_DONT_SYNC, wanted)?;
        Ok(MountId([found.stx_dev_major, found.stx_dev_minor], found.stx_mnt_id))
    }
}

fn open_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("{DEVICE}: {error}; load the module fuse"))
    })
}

/// Mounts a block device. The mount takes over the claim on it; meanwhile the lock of the volume excludes other mounts.
fn attach_block_device(attachment: &Attachment<'_>) -> io::Result<OwnedFd> {
    let claim = attachment.device.claim().expect("it is a block device");
    let channel = open_device()?;
    let was_claimed = claim.release();
    match mount(attachment, &channel, (claim.path().as_os_str(), BLOCK_TYPE, ",blksize=4096")) {
        Ok(()) if is_connected(&channel)? => Ok(channel),
        // Of a device that is mounted already the kernel mounts the same file system once more, with its server.
        Ok(()) => {
            rustix::mount::unmount(attachment.directory, UnmountFlags::DETACH)?;
            let what = format!("{} is mounted already", claim.path().display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
        }
        // A kernel may refuse to mount what is open for writing (CONFIG_BLK_DEV_WRITE_MOUNTED). Other errors come again.
        Err(_) => {
            if was_claimed {
                claim.acquire()?;
            }
            attach_as_root(attachment)
        }
    }
}

/// Whether a mount has taken the descriptor.
fn is_connected(channel: &OwnedFd) -> io::Result<bool> {
    let polled = &mut [PollFd::new(channel, PollFlags::empty())];
    poll(polled, Some(&Timespec::default()))?;
    Ok(!polled[0].revents().contains(PollFlags::ERR))
}

fn attach_as_root(attachment: &Attachment<'_>) -> io::Result<OwnedFd> {
    let channel = open_device()?;
    mount(attachment, &channel, (attachment.source, TYPE, ""))?;
    Ok(channel)
}

/// Mounts a source with a type and further options.
fn mount(
    attachment: &Attachment<'_>,
    channel: &OwnedFd,
    (source, kind, more): (&OsStr, &str, &str),
) -> io::Result<()> {
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{more}",
        channel.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if attachment.allow_other {
        options.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    if !attachment.set_id {
        flags |= MountFlags::NOSUID;
    }
    if !attachment.devices {
        flags |= MountFlags::NODEV;
    }
    if attachment.read_only {
        flags |= MountFlags::RDONLY;
    }
    if !attachment.access_times {
        flags |= MountFlags::NOATIME;
    }
    if !attachment.executable {
        flags |= MountFlags::NOEXEC;
    }
    let options = CString::new(options)?;
    Ok(rustix::mount::mount(source, attachment.directory, kind, flags, options.as_c_str())?)
}

fn attach_by_helper(attachment: &Attachment<'_>) -> io::Result<OwnedFd> {
    if attachment.set_id || attachment.devices {
        let what = "only root can mount with set-ID programs or devices";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut options = b"subtype=uringfs,default_permissions,fsname=".to_vec();
    for byte in attachment.source.as_bytes() {
        // A comma ends an option unless it is escaped.
        if matches!(byte, b',' | b'\\') {
            options.push(b'\\');
        }
        options.push(*byte);
    }
    if attachment.allow_other {
        options.extend_from_slice(b",allow_other");
    }
    if attachment.read_only {
        options.extend_from_slice(b",ro");
    }
    if !attachment.access_times {
        options.extend_from_slice(b",noatime");
    }
    if !attachment.executable {
        options.extend_from_slice(b",noexec");
    }
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(OsStr::from_bytes(&options)).arg("--").arg(attachment.directory);
    command.env(HELPER_SOCKET, theirs.as_raw_fd().to_string());
    run_helper(&mut command)?;
    drop(theirs);
    receive_descriptor(&ours)
}

/// Runs the helper, which prints its own reasons.
fn run_helper(command: &mut Command) -> io::Result<()> {
    let status = command.status().map_err(|error| match error.kind() {
        // Permission is denied if it is missing and a folder of the path cannot be searched.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            let what = format!("{HELPER} is missing, or cannot be run: install the package fuse3");
            io::Error::new(io::ErrorKind::NotFound, what)
        }
        kind => io::Error::new(kind, format!("{HELPER}: {error}")),
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{HELPER} failed: {status}"))),
    }
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = ancillary.drain();
    let descriptor = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other(format!("{HELPER} sent no connection")))
}
