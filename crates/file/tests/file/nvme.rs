//! Files on a namespace of an NVMe device, over the reactor's ring for commands. The "namespace" is `/dev/null`, which ends every
//! command with success (Linux 6.0) and moves nothing, or `/dev/zero`, which has no commands. Bytes that move, and commands that
//! take time, need a controller: a guest has one.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uringfs_buffer::{Buffer, BufferPool};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Namespace, Request};
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{CompletionMode, Counter, Reactor, ReactorOptions, Token};

use crate::harness::{join_all, reap};

const SIZE: u64 = 1 << 20;

/// A device whose commands go to a character device, and whose calls go to memory.
struct FakeNamespace {
    character_device: OwnedFd,
    memory: Memory,
    /// Requests that were calls.
    calls: Arc<AtomicU64>,
    /// Calls wait while another thread holds it.
    gate: Arc<Mutex<()>>,
}

impl Backend for FakeNamespace {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "a fake namespace".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        let namespace = Namespace {
            id: 1,
            block_shift: 9,
            max_transfer: 1 << 16,
            size: SIZE,
            read_only: false,
            volatile_cache: true,
        };
        KernelTarget::Nvme(self.character_device.as_fd(), namespace)
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        drop(self.gate.lock().unwrap());
        self.memory.perform(request)
    }
}

/// The file, and the number of requests that were calls.
fn file_on(path: &str) -> (File, Arc<AtomicU64>) {
    file_with_gate(path, Arc::default())
}

fn file_with_gate(path: &str, gate: Arc<Mutex<()>>) -> (File, Arc<AtomicU64>) {
    let character_device = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let namespace = FakeNamespace {
        character_device: character_device.into(),
        memory: Memory::new(SIZE).unwrap(),
        calls: calls.clone(),
        gate,
    };
    let device = Device::new(namespace).unwrap();
    (File::from_device(device, FileOptions::default()), calls)
}

/// A reactor that sends commands. `None` if the kernel has none of them for `/dev/null`.
fn reactor(options: ReactorOptions, file: &File) -> Option<Reactor> {
    let reactor = Reactor::new(options).unwrap();
    let name = reactor.queue_of(file.device()).unwrap().0;
    if name != "nvme" {
        println!("not exercised: commands need Linux 5.19; the queue is {name}");
        return None;
    }
    reactor.read_at(file, Buffer::zeroed(4096), 0, Token::new(0)).unwrap();
    match reap(&reactor, 1).pop().unwrap().result() {
        Err(Errno::OPNOTSUPP) => {
            println!("not exercised: /dev/null has no commands before Linux 6.0");
            None
        }
        result => {
            assert_eq!(result, Ok(4096));
            Some(reactor)
        }
    }
}

fn plain() -> ReactorOptions {
    ReactorOptions::new()
}

#[test]
fn reads_and_writes_by_token_are_commands_on_the_fast_path() {
    let (file, calls) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    let pool = BufferPool::new(4096, 32).unwrap();
    let count = |counter| reactor.counters().get(counter);
    let before =
        (count(Counter::FastPathTaken), count(Counter::FixedBuffers), count(Counter::Enters));
    for round in 0..3 {
        for token in 0..32 {
            let (buffer, offset) = (pool.get().unwrap(), token * 4096);
            match round {
                1 => reactor.write_at(&file, buffer, offset, Token::new(token)).unwrap(),
                _ => reactor.read_at(&file, buffer, offset, Token::new(token)).unwrap(),
            }
        }
        let mut tokens: Vec<_> = reap(&reactor, 32)
            .into_iter()
            .map(|ended| {
                assert_eq!(ended.result(), Ok(4096));
                ended.token().get()
            })
            .collect();
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..32));
    }
    assert_eq!(count(Counter::FastPathTaken) - before.0, 64, "those that are reads");
    assert_eq!(count(Counter::FixedBuffers) - before.1, 96);
    assert!(count(Counter::Enters) - before.2 <= 12, "a system call or two for a batch");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[test]
