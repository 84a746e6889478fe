//! Waiting for descriptors: readiness, connections, bytes, on every tier with
//! the same answers.

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

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use tier::on_every_tier;
use uringfs_buffer::{Buffer, BufferPool};
use uringfs_reactor::{Reactor, ReactorOptions};

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A deadline that ends a test which would wait for ever.
fn patience() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn shared(file: impl Into<OwnedFd>) -> Arc<OwnedFd> {
    Arc::new(file.into())
}

/// Polls a future once, and expects that it waits.
async fn begin<F: Future>(mut future: Pin<&mut F>) {
    let waits = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(waits.await, "there is nothing yet");
}

/// Goes to the kernel and back by something that is ready, and with it what was
/// begun before.
async fn submitted(reactor: &Reactor, writable: &Arc<OwnedFd>) {
    let ready = reactor.poll(writable, PollFlags::OUT, patience()).await;
    assert_eq!(ready, Ok(PollFlags::OUT));
}

#[test]
fn a_poll_answers_which_events() {
    on_every_tier("a_poll_answers_which_events", |_| {
        let reactor = reactor();
        let (reading, mut writing) = std::io::pipe().unwrap();
        let (reading, watched) = (shared(reading), shared(writing.try_clone().unwrap()));
        reactor.block_on(async {
            let writable = reactor.poll(&watched, PollFlags::OUT, patience()).await;
            assert_eq!(writable, Ok(PollFlags::OUT));
            let mut readable = pin!(reactor.poll(&reading, PollFlags::IN, patience()));
            begin(readable.as_mut()).await;
            submitted(&reactor, &watched).await;
            begin(readable.as_mut()).await;
            writing.write_all(b"x").unwrap();
            assert_eq!(readable.await, Ok(PollFlags::IN));
            drop((watched, writing));
            let closed = reactor.poll(&reading, PollFlags::IN, patience()).await;
            assert_eq!(closed, Ok(PollFlags::IN | PollFlags::HUP));
        });
    });
}

#[test]
fn an_ordinary_file_is_always_ready() {
    on_every_tier("an_ordinary_file_is_always_ready", |_| {
        let reactor = reactor();
        let file = shared(tempfile::tempfile().unwrap());
        let both = PollFlags::IN | PollFlags::OUT;
        assert_eq!(reactor.block_on(reactor.poll(&file, both, patience())), Ok(both));
        let out = PollFlags::OUT;
        assert_eq!(reactor.block_on(reactor.poll(&file, out, patience())), Ok(out));
    });
}

#[test]
fn an_eventfd_wakes_everyone_who_polls_it() {
    on_every_tier("an_eventfd_wakes_everyone_who_polls_it", |_| {
        let reactor = reactor();
        let event = shared(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        reactor.block_on(async {
            let mut polls: Vec<_> = (0..200)
                .map(|_| Box::pin(reactor.poll(&event, PollFlags::IN, patience())))
                .collect();
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            let other = event.clone();
            let writer = std::thread::spawn(move || {
                rustix::io::write(&*other, &1u64.to_ne_bytes()).unwrap();
            });
            for poll in polls {
                assert_eq!(poll.await, Ok(PollFlags::IN));
            }
            writer.join().unwrap();
        });
    });
}

#[test]
fn connections_are_accepted_and_bytes_go_both_ways() {
    on_every_tier("connections_are_accepted_and_bytes_go_both_ways", |_| {
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
            let socket = Arc::new(reactor.accept(&listener, patience()).await.unwrap());
            let mut bytes = Vec::new();
            let mut buffer = Buffer::zeroed(100_000);
            while bytes.len() < LENGTH {
                let (back, received) = reactor.receive(&socket, buffer, patience()).await;
                bytes.extend_from_slice(&back[..received.unwrap()]);
                assert_eq!(back.len(), 100_000);
                buffer = back;
            }
            let mut rest = Buffer::copy_of(&bytes);
            while !rest.is_empty() {
                let (mut back, sent) = reactor.send(&socket, rest, patience()).await;
                rest = back.split_off(sent.unwrap());
            }
            let (_, end) = reactor.receive(&socket, Buffer::zeroed(10), patience()).await;
            assert_eq!(end, Ok(0));
        });
        client.join().unwrap();
    });
}

