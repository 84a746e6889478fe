//! Transfers in batches: each completes once and in its slot, whichever way it takes, beside all other work of the
//! reactor.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::Cache;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Clock, Device, Errno, VirtualClock};
use uringfs_file::{Batch, File, FileOptions, FileState, Tokens};
use uringfs_reactor::{
    BatchTransfer, CompletionMode, Counter, Reactor, ReactorOptions, Token, quiescence,
};

use crate::harness::block_map::{BlockMap, Layout};
use crate::harness::{BackEnd, Random, file_over, pattern, reactor_by, reap, scaled};

const BLOCKS: u64 = 256;
const SIZE: u64 = BLOCKS * 4096;
const SLOTS: u32 = 32;

/// A file on a device whose blocks hold their numbers. Its path is gone when `folder` is.
fn numbered(folder: &Path) -> File {
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; 4096]).collect();
    let path = folder.join("numbered");
    std::fs::write(&path, bytes).unwrap();
    File::from_device(Device::open(&path, Access::ReadWrite).unwrap(), FileOptions::default())
}

fn null() -> File {
    File::from_device(Device::new(Null::new(SIZE)).unwrap(), FileOptions::default())
}

fn reactor(queue: QueueKind) -> Reactor {
    Reactor::new(ReactorOptions::new().queue(queue)).unwrap()
}

fn pool(length: usize) -> BufferPool {
    BufferPool::new(length, SLOTS as usize).unwrap()
}

/// A batch with all buffers of a pool.
fn batch(reactor: &Reactor, pool: &BufferPool) -> Batch {
    Batch::new(reactor, std::iter::from_fn(|| pool.get())).unwrap()
}

fn at(slot: u32, offset: u64) -> BatchTransfer {
    BatchTransfer { slot, offset }
}

/// One transfer for each slot, from `block` on.
fn blocks_from(block: u64) -> Vec<BatchTransfer> {
    (0..SLOTS).map(|slot| at(slot, (block + u64::from(slot)) % BLOCKS * 4096)).collect()
}

/// The results of the next `count` completions, by slot.
fn results(batch: &mut Batch, count: usize) -> Vec<(u32, Result<usize, Errno>)> {
    let mut results = Vec::new();
    while results.len() < count {
        let completions = batch.completions(count - results.len(), None).unwrap();
        let before = results.len();
        results.extend(completions.map(|ended| (ended.slot(), ended.result())));
        assert!(results.len() > before, "{results:?} of {count}");
    }
    results.sort_unstable_by_key(|(slot, _)| *slot);
    results
}

/// Reads that many blocks of a numbered file, each slot again as soon as it is free.
fn read_numbered(batch: &mut Batch, file: &File, reads: u64, what: &str) {
    let mut next = blocks_from(0);
    let mut expected: Vec<_> = next.iter().map(|read| read.offset / 4096).collect();
    let (mut begun, mut ended) = (u64::from(SLOTS), 0);
    while ended < reads {
        let pushed = batch.read(file, &next).unwrap();
        next.drain(..pushed);
        for read in batch.completions(1, None).unwrap() {
            let block = &mut expected[read.slot() as usize];
            assert_eq!(read.result(), Ok(4096), "{what}");
            assert!(read.bytes().iter().all(|byte| *byte == *block as u8), "{what}: {block}");
            ended += 1;
            if begun < reads {
                *block = begun * 7 % BLOCKS;
                next.push(at(read.slot(), *block * 4096));
                begun += 1;
            }
        }
    }
    assert_eq!((batch.in_flight(), ended), (0, reads), "{what}");
    assert_eq!(batch.completions(1, None).unwrap().count(), 0, "{what}");
}

#[test]
fn each_read_completes_once_with_the_bytes_of_its_offset() {
    let folder = tempfile::tempdir().unwrap();
    let file = numbered(folder.path());
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
        for completion in [CompletionMode::Inline, CompletionMode::Worker] {
            let options = ReactorOptions::new().queue(queue).completion(completion);
            let (reactor, pool) = (Reactor::new(options).unwrap(), pool(4096));
            let what = format!("{queue}, {completion:?}");
            read_numbered(&mut batch(&reactor, &pool), &file, 1000, &what);
            assert_eq!(pool.available(), SLOTS as usize, "{what}");
        }
    }
}

