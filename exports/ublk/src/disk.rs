//! [`Disk`]: a file as a block device of this machine, with its options and the device's parameters.

use std::fmt;

use uringfs::{File, ReactorOptions};

use crate::abi::{
    BasicParameters, DiscardParameters, Parameters, SECTOR_BYTES, attribute, parameter,
};

/// Requests of a queue that are under way at once. More wait in the kernel.
pub(crate) const QUEUE_DEPTH: u16 = 128;
/// The most bytes of data of one request. Each request that may be under way has memory for as many.
pub(crate) const MAX_IO_BYTES: u32 = 256 << 10;
/// The most queues of a device.
const MAX_QUEUES: u16 = 64;
/// The longest discard, 1 GiB.
const MAX_DISCARD_SECTORS: u32 = 1 << 21;
/// The longest zeroing, 64 MiB: on a slow disk that cannot zero by itself it has to end before the kernel loses
/// patience with an unprivileged server, after 30 s.
const MAX_ZEROES_SECTORS: u32 = 1 << 17;
/// The size of a block of a volume.
const VOLUME_BLOCK_BYTES: u64 = 4096;

/// A file as a block device, with its options.
///
/// ```
/// use uringfs::device::Access;
/// use uringfs::File;
/// use uringfs_ublk::Disk;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// uringfs::create_image(&path, 1 << 20)?;
/// let disk = Disk::new(File::open(&path, Access::ReadWrite)?).name("scratch").queues(2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Disk {
    pub(crate) file: File,
    pub(crate) name: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) queues: u16,
    pub(crate) unprivileged: bool,
    pub(crate) reactor: ReactorOptions,
}

impl Disk {
    /// A disk with one queue, without a name. Read only if the file's device is. Its size is that of the file, in whole
    /// sectors of 512 bytes. Its requests bypass the page cache of this process, however the handle was opened: a write that is
    /// acknowledged is there for the next server if this one is killed.
    pub fn new(file: File) -> Disk {
        Disk {
            read_only: file.geometry().read_only,
            file: file.direct(),
            name: None,
            queues: 1,
            unprivileged: false,
            reactor: ReactorOptions::new(),
        }
    }

    /// A name, by which the next server finds the device if this one is killed: it goes on with the device, whose
    /// requests have waited, mounts included. Without a name they fail, and the device is gone. Serve the same file
    /// under a name.
    pub fn name(mut self, name: impl Into<String>) -> Disk {
        self.name = Some(name.into());
        self
    }

    /// True: the device cannot be written. No effect if the file's device is read only anyway.
    pub fn read_only(mut self, read_only: bool) -> Disk {
        self.read_only = read_only || self.file.geometry().read_only;
        self
    }

    /// The number of queues, 1 to 64, each with a thread and a reactor of its own. The kernel makes at most one a
    /// processor.
    pub fn queues(mut self, queues: usize) -> Disk {
        self.queues = queues.clamp(1, MAX_QUEUES.into()) as u16;
        self
    }

    /// True: a device that a user without privileges may make, where the administrator has given this user
    /// `/dev/ublk-control`. Only this user, and root, can open the device. The kernel copies the data of its requests,
    /// ends a server that takes more than 30 s for a request, and keeps no request for the next server.
    pub fn unprivileged(mut self, unprivileged: bool) -> Disk {
        self.unprivileged = unprivileged;
        self
    }

    /// The options of the reactors.
    pub fn reactor(mut self, reactor: ReactorOptions) -> Disk {
        self.reactor = reactor;
        self
    }

    /// A volume's file frees blocks, whatever its device can do.
    pub(crate) fn has_holes(&self) -> bool {
        self.file.resizable_map().is_some()
    }

    /// The parameters of its device.
    pub(crate) fn parameters(&self) -> Parameters {
        let geometry = self.file.geometry();
        let device_block = u64::from(geometry.physical_block_size).max(SECTOR_BYTES);
        let block = match self.has_holes() {
            true => device_block.max(VOLUME_BLOCK_BYTES),
            false => device_block,
        };
        let shift = block.ilog2() as u8;
        let mut attributes = attribute::VOLATILE_CACHE | attribute::FUA;
        let mut set = |attribute, is_set| {
            if is_set {
                attributes |= attribute;
            }
        };
        set(attribute::READ_ONLY, self.read_only);
        set(attribute::ROTATIONAL, geometry.rotational);
        let discards = (self.has_holes() || geometry.discard.is_some()) && !self.read_only;
        let granularity = match geometry.discard {
            Some(discard) if !self.has_holes() => block.max(discard.granularity.into()),
            _ => block,
        };
        Parameters {
            length: size_of::<Parameters>() as u32,
            sets: parameter::BASIC | parameter::DISCARD,
            basic: BasicParameters {
                attributes,
                logical_block_shift: SECTOR_BYTES.ilog2() as u8,
                physical_block_shift: shift,
                optimal_io_shift: shift,
                min_io_shift: shift,
                max_sectors: MAX_IO_BYTES / SECTOR_BYTES as u32,
                device_sectors: self.file.len() / SECTOR_BYTES,
                ..BasicParameters::default()
            },
            discard: DiscardParameters {
                granularity_bytes: granularity as u32,
                max_discard_sectors: if discards { MAX_DISCARD_SECTORS } else { 0 },
                max_zeroes_sectors: if self.read_only { 0 } else { MAX_ZEROES_SECTORS },
                max_segments: 1,
                ..DiscardParameters::default()
            },
            char_major: 0,
        }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Disk")
            .field("file", &self.file)
            .field("name", &self.name)
            .field("read_only", &self.read_only)
            .field("queues", &self.queues)
            .field("unprivileged", &self.unprivileged)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::file::FileOptions;
    use uringfs::{FormatOptions, OpenOptions, Volume, VolumeOptions};

    use super::*;

    fn memory(bytes: u64) -> Device {
        Device::new(Memory::new(bytes).unwrap()).unwrap()
    }

    #[test]
    fn a_volume_s_file_has_the_blocks_of_its_volume_and_discards() {
        let device = memory(16 << 20);
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let volume = VolumeOptions::new().open_on(device).unwrap();
        let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
        let file = options.open(&volume, "/disk").unwrap();
        file.set_len(1_000_000).wait().unwrap();
        let Parameters { basic, discard, .. } = Disk::new(file.clone()).parameters();
        assert_eq!(basic.device_sectors, 1953);
        assert_eq!((basic.logical_block_shift, basic.physical_block_shift), (9, 12));
        assert_eq!(basic.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!((discard.granularity_bytes, discard.max_segments), (4096, 1));
        assert!(discard.max_discard_sectors > 0 && discard.max_zeroes_sectors > 0);
        let Parameters { basic, discard, .. } = Disk::new(file).read_only(true).parameters();
        assert_ne!(basic.attributes & attribute::READ_ONLY, 0);
        assert_eq!((discard.max_discard_sectors, discard.max_zeroes_sectors), (0, 0));
    }

    #[test]
    fn the_number_of_queues_has_bounds() {
        let disk = Disk::new(File::from_device(memory(1 << 20), FileOptions::new()));
        assert_eq!(disk.clone().queues(0).queues, 1);
        assert_eq!(disk.queues(70_000).queues, 64);
    }
}
