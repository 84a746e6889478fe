//! Extents of arbitrary bytes: parsed into an ordered map that returns the same extents, or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_volume::{Extent, ExtentMap, ExtentOrHole, ExtentRecord, FILE_BLOCKS};

const DEVICE_BLOCKS: u64 = 1 << 34;

fuzz_target!(|bytes: &[u8]| {
    let mut map = ExtentMap::new();
    let mut accepted: Vec<Extent> = Vec::new();
    for record in bytes.chunks(ExtentRecord::SIZE) {
        match ExtentRecord::parse(record, DEVICE_BLOCKS) {
            Ok(extent) => {
                assert!(extent.length > 0 && extent.end() <= FILE_BLOCKS);
                assert!(extent.run().end() <= DEVICE_BLOCKS);
                if map.push(extent).is_ok() {
                    accepted.push(extent);
                }
            }
            Err(flaw) => assert!(!flaw.to_string().contains(char::is_control)),
        }
    }
    assert!(accepted.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
    assert_eq!(map.blocks(), accepted.iter().map(|extent| extent.length).sum::<u64>());
    for extent in &accepted {
        for block in [extent.offset, extent.end() - 1] {
            let ExtentOrHole::Extent(found) = map.find(block) else {
                panic!("{extent:?} is not in the map")
            };
            assert_eq!(
                found.start + (block - found.offset),
                extent.start + (block - extent.offset)
            );
            assert_eq!(found.state, extent.state);
        }
    }
});
