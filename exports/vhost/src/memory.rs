//! The memory of a guest: regions, and what addresses of the guest and of the front end name in them.
//!
//! Others change this memory at any time. So what is decided on is copied out first, once.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uringfs::Buffer;
use uringfs::buffer::{Registration, SharedMemory};
use vm_memory::Bytes;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::MemoryRegion;
use crate::mapping::Mapping;

/// The most regions of one guest.
pub(crate) const MAX_REGIONS: usize = 64;

/// The memory of a guest. A change makes a new one.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<GuestRegion>,
}

#[derive(Clone, Debug)]
struct GuestRegion {
    range: MemoryRegion,
    mapping: Arc<Mapping>,
}

/// A contiguous range of guest memory, as a descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) length: u32,
}

/// An address that is not in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotMapped;

impl GuestMemory {
    /// Adds a region.
    ///
    /// # Errors
    /// EINVAL for a region that overlaps another, or whose addresses wrap; ENOSPC for one too many; those of the mapping.
    pub(crate) fn add(&mut self, range: MemoryRegion, file: OwnedFd) -> io::Result<()> {
        let refuse = |errno| Err(io::Error::from_raw_os_error(errno));
        let end = |start: u64| start.checked_add(range.bytes);
        let (Some(guest_end), Some(user_end)) = (end(range.guest_address), end(range.user_address))
        else {
            return refuse(libc::EINVAL);
        };
        let overlaps = |GuestRegion { range: other, .. }: &GuestRegion| {
            let apart = |start: u64, end: u64, other_start: u64| {
                end <= other_start || other_start.saturating_add(other.bytes) <= start
            };
            !apart(range.guest_address, guest_end, other.guest_address)
                || !apart(range.user_address, user_end, other.user_address)
        };
        if self.regions.iter().any(overlaps) {
            return refuse(libc::EINVAL);
        }
        if self.regions.len() == MAX_REGIONS {
            return refuse(libc::ENOSPC);
        }
        let mapping = Arc::new(Mapping::new(file, range.file_offset, range.bytes)?);
        self.regions.push(GuestRegion { range, mapping });
        Ok(())
    }

