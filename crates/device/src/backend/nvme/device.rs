//! The back end.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use uringfs_buffer::Buffer;
use uringfs_errno::Errno;
use uringfs_ring::Tries;
use uringfs_ring::nvme::{Namespace, WriteMode};

use super::ioctl;
use super::nodes::{BlockNode, Class, SYSFS};
use super::open::{Devices, Identified, Opening};
use super::permission::Permission;
use crate::backend::block::split_range;
use crate::backend::ioctl as block_ioctl;
use crate::claim::Claim;
use crate::geometry::Geometry;
use crate::interface::backend::{Access, Backend, KernelTarget, Property};
use crate::request::{Durability, Op, Payload, Request};

/// The longest write of zeros, where the controller cannot zero.
const MAX_ZEROS: u64 = 1 << 20;

/// A namespace of an NVMe device, by its character device.
#[derive(Debug)]
pub struct Nvme {
    path: PathBuf,
    /// The character device.
    fd: OwnedFd,
    /// The block device of the same namespace, which identifies its bytes. Not claimed by this descriptor.
    block: OwnedFd,
    block_node: BlockNode,
    /// Acquired if it is open for writing.
    claim: Claim,
    namespace: Namespace,
    geometry: Geometry,
    permission: Permission,
    /// Bytes that are written in whole or not at all.
    atomic_write: u64,
}

impl Nvme {
    /// Opens the character device `path` of a namespace; for writing, as the only user of the namespace.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the path and what to do: `ResourceBusy` if its block device is mounted or in
    /// use.
    pub fn open(path: &Path, access: Access) -> io::Result<Nvme> {
        let opening = Opening { path, access };
        let devices = opening.devices()?;
        let Identified { namespace, geometry, permission, atomic_write } =
            opening.identify(&devices)?;
        let Devices { fd, block, block_node, claim, .. } = devices;
        // Bytes that were written to the block device are to be read here.
        block_ioctl::drop_page_cache(block.as_fd())
            .map_err(|errno| opening.at_block(&block_node, errno))?;
        let path = path.to_owned();
        Ok(Nvme {
            path,
            fd,
            block,
            block_node,
            claim,
            namespace,
            geometry,
            permission,
            atomic_write,
        })
    }

    /// All completed writes become durable. Without a volatile cache they are.
    fn flush(&self, tries: Tries) -> Result<(), Errno> {
        match self.namespace.volatile_cache {
            true => ioctl::flush(self.fd.as_fd(), &self.namespace, tries),
            false => Ok(()),
        }
    }

    /// Zeroes a range by command, or by writing zeros.
    fn zero(&self, request: &Request, (address, length): (u64, u64)) -> Result<(), Errno> {
        let mode = match request.durability {
            Durability::Volatile => WriteMode::Cached,
            Durability::Durable => WriteMode::ForceUnitAccess,
        };
        let device = self.fd.as_fd();
        if self.geometry.write_zeroes {
            // Some controllers limit it as they limit transfers (drivers/nvme/host/core.c).
            let most = self.namespace.max_zeroed().min(self.namespace.max_transfer.into());
            for part in split_range((address, length), most) {
                ioctl::write_zeroes(device, &self.namespace, mode, part, request.tries())?;
            }
            return Ok(());
        }
        let block_size = u64::from(self.geometry.block_size);
        for (address, length) in split_range((address, length), MAX_ZEROS.max(block_size)) {
            let zeros = Payload::Buffer(Buffer::zeroed(length as usize));
            let mut write = Request::new(request.device, Op::Write, address, zeros, request.tag);
            write.durability = request.durability;
            while write.remaining() > 0 {
                match ioctl::transfer(device, &self.namespace, &mut write, request.tries())? {
                    0 => return Err(Errno::IO),
                    moved => write.skip(moved),
                }
            }
        }
        Ok(())
    }
}

