//! Durable overwrites on the fast path of a reactor.

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions, WriteCache};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{Counter, Reactor, Token};
use uringfs_volume::{FormatOptions, Volume};

use crate::fixture::{create, reactor};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 16;

/// A volume with a file whose blocks are written and committed.
fn machine(cache: WriteCache) -> (Sim, Volume, File, Reactor) {
    let sim = Sim::new(SimOptions::new(16 << 20).cache(cache));
    let device = Device::new(sim.clone()).unwrap();
    let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
    let (file, reactor) = (create(&volume, "/file"), reactor());
    let whole = Buffer::zeroed(BLOCKS as usize * BLOCK);
    assert!(reactor.block_on(file.write_durably(whole, 0)).0.is_ok());
    (sim, volume, file, reactor)
}

/// Overwrites a block durably, by token or awaited.
fn overwrite(reactor: &Reactor, file: &File, block: u64, byte: u8, is_awaited: bool) {
    let write = file.write_durably(Buffer::copy_of(&[byte; BLOCK]), block * BLOCK as u64);
    if is_awaited {
        assert_eq!(reactor.block_on(write).0, Ok(BLOCK));
    } else {
        reactor.start(write, Token::new(1)).unwrap();
        let mut completed = Vec::new();
        reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed[0].result(), Ok(BLOCK as u64));
    }
}

/// What a power cut would leave in a block.
fn left(sim: &Sim, block: u64) -> Vec<u8> {
    let image = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
    let volume = Volume::open_on(image).unwrap();
    let content = volume.read("/file").unwrap();
    content[block as usize * BLOCK..][..BLOCK].to_vec()
}

#[test]
fn where_one_request_is_durable_overwrites_take_the_fast_path() {
    const WRITES: u64 = 2000;
    let caches = [
        (WriteCache::None, true),
        (WriteCache::VolatileWithFua, true),
        (WriteCache::VolatileWithDsync, false),
        (WriteCache::Volatile, false),
    ];
    for (cache, is_fast) in caches {
        for is_awaited in [false, true] {
            let (_sim, _volume, file, reactor) = machine(cache);
            let before = reactor.counters().get(Counter::SlowPath);
            for number in 0..WRITES {
                overwrite(&reactor, &file, number % BLOCKS, 1, is_awaited);
            }
            let slow = reactor.counters().get(Counter::SlowPath) - before;
            // The first one of each tick of the coarse clock sets the modification time.
            assert_eq!(
                slow < WRITES,
                is_fast,
                "{cache:?}, awaited: {is_awaited}: {slow} were slow"
            );
        }
    }
}

#[test]
fn each_is_durable_when_it_completes() {
    let caches = [
        WriteCache::None,
        WriteCache::VolatileWithFua,
        WriteCache::VolatileWithDsync,
        WriteCache::Volatile,
    ];
    for cache in caches {
        let (sim, _volume, file, reactor) = machine(cache);
        for number in 1..=64 {
            let block = u64::from(number) % BLOCKS;
            overwrite(&reactor, &file, block, number, number % 2 == 0);
            assert_eq!(left(&sim, block), [number; BLOCK], "{cache:?}");
        }
    }
}

/// Its bytes are durable at once, and would be lost without the extent.
#[test]
fn an_overwrite_of_a_block_whose_extent_is_not_committed_waits_for_the_commit() {
    for is_awaited in [false, true] {
        let (sim, _volume, file, reactor) = machine(WriteCache::None);
        for block in BLOCKS..BLOCKS + 64 {
            let first = file.write_at(Buffer::copy_of(&[1; BLOCK]), block * BLOCK as u64);
            assert_eq!(reactor.block_on(first).0, Ok(BLOCK));
            overwrite(&reactor, &file, block, 2, is_awaited);
            assert_eq!(left(&sim, block), [2; BLOCK], "block {block}");
        }
    }
}
