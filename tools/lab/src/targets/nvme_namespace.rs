//! An NVMe namespace by its character device (`/dev/ngXnY`), which takes commands and has no reads and writes. Everything here is a
//! call that blocks; the engine `nvme-passthru` has the loop.

#![allow(unsafe_code)]

use super::nvme_command::{
    DEALLOCATE_BYTES, DataRange, IDENTIFY_BYTES, NamespaceFormat, NvmeCommand, Transfer,
    deallocate_range, largest_transfer,
};
use crate::Error;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use uringfs::Errno;
use uringfs::device::backend::nvme::is_namespace;
use uringfs_ring::nvme::NvmeStatus;

/// `NVME_IOCTL_ID` of linux/nvme_ioctl.h.
const ID: Opcode = opcode::none(b'N', 0x40);
/// `NVME_IOCTL_ADMIN_CMD`.
const ADMIN_COMMAND: Opcode = opcode::read_write::<NvmeCommand>(b'N', 0x41);
/// `NVME_IOCTL_IO_CMD`.
const IO_COMMAND: Opcode = opcode::read_write::<NvmeCommand>(b'N', 0x43);

/// Bytes of one read of [`Namespace::read`], which any controller can move.
const PIECE_BYTES: u64 = 64 << 10;

/// An open namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    /// Its number in the controller.
    pub id: u32,
    /// Its size and the form of its blocks.
    pub format: NamespaceFormat,
    /// The largest transfer of its controller in bytes; `None` is no limit.
    pub largest_transfer: Option<u64>,
}

impl Namespace {
    /// Opens a namespace and identifies it.
    ///
    /// # Errors
    /// Not a namespace, no permission, or blocks with metadata or protection information.
    pub fn open(path: &Path, writes: bool) -> Result<Self, Error> {
        let bad = |text: &str| Error::input(format!("{}: {text}", path.display()));
        if !is_namespace(path) {
            return Err(bad(
                "is not the character device of an NVMe namespace; name one, as /dev/ng0n1",
            ));
        }
        let failed = |error: io::Error| bad("cannot be opened").because(error);
        let file = File::options().read(true).write(writes).open(path).map_err(failed)?;
        let refused = |what: &str, errno: Errno| {
            let hint = if errno == Errno::ACCESS { "; be root" } else { "" };
            bad(&format!("{what}{hint}")).because(errno)
        };
        let id =
            call(file.as_fd(), ID, None).map_err(|errno| refused("has no namespace id", errno))?;
        let identify = |command: fn(u32, DataRange) -> NvmeCommand| {
            let mut answer = [0; IDENTIFY_BYTES];
            let data = range_of(&mut answer);
            submit(file.as_fd(), ADMIN_COMMAND, command(id, data)).map(|()| answer)
        };
        let namespace = identify(NvmeCommand::identify_namespace)
            .map_err(|errno| refused("cannot be identified", errno))?;
        let controller = identify(|_, data| NvmeCommand::identify_controller(data))
            .map_err(|errno| refused("its controller cannot be identified", errno))?;
        let format = NamespaceFormat::from_identify(&namespace)
            .ok_or_else(|| bad("its format has no valid block size"))?;
        if format.metadata_bytes != 0 || format.is_protected {
            return Err(bad(&format!(
                "its blocks have {} bytes of metadata{}; choose a format without (nvme format)",
                format.metadata_bytes,
                if format.is_protected { ", with protection information" } else { "" }
            )));
        }
        Ok(Self { file, id, format, largest_transfer: largest_transfer(&controller) })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.format.blocks.saturating_mul(self.format.block_bytes.into())
    }

    /// The open file, for commands by io_uring.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads bytes at any offset. Those after the end are missing.
    ///
    /// # Errors
    /// Those of the device and of the system.
    pub fn read(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let block = u64::from(self.format.block_bytes);
        let begin = offset / block * block;
        let end = offset.saturating_add(length).min(self.size()).next_multiple_of(block);
        let mut bytes = vec![0; end.saturating_sub(begin) as usize];
        let pieces = bytes.chunks_mut(PIECE_BYTES as usize);
        for (at, piece) in (begin..).step_by(PIECE_BYTES as usize).zip(pieces) {
            let count = (piece.len() as u64 / block) as u32;
            let data = range_of(piece);
            let command = NvmeCommand::transfer(Transfer::Read, self.id, at / block, count, data);
            submit(self.descriptor(), IO_COMMAND, command)?;
        }
        bytes.drain(..bytes.len().min((offset - begin) as usize));
        bytes.truncate(length as usize);
        Ok(bytes)
    }

    /// Flushes the controller's volatile write cache.
    ///
    /// # Errors
    /// Those of the device and of the system.
    pub fn flush(&self) -> Result<(), Errno> {
        submit(self.descriptor(), IO_COMMAND, NvmeCommand::flush(self.id))
    }

    /// Deallocates a range of whole blocks.
    ///
    /// # Errors
    /// EINVAL for a range that is not whole blocks, or more than a command can name; those of the device and of the system.
    pub fn deallocate(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let block = u64::from(self.format.block_bytes);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(Errno::INVAL);
        }
        let count = u32::try_from(length / block).map_err(|_| Errno::INVAL)?;
        let mut range: [u8; DEALLOCATE_BYTES] = deallocate_range(offset / block, count);
        let command = NvmeCommand::deallocate(self.id, range_of(&mut range));
        submit(self.descriptor(), IO_COMMAND, command)
    }
}

/// The memory of a command: valid as long as the caller keeps the bytes.
fn range_of(bytes: &mut [u8]) -> DataRange {
    DataRange { address: bytes.as_mut_ptr().expose_provenance() as u64, length: bytes.len() as u32 }
}

/// Submits a command and waits for its end. A status of the device is an errno.
fn submit(file: BorrowedFd<'_>, opcode: Opcode, mut command: NvmeCommand) -> Result<(), Errno> {
    match call(file, opcode, Some(&mut command))? {
        0 => Ok(()),
        status => Err(NvmeStatus::from_result(status).errno()),
    }
}

/// One of the calls above. Its result is a number: an id, or a status of the device.
struct Call<'a> {
    opcode: Opcode,
    command: Option<&'a mut NvmeCommand>,
}

fn call(
    file: BorrowedFd<'_>,
    opcode: Opcode,
    command: Option<&mut NvmeCommand>,
) -> Result<u32, Errno> {
    // SAFETY: the callers pass the file of a namespace, and a command whose memory outlives the call, which returns when the
    // command has ended. The kernel checks the addresses.
    let called = unsafe { ioctl(file, Call { opcode, command }) };
    Ok(called?)
}

// SAFETY: the three calls take no argument or a `struct nvme_passthru_cmd`, which `NvmeCommand` is, and return a number.
unsafe impl Ioctl for Call<'_> {
    type Output = u32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.command.as_mut().map_or(std::ptr::null_mut(), |command| {
            std::ptr::from_mut::<NvmeCommand>(command).cast()
        })
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(out as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_have_the_numbers_of_the_kernels_header() {
        assert_eq!((ID, ADMIN_COMMAND, IO_COMMAND), (0x4e40, 0xc048_4e41, 0xc048_4e43));
    }

    #[test]
    fn what_is_no_namespace_is_refused_without_opening_it() {
        for path in ["/dev/null", "/dev", "/dev/ng99n99"] {
            let error = Namespace::open(Path::new(path), false).unwrap_err().to_string();
            assert!(error.contains("is not the character device of an NVMe namespace"), "{error}");
        }
    }
}
