//! No starvation: neither of an operation that found the queue full, nor of a wait for everything in flight.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::null::Null;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Device, Errno, VirtualClock};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token, quiescence};

use crate::harness::{reactor_by, reap};

#[test]
fn an_operation_refused_by_a_full_queue_gets_its_turn() {
    let options = ReactorOptions::new().queue(QueueKind::Ring).depth(4);
    let reactor = Reactor::new(options).unwrap();
    let file = File::from_device(Device::new(Null::new(1 << 20)).unwrap(), FileOptions::default());
    let pieces = Token::new(1);
    let fill = || while reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(0)).is_ok() {};
    fill();
    let buffers = vec![Buffer::zeroed(4096), Buffer::zeroed(4096)];
    reactor.start(file.read_vectored_at(buffers, 0), pieces).unwrap();
    let mut completed = Vec::new();
    for _ in 0..100 {
        reactor.reap(1, None, &mut completed).unwrap();
        if completed.drain(..).any(|one| one.token() == pieces) {
            return;
        }
        fill();
    }
    panic!("it never got a slot");
}

#[test]
fn a_read_that_ended_at_once_blocks_no_quiescence() {
    for queue in [QueueKind::Sync, QueueKind::Threads] {
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
        let file = File::from_device(device, FileOptions::default());
        // Beyond the end: it ends in this call, and no reap follows.
        reactor.read_at(&file, Buffer::zeroed(4096), 1 << 20, Token::new(0)).unwrap();
        let domain = quiescence(file.device().index());
        let epoch = domain.retire();
        assert!(domain.passed(epoch), "{queue}: {:?}", domain.holders(epoch));
    }
}

/// Yields to other tasks until the condition holds.
async fn until(is_over: impl Fn() -> bool) {
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if is_over() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_task_that_wakes_itself_does_not_starve_requests() {
    for queue in [QueueKind::Ring, QueueKind::Sync, QueueKind::Threads] {
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = Device::open(file.path(), Access::ReadWrite).unwrap();
        let file = File::from_device(device, FileOptions::default());
        let read = || {
            let (is_read, read) =
                (Rc::new(Cell::new(false)), file.read_at(Buffer::zeroed(4096), 0));
            let done = is_read.clone();
            reactor.spawn(async move {
                assert_eq!(read.await.0, Ok(4096));
                done.set(true);
            });
            is_read
        };
        let is_read = read();
        reactor.block_on(until(|| is_read.get()));
        let is_read = read();
        let (done, observed) = (Rc::new(Cell::new(false)), is_read.clone());
        let ended = done.clone();
        reactor.spawn(async move {
            until(|| observed.get()).await;
            done.set(true);
        });
        reactor.block_on(until(|| ended.get()));
    }
}

#[test]
fn excluding_overwriters_times_out_on_a_stuck_reactor() {
    let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
    let file = File::from_device(device, FileOptions::default());
    let (late, own) = (reactor_by(&VirtualClock::default()), reactor_by(&VirtualClock::default()));
    late.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
    late.submit().unwrap();
    let write = || own.block_on(file.write_at(Buffer::zeroed(100), 7)).0;
    assert_eq!(write(), Err(Errno::BUSY));
    // Overwrites of whole blocks wait for no other reactor.
    assert_eq!(own.block_on(file.write_at(Buffer::zeroed(4096), 4096)).0, Ok(4096));
    assert_eq!(reap(&late, 1)[0].result(), Ok(4096));
    assert_eq!(write(), Ok(100));
}