#[test]
fn reads_without_registration_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = numbered(folder.path());
    let mut options = ReactorOptions::new().queue(QueueKind::Ring);
    (options.fixed_files, options.fixed_buffers) = (false, false);
    let reactor = Reactor::new(options).unwrap();
    read_numbered(&mut batch(&reactor, &pool(4096)), &file, 500, "plain");
    assert_eq!(reactor.counters().get(Counter::PlainBuffers), 500);
    assert_eq!(reactor.counters().get(Counter::PlainFiles), 500);
    let own_memory = (0..SLOTS).map(|_| Buffer::zeroed(4096));
    let mut batch = Batch::new(&reactor, own_memory).unwrap();
    read_numbered(&mut batch, &file, 500, "memory that is not of a pool");
}

#[test]
fn a_batch_on_the_ring_is_one_system_call_and_all_fast_reads() {
    let folder = tempfile::tempdir().unwrap();
    // A busy disk may complete the reads of a batch one after the other, and each wait is a call: one of some batches is enough.
    for (file, batches) in [(null(), 1), (numbered(folder.path()), 500)] {
        let (reactor, pool) = (reactor(QueueKind::Ring), pool(4096));
        let mut batch = batch(&reactor, &pool);
        let counted =
            [Counter::FastPathTaken, Counter::CompletedInline, Counter::SlowPath, Counter::Enters];
        let counts = || counted.map(|counter| reactor.counters().get(counter));
        let mut read_all = || {
            assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
            assert!(
                results(&mut batch, SLOTS as usize).iter().all(|(_, moved)| *moved == Ok(4096))
            );
        };
        // The first batch also attaches the device and arms the mailbox.
        read_all();
        let mut calls = (0..batches).map(|_| {
            let before = counts();
            read_all();
            let after = counts();
            let added: Vec<_> =
                before.iter().zip(after).map(|(before, after)| after - before).collect();
            assert_eq!(added[..3], [u64::from(SLOTS), u64::from(SLOTS), 0], "{file:?}");
            added[3]
        });
        assert!(calls.any(|calls| calls == 1), "{file:?}: no batch was one call");
    }
}

/// A file of a written block, a hole, and a written block.
fn with_hole(reactor: &Reactor, device: Device) -> File {
    let map = BlockMap::new(Layout::Descending(BLOCKS));
    let file = File::with_resizable_map(device, map, Arc::default(), FileOptions::default());
    for block in [0, 2] {
        assert_eq!(reactor.block_on(file.write_at(pattern(block, 4096), block * 4096)).0, Ok(4096));
    }
    file
}

#[test]
fn refused_reads_take_the_ordinary_way_and_are_counted_by_reason() {
    let (reactor, pool) = (Reactor::new(ReactorOptions::new()).unwrap(), pool(4096));
    let file = with_hole(&reactor, Device::new(Memory::new(SIZE).unwrap()).unwrap());
    let mut batch = batch(&reactor, &pool);
    let counted = [
        Counter::FastPathTaken,
        Counter::FastPathAlignment,
        Counter::FastPathExtent,
        Counter::FastPathLength,
    ];
    let counts = || counted.map(|counter| reactor.counters().get(counter));
    let before = counts();
    let reads = [at(0, 0), at(1, 4096), at(2, 8192), at(3, 100), at(4, 12288), at(5, 8192)];
    assert_eq!(batch.read(&file, &reads), Ok(6));
    let ended = results(&mut batch, 6);
    let moved = [Ok(4096), Ok(4096), Ok(4096), Ok(4096), Ok(0), Ok(4096)];
    assert_eq!(ended, Vec::from_iter((0..).zip(moved)));
    let (first, last) = (pattern(0, 4096), pattern(2, 4096));
    assert!(batch.buffer(0).unwrap() == &first[..]);
    assert!(batch.buffer(1).unwrap().iter().all(|byte| *byte == 0));
    assert!(batch.buffer(2).unwrap() == &last[..] && batch.buffer(5).unwrap() == &last[..]);
    assert!(batch.buffer(3).unwrap()[..3996] == first[100..]);
    let after = counts();
    let added: Vec<_> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    assert_eq!(added, [3, 1, 2, 0]);

    // Longer than the fast path takes.
    let long = self::pool(8192);
    let mut batch = self::batch(&reactor, &long);
    assert_eq!(batch.read(&file, &[at(0, 0), at(1, 4096)]), Ok(2));
    assert_eq!(results(&mut batch, 2), [(0, Ok(8192)), (1, Ok(8192))]);
    assert!(batch.buffer(0).unwrap()[..4096] == first[..]);
    assert!(batch.buffer(1).unwrap()[4096..] == last[..]);
    assert_eq!(counts()[3] - before[3], 2);
}

