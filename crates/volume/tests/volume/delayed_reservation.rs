//! Space reserved for delayed allocation: dirty folios can be written back and committed on a
//! volume that has filled up meanwhile, in blocks and in its catalog.

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};

const BLOCK: u64 = 4096;

/// Blocks left free besides the reserved ones.
const LEFT: u64 = 64;

struct Full {
    sim: Sim,
    volume: Volume,
    cache: Cache,
    reactor: Reactor,
}

impl Full {
    fn new(bytes: u64) -> Full {
        let sim = Sim::new(SimOptions::new(bytes));
        let volume = formatted(&sim);
        Full { sim, volume, cache: Cache::new(64 << 20), reactor: reactor() }
    }

    /// Takes all blocks except `blocks` for a file.
    fn take_all_but(&self, blocks: u64) -> File {
        let file = create(&self.volume, "/big");
        let bytes = (self.volume.statistics().free_blocks - blocks) * BLOCK;
        self.reactor.block_on(file.allocate(0, bytes, FallocateSize::Extend)).unwrap();
        self.volume.sync().unwrap();
        file
    }

    /// Writes a block through the page cache. Its content is its number.
    fn write(&self, file: &File, block: u64) {
        let write = file.write_at(Buffer::copy_of(&[block as u8 | 1; 4096]), block * BLOCK);
        assert_eq!(self.reactor.block_on(write).0, Ok(4096), "block {block}");
    }

    /// Makes names until the catalog refuses one.
    fn fill_catalog(&self) {
        let target = "t".repeat(4000);
        let refused = (0..).find_map(|n| self.volume.symlink(&target, format!("/name {n}")).err());
        assert_eq!(refused.unwrap().errno(), Errno::NOSPC);
    }

    /// Syncs a file and cuts the power: these blocks are there, and the volume is sound.
    fn assert_survives_power_cut(&self, file: &File, blocks: impl Iterator<Item = u64>) {
        assert_eq!(self.reactor.block_on(file.sync_all()), Ok(()));
        let image = Device::new(self.sim.crash_image(Crash::LoseAll)).unwrap();
        let checked = Volume::check(&image, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        let volume = Volume::open_on(image).unwrap();
        let file =
            volume.open_with("/a", OpenOptions::new().read(true).write(true).direct(true)).unwrap();
        for block in blocks {
            let read = file.read_at(Buffer::zeroed(4096), block * BLOCK);
            let (read, bytes) = self.reactor.block_on(read);
            assert_eq!((read, &bytes[..]), (Ok(4096), &[block as u8 | 1; 4096][..]), "{block}");
        }
    }
}

fn assert_kept_on_a_full_volume(reserved: u64) {
    let it = Full::new(64 << 20);
    let file = create(&it.volume, "/a").buffered(&it.cache);
    it.volume.sync().unwrap();
    it.take_all_but(reserved + LEFT);
    (0..reserved).for_each(|block| it.write(&file, block));
    it.fill_catalog();
    it.assert_survives_power_cut(&file, 0..reserved);
}

#[test]
fn reserved_space_is_kept_when_names_fill_the_catalog() {
    [512, 100, 40, 8].into_iter().for_each(assert_kept_on_a_full_volume);
}

#[test]
fn reserved_space_suffices_for_one_extent_a_block() {
    const RESERVED: u64 = 400;
    let it = Full::new(24 << 20);
    let file = create(&it.volume, "/a").buffered(&it.cache);
    let big = it.take_all_but(0);
    for block in 0..RESERVED + LEFT {
        let punched = big.punch_hole(2 * block * BLOCK, BLOCK);
        assert_eq!(it.reactor.block_on(punched), Ok(()));
    }
    it.volume.sync().unwrap();
    let blocks = || (0..RESERVED).map(|block| 2 * block);
    blocks().for_each(|block| it.write(&file, block));
    it.fill_catalog();
    it.assert_survives_power_cut(&file, blocks());
}

#[test]
fn space_that_others_filled_meanwhile_is_not_lost() {
    let it = Full::new(64 << 20);
    let direct = create(&it.volume, "/a");
    let file = direct.buffered(&it.cache);
    it.volume.sync().unwrap();
    let free = || it.volume.statistics().free_blocks;
    let before = free();
    for block in 0..100 {
        it.write(&file, block);
    }
    let all = direct.allocate(0, 100 * BLOCK, FallocateSize::Extend);
    it.reactor.block_on(all).unwrap();
    it.reactor.block_on(file.sync_all()).unwrap();
    assert_eq!(free(), before - 100);
    it.reactor.block_on(file.set_len(0)).unwrap();
    for _ in 0..3 {
        it.volume.sync().unwrap();
    }
    assert_eq!(free(), before);
}

#[test]
fn blocks_of_a_file_count_what_is_reserved() {
    let it = Full::new(64 << 20);
    let file = create(&it.volume, "/a").buffered(&it.cache);
    let blocks = || it.volume.metadata("/a").unwrap().blocks();
    for block in 0..10 {
        it.write(&file, block);
        assert_eq!(blocks(), 8 * (block + 1));
    }
    it.reactor.block_on(file.sync_all()).unwrap();
    assert_eq!(blocks(), 80);
    it.write(&file, 0);
    assert_eq!(blocks(), 80);
    // Discarded before it has blocks.
    it.write(&file, 10);
    it.reactor.block_on(file.set_len(5 * BLOCK)).unwrap();
    assert_eq!(blocks(), 40);
}
