//! Delayed allocation: write-back chooses the blocks, and the write reserves space for them.

use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Action, Crash, Event, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::Reactor;
use uringfs_volume::{CheckOptions, OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};

const BLOCK: u64 = 4096;
const SIZE: u64 = 64 << 20;

struct Delayed {
    sim: Sim,
    volume: Volume,
    cache: Cache,
    reactor: Reactor,
}

impl Delayed {
    fn new() -> Delayed {
        let sim = Sim::new(SimOptions::new(SIZE));
        let volume = formatted(&sim);
        Delayed { sim, volume, cache: Cache::new(SIZE), reactor: reactor() }
    }

    fn file(&self, path: &str) -> File {
        create(&self.volume, path).buffered(&self.cache)
    }

    fn write(&self, file: &File, block: u64, byte: u8) -> Result<usize, Errno> {
        self.reactor.block_on(file.write_at(Buffer::copy_of(&[byte; 4096]), block * BLOCK)).0
    }

    fn free(&self) -> u64 {
        self.volume.statistics().free_blocks
    }

    /// Lengths of the writes since the record began whose data begin with `byte`.
    fn written(&self, byte: u8) -> Vec<usize> {
        let of_write = |event| match event {
            Event::Begin { action: Action::Write { bytes, .. }, .. } => Some(bytes),
            _ => None,
        };
        let writes = self.sim.record().into_iter().filter_map(of_write);
        writes.filter(|bytes| bytes[..8] == [byte; 8]).map(|bytes| bytes.len()).collect()
    }

    fn is_sound(&self) {
        self.volume.sync().unwrap();
        let image = Device::new(self.sim.crash_image(Crash::KeepAll)).unwrap();
        let checked = Volume::check(&image, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
    }
}

#[test]
fn interleaved_writes_are_written_back_in_long_runs() {
    let it = Delayed::new();
    let files = [it.file("/a"), it.file("/b")];
    let before = it.free();
    for block in (0..64).map(|block| block * 37 % 64) {
        assert_eq!(it.write(&files[0], block, 0xaa), Ok(4096));
        assert_eq!(it.write(&files[1], block, 0xbb), Ok(4096));
    }
    // Their space is reserved, but no blocks are chosen.
    assert_eq!((before - it.free(), files[0].allocated()), (128, 64 * BLOCK));
    it.sim.restart_record();
    for file in &files {
        it.reactor.block_on(file.sync_all()).unwrap();
        assert_eq!(file.allocated(), 64 * BLOCK);
    }
    assert_eq!((it.written(0xaa), it.written(0xbb)), (vec![64 << 12], vec![64 << 12]));
    assert_eq!(before - it.free(), 128);
    it.is_sound();
}

#[test]
fn a_full_volume_refuses_the_write_not_the_sync() {
    let it = Delayed::new();
    let file = it.file("/a");
    let full = (0..SIZE / BLOCK).find_map(|block| Some((block, it.write(&file, block, 1).err()?)));
    let (written, error) = full.expect("the volume fills up");
    assert_eq!(error, Errno::NOSPC);
    // Reserved blocks are not given to others.
    let other = create(&it.volume, "/b");
    let asked = other.allocate(0, (it.free() + 1) * BLOCK, FallocateSize::Extend);
    assert_eq!(it.reactor.block_on(asked), Err(Errno::NOSPC));
    it.reactor.block_on(file.sync_all()).unwrap();
    assert_eq!(file.allocated(), written * BLOCK);
    // Overwrites in place still work.
    assert_eq!(it.write(&file, 7, 2), Ok(4096));
    it.is_sound();
}

#[test]
fn truncation_releases_the_reserved_space() {
    let it = Delayed::new();
    let before = it.free();
    let file = it.file("/a");
    (0..8).for_each(|block| assert_eq!(it.write(&file, block, 1), Ok(4096)));
    assert_eq!(before - it.free(), 8);
    it.reactor.block_on(file.set_len(3 * BLOCK)).unwrap();
    // The rest was written back before.
    assert_eq!((file.len(), file.allocated(), before - it.free()), (3 * BLOCK, 3 * BLOCK, 3));
    (4..8).for_each(|block| assert_eq!(it.write(&file, block, 1), Ok(4096)));
    let truncate = OpenOptions::new().read(true).write(true).truncate(true).direct(true);
    let emptied = it.volume.open_with("/a", truncate).unwrap().buffered(&it.cache);
    // The next request through the cache sees the truncation.
    assert_eq!(it.reactor.block_on(emptied.read_at(Buffer::zeroed(1), 0)).0, Ok(0));
    assert_eq!((emptied.len(), emptied.allocated()), (0, 0));
    it.volume.sync().unwrap();
    let found = it.volume.statistics();
    assert_eq!(found.free_blocks + found.pending_blocks, before);
    // The background thread that wrote back may have just seen the old blocks. Only that keeps them.
    while it.free() != before {
        it.volume.sync().unwrap();
    }
    it.is_sound();
}

#[test]
fn a_file_without_blocks_can_be_truncated() {
    let it = Delayed::new();
    let before = it.free();
    let file = it.file("/a");
    assert_eq!(it.write(&file, 0, 1), Ok(4096));
    let truncate = OpenOptions::new().read(true).write(true).truncate(true).direct(true);
    let emptied = it.volume.open_with("/a", truncate).unwrap();
    assert_eq!((emptied.len(), file.len()), (0, 0));
    for file in [&emptied, &file] {
        assert_eq!(it.reactor.block_on(file.read_at(Buffer::zeroed(1), 0)).0, Ok(0));
    }
    assert_eq!((file.allocated(), it.free()), (0, before));
    it.is_sound();
}

#[test]
fn a_removed_and_closed_file_is_not_written_back() {
    let it = Delayed::new();
    let (kept, file) = (it.file("/kept"), it.file("/a"));
    let before = it.free();
    (0..8).for_each(|block| assert_eq!(it.write(&file, block, 0xaa), Ok(4096)));
    it.volume.remove_file("/a").unwrap();
    it.sim.restart_record();
    drop(file);
    // The flusher drops them on its own thread. The space is free after the folios are.
    let until = Instant::now() + Duration::from_secs(60);
    while it.cache.statistics().dirty_bytes > 0 || it.free() != before {
        assert!(Instant::now() < until, "the flusher has not dropped the removed file");
        std::thread::yield_now();
    }
    it.volume.sync().unwrap();
    assert_eq!((it.written(0xaa), it.free()), (vec![], before));
    assert_eq!(it.write(&kept, 0, 0xaa), Ok(4096));
    it.is_sound();
    assert_eq!(it.written(0xaa), [1 << 12]);
}

#[test]
fn an_open_file_is_written_back_although_it_is_removed() {
    let it = Delayed::new();
    let file = it.file("/a");
    let direct = file.direct();
    assert_eq!(it.write(&file, 0, 0xaa), Ok(4096));
    it.volume.remove_file("/a").unwrap();
    drop(file);
    let (read, found) = it.reactor.block_on(direct.read_at(Buffer::zeroed(4096), 0));
    assert_eq!((read, &found[..]), (Ok(4096), &[0xaa; 4096][..]));
}
