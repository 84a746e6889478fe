//! A fork: the child's use of the parent's reactor fails, and the parent is unaffected. Alone in its program,
//! since the child has only the thread that forked.

mod harness;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fork::Fork;
use harness::reap;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::Cache;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Errno};
use uringfs_file::{Batch, BufferedWait, File, FileOptions, Tokens};
use uringfs_reactor::{BatchTransfer, Reactor, ReactorOptions, Token};

const SIZE: u64 = 1 << 20;
/// Transfers in flight in a batch, which has one more slot.
const IN_BATCH: u32 = 4;
/// Exit status of a child without failures.
const FINE: i32 = 0;

/// Uses the inherited reactor, step by step. Returns the number of the first step that went wrong.
fn child(reactor: Reactor, mut batch: Batch, file: &File, queue: QueueKind) -> i32 {
    let refused = |result: Result<(), Errno>| result == Err(Errno::CHILD);
    let read = |offset| reactor.read_at(file, Buffer::zeroed(4096), offset, Token::new(7));
    if read(0).map_err(|refused| refused.error) != Err(Errno::CHILD) {
        return 1;
    }
    // The slow path.
    if read(5).map_err(|refused| refused.error) != Err(Errno::CHILD) {
        return 2;
    }
    if !refused(reactor.submit()) {
        return 3;
    }
    let mut completed = Vec::new();
    if !refused(reactor.reap(1, Some(Duration::from_secs(5)), &mut completed)) {
        return 4;
    }
    if !refused(reactor.reap(0, None, &mut completed)) || !refused(reactor.turn()) {
        return 5;
    }
    if !completed.is_empty() {
        return 6;
    }
    let idle = BatchTransfer { slot: IN_BATCH, offset: 0 };
    if batch.read(file, &[idle]) != Err(Errno::CHILD)
        || batch.write(file, &[idle]) != Err(Errno::CHILD)
    {
        return 9;
    }
    for (min, timeout) in [(0, None), (1, None), (1, Some(Duration::from_secs(5)))] {
        if batch.completions(min, timeout).err() != Some(Errno::CHILD) {
            return 10;
        }
    }
    batch.cancel(0);
    drop(batch);
    drop(reactor);
    // A thread that waits makes no call either: the parent has the current state of the file.
    if file.read_at(Buffer::zeroed(4096), 8192).wait().0 != Err(Errno::CHILD) {
        return 11;
    }
    if queue == QueueKind::Threads {
        // The parent's threads may have held any lock of the process when it forked, and fork(2) promises a
        // child nothing that takes one.
        return FINE;
    }
    // A reactor of its own works.
    let Ok(own) = Reactor::new(ReactorOptions::default()) else { return 7 };
    match own.block_on(file.read_at(Buffer::zeroed(4096), 8192)) {
        (Ok(4096), buffer) if buffer.iter().all(|byte| *byte == 9) => {}
        _ => return 8,
    }
    // With a device of its own, for which the parent has nothing in flight.
    let device = Device::new(Memory::new(SIZE).unwrap()).unwrap();
    match read_in_thread(&own, &device) {
        Ok(4096) => write_back_in_child(&own, device),
        _ => 12,
    }
}

/// A buffered read that misses, and waits in a thread of the blocking pool.
fn read_in_thread(reactor: &Reactor, device: &Device) -> Result<usize, Errno> {
    let options = FileOptions::default().buffered_wait(BufferedWait::Thread);
    let file = File::from_device(device.clone(), options).buffered(&Cache::new(SIZE));
    reactor.block_on(file.read_at(Buffer::zeroed(4096), 8192)).0
}

/// Writes through the page cache and closes the file. No background reactor can write the folio back, so it stays dirty until
/// a read writes it back.
fn write_back_in_child(own: &Reactor, device: Device) -> i32 {
    let (file, cache) = (File::from_device(device, FileOptions::default()), Cache::new(SIZE));
    let buffered = file.buffered(&cache);
    if own.block_on(buffered.write_at(Buffer::copy_of(&[5; 4096]), 8192)).0 != Ok(4096) {
        return 13;
    }
    drop(buffered);
    if cache.statistics().dirty_bytes != 4096 {
        return 14;
    }
    match own.block_on(file.read_at(Buffer::zeroed(4096), 8192)) {
        (Ok(4096), buffer) if buffer.iter().all(|byte| *byte == 5) => FINE,
        _ => 15,
    }
}

/// Waits for the child to end; kills a child that hangs.
fn status_of(child: i32) -> i32 {
    let child = Pid::from_raw(child).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status().unwrap_or_else(|| {
                panic!("the child died of signal {:?}", status.terminating_signal())
            });
        }
        if Instant::now() > deadline {
            kill_process(child, Signal::KILL).unwrap();
            let _ = waitpid(Some(child), WaitOptions::empty());
            panic!("the child hangs");
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_child_gets_errors_and_its_parent_is_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    for queue in [QueueKind::Ring, QueueKind::Threads, QueueKind::Aio, QueueKind::Sync] {
        let path = folder.path().join(queue.name());
        let made = ImageFile::create(&path, SIZE, Allocation::Written).unwrap();
        let file = File::from_device(Device::new(made).unwrap(), FileOptions::default());
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        let mut nine = Buffer::zeroed(65536);
        nine.fill(9);
        assert_eq!(reactor.block_on(file.write_at(nine, 0)).0, Ok(65536));
        // By a background reactor, which a child of its process cannot use.
        assert_eq!(file.sync_data().wait(), Ok(()));
        // By a thread of the pool, which then is idle.
        assert_eq!(read_in_thread(&reactor, file.device()), Ok(4096), "{queue}");
        const COUNT: u64 = 32;
        let pool = BufferPool::new(4096, COUNT as usize).unwrap();
        for token in 0..COUNT {
            let buffer = pool.get().unwrap();
            let offset = token % 15 * 4096 + token % 2;
            reactor.read_at(&file, buffer, offset, Token::new(token)).unwrap();
        }
        let slots = (0..=IN_BATCH).map(|_| Buffer::zeroed(4096));
        let mut batch = Batch::new(&reactor, slots).unwrap();
        let reads = |slot| BatchTransfer { slot, offset: u64::from(slot) * 4096 };
        let reads: Vec<_> = (0..IN_BATCH).map(reads).collect();
        assert_eq!(batch.read(&file, &reads), Ok(reads.len()), "{queue}");
        reactor.submit().unwrap();
        match fork::fork().unwrap() {
            Fork::Child => {
                let run = AssertUnwindSafe(|| child(reactor, batch, &file, queue));
                std::process::exit(catch_unwind(run).unwrap_or(99));
            }
            Fork::Parent(child) => {
                assert_eq!(status_of(child), FINE, "{queue}: the child's first wrong step");
                for completed in reap(&reactor, COUNT as usize) {
                    assert_eq!(completed.result(), Ok(4096), "{queue}");
                    assert!(completed.into_buffer().iter().all(|byte| *byte == 9), "{queue}");
                }
                while batch.in_flight() > 0 {
                    for read in batch.completions(1, None).unwrap() {
                        assert_eq!(read.result(), Ok(4096), "{queue}");
                        assert!(read.bytes().iter().all(|byte| *byte == 9), "{queue}");
                    }
                }
                assert_eq!(pool.available(), COUNT as usize, "{queue}");
                assert_eq!(reactor.block_on(file.sync_data()), Ok(()), "{queue}");
            }
        }
    }
}