fn awaited_operations_split_at_the_limit_and_flush() {
    let (file, calls) = file_on("/dev/null");
    for options in [plain(), plain().completion(CompletionMode::Worker)] {
        let Some(reactor) = reactor(options, &file) else { return };
        reactor.block_on(async {
            let (result, _) = file.read_at(Buffer::zeroed(SIZE as usize), 0).await;
            assert_eq!(result, Ok(SIZE as usize), "sixteen commands");
            let (result, _) = file.write_at(Buffer::zeroed(4096), 8192).await;
            assert_eq!(result, Ok(4096));
            file.sync_data().await.unwrap();
            let read = |block: u64| file.read_at(Buffer::zeroed(4096), block * 4096);
            let many =
                (0..100).map(|block| -> Pin<Box<dyn Future<Output = _>>> { Box::pin(read(block)) });
            for (result, _) in join_all(many.collect()).await {
                assert_eq!(result, Ok(4096));
            }
            reactor.sleep(Duration::from_millis(1)).await;
        });
        assert_eq!(calls.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn discards_are_calls_beside_commands() {
    let (file, calls) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    reactor.block_on(async {
        for _ in 0..3 {
            file.discard(0, 65536).await.unwrap();
            let (result, _) = file.read_at(Buffer::zeroed(4096), 0).await;
            assert_eq!(result, Ok(4096));
        }
    });
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

/// While a thread works on a discard the reactor sleeps in epoll. Completions of the main ring that never end must not keep
/// commands from the controller.
#[test]
fn commands_are_sent_beside_a_busy_ring_and_a_call() {
    let gate = Arc::new(Mutex::new(()));
    let (file, calls) = file_with_gate("/dev/null", gate.clone());
    let Some(reactor) = reactor(plain(), &file) else { return };
    let null = Device::new(uringfs_device::backend::null::Null::new(SIZE)).unwrap();
    let null = File::from_device(null, FileOptions::default());
    let held = gate.lock().unwrap();
    let discarding = file.clone();
    let discard = reactor.spawn(async move { discarding.discard(0, 65536).await });
    while calls.load(Ordering::SeqCst) == 0 {
        reactor.reap(0, None, &mut Vec::new()).unwrap();
        std::thread::yield_now();
    }
    let (command, other) = (Token::new(1), Token::new(2));
    reactor.read_at(&file, Buffer::zeroed(4096), 131_072, command).unwrap();
    let mut is_ended = false;
    for _ in 0..100 {
        reactor.read_at(&null, Buffer::zeroed(4096), 0, other).unwrap();
        is_ended |= reap(&reactor, 1).iter().any(|ended| ended.token() == command);
        if is_ended {
            break;
        }
    }
    assert!(is_ended, "the command waits for an idle ring");
    drop(held);
    reactor.block_on(discard).unwrap().unwrap();
}

#[test]
fn a_failed_command_is_reported_once() {
    let (file, _) = file_on("/dev/zero");
    let reactor = Reactor::new(plain()).unwrap();
    if reactor.queue_of(file.device()).unwrap().0 != "nvme" {
        return println!("not exercised: commands need Linux 5.19");
    }
    for token in 0..10 {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
    }
    let ended = reap(&reactor, 10);
    assert!(ended.iter().all(|ended| ended.result() == Err(Errno::OPNOTSUPP)), "{ended:?}");
    let (result, _) = reactor.block_on(file.read_at(Buffer::zeroed(4096), 0));
    assert_eq!(result, Err(Errno::OPNOTSUPP));
}

#[test]
fn a_removed_namespace_is_detached_and_another_one_attached() {
    let (file, _) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    for _ in 0..3 {
        let (other, _) = file_on("/dev/null");
        reactor.read_at(&other, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
        other.device().remove();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
        let refused = reactor.read_at(&other, Buffer::zeroed(4096), 0, Token::new(2)).unwrap_err();
        assert_eq!(refused.error, Errno::NODEV);
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(3)).unwrap();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
    }
}

/// The ring for commands ends with the last namespace; its counters do not.
#[test]
fn the_counters_of_commands_outlive_the_last_namespace() {
    let (file, _) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    let read = |file: &File, token| {
        reactor.read_at(file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
    };
    let transfers = || reactor.counters().get(Counter::FixedFiles);
    read(&file, 1);
    let before = transfers();
    assert!(before > 0);
    file.device().remove();
    let null = Device::new(uringfs_device::backend::null::Null::new(SIZE)).unwrap();
    let null = File::from_device(null, FileOptions::default());
    read(&null, 2);
    let detached = transfers();
    assert!(detached >= before);
    // The next namespace has a new ring.
    let (other, _) = file_on("/dev/null");
    read(&other, 3);
    assert_eq!(transfers(), detached + 1);
}

#[test]
fn a_reap_that_does_not_wait_submits_commands_that_were_pushed_after_others() {
    let (file, _) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    let read = |token| {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
    };
    read(1);
    reactor.submit().unwrap();
    read(2);
    let before = reactor.counters().get(Counter::Enters);
    let mut completed = Vec::new();
    reactor.reap(0, Some(Duration::ZERO), &mut completed).unwrap();
    assert_eq!(completed[0].token(), Token::new(1));
    assert_eq!(reactor.counters().get(Counter::Enters) - before, 1);
}

#[test]
fn commands_and_other_rings_are_reaped_together() {
    let (file, _) = file_on("/dev/null");
    for options in [plain().queue(QueueKind::Ring), plain().queue(QueueKind::Ring).polled(true)] {
        let polled = options.polled;
        let reactor = Reactor::new(options).unwrap();
        let null = Device::new(uringfs_device::backend::null::Null::new(SIZE)).unwrap();
        let null = File::from_device(null, FileOptions::default());
        let name = reactor.queue_of(file.device()).unwrap().0;
        if !name.starts_with("nvme") {
            return println!("not exercised: commands need Linux 5.19");
        }
        for token in 0..20 {
            let on = if token % 2 == 0 { &file } else { &null };
            reactor.read_at(on, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
        }
        for ended in reap(&reactor, 20) {
            // The driver of /dev/null cannot be polled, and old ones have no commands.
            let may_fail = polled && ended.token().get() % 2 == 0;
            let result = ended.result();
            assert!(
                result == Ok(4096) || may_fail && result == Err(Errno::OPNOTSUPP),
                "{result:?}"
            );
        }
    }
}

#[test]
fn other_queues_serve_a_namespace_by_calls() {
    for queue in [QueueKind::Sync, QueueKind::Threads] {
        let (file, calls) = file_on("/dev/null");
        let reactor = Reactor::new(plain().queue(queue)).unwrap();
        assert_eq!(reactor.queue_of(file.device()).unwrap().0, queue.name());
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(0)).unwrap();
        assert_eq!(reap(&reactor, 1)[0].result(), Ok(4096));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
    let (file, _) = file_on("/dev/null");
    let reactor = Reactor::new(plain().queue(QueueKind::Aio)).unwrap();
    let refused = reactor.queue_of(file.device()).unwrap_err().to_string();
    assert!(!refused.contains('\n') && refused.contains("a fake namespace"), "{refused}");
}

/// A message wakes a reactor that has sent commands, however it waits.
#[test]
fn messages_arrive_beside_commands() {
    let (file, _) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    for round in 0..200u32 {
        let (sender, receiver) = one_shot();
        let setter = std::thread::spawn(move || {
            for _ in 0..round % 50 * 20 {
                std::hint::spin_loop();
            }
            sender();
        });
        let read = file.read_at(Buffer::zeroed(4096), 0);
        let (ended, ()) = reactor.block_on(async { (read.await.0, receiver.await) });
        assert_eq!(ended, Ok(4096));
        setter.join().unwrap();
    }
}

/// A function that ends a future, from any thread.
fn one_shot() -> (impl FnOnce() + Send, impl Future<Output = ()>) {
    use std::task::{Poll, Waker};
    let state = Arc::new(Mutex::new((false, None::<Waker>)));
    let other = state.clone();
    let set = move || {
        let (is_set, waker) = &mut *other.lock().unwrap();
        *is_set = true;
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    };
    let wait = std::future::poll_fn(move |context| {
        let (is_set, waker) = &mut *state.lock().unwrap();
        *waker = Some(context.waker().clone());
        if *is_set { Poll::Ready(()) } else { Poll::Pending }
    });
    (set, wait)
}

#[test]
fn a_foreign_loop_reaps_commands() {
    let (file, _) = file_on("/dev/null");
    let Some(reactor) = reactor(plain(), &file) else { return };
    reactor.fd().unwrap();
    for token in 0..10 {
        reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(token)).unwrap();
    }
    let mut completed = Vec::new();
    for _ in 0..1000 {
        reactor.turn().unwrap();
        reactor.reap(0, None, &mut completed).unwrap();
        if completed.len() == 10 {
            break;
        }
    }
    assert!(completed.iter().all(|ended| ended.result() == Ok(4096)), "{completed:?}");
    assert_eq!(completed.len(), 10);
}
