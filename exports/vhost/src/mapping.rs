//! One region of guest memory, mapped into this process. All unsafe code of the crate is here.
//!
//! The front end may shrink the file behind a region at any time. Then the kernel's own accesses fail with EFAULT, and those
//! of this process raise SIGBUS: the handler here puts zeros in place of the region, which is broken from then on.

#![allow(unsafe_code)]

use std::any::Any;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};

use libc::{c_int, c_void, siginfo_t};
use uringfs::buffer::{Registration, SharedMemory};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// The most regions of all disks that this process serves.
const MAX_MAPPINGS: usize = 1024;

/// A mapped region.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: MmapRegion<()>,
    slot: &'static Slot,
}

impl Mapping {
    /// Maps `bytes` of a file, shared with its other users.
    ///
    /// # Errors
    /// EINVAL if the file is shorter, or the range is not one of whole pages; ENOMEM if there are too many regions; those
    /// of `mmap(2)`.
    pub(crate) fn new(file: OwnedFd, offset: u64, bytes: u64) -> io::Result<Mapping> {
        let file = File::from(file);
        let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
        let is_there = match end {
            Some(end) => end <= file.metadata()?.len(),
            None => false,
        };
        if !is_there || bytes == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        install_handler();
        let region = MmapRegion::from_file(FileOffset::new(file, offset), bytes);
        let region = region.map_err(|_| io::Error::last_os_error())?;
        let slot = Slot::claim(region.as_ptr().addr(), bytes)?;
        Ok(Mapping { region, slot })
    }

    /// Part of it.
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(offset, bytes).ok()
    }

    /// True once an access has found the file too short.
    pub(crate) fn is_broken(&self) -> bool {
        self.slot.is_broken.load(Ordering::Relaxed)
    }

    /// Its memory, for buffers.
    pub(crate) fn share(self: &Arc<Mapping>, registration: Registration) -> SharedMemory {
        let base = NonNull::new(self.region.as_ptr()).expect("no mapping is at null");
        let owner: Arc<dyn Any + Send + Sync> = self.clone();
        // SAFETY: the owner keeps the region mapped; the handler replaces pages of it, but leaves none out. This crate
        // makes no reference to the memory: `VolatileSlice` has only atomics there, and only during an access.
        unsafe { SharedMemory::new(base, self.region.size(), registration, owner) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
    }
}

/// The range of a mapping, where the handler finds it.
#[derive(Debug)]
struct Slot {
    /// 0 for a free slot.
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_broken: AtomicBool,
}

/// In `start` while a slot is being filled: no mapping begins there.
const CLAIMED: usize = 1;

static SLOTS: [Slot; MAX_MAPPINGS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_broken: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

impl Slot {
    fn claim(start: usize, bytes: usize) -> io::Result<&'static Slot> {
        let claim = |slot: &&Slot| {
            slot.start.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = SLOTS.iter().find(claim);
        let slot = slot.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        slot.bytes.store(bytes, Ordering::Relaxed);
        slot.is_broken.store(false, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Ok(slot)
    }

    /// The slot of the mapping that contains an address, with its range.
    fn of_address(address: usize) -> Option<(&'static Slot, usize, usize)> {
        SLOTS.iter().find_map(|slot| {
            let start = slot.start.load(Ordering::Acquire);
            let bytes = slot.bytes.load(Ordering::Relaxed);
            let is_inside = start > CLAIMED && address.wrapping_sub(start) < bytes;
            is_inside.then_some((slot, start, bytes))
        })
    }
}

/// The action of SIGBUS before.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        EARLIER.get_or_init(|| set_action(None));
        // SAFETY: all bytes zero are a valid `sigaction`: no flags, the default action, an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        set_action(Some(&action));
    });
}

/// Sets the action of SIGBUS, and returns the one before.
fn set_action(action: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: all bytes zero are a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both point to a `sigaction`, or to nothing. The only handler that is set here keeps to what a handler may do.
    unsafe { libc::sigaction(libc::SIGBUS, action, &mut before) };
    before
}

/// Does only what a signal handler may do: atomics, and system calls that are not interrupted.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the information of the signal, which exists while the handler runs.
    let information = unsafe { &*info };
    // SAFETY: that of SIGBUS has an address.
    let address = unsafe { information.si_addr() };
    match Slot::of_address(address.addr()) {
        Some((slot, start, bytes)) if fill_with_zeros(start, bytes) => {
            slot.is_broken.store(true, Ordering::Relaxed);
        }
        _ => pass_on(signal, info, context),
    }
}

/// Maps zeros in place of a mapping.
fn fill_with_zeros(start: usize, bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = ptr::without_provenance_mut(start);
    // SAFETY: the range is that of a mapping which the faulting thread uses, so its owner exists and keeps it. No
    // reference to its content exists, which others change at any time anyway.
    let mapped = unsafe { libc::mmap(start, bytes, access, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Does what SIGBUS did before.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    match EARLIER.get() {
        Some(earlier) if !matches!(earlier.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
            // SAFETY: it was installed as a handler. One without SA_SIGINFO ignores the last two arguments.
            let handler: Handler = unsafe { mem::transmute(earlier.sa_sigaction) };
            handler(signal, info, context);
        }
        _ => {
            // SAFETY: all bytes zero are the default action. The access faults again and ends the process.
            set_action(Some(&unsafe { mem::zeroed() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::Bytes;

    use super::*;

    fn memory(bytes: u64) -> OwnedFd {
        let memory = memfd_create("uringfs-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, bytes).unwrap();
        memory
    }

    #[test]
    fn a_region_that_shrinks_reads_as_zeros_and_is_broken() {
        let memory = memory(65536);
        let mapping = Mapping::new(memory.try_clone().unwrap(), 0, 65536).unwrap();
        let other = Mapping::new(memory.try_clone().unwrap(), 0, 4096).unwrap();
        let slice = mapping.slice(0, 65536).unwrap();
        slice.write_slice(&[7; 4096], 8192).unwrap();
        assert!(!mapping.is_broken());
        ftruncate(&memory, 4096).unwrap();
        let mut bytes = [1; 4096];
        slice.read_slice(&mut bytes, 8192).unwrap();
        assert_eq!(bytes, [0; 4096]);
        slice.write_slice(&bytes, 0).unwrap();
        assert!(mapping.is_broken() && !other.is_broken());
    }

    #[test]
    fn a_range_beyond_its_file_is_refused() {
        let memory = memory(65536);
        for (offset, bytes) in
            [(0, 65537), (61440, 8192), (u64::MAX, 2), (4096, u64::MAX), (0, 0), (1 << 63, 4096)]
        {
            let error = Mapping::new(memory.try_clone().unwrap(), offset, bytes).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{offset} {bytes}");
        }
        assert!(Mapping::new(memory.try_clone().unwrap(), 100, 4096).is_err());
        assert!(Mapping::new(memory, 4096, 61440).is_ok());
    }
}
