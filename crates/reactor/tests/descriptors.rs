//! Waits for descriptors (readiness, connections, bytes) give equal results on every tier.

mod tier;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tier::on_every_tier;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::Errno;
use uringfs_reactor::{PollEvents, Reactor, ReactorOptions};

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A deadline that ends a test which would otherwise wait forever.
fn test_deadline() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn shared(file: impl Into<OwnedFd>) -> Arc<OwnedFd> {
    Arc::new(file.into())
}

/// Polls a future once, and expects that it is pending.
async fn begin<F: Future>(mut future: Pin<&mut F>) {
    let waits = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(waits.await, "the future must be pending");
}

/// Waits for a descriptor that is ready. On its way the reactor submits all waits that were begun before.
async fn submit_waits(reactor: &Reactor, writable: &Arc<OwnedFd>) {
    let ready = reactor.poll(writable, PollEvents::OUT, test_deadline()).await;
    assert_eq!(ready, Ok(PollEvents::OUT));
}

#[test]
fn a_poll_returns_the_ready_events() {
    on_every_tier("a_poll_returns_the_ready_events", |_| {
        let reactor = reactor();
        let (reading, mut writing) = std::io::pipe().unwrap();
        let (reading, watched) = (shared(reading), shared(writing.try_clone().unwrap()));
        reactor.block_on(async {
            let writable = reactor.poll(&watched, PollEvents::OUT, test_deadline()).await;
            assert_eq!(writable, Ok(PollEvents::OUT));
            let mut readable = pin!(reactor.poll(&reading, PollEvents::IN, test_deadline()));
            begin(readable.as_mut()).await;
            submit_waits(&reactor, &watched).await;
            begin(readable.as_mut()).await;
            writing.write_all(b"x").unwrap();
            assert_eq!(readable.await, Ok(PollEvents::IN));
            drop((watched, writing));
            let closed = reactor.poll(&reading, PollEvents::IN, test_deadline()).await;
            assert_eq!(closed, Ok(PollEvents::IN | PollEvents::HUP));
        });
    });
}

#[test]
fn a_regular_file_is_always_ready() {
    on_every_tier("a_regular_file_is_always_ready", |_| {
        let reactor = reactor();
        let file = shared(tempfile::tempfile().unwrap());
        let both = PollEvents::IN | PollEvents::OUT;
        assert_eq!(reactor.block_on(reactor.poll(&file, both, test_deadline())), Ok(both));
        let out = PollEvents::OUT;
        assert_eq!(reactor.block_on(reactor.poll(&file, out, test_deadline())), Ok(out));
    });
}

