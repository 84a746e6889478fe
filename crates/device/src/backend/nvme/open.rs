//! Opens the two devices of a namespace, and finds out what it is.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use uringfs_errno::Errno;
use uringfs_ring::nvme::{Namespace, Opcode};

use super::identify::{Controller, Format, KernelLimits};
use super::ioctl;
use super::nodes::{BlockNode, Class, SYSFS};
use super::permission::Permission;
use crate::backend::block::acquire_with_retry;
use crate::backend::open_error::open_error;
use crate::backend::sysfs;
use crate::claim::Claim;
use crate::geometry::Geometry;
use crate::interface::backend::Access;

/// The selectors of Identify (CNS).
const IDENTIFY_NAMESPACE: u8 = 0;
const IDENTIFY_CONTROLLER: u8 = 1;

/// The two devices of a namespace.
pub(super) struct Devices {
    /// The character device.
    pub(super) fd: OwnedFd,
    /// The block device. Not claimed by this descriptor.
    pub(super) block: OwnedFd,
    pub(super) block_node: BlockNode,
    /// Acquired if it is open for writing.
    pub(super) claim: Claim,
    /// The id of the namespace.
    id: u32,
}

/// The namespace, as far as commands are concerned.
pub(super) struct Identified {
    pub(super) namespace: Namespace,
    pub(super) geometry: Geometry,
    pub(super) permission: Permission,
    /// Bytes that are written in whole or not at all.
    pub(super) atomic_write: u64,
}

/// The opening of a character device.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) access: Access,
}

impl Opening<'_> {
    /// Opens both devices; for writing, as the only user of the block device.
    pub(super) fn devices(self) -> io::Result<Devices> {
        let (fd, block_node) = self.character_device()?;
        let (block, claim) = self.block_device(&block_node)?;
        let id = ioctl::namespace_id(fd.as_fd()).map_err(|errno| self.at_device(errno))?;
        if block_node.namespace.is_some_and(|other| other != id) {
            let block = block_node.path.display();
            let what = format!("{block} is another namespace; name the device that belongs to it");
            return Err(self.failed(ErrorKind::InvalidData, what));
        }
        Ok(Devices { fd, block, block_node, claim, id })
    }

    fn character_device(self) -> io::Result<(OwnedFd, BlockNode)> {
        let metadata = std::fs::metadata(self.path)
            .map_err(|error| self.failed(error.kind(), error.to_string()))?;
        let Class::Namespace(folder) = Class::of(Path::new(SYSFS), metadata.rdev()) else {
            let what = "is not a namespace of an NVMe device; name one, such as /dev/ng0n1";
            return Err(self.failed(ErrorKind::InvalidInput, what));
        };
        let block_node = BlockNode::beside(&folder).ok_or_else(|| {
            let what = "its namespace has no block device, by which others are kept out; use a namespace that has one";
            self.failed(ErrorKind::Unsupported, what)
        })?;
        let flags = match self.access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let fd = open(self.path, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| open_error(self.path, self.access, errno.into()))?;
        if !is_device(fd.as_fd(), FileType::CharacterDevice, metadata.rdev()) {
            let what = "has become another file while it was opened; try again";
            return Err(self.failed(ErrorKind::InvalidData, what));
        }
        Ok((fd, block_node))
    }

    fn block_device(self, node: &BlockNode) -> io::Result<(OwnedFd, Claim)> {
        let claim = Claim::new(&node.path);
        if self.access == Access::ReadWrite {
            acquire_with_retry(&claim).map_err(|errno| self.at_block(node, errno))?;
        }
        let block = open(&node.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| self.at_block(node, errno.into()))?;
        let is_node = |fd: BorrowedFd<'_>| is_device(fd, FileType::BlockDevice, node.number);
        if !is_node(block.as_fd()) || !claim.is_held_by(is_node) {
            let what = format!(
                "{} is not its block device, which has the number {}:{}; repair the name",
                node.path.display(),
                major(node.number),
                minor(node.number)
            );
            return Err(self.failed(ErrorKind::InvalidData, what));
        }
        Ok((block, claim))
    }

    /// Asks the controller what the namespace is, and the kernel which commands it lets this user send.
    pub(super) fn identify(self, devices: &Devices) -> io::Result<Identified> {
        let (device, node) = (devices.fd.as_fd(), &devices.block_node);
        let at_device = |errno| self.at_device(errno);
        let answer = ioctl::identify(device, IDENTIFY_CONTROLLER, 0).map_err(at_device)?;
        let controller = Controller::parse(&answer);
        let answer = ioctl::identify(device, IDENTIFY_NAMESPACE, devices.id).map_err(at_device)?;
        let format =
            Format::parse(&answer).map_err(|what| self.failed(ErrorKind::Unsupported, what))?;
        let is_writable = self.access == Access::ReadWrite;
        let limits = sysfs::limits(major(node.number), minor(node.number));
        if is_writable && format.is_write_protected {
            return Err(open_error(self.path, self.access, Errno::ROFS));
        }
        // Someone has set it (`blockdev --setro`). The kernel lets commands pass all the same.
        if is_writable && limits.read_only {
            return Err(self.at_block(node, Errno::ROFS));
        }
        let mut geometry = format.geometry(&controller, &kernel_limits(&limits));
        geometry.read_only = !is_writable;
        let namespace = Namespace {
            id: devices.id,
            block_shift: format.block_shift,
            max_transfer: geometry.max_transfer,
            size: geometry.size,
            read_only: geometry.read_only,
            volatile_cache: geometry.volatile_cache,
        };
        let permission = Permission::probe(device, &namespace).map_err(at_device)?;
        if let Some(missing) = missing_permission(&permission, &geometry) {
            let block = node.path.display();
            let what = format!(
                "the kernel does not let this user send the command {missing}; open it as root, or use {block}, or a \
                 controller with a log of command effects (Linux 6.2)"
            );
            return Err(self.failed(ErrorKind::PermissionDenied, what));
        }
        let can_deallocate = is_writable && permission.has(Opcode::DatasetManagement);
        geometry.discard = geometry.discard.filter(|_| can_deallocate);
        geometry.write_zeroes &= is_writable && permission.has(Opcode::WriteZeroes);
        let atomic_write = format.atomic_write(&controller);
        Ok(Identified { namespace, geometry, permission, atomic_write })
    }

    fn failed(self, kind: ErrorKind, what: impl std::fmt::Display) -> io::Error {
        io::Error::new(kind, format!("{}: {what}", self.path.display()))
    }

    fn at_device(self, errno: Errno) -> io::Error {
        let what = format!("cannot identify the namespace: {errno}; see the kernel's log");
        self.failed(errno.kind(), what)
    }

    pub(super) fn at_block(self, node: &BlockNode, errno: Errno) -> io::Error {
        let error = open_error(&node.path, self.access, errno);
        self.failed(error.kind(), format!("its block device: {error}"))
    }
}

