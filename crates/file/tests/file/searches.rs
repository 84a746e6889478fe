//! Searches for data and holes.

use std::sync::Arc;

use uringfs_device::Device;
use uringfs_device::backend::memory::Memory;
use uringfs_file::{File, FileOptions, Map, Mapping, MappingState};

const BLOCK: u64 = 4096;
const ASKED: u64 = 64 * BLOCK;

/// A large file in extents of one block, of which only the first 64 may be looked at.
struct Asked(fn(u64) -> MappingState);

impl Map for Asked {
    fn map(&self, offset: u64) -> Mapping {
        assert!(offset < ASKED, "a search has left its range");
        Mapping { length: BLOCK - offset % BLOCK, state: self.0(offset) }
    }

    fn size(&self) -> u64 {
        1 << 30
    }
}

#[test]
fn a_search_in_a_range_looks_at_no_more_than_that() {
    let of = |state| {
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        File::with_map(device, Asked(state), Arc::default(), FileOptions::default())
    };
    let data = of(MappingState::Written);
    assert_eq!((data.find_hole(0..ASKED), data.find_data(7..ASKED)), (None, Some(7)));
    let unwritten = of(MappingState::Unwritten);
    assert_eq!((unwritten.find_data(0..ASKED), unwritten.find_hole(7..ASKED)), (None, Some(7)));
}