#[test]
fn reads_through_the_page_cache_complete_with_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let file = numbered(folder.path());
    let cache = Cache::new(1 << 20);
    let buffered = file.buffered(&cache);
    let (reactor, pool) = (reactor(QueueKind::Ring), pool(4096));
    let mut batch = batch(&reactor, &pool);
    // Misses, then hits.
    read_numbered(&mut batch, &buffered, 400, "buffered");
    assert!(reactor.counters().get(Counter::CacheHit) > 0);
    // Dirty folios are newer than the device.
    assert_eq!(reactor.block_on(buffered.write_at(Buffer::copy_of(&[99; 4096]), 8192)).0, Ok(4096));
    assert_eq!(batch.read(&file, &[at(0, 4096), at(1, 8192)]), Ok(2));
    assert_eq!(results(&mut batch, 2), [(0, Ok(4096)), (1, Ok(4096))]);
    assert!(batch.buffer(0).unwrap().iter().all(|byte| *byte == 1));
    assert!(batch.buffer(1).unwrap().iter().all(|byte| *byte == 99));
    assert_eq!(reactor.counters().get(Counter::FastPathDirty), 2);
}

#[test]
fn overwrites_are_unlocked_and_other_writes_take_the_ordinary_way() {
    let folder = tempfile::tempdir().unwrap();
    let (reactor, pool) = (reactor(QueueKind::Ring), pool(4096));
    let mut batch = batch(&reactor, &pool);
    let file = numbered(folder.path());
    for slot in 0..SLOTS {
        batch.buffer_mut(slot).unwrap().fill(200 + slot as u8);
    }
    assert_eq!(batch.write(&file, &blocks_from(16)), Ok(SLOTS as usize));
    assert_eq!(batch.buffer_mut(0), None, "it is being written");
    assert!(results(&mut batch, SLOTS as usize).iter().all(|(_, moved)| *moved == Ok(4096)));
    assert_eq!(reactor.counters().get(Counter::WriteUnlocked), SLOTS.into());
    // Part of two blocks.
    assert_eq!(batch.write(&file, &[at(5, 17 * 4096 + 10)]), Ok(1));
    assert_eq!(results(&mut batch, 1), [(5, Ok(4096))]);
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(3 * 4096), 16 * 4096));
    assert_eq!(read, Ok(3 * 4096));
    let expected = [
        (0, 200),
        (4096, 201),
        (4096 + 9, 201),
        (4096 + 10, 205),
        (2 * 4096 + 9, 205),
        (2 * 4096 + 10, 202),
    ];
    for (place, byte) in expected {
        assert_eq!(bytes[place], byte, "byte {place}");
    }
    // A hole is allocated.
    let file = with_hole(&reactor, file.device().clone());
    assert_eq!(batch.write(&file, &[at(1, 4096), at(2, 0)]), Ok(2));
    assert_eq!(results(&mut batch, 2), [(1, Ok(4096)), (2, Ok(4096))]);
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(8192), 0));
    assert_eq!((read, bytes[0], bytes[4096]), (Ok(8192), 202, 201));
}

#[test]
fn a_device_that_became_shorter_fails_the_reads_behind_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = numbered(folder.path());
    let path = folder.path().join("numbered");
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(16 * 4096).unwrap();
        let options = ReactorOptions::new().queue(QueueKind::Ring).completion(completion);
        let (reactor, pool) = (Reactor::new(options).unwrap(), pool(4096));
        let mut batch = batch(&reactor, &pool);
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        for (slot, result) in results(&mut batch, SLOTS as usize) {
            let expected = if slot < 16 { Ok(4096) } else { Err(Errno::IO) };
            assert_eq!(result, expected, "{slot}, {completion:?}");
        }
        // The slots are as good as before.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        assert!(results(&mut batch, SLOTS as usize).iter().all(|(_, moved)| *moved == Ok(4096)));
    }
}

