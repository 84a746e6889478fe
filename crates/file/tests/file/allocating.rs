//! Files that grow: a map that allocates on write, over a device full of foreign bytes.

use std::sync::Arc;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};

use crate::harness::block_map::{BLOCK, BlockMap, Layout};
use crate::harness::{Random, reap, scaled};

const BLOCKS: u64 = 256;
/// The old content of the device.
const FOREIGN: u8 = 0xee;

fn growing() -> (Reactor, File) {
    let device = Device::new(Sim::new(SimOptions::new(BLOCK * BLOCKS).block_size(512))).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let whole = File::from_device(device.clone(), FileOptions::default());
    let mut foreign = Buffer::zeroed((BLOCK * BLOCKS) as usize);
    foreign.fill(FOREIGN);
    assert!(reactor.block_on(whole.write_at(foreign, 0)).0.is_ok());
    let map = BlockMap::new(Layout::Descending(BLOCKS));
    (reactor, File::with_resizable_map(device, map, Arc::default(), FileOptions::default()))
}

fn whole(reactor: &Reactor, file: &File) -> Vec<u8> {
    let (read, buffer) = reactor.block_on(file.read_at(Buffer::zeroed(1 << 21), 0));
    buffer[..read.unwrap()].to_vec()
}

#[test]
fn unwritten_bytes_read_as_zeros() {
    for seed in 0..scaled(8) as u64 {
        let (reactor, file) = growing();
        let mut random = Random(seed);
        let mut model = Vec::new();
        for _ in 0..60 {
            let offset = random.below(BLOCK * BLOCKS * 3 / 4) as usize;
            let length = match random.below(3) {
                0 => 1 + random.below(100) as usize,
                1 => BLOCK as usize,
                _ => 1 + random.below(40_000) as usize,
            };
            let offset = if random.below(2) == 0 { offset } else { offset / 4096 * 4096 };
            let byte = 1 + random.below(200) as u8;
            let mut buffer = Buffer::zeroed(length);
            buffer.fill(byte);
            let (written, _) = reactor.block_on(file.write_at(buffer, offset as u64));
            assert_eq!(written, Ok(length), "seed {seed}");
            if model.len() < offset + length {
                model.resize(offset + length, 0);
            }
            model[offset..offset + length].fill(byte);
            assert_eq!(file.len(), model.len() as u64);
        }
        assert!(whole(&reactor, &file) == model, "seed {seed}");
    }
}

#[test]
fn concurrent_partial_writes_of_a_new_block_all_stay() {
    let (reactor, file) = growing();
    for n in 0..64 {
        let mut buffer = Buffer::zeroed(64);
        buffer.fill(n as u8 + 1);
        reactor.write_at(&file, buffer, n * 64, Token::new(n)).unwrap();
    }
    assert!(reap(&reactor, 64).iter().all(|completed| completed.result() == Ok(64)));
    let expected: Vec<u8> = (0..4096).map(|at| (at / 64) as u8 + 1).collect();
    assert!(whole(&reactor, &file) == expected);
}

#[test]
fn enospc_changes_nothing_and_the_maximum_size_is_the_kernels() {
    let (reactor, file) = growing();
    let (written, _) = reactor.block_on(file.write_at(Buffer::zeroed(1 << 21), 0));
    assert_eq!(written, Err(Errno::NOSPC));
    assert_eq!(file.len(), 0);
    let (written, _) = reactor.block_on(file.write_at(Buffer::zeroed(4096), u64::MAX - 100));
    assert_eq!(written, Err(Errno::FBIG));
    let (written, _) = reactor.block_on(file.write_at(Buffer::zeroed(4096), i64::MAX as u64));
    assert_eq!(written, Err(Errno::FBIG));
}
