//! Files and memory that the ring has registered with the kernel, so that a
//! request names them by index and the kernel neither looks up nor pins anything.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Weak;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, types};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use uringfs_buffer::{Region, RegionId};

use crate::entry::Piece;

/// How registration went, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Files named by index now.
    pub files: usize,
    /// Regions of memory named by index now.
    pub regions: usize,
    /// Why registering memory was refused last; requests then name addresses.
    pub refused: Option<String>,
}

/// How a request names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    /// There is none at this place.
    Absent,
    /// By its place in the kernel's table.
    Fixed(u32),
    /// By descriptor.
    Plain(i32),
    /// There is no file: requests are NOPs.
    Nothing,
}

/// The files a ring knows, by places that the user chooses.
pub(crate) struct Files {
    fixed: bool,
    names: Box<[FileName]>,
    /// Keeps plain descriptors open; the kernel's table keeps fixed ones.
    descriptors: Vec<OwnedFd>,
}

impl Files {
    pub(crate) fn new(ring: &IoUring, places: u32, fixed: bool) -> Files {
        let fixed = fixed && ring.submitter().register_files_sparse(places).is_ok();
        let names = vec![FileName::Absent; places as usize].into_boxed_slice();
        Files { fixed, names, descriptors: Vec::new() }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    pub(crate) fn count_fixed(&self) -> usize {
        self.names.iter().filter(|name| matches!(name, FileName::Fixed(_))).count()
    }

    pub(crate) fn install(
        &mut self,
        ring: &IoUring,
        place: u32,
        file: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let name = self.free_place(place)?;
        let registered =
            || ring.submitter().register_files_update(place, &[file.as_raw_fd()]).is_ok();
        if self.fixed && registered() {
            self.names[name] = FileName::Fixed(place);
            return Ok(());
        }
        let descriptor = file.try_clone_to_owned()?;
        self.names[name] = FileName::Plain(descriptor.as_raw_fd());
        self.descriptors.push(descriptor);
        Ok(())
    }

    /// Makes every transfer that names `place` a NOP.
    pub(crate) fn install_nothing(&mut self, place: u32) -> io::Result<()> {
        let name = self.free_place(place)?;
        self.names[name] = FileName::Nothing;
        Ok(())
    }

    fn free_place(&self, place: u32) -> io::Result<usize> {
        match self.names.get(place as usize) {
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("file place {place} is not in the table"),
            )),
            Some(name) => {
                assert_eq!(*name, FileName::Absent, "file place {place} is taken");
                Ok(place as usize)
            }
        }
    }

    /// Takes the file out. The caller knows that no transfer names it.
    pub(crate) fn remove(&mut self, ring: &IoUring, place: u32) -> Result<(), Errno> {
        match self.name(place) {
            FileName::Absent => return Err(Errno::BADF),
            // -1 empties the place. A failure leaves the file open in the
            // kernel's table until the place is used again.
            FileName::Fixed(_) => drop(ring.submitter().register_files_update(place, &[-1])),
            FileName::Plain(raw) => {
                self.descriptors.retain(|descriptor| descriptor.as_raw_fd() != raw);
            }
            FileName::Nothing => {}
        }
        self.names[place as usize] = FileName::Absent;
        Ok(())
    }

    /// How a transfer names the file at `place`.
    #[inline]
    pub(crate) fn name(&self, place: u32) -> FileName {
        self.names.get(place as usize).copied().unwrap_or(FileName::Absent)
    }
}

impl FileName {
    #[inline(always)]
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, FileName::Fixed(_))
    }

    /// Names this file in the entry that `build` makes for a descriptor. Where
    /// there is no file the kernel will answer EBADF.
    #[inline(always)]
    pub(crate) fn entry(self, build: impl FnOnce(types::Fd) -> Entry) -> Entry {
        let number = match self {
            FileName::Fixed(place) => place as i32,
            FileName::Plain(descriptor) => descriptor,
            FileName::Nothing | FileName::Absent => -1,
        };
        let flags = if self.is_fixed() { Flags::FIXED_FILE } else { Flags::empty() };
        build(types::Fd(number)).flags(flags)
    }
}

/// The regions of memory a ring knows, by the index in their id.
pub(crate) struct Regions {
    enabled: bool,
    registered: Box<[RegionId; RegionId::INDEXES as usize]>,
    refused: Box<[RegionId; RegionId::INDEXES as usize]>,
    alive: Vec<Weak<Region>>,
    reason: Option<String>,
}

impl Regions {
    pub(crate) fn new(ring: &IoUring, enabled: bool) -> Regions {
        let count = RegionId::INDEXES;
        let table = if enabled { ring.submitter().register_buffers_sparse(count) } else { Ok(()) };
        Regions {
            enabled: enabled && table.is_ok(),
            registered: Box::new([RegionId::NONE; RegionId::INDEXES as usize]),
            refused: Box::new([RegionId::NONE; RegionId::INDEXES as usize]),
            alive: std::iter::repeat_with(Weak::new).take(count as usize).collect(),
            reason: table.err().map(|error| format!("no table for registered buffers: {error}")),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn count(&self) -> usize {
        self.registered.iter().filter(|id| **id != RegionId::NONE).count()
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The index to name a piece's region by, registering it at its first use.
    #[inline(always)]
    pub(crate) fn index_of(&mut self, ring: &IoUring, piece: Piece) -> Option<u16> {
        let id = piece.region_id;
        if id == RegionId::NONE {
            return None;
        }
        let index = id.index();
        let is_registered = self.registered[index as usize] == id;
        if is_registered || self.register(ring, piece) {
            return Some(index as u16);
        }
        None
    }

    #[inline(never)]
    fn register(&mut self, ring: &IoUring, piece: Piece) -> bool {
        let id = piece.region_id;
        let index = id.index() as usize;
        if !self.enabled || self.refused[index] == id {
            return false;
        }
        // SAFETY: the buffer that the piece is of holds the region; the
        // transfer that owns the buffer is in the ring's table.
        let region = unsafe { piece.region.as_ref() };
        self.forget_dead(ring);
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
                self.registered[index] = RegionId::NONE;
                self.refused[index] = id;
                self.reason = Some(explain(bytes, &error));
                false
            }
        }
    }

    /// Gives back the pins of regions that are gone.
    fn forget_dead(&mut self, ring: &IoUring) {
        for index in 0..self.registered.len() {
            if self.registered[index] != RegionId::NONE && self.alive[index].strong_count() == 0 {
                let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
                // SAFETY: an empty vector names no memory; it empties the place.
                let _ = unsafe {
                    ring.submitter().register_buffers_update(index as u32, &[empty], None)
                };
                self.registered[index] = RegionId::NONE;
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