#[test]
fn errors_are_answers_and_give_the_memory_back() {
    on_every_tier("errors_are_answers_and_give_the_memory_back", |_| {
        let reactor = reactor();
        let (one, other) = UnixStream::pair().unwrap();
        let one = shared(one);
        drop(other);
        let (buffer, sent) = reactor.block_on(reactor.send(&one, Buffer::zeroed(100), patience()));
        assert_eq!((buffer.len(), sent), (100, Err(Errno::PIPE)));
        let (reading, _writing) = std::io::pipe().unwrap();
        let pipe = shared(reading);
        assert_eq!(reactor.block_on(reactor.accept(&pipe, patience())).err(), Some(Errno::NOTSOCK));
        let (buffer, received) =
            reactor.block_on(reactor.receive(&pipe, Buffer::zeroed(100), patience()));
        assert_eq!((buffer.len(), received), (100, Err(Errno::NOTSOCK)));
    });
}

#[test]
fn a_deadline_ends_a_wait_and_gives_its_memory_back() {
    on_every_tier("a_deadline_ends_a_wait_and_gives_its_memory_back", |_| {
        let reactor = reactor();
        let (one, mut other) = UnixStream::pair().unwrap();
        let one = shared(one);
        let listener = shared(TcpListener::bind("127.0.0.1:0").unwrap());
        let soon = || Some(Instant::now() + Duration::from_millis(5));
        reactor.block_on(async {
            let before = Instant::now();
            let polled = reactor.poll(&one, PollFlags::IN, soon()).await;
            assert_eq!(polled, Err(Errno::TIMEDOUT));
            assert_eq!(reactor.accept(&listener, soon()).await.err(), Some(Errno::TIMEDOUT));
            let (buffer, received) = reactor.receive(&one, Buffer::zeroed(64), soon()).await;
            assert_eq!((buffer.len(), received), (64, Err(Errno::TIMEDOUT)));
            assert!(before.elapsed() >= Duration::from_millis(15));
            // In the past: at once.
            let past = Some(before);
            assert_eq!(reactor.poll(&one, PollFlags::IN, past).await, Err(Errno::TIMEDOUT));
            // What was late has taken nothing.
            other.write_all(b"hello").unwrap();
            let (buffer, received) = reactor.receive(&one, buffer, patience()).await;
            assert_eq!((received, &buffer[..5]), (Ok(5), &b"hello"[..]));
        });
    });
}

#[test]
fn a_wait_that_is_dropped_is_cancelled_and_takes_nothing() {
    on_every_tier("a_wait_that_is_dropped_is_cancelled_and_takes_nothing", |_| {
        let reactor = reactor();
        let pool = BufferPool::new(64, 1).unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        let one = shared(one);
        reactor.block_on(async {
            for round in 0..50u8 {
                {
                    let buffer = pool.get().expect("it has come back");
                    let mut receive = pin!(reactor.receive(&one, buffer, patience()));
                    begin(receive.as_mut()).await;
                    if round % 2 == 0 {
                        submitted(&reactor, &one).await;
                    }
                }
                // The kernel lets go of it while we wait for something else.
                let gone = Instant::now() + Duration::from_secs(20);
                while pool.available() == 0 {
                    assert!(Instant::now() < gone, "round {round}: it has not been cancelled");
                    submitted(&reactor, &one).await;
                }
                other.write_all(&[round]).unwrap();
                let buffer = Buffer::zeroed(64);
                let (buffer, received) = reactor.receive(&one, buffer, patience()).await;
                assert_eq!((received, buffer[0]), (Ok(1), round));
            }
        });
        assert_eq!(Arc::strong_count(&one), 1, "no wait holds it");
    });
}