#[test]
fn errors_reach_their_slots_and_interruptions_reach_none() {
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        let sim = Sim::new(SimOptions::new(SIZE).seed(7));
        sim.inject(Rule::new(None, When::Every(3), Fault::Short));
        sim.inject(Rule::new(None, When::Every(5), Fault::Error(Errno::INTR)));
        sim.inject(Rule::new(None, When::Every(7), Fault::Error(Errno::AGAIN)));
        sim.inject(Rule::new(None, When::OneIn(9), Fault::Error(Errno::CANCELED)));
        let file = file_over(&sim);
        let reactor = Reactor::new(ReactorOptions::new().completion(completion)).unwrap();
        let pool = pool(4096);
        let mut batch = batch(&reactor, &pool);
        for round in 0..10 {
            assert_eq!(batch.read(&file, &blocks_from(round * 7)), Ok(SLOTS as usize));
            let ended = results(&mut batch, SLOTS as usize);
            assert!(ended.iter().all(|(_, moved)| *moved == Ok(4096)), "{completion:?}: {ended:?}");
        }
        assert!(reactor.counters().get(Counter::Resumed) > 0);
        sim.clear_faults();
        sim.inject(Rule::new(None, When::Every(1), Fault::Error(Errno::IO)).within(0, 4 * 4096));
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        for (slot, result) in results(&mut batch, SLOTS as usize) {
            let expected = if slot < 4 { Err(Errno::IO) } else { Ok(4096) };
            assert_eq!(result, expected, "{slot}, {completion:?}");
        }
        drop(batch);
        assert_eq!(pool.available(), SLOTS as usize);
    }
}

#[test]
fn invalid_slots_and_buffers_are_refused() {
    let (reactor, file, pool) = (reactor(QueueKind::Ring), null(), pool(4096));
    let mut batch = batch(&reactor, &pool);
    assert_eq!((batch.slots(), batch.in_flight()), (SLOTS as usize, 0));
    assert_eq!(batch.read(&file, &[]), Ok(0));
    assert_eq!(batch.read(&file, &[at(SLOTS, 0)]), Err(Errno::INVAL));
    assert_eq!(batch.read(&file, &[at(0, 0), at(u32::MAX, 0), at(1, 0)]), Ok(1));
    assert_eq!(batch.read(&file, &[at(0, 0)]), Err(Errno::BUSY), "it is in flight");
    assert_eq!(batch.read(&file, &[at(1, 0), at(1, 4096), at(2, 0)]), Ok(1), "twice in a call");
    assert_eq!((batch.buffer(0), batch.buffer(SLOTS)), (None, None));
    assert_eq!(results(&mut batch, 2), [(0, Ok(4096)), (1, Ok(4096))]);
    assert!(batch.buffer(0).is_some());

    let refused = |buffers: Vec<Buffer>| Batch::new(&reactor, buffers).unwrap_err().to_string();
    assert_eq!(refused(vec![]), "a batch needs buffers with at least one byte");
    assert_eq!(refused(vec![Buffer::zeroed(0)]), "a batch needs buffers with at least one byte");
    assert_eq!(
        refused(vec![Buffer::zeroed(4096), Buffer::zeroed(512)]),
        "the buffers of a batch have one length, but there are some of 4096 and of 512 bytes"
    );
}

#[test]
fn completions_that_are_not_taken_stay_and_bound_what_begins() {
    for queue in [QueueKind::Ring, QueueKind::Sync] {
        let (reactor, file, pool) = (reactor(queue), null(), pool(4096));
        let mut batch = batch(&reactor, &pool);
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        let mut slots = Vec::new();
        while slots.len() < 20 {
            slots.extend(batch.completions(1, None).unwrap().take(3).map(|read| read.slot()));
        }
        let left = SLOTS as usize - slots.len();
        while batch.in_flight() > 0 {
            let _not_taken = batch.completions(SLOTS as usize, None).unwrap();
        }
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(slots.len()), "the others are not taken");
        for _ in 0..10 {
            assert_eq!(batch.read(&file, &[at(31, 0)]), Err(Errno::BUSY), "{queue}");
            let _not_taken = batch.completions(SLOTS as usize, None).unwrap();
        }
        let first: Vec<_> =
            batch.completions(0, None).unwrap().take(left).map(|read| read.slot()).collect();
        slots.extend(first);
        slots.sort_unstable();
        assert_eq!(slots, Vec::from_iter(0..SLOTS), "{queue}: the oldest come first, each once");
    }
}

