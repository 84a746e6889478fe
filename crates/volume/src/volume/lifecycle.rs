//! A volume from its creation to its end: by path, and on a device.

use std::io;
use std::path::Path;

use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::{Access, Device, Errno};

use crate::blocks::BLOCK;
use crate::error::{Error, ErrorKind, OfPath};
use crate::namespace::path::bytes;
use crate::volume::holders::Holders;
use crate::volume::options::{FormatOptions, VolumeOptions};
use crate::volume::volume::Volume;

impl Volume {
    /// Creates a volume in a new file of [`FormatOptions::size`], and opens it. The file is filled with zeros, so that
    /// every later write is a plain overwrite; this takes as long as writing its size. With
    /// [`FormatOptions::overwrite`] the volume can also be on a block device, or in a file that exists.
    ///
    /// # Errors
    /// EEXIST if the path exists; `Input` without a size for a new file, and as [`Self::format`]; ENOSPC and other errors
    /// of the file system and of the device.
    pub fn create(path: impl AsRef<Path>, options: &FormatOptions) -> Result<Volume, Error> {
        Volume::create_at(path.as_ref(), options).of_path(bytes(&path))
    }

    fn create_at(path: &Path, options: &FormatOptions) -> Result<Volume, Error> {
        if path.exists() {
            if !options.overwrite {
                let what = "it exists already; open it with `Volume::open`, or replace all that is in it with \
                            `FormatOptions::overwrite`";
                return Err(Error::refused(Errno::EXIST, what));
            }
            let device = Device::open(path, Access::ReadWrite)?;
            return Volume::create_on(device, options);
        }
        let Some(size) = options.size else {
            let what = "a new file needs a size: give it with `FormatOptions::size`";
            return Err(Error::new(ErrorKind::Input, what));
        };
        let file = ImageFile::create(path, size / BLOCK * BLOCK, Allocation::Written);
        let device = file.and_then(Device::new)?;
        Volume::create_on(device, options).inspect_err(|_| {
            // The file was just created, so it has no other user.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Opens the volume in a file or on a block device, for reading and writing. The URI of an NBD server's export is a path,
    /// too: see [`Device::open`].
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Volume, Error> {
        VolumeOptions::new().open(path)
    }

    /// Formats a device, such as a simulated one, and opens the volume on it.
    ///
    /// # Errors
    /// As [`Self::format`] and [`Self::open_on`].
    pub fn create_on(device: Device, options: &FormatOptions) -> Result<Volume, Error> {
        Volume::format(&device, options)?;
        Volume::open_on(device)
    }

    /// Opens the volume on a device. It is read-only if the device is.
    ///
    /// # Errors
    /// As [`VolumeOptions::open_on`].
    pub fn open_on(device: Device) -> Result<Volume, Error> {
        VolumeOptions::new().open_on(device)
    }

    /// Closes the volume: makes all changes durable, ends it with its last commit, and reports what failed. After
    /// success the file or the device is free for another program. A drop does the same, but reports failures only to
    /// [`Self::errors`], and in a task whose reactor has operations in flight it waits for no page cache: what is dirty becomes
    /// durable later, if the process lives that long.
    ///
    /// All clones and files must be closed before. If one is still open, the changes are durable nevertheless, and the
    /// volume stays open until the last of them is dropped. Blocks as [`Self::sync`].
    ///
    /// An operation in flight keeps its file open, also when its future was dropped. So this waits for operations in
    /// flight, up to a minute if the device is slow. A task's call does not wait for operations of the task's own
    /// reactor, which cannot end meanwhile.
    ///
    /// # Errors
    /// EBUSY if the volume is still open when no operation is in flight, after a second in which work in the background
    /// may end, or when operations are in flight after a minute. The text has the numbers of operations, open files and
    /// other handles. As [`Self::sync`]; EIO if the last commit failed.
    pub fn close(self) -> Result<(), Error> {
        let synced = self.sync();
        let (closed, holders) = (self.shared.closed(), Holders::new(&self));
        drop(self);
        let ended = holders.wait_for(&closed);
        synced?;
        match ended {
            Some(committed) => {
                committed.map_err(|errno| Error::io("the last commit of the volume", errno))
            }
            None => Err(Error::refused(Errno::BUSY, holders.describe())),
        }
    }
}

impl VolumeOptions {
    /// Opens the volume in a file, on a block device, on the export of an NBD server, or on an image of Ceph's RBD:
    /// see [`Device::open`].
    ///
    /// # Errors
    /// ENOENT and other errors of opening the path; as [`Self::open_on`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        let access = if self.read_only { Access::Read } else { Access::ReadWrite };
        let device = Device::open(&path, access).map_err(open_error);
        device.and_then(|device| self.open_on(device)).of_path(bytes(&path))
    }
}

fn open_error(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let what = format!("{error}, or make a volume with `Volume::create`");
            Error::refused(Errno::NOENT, what)
        }
        _ => Error::from(error),
    }
}