#[test]
fn an_eventfd_wakes_all_its_polls() {
    on_every_tier("an_eventfd_wakes_all_its_polls", |_| {
        let reactor = reactor();
        let event = shared(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        reactor.block_on(async {
            let mut polls: Vec<_> = (0..200)
                .map(|_| Box::pin(reactor.poll(&event, PollEvents::IN, test_deadline())))
                .collect();
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            let other = event.clone();
            let writer = std::thread::spawn(move || {
                rustix::io::write(&*other, &1u64.to_ne_bytes()).unwrap();
            });
            for poll in polls {
                assert_eq!(poll.await, Ok(PollEvents::IN));
            }
            writer.join().unwrap();
        });
    });
}

#[test]
fn a_connection_is_accepted_and_moves_bytes_both_ways() {
    on_every_tier("a_connection_is_accepted_and_moves_bytes_both_ways", |_| {
        let reactor = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = shared(listener);
        const LENGTH: usize = 3 << 20;
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let sent: Vec<u8> = (0..LENGTH).map(|at| (at / 7) as u8).collect();
            let mut received = vec![0; LENGTH];
            stream.write_all(&sent).unwrap();
            stream.read_exact(&mut received).unwrap();
            assert!(sent == received);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        reactor.block_on(async {
            let socket = Arc::new(reactor.accept(&listener, test_deadline()).await.unwrap());
            let mut bytes = Vec::new();
            let mut buffer = Buffer::zeroed(100_000);
            while bytes.len() < LENGTH {
                let (received, back) = reactor.receive(&socket, buffer, test_deadline()).await;
                bytes.extend_from_slice(&back[..received.unwrap()]);
                assert_eq!(back.len(), 100_000);
                buffer = back;
            }
            let mut rest = Buffer::copy_of(&bytes);
            while !rest.is_empty() {
                let (sent, mut back) = reactor.send(&socket, rest, test_deadline()).await;
                rest = back.split_off(sent.unwrap());
            }
            let (end, _) = reactor.receive(&socket, Buffer::zeroed(10), test_deadline()).await;
            assert_eq!(end, Ok(0));
        });
        client.join().unwrap();
    });
}

#[test]
fn buffers_are_sent_together_in_their_order() {
    on_every_tier("buffers_are_sent_together_in_their_order", |_| {
        let reactor = reactor();
        let (one, mut other) = UnixStream::pair().unwrap();
        let one = shared(one);
        // More than one call takes, and more bytes than the socket holds.
        let buffers: Vec<_> = (0..1500usize)
            .map(|number| Buffer::copy_of(&vec![number as u8; number % 700 + 1]))
            .collect();
        let expected: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        let length = expected.len();
        let receiver = std::thread::spawn(move || {
            let mut received = vec![0; length];
            other.read_exact(&mut received).unwrap();
            received
        });
        reactor.block_on(async {
            let mut rest = buffers;
            let mut calls = 0;
            while !rest.is_empty() {
                let (sent, mut back) = reactor.send_vectored(&one, rest, test_deadline()).await;
                let mut sent = sent.unwrap();
                let whole = back.iter().take_while(|buffer| match sent >= buffer.len() {
                    true => {
                        sent -= buffer.len();
                        true
                    }
                    false => false,
                });
                let whole = whole.count();
                back.drain(..whole);
                if let Some(first) = back.first_mut() {
                    *first = first.split_off(sent);
                }
                (rest, calls) = (back, calls + 1);
            }
            assert!((2..100).contains(&calls), "{calls}");
        });
        assert!(receiver.join().unwrap() == expected);
        let buffers = vec![Buffer::zeroed(10), Buffer::zeroed(20)];
        let (sent, buffers) =
            reactor.block_on(reactor.send_vectored(&one, buffers, test_deadline()));
        assert_eq!((sent, buffers.len()), (Err(Errno::PIPE), 2));
    });
}

#[test]
fn socket_errors_return_the_buffer() {
    on_every_tier("socket_errors_return_the_buffer", |_| {
        let reactor = reactor();
        let (one, other) = UnixStream::pair().unwrap();
        let one = shared(one);
        drop(other);
        let (sent, buffer) =
            reactor.block_on(reactor.send(&one, Buffer::zeroed(100), test_deadline()));
        assert_eq!((buffer.len(), sent), (100, Err(Errno::PIPE)));
        let (reading, _writing) = std::io::pipe().unwrap();
        let pipe = shared(reading);
        assert_eq!(
            reactor.block_on(reactor.accept(&pipe, test_deadline())).err(),
            Some(Errno::NOTSOCK)
        );
        let (received, buffer) =
            reactor.block_on(reactor.receive(&pipe, Buffer::zeroed(100), test_deadline()));
        assert_eq!((buffer.len(), received), (100, Err(Errno::NOTSOCK)));
    });
}

#[test]
fn a_deadline_ends_a_wait_and_returns_its_buffer() {
    on_every_tier("a_deadline_ends_a_wait_and_returns_its_buffer", |_| {
        let reactor = reactor();
        let (one, mut other) = UnixStream::pair().unwrap();
        let one = shared(one);
        let listener = shared(TcpListener::bind("127.0.0.1:0").unwrap());
        let soon = || Some(Instant::now() + Duration::from_millis(5));
        reactor.block_on(async {
            let before = Instant::now();
            let polled = reactor.poll(&one, PollEvents::IN, soon()).await;
            assert_eq!(polled, Err(Errno::TIMEDOUT));
            assert_eq!(reactor.accept(&listener, soon()).await.err(), Some(Errno::TIMEDOUT));
            let (received, buffer) = reactor.receive(&one, Buffer::zeroed(64), soon()).await;
            assert_eq!((buffer.len(), received), (64, Err(Errno::TIMEDOUT)));
            assert!(before.elapsed() >= Duration::from_millis(15));
            // A deadline in the past ends the wait at once.
            let past = Some(before);
            assert_eq!(reactor.poll(&one, PollEvents::IN, past).await, Err(Errno::TIMEDOUT));
            // The waits that timed out have consumed nothing.
            other.write_all(b"hello").unwrap();
            let (received, buffer) = reactor.receive(&one, buffer, test_deadline()).await;
            assert_eq!((received, &buffer[..5]), (Ok(5), &b"hello"[..]));
        });
    });
}

#[test]
fn a_dropped_wait_is_cancelled_and_consumes_nothing() {
    on_every_tier("a_dropped_wait_is_cancelled_and_consumes_nothing", |_| {
        let reactor = reactor();
        let pool = BufferPool::new(64, 1).unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        let one = shared(one);
        reactor.block_on(async {
            for round in 0..50u8 {
                {
                    let buffer = pool.get().expect("the buffer is back in the pool");
                    let mut receive = pin!(reactor.receive(&one, buffer, test_deadline()));
                    begin(receive.as_mut()).await;
                    if round % 2 == 0 {
                        submit_waits(&reactor, &one).await;
                    }
                }
                // The kernel releases the buffer while this task waits for another descriptor.
                let gone = Instant::now() + Duration::from_secs(20);
                while pool.available() == 0 {
                    assert!(Instant::now() < gone, "round {round}: the wait was not cancelled");
                    submit_waits(&reactor, &one).await;
                }
                other.write_all(&[round]).unwrap();
                let buffer = Buffer::zeroed(64);
                let (received, buffer) = reactor.receive(&one, buffer, test_deadline()).await;
                assert_eq!((received, buffer[0]), (Ok(1), round));
            }
        });
        assert_eq!(Arc::strong_count(&one), 1, "no wait holds it");
    });
}

#[test]
fn the_deadline_of_a_dropped_wait_ends_no_other_wait() {
    on_every_tier("the_deadline_of_a_dropped_wait_ends_no_other_wait", |_| {
        let reactor = reactor();
        let (reading, mut writing) = std::io::pipe().unwrap();
        let (reading, writable) = (shared(reading), shared(writing.try_clone().unwrap()));
        reactor.block_on(async {
            let soon = Duration::from_millis(10);
            for _ in 0..10 {
                let deadline = Some(Instant::now() + soon);
                let mut dropped = pin!(reactor.poll(&reading, PollEvents::IN, deadline));
                begin(dropped.as_mut()).await;
            }
            // Waits without a deadline reuse their cells.
            submit_waits(&reactor, &writable).await;
            let mut polls: Vec<_> =
                (0..20).map(|_| Box::pin(reactor.poll(&reading, PollEvents::IN, None))).collect();
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            // Their deadlines came before this one.
            let later = Some(Instant::now() + soon);
            let ended = reactor.poll(&reading, PollEvents::IN, later).await;
            assert_eq!(ended, Err(Errno::TIMEDOUT));
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            writing.write_all(b"x").unwrap();
            for poll in polls {
                assert_eq!(poll.await, Ok(PollEvents::IN));
            }
        });
    });
}

#[test]
fn a_wait_keeps_its_deadline_after_another_was_dropped_unread() {
    on_every_tier("a_wait_keeps_its_deadline_after_another_was_dropped_unread", |_| {
        let reactor = reactor();
        let (reading, _writing) = std::io::pipe().unwrap();
        let ready = shared(eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        let reading = shared(reading);
        // Both end in the same turn, and only one result is taken.
        let end_one_unread = async || {
            let mut unread = pin!(reactor.poll(&ready, PollEvents::IN, None));
            begin(unread.as_mut()).await;
            let taken = reactor.poll(&ready, PollEvents::IN, test_deadline()).await;
            assert_eq!(taken, Ok(PollEvents::IN));
        };
        reactor.block_on(async {
            end_one_unread().await;
            let deadline = Some(Instant::now() + Duration::from_millis(1));
            let late = reactor.poll(&reading, PollEvents::IN, deadline).await;
            assert_eq!(late, Err(Errno::TIMEDOUT));

            // The next wait is cancelled when it is dropped.
            end_one_unread().await;
            begin(pin!(reactor.poll(&reading, PollEvents::IN, None))).await;
            while Arc::strong_count(&reading) > 1 {
                reactor.sleep(Duration::from_micros(100)).await;
            }
        });
    });
}

#[test]
fn a_reactor_dropped_with_waits_in_flight_releases_everything() {
    on_every_tier("a_reactor_dropped_with_waits_in_flight_releases_everything", |_| {
        let pool = BufferPool::new(64, 4).unwrap();
        let (one, _other) = UnixStream::pair().unwrap();
        let one = shared(one);
        for round in 0..3 {
            // The futures belong to one reactor and wait on another.
            let owner = reactor();
            let waiting = Rc::new(reactor());
            let begun = Rc::new(Cell::new(0));
            for _ in 0..4 {
                let (one, waiting, begun) = (one.clone(), waiting.clone(), begun.clone());
                let buffer = pool.get().expect("all buffers are back in the pool");
                owner.spawn(async move {
                    begun.set(begun.get() + 1);
                    let (received, _) = waiting.receive(&one, buffer, None).await;
                    panic!("no peer sends anything: {received:?}");
                });
            }
            while begun.get() < 4 {
                owner.turn().unwrap();
            }
            waiting.turn().unwrap();
            assert_eq!(pool.available(), 0);
            drop(owner);
            drop(Rc::into_inner(waiting).expect("the futures were dropped"));
            assert_eq!(pool.available(), 4, "round {round}");
            assert_eq!(Arc::strong_count(&one), 1, "round {round}");
        }
    });
}