/// True if `fd` is the device of this kind and number: its path may have got another file.
fn is_device(fd: BorrowedFd<'_>, kind: FileType, number: u64) -> bool {
    fstat(fd).is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == kind && found.st_rdev == number
    })
}

fn kernel_limits(limits: &sysfs::Limits) -> KernelLimits {
    KernelLimits {
        max_transfer: limits.max_hardware_transfer,
        max_segments: limits.max_segments,
        max_discard: limits.discard_max,
        max_zeroed: limits.write_zeroes_max,
    }
}

/// The name of the first command without which a device of this geometry is of no use, and which is not allowed.
fn missing_permission(permission: &Permission, geometry: &Geometry) -> Option<&'static str> {
    let needs_write = !geometry.read_only;
    let needed = [
        (Opcode::Read, true),
        (Opcode::Write, needs_write),
        (Opcode::Flush, needs_write && geometry.volatile_cache),
    ];
    let missing = needed.into_iter().find(|(opcode, needed)| *needed && !permission.has(*opcode));
    missing.map(|(opcode, _)| opcode.name())
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn a_device_is_known_by_its_kind_and_number() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let (null, zero) = (makedev(1, 3), makedev(1, 5));
        assert!(is_device(file.as_fd(), FileType::CharacterDevice, null));
        assert!(!is_device(file.as_fd(), FileType::CharacterDevice, zero));
        assert!(!is_device(file.as_fd(), FileType::BlockDevice, null));
        let claim = Claim::new(Path::new("/dev/null"));
        assert!(claim.is_held_by(|_| false), "by none, until it is acquired");
        claim.acquire().unwrap();
        assert!(claim.is_held_by(|fd| is_device(fd, FileType::CharacterDevice, null)));
        assert!(!claim.is_held_by(|fd| is_device(fd, FileType::CharacterDevice, zero)));
    }
}