    /// Removes a region, and returns whether it was there.
    pub(crate) fn remove(&mut self, range: &MemoryRegion) -> bool {
        let is_it = |GuestRegion { range: other, .. }: &GuestRegion| {
            (range.guest_address, range.user_address, range.bytes)
                == (other.guest_address, other.user_address, other.bytes)
        };
        let before = self.regions.len();
        self.regions.retain(|region| !is_it(region));
        self.regions.len() < before
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Bytes of all regions.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.range.bytes).sum()
    }

    /// True once a region has shrunk under us.
    pub(crate) fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }

    /// The memory of each region, for [`Self::append_buffers`].
    pub(crate) fn share(&self, registration: Registration) -> Vec<SharedMemory> {
        self.regions.iter().map(|region| region.mapping.share(registration)).collect()
    }

    /// The region of a guest address, with its number, the offset there, and the bytes from there to its end.
    fn locate(&self, address: u64) -> Result<(usize, usize, u64), NotMapped> {
        let inside = |region: &GuestRegion| {
            let offset = address.checked_sub(region.range.guest_address)?;
            (offset < region.range.bytes).then_some(offset)
        };
        let found = self.regions.iter().enumerate().find_map(|(number, region)| {
            let offset = inside(region)?;
            Some((number, offset as usize, region.range.bytes - offset))
        });
        found.ok_or(NotMapped)
    }

    /// Visits the parts of a range in their regions.
    fn for_each_part(
        &self,
        segment: Segment,
        mut visit: impl FnMut(usize, usize, usize),
    ) -> Result<(), NotMapped> {
        let (mut address, mut left) = (segment.address, u64::from(segment.length));
        while left > 0 {
            let (region, offset, room) = self.locate(address)?;
            let take = left.min(room);
            visit(region, offset, take as usize);
            left -= take;
            address = address.checked_add(take).ok_or(NotMapped)?;
        }
        Ok(())
    }

    /// Appends a segment to a list of buffers. `shared` is what [`Self::share`] has returned.
    pub(crate) fn append_buffers(
        &self,
        shared: &[SharedMemory],
        segment: Segment,
        buffers: &mut Vec<Buffer>,
    ) -> Result<(), NotMapped> {
        self.for_each_part(segment, |region, offset, bytes| {
            shared[region].append_to(buffers, offset, bytes);
        })
    }

    /// Copies a segment of as many bytes as `into` has.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), NotMapped> {
        let mut done = 0;
        let segment = Segment { address, length: into.len() as u32 };
        self.for_each_part(segment, |region, offset, bytes| {
            let slice = self.regions[region].mapping.slice(offset, bytes);
            slice.expect("it is inside the region").copy_to(&mut into[done..done + bytes]);
            done += bytes;
        })
    }

    /// Copies `bytes` there.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), NotMapped> {
        let mut done = 0;
        let segment = Segment { address, length: bytes.len() as u32 };
        self.for_each_part(segment, |region, offset, count| {
            let slice = self.regions[region].mapping.slice(offset, count);
            slice.expect("it is inside the region").copy_from(&bytes[done..done + count]);
            done += count;
        })
    }

    /// The area at an address of the guest, if it lies in one region.
    pub(crate) fn area(&self, address: u64, bytes: usize) -> Result<Area, NotMapped> {
        let (region, start, room) = self.locate(address)?;
        match bytes as u64 <= room {
            true => {
                Ok(Area { mapping: self.regions[region].mapping.clone(), start, length: bytes })
            }
            false => Err(NotMapped),
        }
    }

    /// The area at an address of the front end, which is a multiple of `alignment`.
    pub(crate) fn area_of_user(
        &self,
        address: u64,
        bytes: usize,
        alignment: u64,
    ) -> Result<Area, NotMapped> {
        let guest_address = self.regions.iter().find_map(|GuestRegion { range, .. }| {
            let offset = address.checked_sub(range.user_address)?;
            (offset < range.bytes).then(|| range.guest_address + offset)
        });
        let area = self.area(guest_address.ok_or(NotMapped)?, bytes)?;
        // Mappings begin at pages, but for huge alignments of files this is what is accessed.
        if (area.start as u64).is_multiple_of(alignment) { Ok(area) } else { Err(NotMapped) }
    }
}

/// A contiguous area of guest memory, such as a ring.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    mapping: Arc<Mapping>,
    start: usize,
    length: usize,
}

impl Area {
    /// A whole mapping.
    pub(crate) fn of_mapping(mapping: Mapping, length: usize) -> Area {
        Area { mapping: Arc::new(mapping), start: 0, length }
    }

