//! [`Disk`]: a file as a guest sees it, its features and its configuration space.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uringfs::file::UncommittedChanges;
use uringfs::reactor::RequestCounters;
use uringfs::{File, ReactorOptions};
use zerocopy::IntoBytes;

use crate::abi::{BlockConfig, SECTOR_BYTES, feature};
use crate::message::MAX_CONFIG_BYTES;

/// The longest serial number in bytes.
const MAX_SERIAL_BYTES: usize = 20;
/// The most queues of a disk.
const MAX_QUEUES: usize = 64;
/// The most data segments of a request that the guest is asked for: what a ring of 128 entries has room for.
const MAX_REQUEST_SEGMENTS: u32 = 126;
/// The longest range of a discard or zeroing of a guest, 1 GiB.
pub(crate) const MAX_RANGE_SECTORS: u32 = 1 << 21;
/// How much is zeroed at a time, so that a stop is not held up.
const MAX_ZEROED: u64 = 64 << 20;
/// The same where the zeros are written.
const MAX_ZEROS_WRITTEN: u64 = 1 << 20;
/// The most ranges of a discard or zeroing.
pub(crate) const MAX_RANGES: usize = 64;

/// Whether the kernel keeps the guest's memory in RAM, which makes requests cheaper: their pages are looked up once. Such a
/// guest can neither be swapped out nor give memory back (a balloon).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMemory {
    /// If it fits in `RLIMIT_MEMLOCK`, once for each queue.
    #[default]
    Auto,
    /// Always tried. Where the kernel refuses, requests are served as with [`Self::Off`].
    On,
    /// Never.
    Off,
}

/// A file as the disk of a guest, with its options.
///
/// ```
/// use uringfs::device::Access;
/// use uringfs::File;
/// use uringfs_vhost::Disk;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// uringfs::create_image(&path, 1 << 20)?;
/// let disk = Disk::new(File::open(&path, Access::ReadWrite)?).serial("disk-1").queues(2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Disk {
    pub(crate) file: File,
    pub(crate) serial: String,
    pub(crate) read_only: bool,
    pub(crate) queues: usize,
    pub(crate) pin_memory: PinMemory,
    pub(crate) packed: bool,
    pub(crate) polling: bool,
    pub(crate) reactor: ReactorOptions,
}

impl Disk {
    /// A disk with one queue, without a serial number. Read only if the file's device is. Its requests bypass the page cache of
    /// this process, however the handle was opened: a write that is acknowledged is there for the next server if this one is
    /// killed.
    pub fn new(file: File) -> Disk {
        Disk {
            read_only: file.geometry().read_only,
            file: file.direct(),
            serial: String::new(),
            queues: 1,
            pin_memory: PinMemory::Auto,
            packed: false,
            polling: true,
            reactor: ReactorOptions::new(),
        }
    }

    /// The serial number, which a guest shows as `/dev/disk/by-id/virtio-SERIAL`. At most 20 bytes are kept.
    pub fn serial(mut self, serial: impl Into<String>) -> Disk {
        let mut serial = serial.into();
        let end = (0..=MAX_SERIAL_BYTES.min(serial.len())).rev();
        let end = end.into_iter().find(|end| serial.is_char_boundary(*end)).unwrap_or(0);
        serial.truncate(end);
        self.serial = serial;
        self
    }

    /// True: the guest sees a disk that it cannot write. No effect if the file's device is read only anyway.
    pub fn read_only(mut self, read_only: bool) -> Disk {
        self.read_only = read_only || self.file.geometry().read_only;
        self
    }

    /// The number of queues, 1 to 64, each with a thread and a reactor of its own.
    pub fn queues(mut self, queues: usize) -> Disk {
        self.queues = queues.clamp(1, MAX_QUEUES);
        self
    }

    /// Whether the kernel keeps the guest's memory in RAM.
    pub fn pin_memory(mut self, pin_memory: PinMemory) -> Disk {
        self.pin_memory = pin_memory;
        self
    }

    /// True: offers packed rings. Then the guest does not survive a restart of the server, as requests in flight are
    /// recorded for split rings only.
    pub fn packed(mut self, packed: bool) -> Disk {
        self.packed = packed;
        self
    }

    /// False: a thread sleeps as soon as it has nothing to do. Otherwise it looks for the next request for up to 50 us first,
    /// if the last one came within that time. An idle disk costs no processor time either way.
    pub fn polling(mut self, polling: bool) -> Disk {
        self.polling = polling;
        self
    }

    /// The options of the reactors.
    pub fn reactor(mut self, reactor: ReactorOptions) -> Disk {
        self.reactor = reactor;
        self
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Disk")
            .field("file", &self.file)
            .field("serial", &self.serial)
            .field("read_only", &self.read_only)
            .field("queues", &self.queues)
            .field("polling", &self.polling)
            .finish_non_exhaustive()
    }
}