#[test]
fn a_slot_keeps_its_bytes_until_its_completion_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Sync] {
        let (reactor, file, pool) = (reactor(queue), numbered(folder.path()), pool(4096));
        let mut batch = batch(&reactor, &pool);
        assert_eq!(batch.read(&file, &[at(0, 3 * 4096)]), Ok(1));
        drop(batch.completions(1, None).unwrap());
        assert_eq!(batch.read(&file, &[at(0, 4 * 4096)]), Err(Errno::BUSY), "{queue}");
        assert_eq!(batch.read(&file, &[at(1, 4 * 4096), at(0, 4 * 4096)]), Ok(1), "{queue}");
        let mut blocks = Vec::new();
        while blocks.len() < 2 {
            let completions = batch.completions(1, None).unwrap();
            blocks.extend(completions.map(|read| (read.slot(), read.bytes()[0])));
        }
        assert_eq!(blocks, [(0, 3), (1, 4)], "{queue}");
        assert_eq!(batch.read(&file, &[at(0, 4 * 4096)]), Ok(1), "{queue}");
    }
}

#[test]
fn more_than_the_queues_take_is_begun_as_far_as_there_is_room() {
    let (file, large) = (null(), BufferPool::new(4096, 512).unwrap());
    let transfers: Vec<_> =
        (0..512).map(|slot| at(slot, u64::from(slot) % BLOCKS * 4096)).collect();
    // More than the submission queue has entries.
    let roomy = Reactor::new(ReactorOptions::new().queue(QueueKind::Ring).depth(1024)).unwrap();
    let mut all = batch(&roomy, &large);
    assert_eq!(all.read(&file, &transfers), Ok(512));
    assert_eq!(results(&mut all, 512).len(), 512);
    drop(all);
    // The reactor's depth is that of other requests: a batch has as many in flight as it has slots, on a ring.
    const DEPTH: usize = 8;
    for (queue, most) in [(QueueKind::Ring, 512), (QueueKind::Sync, DEPTH)] {
        let options = ReactorOptions::new().queue(queue).depth(DEPTH as u32);
        let small = Reactor::new(options).unwrap();
        let mut some = batch(&small, &large);
        let (mut begun, mut ended, mut in_flight) = (0, 0, 0);
        while ended < 512 {
            match some.read(&file, &transfers[begun..]) {
                Ok(count) => begun += count,
                Err(error) => assert_eq!(error, Errno::AGAIN, "{queue}"),
            }
            in_flight = in_flight.max(some.in_flight());
            ended += some.completions(1, None).unwrap().count();
        }
        assert_eq!((begun, in_flight), (512, most), "{queue}");
    }
}

/// Tokens, awaited operations, timers and two batches, each with its own results.
#[test]
fn a_batch_leaves_the_rest_of_the_reactor_alone() {
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Threads] {
        let (reactor, file) = (reactor(queue), numbered(folder.path()));
        let pools = [pool(4096), pool(4096)];
        let mut batches = pools.each_ref().map(|pool| batch(&reactor, pool));
        let awaited = Rc::new(Cell::new(0));
        let mut tasks = Vec::new();
        const ROUNDS: u64 = 200;
        for _ in 0..4 {
            let (file, awaited) = (file.clone(), awaited.clone());
            let local = reactor.local().clone();
            tasks.push(reactor.spawn(async move {
                for round in 0..ROUNDS / 4 {
                    // One on the fast path, one beside it.
                    let (read, buffer) = file.read_at(Buffer::zeroed(4096), round * 4096).await;
                    assert_eq!((read, buffer[0]), (Ok(4096), round as u8));
                    let (read, _) = file.read_at(Buffer::zeroed(8192), round * 4096).await;
                    assert_eq!(read, Ok(8192));
                    awaited.set(awaited.get() + 1);
                }
                // A timer, beside all else.
                local.sleep(Duration::from_micros(100)).await;
            }));
        }
        let mut tokens = 0;
        for round in 0..ROUNDS {
            let token = Token::new(round);
            reactor.read_at(&file, Buffer::zeroed(4096), round % BLOCKS * 4096, token).unwrap();
            for (number, batch) in batches.iter_mut().enumerate() {
                let first = round + number as u64 * 100;
                assert_eq!(batch.read(&file, &blocks_from(first)), Ok(SLOTS as usize));
            }
            // Completions that a call on one batch finds for the other are not lost.
            for (number, batch) in batches.iter_mut().enumerate() {
                let mut ended = 0;
                while ended < SLOTS as usize {
                    for read in batch.completions(SLOTS as usize - ended, None).unwrap() {
                        let block = round + number as u64 * 100 + u64::from(read.slot());
                        assert_eq!(read.result(), Ok(4096));
                        assert!(read.bytes().iter().all(|byte| *byte == (block % BLOCKS) as u8));
                        ended += 1;
                    }
                }
            }
            for completion in reactor.completions(1, None).unwrap() {
                assert_eq!(completion.result(), Ok(4096));
                tokens += 1;
            }
        }
        while tokens < ROUNDS {
            tokens += reactor.completions(1, None).unwrap().count() as u64;
        }
        for task in tasks {
            reactor.block_on(task).unwrap();
        }
        assert_eq!((tokens, awaited.get()), (ROUNDS, ROUNDS), "{queue}");
    }
}

