//! The catalog on the simulated device, compared with a plain map.

mod at_once;
mod crash;
mod damage;
mod random;
mod log;
mod model;
mod pin;
mod space;

use std::collections::BTreeMap;

use random::Random;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Sim, SimOptions, WriteCache};

use super::*;
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::{Error, ErrorKind};
use crate::superblock::Superblock;

/// Blocks of the devices here. The catalog lies in two runs, the later one first.
const DEVICE_BLOCKS: u64 = 8192;
/// The blocks of its log.
const LOG: Run = Run { start: 1650, length: 16 };
const RUNS: [Run; 2] = [Run { start: 700, length: 900 }, Run { start: 40, length: 600 }];

/// All records of a catalog.
type Records = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

fn options() -> CatalogOptions {
    CatalogOptions { cache_bytes: 1 << 20, ..CatalogOptions::default() }
}

fn blocks_of(sim: &Sim) -> BlockIo {
    BlockIo::new(&Device::new(sim.clone()).unwrap())
}

/// With FUA the log needs no flush, without it the log is flushed.
const CACHES: [WriteCache; 2] = [WriteCache::VolatileWithFua, WriteCache::Volatile];

fn new_sim() -> Sim {
    new_sim_with(CACHES[0])
}

fn new_sim_with(cache: WriteCache) -> Sim {
    Sim::new(SimOptions::new(DEVICE_BLOCKS * BLOCK).cache(cache))
}

fn create_on(sim: &Sim) -> Catalog {
    Catalog::create(&blocks_of(sim), &RUNS, LOG, options()).unwrap()
}

fn open_on(sim: &Sim) -> Result<Catalog, Error> {
    Catalog::open(&blocks_of(sim), &RUNS, LOG, options())
}

/// Appends a batch to the log. If the log has no room, commits it.
fn log_or_checkpoint(catalog: &Catalog, batch: &Batch) {
    if !catalog.append_to_log(batch).unwrap() {
        catalog.checkpoint(batch).unwrap();
    }
}

/// Every record, read many at a time.
fn all_of(catalog: &Catalog) -> Result<Records, Error> {
    all_by(catalog, 100)
}

/// Every record, read `limit` at a time.
fn all_by(catalog: &Catalog, limit: usize) -> Result<Records, Error> {
    let mut all = Records::new();
    for table in Table::ALL {
        let mut from = Vec::new();
        loop {
            let found = catalog.scan(table, from, None, limit)?;
            let Some((last, _)) = found.last() else { break };
            assert!(found.len() <= limit && found.is_sorted());
            from = [last.as_slice(), &[0]].concat();
            all.extend(found.into_iter().map(|(key, value)| ((table, key), value)));
        }
    }
    Ok(all)
}

/// The inodes from `first` on, and their records.
fn inodes(catalog: &Catalog, first: u64) -> Vec<(u64, Vec<u8>)> {
    let found = catalog.scan(Table::Inodes, Key::Inode(first).bytes(), None, 4096).unwrap();
    let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
    found.into_iter().map(|(key, value)| (number(&key), value)).collect()
}

/// A random batch, which also changes the map.
fn random_batch(random: &mut Random, changes: u64, value: u64, records: &mut Records) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..changes {
        let (inode, other) = (random.below(40), random.below(12));
        let name = format!("name-{other}");
        let key = match random.below(7) {
            0 => Key::Inode(inode),
            1 => Key::Name(inode, name.as_bytes()),
            2 => Key::Extent(inode, other << 20),
            3 => Key::Region(inode as u32),
            4 => Key::Xattr(inode, name.as_bytes()),
            5 => Key::Orphan(inode),
            _ => Key::State(name.as_bytes()),
        };
        if random.below(4) == 0 {
            batch.delete(key);
            records.remove(&(key.table(), key.bytes()));
        } else {
            let length = random.below(value + 1);
            let value = random.bytes(length);
            batch.put(key, &value);
            records.insert((key.table(), key.bytes()), value);
        }
    }
    batch
}