/// How often the thread of a queue has looked for requests or completions instead of sleeping. Its cache line is its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PollCount(pub(crate) AtomicU64);

/// A disk that is served: what its threads share.
#[derive(Debug)]
pub(crate) struct ServedDisk {
    pub(crate) disk: Disk,
    /// In bytes, a multiple of the sector.
    capacity: AtomicU64,
    /// Zeroing may free blocks.
    pub(crate) has_holes: bool,
    /// The most bytes that are zeroed at a time.
    pub(crate) max_zeroed: u64,
    /// The server is to stop.
    pub(crate) is_stopping: AtomicBool,
    discards: bool,
    /// Of each queue.
    pub(crate) polls: Box<[PollCount]>,
    /// Of each queue.
    pub(crate) counters: Box<[RequestCounters]>,
    /// `Some` if guests go on when this process is killed: what is acknowledged must be there for the next server.
    pub(crate) uncommitted: Option<UncommittedChanges>,
}

impl ServedDisk {
    pub(crate) fn new(disk: Disk) -> ServedDisk {
        let capacity = whole_sectors(disk.file.len());
        let has_holes = has_holes(&disk.file);
        let geometry = disk.file.geometry();
        let discards = has_holes || geometry.discard.is_some();
        let max_zeroed = if geometry.write_zeroes { MAX_ZEROED } else { MAX_ZEROS_WRITTEN };
        ServedDisk {
            capacity: AtomicU64::new(capacity),
            has_holes,
            max_zeroed,
            is_stopping: AtomicBool::new(false),
            discards: discards && !disk.read_only,
            polls: (0..disk.queues).map(|_| PollCount::default()).collect(),
            counters: (0..disk.queues).map(|_| RequestCounters::default()).collect(),
            uncommitted: (!disk.packed).then(UncommittedChanges::default),
            disk,
        }
    }

    /// Its size in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Takes the size of the file again, after a look at the device, which may have grown. Returns whether it has
    /// changed.
    pub(crate) fn update_capacity(&self) -> bool {
        self.disk.file.device().core().check_size();
        let capacity = whole_sectors(self.disk.file.len());
        self.capacity.swap(capacity, Ordering::Relaxed) != capacity
    }

    pub(crate) fn discards(&self) -> bool {
        self.discards
    }

    /// The features that a guest may use.
    pub(crate) fn features(&self) -> u64 {
        let mut features = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::FLUSH
            | feature::INDIRECT
            | feature::EVENT_INDEX
            | feature::PROTOCOL
            | feature::VERSION_1;
        let mut offer = |bit, is_offered| {
            if is_offered {
                features |= bit;
            }
        };
        offer(feature::READ_ONLY, self.disk.read_only);
        offer(feature::WRITE_ZEROES, !self.disk.read_only);
        offer(feature::DISCARD, self.discards);
        offer(feature::MULTI_QUEUE, self.disk.queues > 1);
        offer(feature::PACKED, self.disk.packed);
        features
    }

    /// The configuration space, filled up with zeros.
    pub(crate) fn config(&self) -> [u8; MAX_CONFIG_BYTES as usize] {
        let geometry = self.disk.file.geometry();
        let physical = u64::from(geometry.physical_block_size).max(SECTOR_BYTES);
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
        let granularity = geometry.discard.map_or(physical, |discard| discard.granularity.into());
        let config = BlockConfig {
            capacity: (self.capacity() / SECTOR_BYTES).into(),
            max_segments: MAX_REQUEST_SEGMENTS.into(),
            block_bytes: (SECTOR_BYTES as u32).into(),
            physical_block_exponent: (physical / SECTOR_BYTES).ilog2() as u8,
            min_io_blocks: u16::try_from(physical / SECTOR_BYTES).unwrap_or(u16::MAX).into(),
            writeback: 1,
            queues: (self.disk.queues as u16).into(),
            max_discard_sectors: MAX_RANGE_SECTORS.into(),
            max_discard_segments: (MAX_RANGES as u32).into(),
            discard_alignment_sectors: sectors(granularity).max(1).into(),
            max_zeroes_sectors: MAX_RANGE_SECTORS.into(),
            max_zeroes_segments: (MAX_RANGES as u32).into(),
            zeroes_may_unmap: self.has_holes.into(),
            ..BlockConfig::default()
        };
        let mut bytes = [0; MAX_CONFIG_BYTES as usize];
        bytes[..size_of::<BlockConfig>()].copy_from_slice(config.as_bytes());
        bytes
    }
}

fn whole_sectors(bytes: u64) -> u64 {
    bytes / SECTOR_BYTES * SECTOR_BYTES
}

/// A volume's file frees blocks, whatever its device can do.
fn has_holes(file: &File) -> bool {
    file.resizable_map().is_some()
}