#[test]
fn a_transfer_is_in_its_epoch_until_it_has_ended() {
    let (reactor, file, pool) = (reactor(QueueKind::Ring), null(), pool(4096));
    let mut batch = batch(&reactor, &pool);
    let domain = quiescence(file.device().index());
    for taken_by_batch in [true, false] {
        // Attaches the device at the first time.
        assert_eq!(batch.read(&file, &[at(0, 0)]), Ok(1));
        assert_eq!(results(&mut batch, 1), [(0, Ok(4096))]);
        assert!(domain.passed(domain.retire()), "nothing is in flight");
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        let epoch = domain.retire();
        assert!(!domain.passed(epoch), "the reads may have found what was retired");
        if taken_by_batch {
            assert_eq!(results(&mut batch, SLOTS as usize).len(), SLOTS as usize);
        } else {
            // The loop finds them while the caller does something else.
            assert_eq!(reactor.block_on(file.read_at(Buffer::zeroed(4096), 0)).0, Ok(4096));
        }
        assert!(domain.passed(epoch), "taken by the batch: {taken_by_batch}");
        let later = results(&mut batch, if taken_by_batch { 0 } else { SLOTS as usize });
        assert!(later.iter().all(|(_, moved)| *moved == Ok(4096)));
        // Those that are refused leave it, too.
        assert_eq!(batch.read(&file, &[at(0, 0), at(SLOTS, 0), at(1, 0)]), Ok(1));
        assert_eq!(results(&mut batch, 1), [(0, Ok(4096))]);
        assert!(domain.passed(domain.retire()));
    }
}

#[test]
fn memory_in_flight_outlives_its_batch() {
    let slots = SLOTS as usize;
    // On the ring.
    let (reactor, file, pool) = (reactor(QueueKind::Ring), null(), pool(4096));
    let mut dropped = batch(&reactor, &pool);
    assert_eq!(dropped.read(&file, &blocks_from(0)[..20]), Ok(20));
    drop(dropped);
    assert_eq!(pool.available(), slots - 20, "the kernel may use the memory");
    let mut next = Batch::new(&reactor, (0..8).map(|_| pool.get().unwrap())).unwrap();
    assert_eq!(next.read(&file, &[at(0, 0)]), Ok(1));
    assert_eq!(results(&mut next, 1), [(0, Ok(4096))], "only its own");
    assert_eq!(reactor.block_on(file.read_at(Buffer::zeroed(4096), 0)).0, Ok(4096));
    assert_eq!(pool.available(), slots - 8);

    // On a queue of a device's own, and in operations.
    let clock = VirtualClock::default();
    let options =
        SimOptions::new(SIZE).latency(Duration::from_millis(1)..=Duration::from_millis(2));
    let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
    let (reactor, file, pool) = (reactor_by(&clock), file_over(&sim), self::pool(4096));
    let mut dropped = batch(&reactor, &pool);
    let reads: Vec<_> = (0..10).map(|slot| at(slot, u64::from(slot) * 4097)).collect();
    assert_eq!(dropped.read(&file, &reads), Ok(10));
    drop(dropped);
    assert_eq!(pool.available(), slots - 10);
    assert_eq!(reactor.completions(usize::MAX, None).unwrap().count(), 0);
    assert_eq!(pool.available(), slots);
}