impl Backend for Nvme {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        block_ioctl::size(self.block.as_fd())
    }

    fn description(&self) -> String {
        format!("NVMe namespace {}", self.path.display())
    }

    fn properties(&self) -> Vec<Property> {
        let (allowed, refused) = self.permission.names();
        let refused = match refused.as_str() {
            "" => "all that are used here".into(),
            refused => format!("the kernel refuses this user {refused}"),
        };
        let held = match self.geometry.read_only {
            false => "held, so that the kernel refuses mounts",
            true => "of the same namespace",
        };
        let mut properties = vec![
            Property::new("commands", allowed, refused),
            Property::new("block_device", self.block_node.path.display().to_string(), held.into()),
            Property::new(
                "atomic_write",
                self.atomic_write.to_string(),
                "bytes that are written in whole or not at all, even without power".into(),
            ),
        ];
        if let Some(paths) = self.block_node.paths {
            let meaning =
                "controllers that reach the namespace; the kernel selects one for each command";
            properties.push(Property::new("paths", paths.to_string(), meaning.into()));
        }
        properties
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::Nvme(self.fd.as_fd(), self.namespace)
    }

    fn identity(&self) -> Option<BorrowedFd<'_>> {
        Some(self.block.as_fd())
    }

    fn claim(&self) -> Option<&Claim> {
        Some(&self.claim)
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let device = self.fd.as_fd();
        let has_memory = !matches!(request.payload, Payload::Length(_));
        if matches!(request.op, Op::Read | Op::Write) != has_memory {
            return Err(Errno::INVAL);
        }
        // Root may send any command by any descriptor.
        if self.geometry.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            return Err(Errno::BADF);
        }
        let range = (request.address.saturating_add(request.done()), request.remaining());
        let tries = request.tries();
        match request.op {
            Op::Read if request.payload.is_read_only() => Err(Errno::FAULT),
            Op::Read | Op::Write => ioctl::transfer(device, &self.namespace, request, tries),
            Op::Flush => self.flush(tries).map(|()| 0),
            Op::Discard => {
                let limits = self.geometry.discard.ok_or(Errno::OPNOTSUPP)?;
                for part in split_range(range, limits.max_bytes) {
                    ioctl::deallocate(device, &self.namespace, part, tries)?;
                }
                match request.durability {
                    Durability::Volatile => Ok(0),
                    Durability::Durable => self.flush(tries).map(|()| 0),
                }
            }
            Op::WriteZeroes => self.zero(request, range).map(|()| 0),
        }
    }
}

impl Drop for Nvme {
    /// The block device has not seen the bytes that were written here.
    fn drop(&mut self) {
        if !self.geometry.read_only {
            let _ = block_ioctl::drop_page_cache(self.block.as_fd());
        }
    }
}

/// True if `path` is the character device of a namespace of an NVMe device, such as `/dev/ng0n1`.
pub fn is_namespace(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| serves(&metadata))
}

/// True if this back end serves such a file.
fn serves(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device()
        && matches!(Class::of(Path::new(SYSFS), metadata.rdev()), Class::Namespace(_))
}

/// Refuses the character device of a controller, which is no namespace.
///
/// # Errors
/// `InvalidInput`, with the path and what to do.
pub(in crate::backend) fn refuse_controller(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let is_controller = metadata.file_type().is_char_device()
        && Class::of(Path::new(SYSFS), metadata.rdev()) == Class::Controller;
    match is_controller {
        false => Ok(()),
        true => Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{} is an NVMe controller; name one of its namespaces, such as /dev/ng0n1 or /dev/nvme0n1",
                path.display()
            ),
        )),
    }
}

/// The block device of the namespace whose character device `path` is. `None` if it is none.
pub fn block_device_of(path: &Path) -> Option<PathBuf> {
    let metadata =
        std::fs::metadata(path).ok().filter(|found| found.file_type().is_char_device())?;
    match Class::of(Path::new(SYSFS), metadata.rdev()) {
        Class::Namespace(folder) => BlockNode::beside(&folder).map(|node| node.path),
        Class::Controller | Class::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_is_refused_by_name() {
        for path in ["/dev/null", "/dev/zero"] {
            let path = Path::new(path);
            assert!(!is_namespace(path) && block_device_of(path).is_none());
            let error = Nvme::open(path, Access::ReadWrite).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(
                text.starts_with(&path.display().to_string()) && !text.contains('\n'),
                "{text}"
            );
            assert!(text.contains("is not a namespace of an NVMe device; name one"), "{text}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_namespace(file.path()));
        assert!(Nvme::open(file.path(), Access::Read).is_err());
    }
}