    /// Part of it, if it is inside.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Option<Area> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let part = || Area { mapping: self.mapping.clone(), start: self.start + offset, length };
        is_inside.then(part)
    }

    /// # Panics
    /// When it is not inside.
    fn slice(&self, offset: usize, bytes: usize) -> vm_memory::VolatileSlice<'_> {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.length);
        assert!(is_inside, "{bytes} bytes at {offset} of {}", self.length);
        self.mapping.slice(self.start + offset, bytes).expect("the area is inside the region")
    }

    /// Copies a structure out.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> T {
        let mut value = T::new_zeroed();
        self.slice(offset, size_of::<T>()).copy_to(value.as_mut_bytes());
        value
    }

    /// Copies a structure in.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) {
        self.slice(offset, size_of::<T>()).copy_from(value.as_bytes());
    }

    /// Loads a number with little-endian byte order, at a multiple of 2.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn load(&self, offset: usize, order: Ordering) -> u16 {
        let loaded = self.slice(offset, 2).load(0, order);
        u16::from_le(loaded.expect("areas that are loaded from are aligned"))
    }

    /// Stores a number with little-endian byte order, at a multiple of 2.
    ///
    /// # Panics
    /// When it is not inside.
    pub(crate) fn store(&self, offset: usize, value: u16, order: Ordering) {
        let stored = self.slice(offset, 2).store(value.to_le(), 0, order);
        stored.expect("areas that are stored to are aligned");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    pub(crate) fn file(bytes: u64) -> OwnedFd {
        let file = memfd_create("uringfs-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    impl Area {
        /// Memory of one owner.
        pub(crate) fn anonymous(length: usize) -> Area {
            let bytes = (length as u64).next_multiple_of(4096);
            Area::of_mapping(Mapping::new(file(bytes), 0, bytes).unwrap(), length)
        }
    }

    fn region(guest_address: u64, bytes: u64, user_address: u64) -> MemoryRegion {
        MemoryRegion { guest_address, bytes, user_address, file_offset: 0 }
    }

    fn memory() -> GuestMemory {
        let mut memory = GuestMemory::default();
        memory.add(region(0, 65536, 1 << 40), file(65536)).unwrap();
        memory.add(region(65536, 4096, 2 << 40), file(4096)).unwrap();
        memory
    }

    #[test]
    fn a_segment_may_cross_adjacent_regions_and_no_hole() {
        let memory = memory();
        let bytes: Vec<u8> = (0..200).collect();
        memory.write(65536 - 100, &bytes).unwrap();
        let mut read = [0; 200];
        memory.read(65536 - 100, &mut read).unwrap();
        assert_eq!(read[..], bytes);
        let shared = memory.share(Registration::Never);
        let lengths = |address, length| {
            let mut buffers = Vec::new();
            memory.append_buffers(&shared, Segment { address, length }, &mut buffers)?;
            Ok(buffers.iter().map(Buffer::len).collect::<Vec<_>>())
        };
        assert_eq!(lengths(65536 - 512, 1024), Ok(vec![512, 512]));
        assert_eq!(lengths(0, 0), Ok(vec![]));
        for (address, length) in [(69632, 1), (69000, 4096), (u64::MAX, 2), (0, u32::MAX)] {
            assert_eq!(lengths(address, length), Err(NotMapped), "{address} {length}");
        }
    }

    #[test]
    fn regions_do_not_overlap_or_wrap() {
        let mut memory = memory();
        for (guest, bytes, user) in [
            (0, 4096, 3 << 40),
            (1 << 30, 4096, (1 << 40) + 4096),
            (61440, 8192, 3 << 40),
            (u64::MAX - 4095, 8192, 3 << 40),
            (1 << 30, 8192, u64::MAX - 4095),
        ] {
            assert!(memory.add(region(guest, bytes, user), file(65536)).is_err(), "{guest:x}");
        }
        assert!(memory.remove(&region(65536, 4096, 2 << 40)));
        assert!(!memory.remove(&region(65536, 4096, 2 << 40)));
        assert_eq!(memory.bytes(), 65536);
        for number in 1..MAX_REGIONS as u64 {
            memory.add(region(number << 20, 4096, number << 41), file(4096)).unwrap();
        }
        let error = memory.add(region(1 << 50, 4096, 1 << 60), file(4096)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn an_area_lies_in_one_region() {
        let memory = memory();
        assert!(memory.area_of_user((1 << 40) + 16, 65536 - 16, 16).is_ok());
        assert!(memory.area_of_user((1 << 40) + 16, 65536 - 15, 16).is_err());
        assert!(memory.area_of_user((1 << 40) + 8, 16, 16).is_err());
        assert!(memory.area_of_user((1 << 40) - 16, 16, 16).is_err());
        let area = memory.area(65536, 4096).unwrap();
        area.store(4094, 0x1234, Ordering::Release);
        assert_eq!(area.load(4094, Ordering::Acquire), 0x1234);
        assert_eq!(area.read::<[u8; 2]>(4094), [0x34, 0x12]);
    }
}