#[test]
fn a_batch_survives_its_reactor() {
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Threads] {
        let (reactor, file, pool) = (reactor(queue), numbered(folder.path()), pool(4096));
        let mut batch = batch(&reactor, &pool);
        // Half of them take the slow path.
        let reads: Vec<_> = (0..SLOTS).map(|slot| at(slot, u64::from(slot) % 2)).collect();
        assert_eq!(batch.read(&file, &reads), Ok(SLOTS as usize));
        drop(reactor);
        let ended = results(&mut batch, SLOTS as usize);
        assert!(ended.iter().all(|(_, moved)| *moved == Ok(4096)), "{queue}: {ended:?}");
        assert_eq!(batch.read(&file, &[at(0, 0)]), Err(Errno::SHUTDOWN), "{queue}");
        assert_eq!(batch.completions(1, None).unwrap().count(), 0, "{queue}");
        batch.cancel(0);
        assert!(batch.buffer(0).unwrap().iter().all(|byte| *byte == 0));
        drop(batch);
        assert_eq!(pool.available(), SLOTS as usize, "{queue}");
    }
}

#[test]
fn a_device_is_removed_when_its_transfers_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::default();
    let options =
        SimOptions::new(SIZE).latency(Duration::from_millis(1)..=Duration::from_millis(2));
    let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
    for (reactor, file) in
        [(reactor(QueueKind::Ring), numbered(folder.path())), (reactor_by(&clock), file_over(&sim))]
    {
        let (other, pool) = (null(), pool(4096));
        let mut batch = batch(&reactor, &pool);
        assert_eq!(batch.read(&other, &[at(0, 0)]), Ok(1));
        assert_eq!(batch.read(&file, &blocks_from(0)[1..]), Ok(SLOTS as usize - 1));
        file.device().remove();
        let ended = results(&mut batch, SLOTS as usize);
        assert!(ended.iter().all(|(_, moved)| *moved == Ok(4096)), "{ended:?}");
        assert_eq!(batch.read(&file, &[at(0, 0)]), Err(Errno::NODEV));
        assert_eq!(batch.read(&other, &blocks_from(0)), Ok(SLOTS as usize));
        assert_eq!(results(&mut batch, SLOTS as usize).len(), SLOTS as usize);
    }
}

#[test]
fn a_cancel_ends_the_transfer_of_its_slot() {
    let clock = VirtualClock::default();
    let options =
        SimOptions::new(SIZE).latency(Duration::from_secs(1)..=Duration::from_secs(2)).units(1);
    let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
    let (reactor, file, pool) = (reactor_by(&clock), file_over(&sim), pool(4096));
    let mut batch = batch(&reactor, &pool);
    // On the fast path, and beside it.
    assert_eq!(batch.read(&file, &[at(0, 0), at(1, 4096), at(2, 1), at(3, 2)]), Ok(4));
    batch.cancel(1);
    batch.cancel(3);
    batch.cancel(17);
    let ended = results(&mut batch, 4);
    let canceled = Err(Errno::CANCELED);
    assert_eq!(ended, [(0, Ok(4096)), (1, canceled), (2, Ok(4096)), (3, canceled)]);
}

#[test]
fn a_timeout_ends_the_wait_and_not_the_transfers() {
    let clock = VirtualClock::default();
    let options = SimOptions::new(SIZE).latency(Duration::from_secs(1)..=Duration::from_secs(1));
    let sim = Sim::new(options.clock(Clock::Virtual(clock.clone())));
    let (reactor, file, pool) = (reactor_by(&clock), file_over(&sim), pool(4096));
    let mut batch = batch(&reactor, &pool);
    assert_eq!(batch.read(&file, &[at(0, 0)]), Ok(1));
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        assert_eq!(batch.completions(1, Some(timeout)).unwrap().count(), 0);
        assert_eq!(batch.in_flight(), 1);
    }
    assert_eq!(batch.completions(0, None).unwrap().count(), 0);
    assert_eq!(batch.completions(9, Some(Duration::from_secs(9))).unwrap().count(), 1);
}

