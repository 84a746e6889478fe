//! Calls that block a thread whose own reactor has operations in flight: the reactor goes on meanwhile. And commits
//! in the thread that blocks for them.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::backend::sim::{Crash, Sim, SimOptions, WriteCache};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{FormatOptions, OpenOptions, Statistics, Volume};

use crate::fixture::{self, create, formatted};

/// A wait that takes so long never ends.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` on a thread, and panics if it does not end.
fn must_end(body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(TIMEOUT) {
        Ok(()) => {}
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the call blocks for ever"),
        Err(_) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

fn tokens(reactor: &Reactor, count: usize) -> Vec<u64> {
    let mut completed = Vec::new();
    reactor.reap(count, Some(TIMEOUT), &mut completed).unwrap();
    let mut tokens: Vec<_> = completed.iter().map(|ended| ended.token().get()).collect();
    tokens.sort_unstable();
    tokens
}

/// Runs `call` on two devices, each with a file of a MiB, and a reactor on the same thread that has writes in flight:
/// a part of a block at 100, a block at 8192, and a block beyond the end.
fn beside_writes(buffered: bool, call: impl Fn(&Volume, &File) + Send + Copy + 'static) {
    must_end(move || {
        let folder = tempfile::tempdir().unwrap();
        let image = Volume::create(folder.path().join("a"), &FormatOptions::new().size(64 << 20));
        let sim = formatted(&Sim::new(SimOptions::new(64 << 20)));
        for (volume, queue) in [(image.unwrap(), QueueKind::Ring), (sim, QueueKind::Auto)] {
            let options = OpenOptions::new().read(true).write(true).create(true);
            let file = volume.open_with("/a", options.direct(!buffered)).unwrap();
            file.write_all_at(vec![7; 1 << 20], 0).wait().0.unwrap();
            file.sync_all().wait().unwrap();
            let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
            let part = Buffer::copy_of(&[1; 100]);
            reactor.write_at(&file, part, 100, Token::new(1)).unwrap();
            reactor.write_at(&file, Buffer::zeroed(4096), 8192, Token::new(2)).unwrap();
            reactor.write_at(&file, Buffer::zeroed(4096), 2 << 20, Token::new(3)).unwrap();
            reactor.start(file.sync_all(), Token::new(4)).unwrap();
            call(&volume, &file);
            assert_eq!(tokens(&reactor, 4), [1, 2, 3, 4]);
        }
    });
}

#[test]
fn a_sync_of_the_volume_ends_beside_writes_of_the_own_reactor() {
    for buffered in [false, true] {
        beside_writes(buffered, |volume, _| volume.sync().unwrap());
    }
}

#[test]
fn a_write_to_a_range_that_the_own_reactor_writes_ends() {
    for buffered in [false, true] {
        beside_writes(buffered, |_, file| {
            file.write_at(vec![2; 10], 150).wait().0.unwrap();
            file.write_at(vec![2; 8192], 4096).wait().0.unwrap();
        });
    }
}

#[test]
fn a_truncate_beside_a_write_past_the_end_of_the_own_reactor_ends() {
    for buffered in [false, true] {
        beside_writes(buffered, |_, file| file.set_len(5000).wait().unwrap());
    }
}

#[test]
fn a_wait_for_a_buffer_ends_when_a_dropped_read_returns_one() {
    must_end(|| {
        let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
        let file = create(&volume, "/a");
        file.write_at(vec![7; 4096], 0).wait().0.unwrap();
        let reactor = fixture::reactor();
        let pool = BufferPool::new(4096, 1).unwrap();
        let mut read = Box::pin(file.read_at(pool.get().unwrap(), 0));
        reactor.block_on(poll_fn(|context| {
            assert!(read.as_mut().poll(context).is_pending());
            Poll::Ready(())
        }));
        drop(read);
        assert!(pool.get().is_none());
        assert_eq!(pool.acquire().wait().len(), 4096);
    });
}

#[test]
#[should_panic(
    expected = "all 2 buffers of the pool are in completions that this thread has not reaped"
)]
fn a_wait_for_a_buffer_that_only_this_thread_can_reap_panics() {
    must_end(|| {
        let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
        let file = create(&volume, "/a");
        file.write_at(vec![7; 8192], 0).wait().0.unwrap();
        let reactor = fixture::reactor();
        let pool = BufferPool::new(4096, 2).unwrap();
        for token in 0..2 {
            reactor.read_at(&file, pool.get().unwrap(), 4096 * token, Token::new(token)).unwrap();
        }
        pool.acquire().wait();
    });
}

