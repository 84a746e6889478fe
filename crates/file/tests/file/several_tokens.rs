//! Reads and writes by token that are begun several at once: each is counted as if it were begun alone, and those after
//! the first that is refused are left.

use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Errno};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};

use crate::harness::reap;

const BLOCKS: u64 = 32;

fn image() -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let made = ImageFile::create(&path, BLOCKS * 4096, Allocation::Written).unwrap();
    File::from_device(Device::new(made).unwrap(), FileOptions::default())
}

fn reactor(queue: QueueKind, depth: u32) -> Reactor {
    Reactor::new(ReactorOptions::new().queue(queue).depth(depth)).unwrap()
}

/// Takes so many transfers of whole blocks, whose buffers return in the order of their tokens.
fn take_blocks(reactor: &Reactor, count: usize) -> Vec<Buffer> {
    let mut completed = reap(reactor, count);
    completed.sort_by_key(|completion| completion.token());
    assert!(completed.iter().all(|completion| completion.result() == Ok(4096)));
    completed.into_iter().map(|completion| completion.into_buffer()).collect()
}

/// The buffers at consecutive blocks, which are their tokens. Those of `unaligned` begin a byte earlier.
fn placed(buffers: Vec<Buffer>, unaligned: &[u64]) -> impl Iterator<Item = (Buffer, u64, Token)> {
    (0..).zip(buffers).map(move |(block, buffer)| {
        let earlier = unaligned.contains(&block) as u64;
        (buffer, block * 4096 - earlier, Token::new(block))
    })
}

fn buffers() -> Vec<Buffer> {
    (0..BLOCKS).map(|_| Buffer::zeroed(4096)).collect()
}

#[test]
fn blocks_that_are_written_at_once_are_read_at_once() {
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Aio, QueueKind::Threads] {
        let (file, reactor) = (image(), reactor(queue, 1024));
        let pool = BufferPool::new(4096, BLOCKS as usize).unwrap();
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.get()).collect();
        (0..).zip(&mut buffers).for_each(|(block, buffer)| buffer.fill(block));
        let (begun, refusal) = reactor.write_each(&file, &mut placed(buffers, &[]));
        assert!(begun == BLOCKS as usize && refusal.is_none(), "{queue:?}");
        let mut buffers = take_blocks(&reactor, begun);
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xff));
        let (begun, refusal) = reactor.read_each(&file, &mut placed(buffers, &[]));
        assert!(begun == BLOCKS as usize && refusal.is_none(), "{queue:?}");
        for (block, buffer) in (0..).zip(take_blocks(&reactor, begun)) {
            assert!(buffer.iter().all(|byte| *byte == block), "{queue:?}: block {block}");
        }
    }
}

#[test]
fn reads_among_others_are_counted_once() {
    let (file, reactor) = (image(), reactor(QueueKind::Ring, 1024));
    let counted = [Counter::FastPathTaken, Counter::FastPathAlignment];
    let counts = || counted.map(|counter| reactor.counters().get(counter));
    let before = counts();
    // Two in a row, and the last one.
    let unaligned = [7, 8, BLOCKS - 1];
    let (begun, refusal) = reactor.read_each(&file, &mut placed(buffers(), &unaligned));
    assert!(begun == BLOCKS as usize && refusal.is_none());
    take_blocks(&reactor, begun);
    let [fast, slow] = counts();
    assert_eq!((fast - before[0], slow - before[1]), (BLOCKS - 3, 3));
}

#[test]
fn the_first_that_is_refused_comes_back_and_the_rest_are_left() {
    let (file, reactor) = (image(), reactor(QueueKind::Ring, 4));
    let unaligned: Vec<u64> = (1..BLOCKS).collect();
    let mut reads = placed(buffers(), &unaligned);
    let (begun, refusal) = reactor.read_each(&file, &mut reads);
    let refusal = refusal.expect("more than the depth allows");
    assert_eq!(refusal.error, Errno::AGAIN);
    assert!((4..BLOCKS as usize).contains(&begun));
    assert_eq!(reads.count(), BLOCKS as usize - begun - 1);
    take_blocks(&reactor, begun);
    assert_eq!(refusal.into_buffer().len(), 4096);
}