#[test]
fn a_foreign_loop_takes_completions_after_its_turns() {
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Threads] {
        let (reactor, file, pool) = (reactor(queue), numbered(folder.path()), pool(4096));
        let mut batch = batch(&reactor, &pool);
        let fd = reactor.fd().unwrap();
        let token = Token::new(1);
        for round in 0..50 {
            reactor.read_at(&file, Buffer::zeroed(4096), 0, token).unwrap();
            assert_eq!(batch.read(&file, &blocks_from(round)), Ok(SLOTS as usize));
            let mut ended = batch.completions(0, None).unwrap().count();
            let mut tokens = 0;
            while ended < SLOTS as usize || tokens == 0 {
                let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
                let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap();
                assert_eq!(ready, 1, "{queue}: nothing came, after {ended} and {tokens}");
                reactor.turn().unwrap();
                ended += batch.completions(0, None).unwrap().count();
                tokens += reactor.completions(0, None).unwrap().count();
            }
            assert_eq!((ended, tokens), (SLOTS as usize, 1), "{queue}");
        }
    }
}

#[test]
fn tasks_begin_transfers_and_do_not_wait_for_them() {
    let (reactor, file, pool) = (reactor(QueueKind::Ring), null(), pool(4096));
    let mut batch = batch(&reactor, &pool);
    let task = reactor.spawn(async move {
        assert_eq!(batch.read(&file, &blocks_from(0)), Ok(SLOTS as usize));
        assert_eq!(batch.completions(1, None).err(), Some(Errno::DEADLK));
        batch
    });
    let mut batch = reactor.block_on(task).unwrap();
    assert_eq!(results(&mut batch, SLOTS as usize).len(), SLOTS as usize);
}

/// Random transfers on each back end, compared with a copy in memory.
#[test]
fn random_batches_agree_with_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let back_ends =
        [BackEnd::Image, BackEnd::Memory, BackEnd::Sim, BackEnd::SlowSim, BackEnd::ShakySim];
    for (back_end, length) in back_ends.into_iter().flat_map(|one| [(one, 4096), (one, 12_288)]) {
        let clock = VirtualClock::default();
        let made = back_end.make(folder.path(), SIZE, &clock);
        let file = File::from_device_with_state(
            made.device.clone(),
            Arc::<FileState>::default(),
            FileOptions::default(),
        );
        let queue = if back_end == BackEnd::Image { QueueKind::Ring } else { QueueKind::Auto };
        let options = ReactorOptions::new().clock(back_end.clock(&clock)).queue(queue);
        let reactor = Reactor::new(options).unwrap();
        let pool = pool(length);
        let mut batch = batch(&reactor, &pool);
        let mut model = vec![0; SIZE as usize];
        let mut random = Random(length as u64 + back_end as u64);
        let places = SIZE / length as u64 - 1;
        for step in 0..scaled(60) {
            let what = format!("{back_end:?}, {length} bytes, step {step}");
            let first = random.below(places - u64::from(SLOTS));
            let count = 1 + random.below(u64::from(SLOTS)) as u32;
            // Sometimes between blocks, never one over the other.
            let shift = if random.below(4) == 0 { random.below(length as u64) } else { 0 };
            let offset = |slot: u32| (first + u64::from(slot)) * length as u64 + shift;
            let transfers: Vec<_> = (0..count).map(|slot| at(slot, offset(slot))).collect();
            let is_write = random.below(2) == 0;
            if is_write {
                for slot in 0..count {
                    let bytes = pattern(random.below(1000), length);
                    batch.buffer_mut(slot).unwrap().copy_from_slice(&bytes);
                    let place = offset(slot) as usize;
                    model[place..place + length].copy_from_slice(&bytes);
                }
                assert_eq!(batch.write(&file, &transfers), Ok(count as usize), "{what}");
            } else {
                assert_eq!(batch.read(&file, &transfers), Ok(count as usize), "{what}");
            }
            for (slot, moved) in results(&mut batch, count as usize) {
                assert_eq!(moved, Ok(length), "{what}");
                let place = offset(slot) as usize;
                assert!(batch.buffer(slot).unwrap() == &model[place..place + length], "{what}");
            }
        }
        assert_eq!(reap(&reactor, 0).len(), 0);
    }
}
