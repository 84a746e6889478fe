//! Files and memory that the ring has registered with the kernel, so that a
//! request names them by index and the kernel neither looks up nor pins anything.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Weak;

use io_uring::IoUring;
use io_uring::squeue::Flags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use uringfs_buffer::{Region, RegionId};

use crate::segment::Piece;

/// The state of registration, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Files named by index now.
    pub files: usize,
    /// Regions of memory named by index now.
    pub regions: usize,
    /// Why registering memory was refused last; requests then name addresses.
    pub refused: Option<String>,
}

/// A file as a request names it: an entry's first word, without its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSlot(u64);

impl FileSlot {
    /// There is none at this place; the kernel would answer EBADF.
    pub(crate) const ABSENT: FileSlot = FileSlot::plain(-1);
    /// There is no file: requests are NOPs.
    pub(crate) const NOP: FileSlot = FileSlot::plain(-2);
    const FIXED: u64 = (Flags::FIXED_FILE.bits() as u64) << 8;

    /// By descriptor.
    #[inline(always)]
    pub(crate) const fn plain(descriptor: RawFd) -> FileSlot {
        FileSlot((descriptor as u32 as u64) << 32)
    }

    /// By its place in the kernel's table.
    #[inline(always)]
    pub(crate) const fn fixed(place: u32) -> FileSlot {
        FileSlot((place as u64) << 32 | FileSlot::FIXED)
    }

    /// The same, the request carried out by a worker of the kernel's.
    pub(crate) fn by_worker(self) -> FileSlot {
        FileSlot(self.0 | (Flags::ASYNC.bits() as u64) << 8)
    }

    #[inline(always)]
    pub(crate) fn is_fixed(self) -> bool {
        self.0 & FileSlot::FIXED != 0
    }

    /// The descriptor or place.
    pub(crate) fn number(self) -> i32 {
        (self.0 >> 32) as i32
    }

    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_truncate((self.0 >> 8) as u8)
    }

    /// The first word of an entry for this file.
    #[inline(always)]
    pub(crate) fn with_operation(self, code: u8) -> u64 {
        self.0 | code as u64
    }
}

/// The files a ring knows, by places that the user chooses.
pub(crate) struct FileTable {
    fixed: bool,
    slots: Box<[FileSlot]>,
    /// Keeps plain descriptors open; the kernel's table keeps fixed ones.
    descriptors: Vec<OwnedFd>,
}

impl FileTable {
    pub(crate) fn new(ring: &IoUring, places: u32, fixed: bool) -> FileTable {
        let fixed = fixed && ring.submitter().register_files_sparse(places).is_ok();
        let slots = vec![FileSlot::ABSENT; places as usize].into_boxed_slice();
        FileTable { fixed, slots, descriptors: Vec::new() }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    pub(crate) fn count_fixed(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_fixed()).count()
    }

    pub(crate) fn install(
        &mut self,
        ring: &IoUring,
        place: u32,
        file: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let index = self.free_place(place)?;
        let registered =
            || ring.submitter().register_files_update(place, &[file.as_raw_fd()]).is_ok();
        if self.fixed && registered() {
            self.slots[index] = FileSlot::fixed(place);
            return Ok(());
        }
        let descriptor = file.try_clone_to_owned()?;
        self.slots[index] = FileSlot::plain(descriptor.as_raw_fd());
        self.descriptors.push(descriptor);
        Ok(())
    }

    /// Makes every transfer that names `place` a NOP.
    pub(crate) fn install_nothing(&mut self, place: u32) -> io::Result<()> {
        let index = self.free_place(place)?;
        self.slots[index] = FileSlot::NOP;
        Ok(())
    }

    fn free_place(&self, place: u32) -> io::Result<usize> {
        match self.slots.get(place as usize) {
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("file place {place} is not in the table"),
            )),
            Some(slot) => {
                assert_eq!(*slot, FileSlot::ABSENT, "file place {place} is taken");
                Ok(place as usize)
            }
        }
    }

    /// Takes the file out. The caller knows that no transfer names it.
    pub(crate) fn remove(&mut self, ring: &IoUring, place: u32) -> Result<(), Errno> {
        let slot = self.slot(place);
        if slot == FileSlot::ABSENT {
            return Err(Errno::BADF);
        }
        if slot.is_fixed() {
            // -1 empties the place. A failure leaves the file open in the
            // kernel's table until the place is used again.
            let _ = ring.submitter().register_files_update(place, &[-1]);
        } else {
            self.descriptors.retain(|descriptor| descriptor.as_raw_fd() != slot.number());
        }
        self.slots[place as usize] = FileSlot::ABSENT;
        Ok(())
    }

    /// The file at `place` as a transfer names it.
    #[inline]
    pub(crate) fn slot(&self, place: u32) -> FileSlot {
        self.slots.get(place as usize).copied().unwrap_or(FileSlot::ABSENT)
    }
}