#[test]
fn spawned_futures_do_not_run_while_their_thread_blocks() {
    must_end(|| {
        let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
        let file = create(&volume, "/a");
        let reactor = fixture::reactor();
        let runs = Rc::new(Cell::new(0));
        let (counted, to_read) = (runs.clone(), file.clone());
        let task = reactor.spawn(async move {
            counted.set(1);
            to_read.sync_all().await.unwrap();
            counted.set(2);
        });
        reactor.write_at(&file, Buffer::zeroed(100), 7, Token::new(1)).unwrap();
        file.write_at(vec![1; 100], 50).wait().0.unwrap();
        volume.sync().unwrap();
        assert_eq!(runs.get(), 1);
        reactor.block_on(task).unwrap();
        assert_eq!((runs.get(), tokens(&reactor, 1)), (2, vec![1]));
    });
}

#[test]
fn a_call_that_blocks_in_block_on_ends_beside_operations_that_it_has_started() {
    must_end(|| {
        let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
        let file = create(&volume, "/a");
        let reactor = fixture::reactor();
        let written = reactor.block_on(async {
            let mut write = pin!(file.write_at(vec![1; 100], 7));
            poll_fn(|context| {
                assert!(Pin::new(&mut write).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            file.write_at(vec![2; 100], 50).wait().0.unwrap();
            write.await.0
        });
        assert_eq!(written, Ok(100));
    });
}

#[test]
fn a_foreign_loop_learns_of_completions_that_a_blocking_call_has_collected() {
    must_end(|| {
        let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
        let file = create(&volume, "/a");
        let reactor = fixture::reactor();
        reactor.fd().unwrap();
        reactor.turn().unwrap();
        reactor.write_at(&file, Buffer::zeroed(100), 7, Token::new(1)).unwrap();
        file.write_at(vec![1; 100], 50).wait().0.unwrap();
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        let fd = reactor.fd().unwrap();
        assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)), Ok(1));
        reactor.turn().unwrap();
        assert_eq!(tokens(&reactor, 0), [1]);
    });
}

/// The commits since `before`: all, and those of callers.
fn commits_since(volume: &Volume, before: &Statistics) -> [u64; 2] {
    let now = volume.statistics();
    [now.commits - before.commits, now.commits_in_place - before.commits_in_place]
}

#[test]
fn a_thread_without_a_reactor_commits_itself() {
    for cache in [WriteCache::VolatileWithFua, WriteCache::Volatile] {
        let sim = Sim::new(SimOptions::new(64 << 20).cache(cache));
        let volume = formatted(&sim);
        volume.sync().unwrap();
        let before = volume.statistics();
        for number in 0..20 {
            volume.create_dir_with_mode(format!("/{number}"), 0o700).unwrap();
            volume.sync().unwrap();
            let image = sim.crash_image(Crash::LoseAll);
            let after = Volume::open_on(Device::new(image).unwrap()).unwrap();
            assert!(after.symlink_metadata(format!("/{number}")).is_ok(), "{cache:?}");
        }
        assert_eq!(commits_since(&volume, &before), [20, 20], "{cache:?}");
    }
}

#[test]
fn a_thread_with_a_reactor_and_a_task_leave_their_commits_to_the_commit_thread() {
    let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
    volume.sync().unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let before = volume.statistics();
    volume.create_dir_with_mode("/by-thread", 0o700).unwrap();
    volume.sync().unwrap();
    let volume = volume.as_async();
    reactor.block_on(async {
        volume.create_dir_with_mode("/in-task", 0o700).await.unwrap();
        volume.sync().await.unwrap();
    });
    assert_eq!(commits_since(volume.volume(), &before), [2, 0]);
    drop(reactor);
    volume.volume().sync().unwrap();
    assert_eq!(commits_since(volume.volume(), &before), [3, 1]);
}

#[test]
fn a_failed_step_of_a_commit_in_place_stops_the_volume_and_is_no_success() {
    let [by_fua, flushed] = [WriteCache::VolatileWithFua, WriteCache::Volatile];
    // The flush of the data, both copies of the log record, and the flush of these.
    for (cache, op, number) in [
        (by_fua, Op::Flush, 1),
        (by_fua, Op::Write, 1),
        (by_fua, Op::Write, 2),
        (flushed, Op::Flush, 2),
    ] {
        let context = format!("{cache:?}, {op:?} {number}");
        let sim = Sim::new(SimOptions::new(64 << 20).cache(cache));
        let volume = formatted(&sim);
        volume.sync().unwrap();
        volume.create_dir_with_mode("/durable", 0o700).unwrap();
        volume.sync().unwrap();
        volume.create_dir_with_mode("/perhaps", 0o700).unwrap();
        sim.fail_nth(op, number, Errno::IO);
        assert_eq!(volume.sync().unwrap_err().errno(), Errno::IO, "{context}");
        assert!(volume.is_read_only() && volume.sync().is_err(), "{context}");
        assert!(volume.close().is_err(), "{context}");
        let image = sim.crash_image(Crash::LoseAll);
        let after = Volume::open_on(Device::new(image).unwrap()).unwrap();
        assert!(after.symlink_metadata("/durable").is_ok(), "{context}");
    }
}