#[test]
fn the_deadline_of_a_dropped_wait_reaches_no_other() {
    on_every_tier("the_deadline_of_a_dropped_wait_reaches_no_other", |_| {
        let reactor = reactor();
        let (reading, mut writing) = std::io::pipe().unwrap();
        let (reading, writable) = (shared(reading), shared(writing.try_clone().unwrap()));
        reactor.block_on(async {
            let soon = Duration::from_millis(10);
            for _ in 0..10 {
                let deadline = Some(Instant::now() + soon);
                let mut dropped = pin!(reactor.poll(&reading, PollFlags::IN, deadline));
                begin(dropped.as_mut()).await;
            }
            // Their places are used again by waits without a deadline.
            submitted(&reactor, &writable).await;
            let mut polls: Vec<_> =
                (0..20).map(|_| Box::pin(reactor.poll(&reading, PollFlags::IN, None))).collect();
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            // Theirs came before this one's.
            let later = Some(Instant::now() + soon);
            let ended = reactor.poll(&reading, PollFlags::IN, later).await;
            assert_eq!(ended, Err(Errno::TIMEDOUT));
            for poll in &mut polls {
                begin(poll.as_mut()).await;
            }
            writing.write_all(b"x").unwrap();
            for poll in polls {
                assert_eq!(poll.await, Ok(PollFlags::IN));
            }
        });
    });
}

#[test]
fn a_wait_dropped_with_its_answer_leaves_the_next_one_its_deadline() {
    on_every_tier("a_wait_dropped_with_its_answer_leaves_the_next_one_its_deadline", |_| {
        let reactor = reactor();
        let (reading, _writing) = std::io::pipe().unwrap();
        let ready = shared(eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        let reading = shared(reading);
        // Both end in the same turn, and only one is taken.
        let end_one_untaken = async || {
            let mut untaken = pin!(reactor.poll(&ready, PollFlags::IN, None));
            begin(untaken.as_mut()).await;
            let taken = reactor.poll(&ready, PollFlags::IN, patience()).await;
            assert_eq!(taken, Ok(PollFlags::IN));
        };
        reactor.block_on(async {
            end_one_untaken().await;
            let deadline = Some(Instant::now() + Duration::from_millis(1));
            let mut late = pin!(reactor.poll(&reading, PollFlags::IN, deadline));
            let mut patience = pin!(reactor.sleep(Duration::from_secs(5)));
            let ended = poll_fn(|context| match late.as_mut().poll(context) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => patience.as_mut().poll(context).map(|()| None),
            });
            assert_eq!(ended.await, Some(Err(Errno::TIMEDOUT)));

            // And the next one is cancelled when it is dropped.
            end_one_untaken().await;
            begin(pin!(reactor.poll(&reading, PollFlags::IN, None))).await;
            let gone = Instant::now() + Duration::from_secs(5);
            while Arc::strong_count(&reading) > 1 {
                assert!(Instant::now() < gone, "it has not been cancelled");
                reactor.sleep(Duration::from_micros(100)).await;
            }
        });
    });
}

#[test]
fn a_reactor_dropped_while_it_waits_lets_go_of_everything() {
    on_every_tier("a_reactor_dropped_while_it_waits_lets_go_of_everything", |_| {
        let pool = BufferPool::new(64, 4).unwrap();
        let (one, _other) = UnixStream::pair().unwrap();
        let one = shared(one);
        for round in 0..3 {
            // The futures belong to one reactor and wait by another.
            let owner = reactor();
            let waiting = Rc::new(reactor());
            let begun = Rc::new(Cell::new(0));
            for _ in 0..4 {
                let (one, waiting, begun) = (one.clone(), waiting.clone(), begun.clone());
                let buffer = pool.get().expect("all have come back");
                owner.spawn(async move {
                    begun.set(begun.get() + 1);
                    let (_, received) = waiting.receive(&one, buffer, None).await;
                    panic!("nobody sends anything: {received:?}");
                });
            }
            while begun.get() < 4 {
                owner.turn().unwrap();
            }
            waiting.turn().unwrap();
            assert_eq!(pool.available(), 0);
            drop(owner);
            drop(Rc::into_inner(waiting).expect("the futures are gone"));
            assert_eq!(pool.available(), 4, "round {round}");
            assert_eq!(Arc::strong_count(&one), 1, "round {round}");
        }
    });
}
