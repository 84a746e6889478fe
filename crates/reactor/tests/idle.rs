//! An idle reactor uses no CPU, whatever it waits for. Alone in its program,
//! since the time of the whole process is measured.

mod tier;

use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::time::{ClockId, clock_gettime};
use tier::on_every_tier;
use uringfs_reactor::{CompletionMode, Reactor, ReactorOptions};

/// How long each kind of idleness lasts.
const IDLE: Duration = Duration::from_millis(300);
/// What it may cost: a busy thread would use all of [`IDLE`].
const BOUND: Duration = Duration::from_millis(30);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn is_idle(what: &str, wait: impl FnOnce()) {
    let before = cpu_time();
    wait();
    let used = cpu_time() - before;
    assert!(used < BOUND, "{what}: {used:?} of CPU time in {IDLE:?}");
}

#[test]
fn an_idle_reactor_uses_no_cpu() {
    on_every_tier("an_idle_reactor_uses_no_cpu", |tier| {
        for completion in [CompletionMode::Inline, CompletionMode::Worker] {
            let options = ReactorOptions { completion, ..ReactorOptions::default() };
            let reactor = Reactor::new(options).unwrap();
            let name = format!("{tier:?}, {completion:?}");
            is_idle(&format!("{name}, a timer"), || reactor.block_on(reactor.sleep(IDLE)));

            let (reading, writing) = std::io::pipe().unwrap();
            let reading = Arc::new(reading.into());
            is_idle(&format!("{name}, a descriptor"), || {
                let closer = std::thread::spawn(move || {
                    std::thread::sleep(IDLE);
                    drop(writing);
                });
                let polled = reactor.block_on(reactor.poll(&reading, PollFlags::IN, None));
                assert_eq!(polled, Ok(PollFlags::HUP));
                closer.join().unwrap();
            });

            is_idle(&format!("{name}, a letter"), || {
                let (send, receive) = std::sync::mpsc::channel();
                let remote = reactor.inner().remote();
                let sender = std::thread::spawn(move || {
                    std::thread::sleep(IDLE);
                    assert!(remote.run(move |_| send.send(()).unwrap()));
                });
                reactor.block_on(std::future::poll_fn(|context| {
                    if receive.try_recv().is_ok() {
                        return std::task::Poll::Ready(());
                    }
                    // The letter itself wakes nobody's future: look again by and by.
                    let waker = context.waker().clone();
                    let remote = reactor.inner().remote();
                    std::thread::spawn(move || {
                        std::thread::sleep(IDLE / 10);
                        drop(remote);
                        waker.wake();
                    });
                    std::task::Poll::Pending
                }));
                sender.join().unwrap();
            });
        }
    });
}
