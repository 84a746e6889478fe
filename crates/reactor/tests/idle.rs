//! An idle reactor uses no CPU, whatever it waits for. The only test of its program, because it measures the CPU time of
//! the whole process.

mod tier;

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tier::on_every_tier;
use uringfs_reactor::{CompletionMode, PollEvents, Reactor, ReactorOptions};

/// The duration of each idle wait.
const IDLE: Duration = Duration::from_millis(300);
/// The most CPU time allowed: a busy thread would use all of [`IDLE`].
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
            let options = ReactorOptions::new().completion(completion);
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
                let polled = reactor.block_on(reactor.poll(&reading, PollEvents::IN, None));
                assert_eq!(polled, Ok(PollEvents::HUP));
                closer.join().unwrap();
            });

            is_idle(&format!("{name}, a message"), || {
                let (send, receive) = std::sync::mpsc::channel();
                let handle = reactor.inner().handle();
                let sender = std::thread::spawn(move || {
                    std::thread::sleep(IDLE);
                    assert!(handle.run(move |_| send.send(()).unwrap()));
                });
                reactor.block_on(std::future::poll_fn(|context| {
                    if receive.try_recv().is_ok() {
                        return std::task::Poll::Ready(());
                    }
                    // The message itself wakes no future: look again after a while.
                    let waker = context.waker().clone();
                    let handle = reactor.inner().handle();
                    std::thread::spawn(move || {
                        std::thread::sleep(IDLE / 10);
                        drop(handle);
                        waker.wake();
                    });
                    std::task::Poll::Pending
                }));
                sender.join().unwrap();
            });
        }
    });
}
