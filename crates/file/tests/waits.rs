//! `FileOp::wait`: direct reads and overwrites of a file are calls of the thread that waits; a background reactor does the
//! rest.

mod harness;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use harness::{file_over, pattern};
use parking_lot::Mutex;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Access, Errno};
use uringfs_file::{File, FileOptions, WriteLocking};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, quiescence, total};

const SIZE: usize = 1 << 20;

/// Counters are of the whole process: one test at a time.
static COUNTS: Mutex<()> = Mutex::new(());

fn image(folder: &Path) -> File {
    let path = folder.join("image");
    fs::write(&path, vec![0; SIZE]).unwrap();
    File::open(&path, Access::ReadWrite).unwrap()
}

/// Calls, and operations of background reactors, so far.
fn counts() -> (u64, u64) {
    (total(Counter::Called), total(Counter::Remote))
}

/// The calls and the operations of background reactors that `run` makes.
fn counted(run: impl FnOnce()) -> (u64, u64) {
    let before = counts();
    run();
    let after = counts();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn transfers_of_one_request_are_calls_of_the_threads_that_wait() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    let made = counted(|| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let file = file.clone();
                scope.spawn(move || {
                    let pool = BufferPool::new(4096, 1).unwrap();
                    for round in 0..50 {
                        let bytes = pattern(thread * 50 + round, 4096);
                        let offset = thread * 65536 + round % 16 * 4096;
                        let (written, bytes) = file.write_at(bytes, offset).wait();
                        assert_eq!(written, Ok(4096));
                        let (read, found) = file.read_at(pool.get().unwrap(), offset).wait();
                        assert_eq!(read, Ok(4096));
                        assert!(found[..] == bytes[..]);
                    }
                });
            }
        });
    });
    assert_eq!(made, (8 * 50 * 2, 0));
}

#[test]
fn a_durable_overwrite_is_a_call_where_a_write_can_be_durable() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    let made = counted(|| {
        for round in 0..4 {
            assert_eq!(file.write_durably(pattern(round, 4096), 8192).wait().0, Ok(4096));
        }
    });
    let is_durable = file.device().geometry().durable_writes;
    assert_eq!(made, if is_durable { (4, 0) } else { (0, 4) });
    let (read, found) = file.read_at(Buffer::zeroed(4096), 8192).wait();
    assert_eq!(read, Ok(4096));
    assert!(found[..] == pattern(3, 4096)[..]);
}

#[test]
fn memory_of_other_types_comes_back() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    let made = counted(|| {
        // Its address is rarely one for direct I/O. Then a reactor copies.
        let (written, sent) = file.write_at(vec![3; 8192], 4096).wait();
        assert_eq!((written, sent), (Ok(8192), vec![3; 8192]));
        let (read, found) = file.read_at(Buffer::zeroed(8192), 4096).wait();
        assert_eq!(read, Ok(8192));
        assert!(found.iter().all(|byte| *byte == 3));
    });
    // The read has aligned memory.
    assert!(made == (2, 0) || made == (1, 1), "{made:?}");
}

#[test]
fn what_is_more_than_one_request_goes_to_a_background_reactor() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    let read = |file: &File, length, offset| {
        let file = file.clone();
        counted(move || drop(file.read_at(Buffer::zeroed(length), offset).wait()))
    };
    assert_eq!(read(&file, 4096, 0), (1, 0));
    assert_eq!(read(&file, 1 << 20, 0), (1, 0), "1 MiB");
    assert_eq!(read(&file, 4096, 17), (0, 1), "an odd offset");
    assert_eq!(read(&file, 100, 0), (0, 1), "an odd length");
    assert_eq!(read(&file, 0, 0), (0, 1), "nothing");
    assert_eq!(read(&file, 8192, SIZE as u64 - 4096), (0, 1), "the end");
    assert_eq!(read(&file.buffered(&Cache::new(1 << 20)), 4096, 0), (0, 1), "through a cache");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let late = counted(|| {
        let read = file.read_at(Buffer::zeroed(4096), 0).deadline(deadline).wait();
        assert_eq!(read.0, Ok(4096));
    });
    assert_eq!(late, (0, 1), "a deadline");
    let slow = file_over(&Sim::new(SimOptions::new(SIZE as u64)));
    assert_eq!(read(&slow, 4096, 0), (0, 1), "a device without a descriptor");
}

#[test]
fn the_switches_of_a_file_turn_calls_off() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let device = image(folder.path()).device().clone();
    let options = FileOptions::default().simple_read(false);
    let file = File::from_device(device.clone(), options);
    let made = counted(|| {
        assert_eq!(file.read_at(Buffer::zeroed(4096), 0).wait().0, Ok(4096));
    });
    assert_eq!(made, (0, 1));
    let options = FileOptions::default().write_lock(WriteLocking::Exclusive);
    let file = File::from_device(device, options);
    let made = counted(|| {
        assert_eq!(file.write_at(pattern(1, 4096), 0).wait().0, Ok(4096));
    });
    assert_eq!(made, (0, 1));
}

#[test]
fn a_call_that_moves_too_little_is_done_again_and_reported() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    fs::File::options()
        .write(true)
        .open(folder.path().join("image"))
        .unwrap()
        .set_len(8192)
        .unwrap();
    let awaited = {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.block_on(file.read_at(Buffer::zeroed(4096), 65536)).0
    };
    let mut waited = Ok(0);
    let made = counted(|| waited = file.read_at(Buffer::zeroed(4096), 65536).wait().0);
    assert_eq!((waited, made), (awaited, (0, 1)));
    assert!(waited.is_err(), "{waited:?}");
    file.device().remove();
    assert_eq!(file.read_at(Buffer::zeroed(4096), 0).wait().0, Err(Errno::NODEV));
}

/// Beside a writer that needs the file for itself, which it has when the calls that began before it have ended.
#[test]
fn calls_and_exclusive_writers_exclude_each_other() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = file.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let bytes = pattern(thread, 4096);
                    assert_eq!(file.write_at(bytes, thread * 4096).wait().0, Ok(4096));
                    if round % 20 == 0 {
                        // It changes a part of a block: read, change and write.
                        let bytes = pattern(9, 17);
                        assert_eq!(file.write_at(bytes, 65536 + thread * 17).wait().0, Ok(17));
                    }
                }
            });
        }
    });
    for thread in 0..4u64 {
        let (read, found) = file.read_at(Buffer::zeroed(4096), thread * 4096).wait();
        assert_eq!(read, Ok(4096));
        assert!(found[..] == pattern(thread, 4096)[..]);
        let (read, found) = file.read_at(Buffer::zeroed(17), 65536 + thread * 17).wait();
        assert_eq!(read, Ok(17));
        assert!(found[..] == pattern(9, 17)[..]);
    }
    let domain = quiescence(file.device().core().index());
    assert!(domain.passed(domain.retire()), "no call is left in an epoch");
}

#[test]
fn a_thread_that_has_a_reactor_calls_too() {
    let _alone = COUNTS.lock();
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(image(folder.path()));
    let _reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let made = counted(|| assert_eq!(file.read_at(Buffer::zeroed(4096), 0).wait().0, Ok(4096)));
    assert_eq!(made, (1, 0));
}