/// The regions of memory a ring knows, by the index in their id.
pub(crate) struct RegionTable {
    enabled: bool,
    registered: Box<[RegionId; RegionId::INDEXES as usize]>,
    refused: Box<[RegionId; RegionId::INDEXES as usize]>,
    alive: Vec<Weak<Region>>,
    /// As [`Region::gone`] said when they were looked through.
    gone: u64,
    reason: Option<String>,
}

impl RegionTable {
    pub(crate) fn new(ring: &IoUring, enabled: bool) -> RegionTable {
        let count = RegionId::INDEXES;
        let table = if enabled { ring.submitter().register_buffers_sparse(count) } else { Ok(()) };
        RegionTable {
            enabled: enabled && table.is_ok(),
            registered: Box::new([RegionId::EMPTY; RegionId::INDEXES as usize]),
            refused: Box::new([RegionId::EMPTY; RegionId::INDEXES as usize]),
            alive: std::iter::repeat_with(Weak::new).take(count as usize).collect(),
            gone: Region::gone(),
            reason: table.err().map(|error| format!("no table for registered buffers: {error}")),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn count(&self) -> usize {
        self.registered.iter().filter(|id| **id != RegionId::EMPTY).count()
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The index to name a piece's region by, registering it at its first use.
    #[inline(always)]
    pub(crate) fn index_of(&mut self, ring: &IoUring, piece: &Piece) -> Option<u16> {
        let id = piece.region_id;
        let index = id.index();
        if self.registered[index as usize] == id || self.register(ring, piece) {
            return Some(index as u16);
        }
        None
    }

    #[inline(never)]
    fn register(&mut self, ring: &IoUring, piece: &Piece) -> bool {
        let id = piece.region_id;
        let index = id.index() as usize;
        if id == RegionId::NONE || !self.enabled || self.refused[index] == id {
            return false;
        }
        // SAFETY: the buffer that the piece is of holds the region; the
        // transfer that owns the buffer is in the ring's table.
        let region = unsafe { piece.region.as_ref() };
        self.forget_gone(ring);
        let bytes = region.len();
        let vector = libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: bytes };
        // SAFETY: a transfer that names this index owns a buffer of the region,
        // so the memory outlives every use. A region that dies while it is
        // registered leaves pinned pages that nothing names any more.
        let done = unsafe { ring.submitter().register_buffers_update(id.index(), &[vector], None) };
        match done {
            Ok(()) => {
                self.registered[index] = id;
                self.alive[index] = region.watch();
                true
            }
            Err(error) => {
                self.registered[index] = RegionId::EMPTY;
                self.refused[index] = id;
                self.reason = Some(explain(bytes, &error));
                false
            }
        }
    }

    /// Gives back the pins of regions that are gone, if any went since this was last asked.
    #[inline]
    pub(crate) fn forget_gone(&mut self, ring: &IoUring) {
        if Region::gone() != self.gone {
            self.look_for_gone(ring);
        }
    }

    #[cold]
    fn look_for_gone(&mut self, ring: &IoUring) {
        self.gone = Region::gone();
        for index in 0..self.registered.len() {
            if self.registered[index] != RegionId::EMPTY && self.alive[index].strong_count() == 0 {
                let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
                // SAFETY: an empty vector names no memory; it empties the place.
                let _ = unsafe {
                    ring.submitter().register_buffers_update(index as u32, &[empty], None)
                };
                self.registered[index] = RegionId::EMPTY;
            }
        }
    }
}

fn explain(bytes: usize, error: &io::Error) -> String {
    let limit = getrlimit(Resource::Memlock).current;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM), Some(limit)) => format!(
            "{bytes} bytes of buffers are not registered: RLIMIT_MEMLOCK is {limit} bytes; \
             raise it by {bytes} (ulimit -l)"
        ),
        _ => format!("{bytes} bytes of buffers are not registered: {error}"),
    }
}
