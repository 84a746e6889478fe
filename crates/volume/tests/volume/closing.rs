//! The end of a volume while something still holds it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Op, Request};
use uringfs_file::Tokens;
use uringfs_reactor::Token;
use uringfs_volume::{Error, FormatOptions, OpenOptions, Volume};

use crate::fixture::{create, formatted, reactor};

/// Far less than the time for operations that the device holds up.
const SOON: Duration = Duration::from_secs(30);

fn refused(closed: Result<(), Error>) -> String {
    let error = closed.unwrap_err();
    assert_eq!(error.errno(), Errno::BUSY);
    error.to_string()
}

#[test]
fn a_close_waits_for_a_dropped_write_on_a_slow_device() {
    let sim = Sim::new(SimOptions::new(64 << 20));
    let volume = formatted(&sim);
    let file = create(&volume, "/a");
    file.write_at(vec![7; 8192], 0).wait().0.unwrap();
    file.sync_all().wait().unwrap();
    let late = Fault::Late(Duration::from_millis(2500));
    sim.inject(Rule::new(Op::Write, When::Nth(1), late));
    let mut write = Box::pin(file.write_at(vec![1; 100], 50));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    while sim.faults_hit() == 0 {
        std::thread::yield_now();
    }
    drop((write, file));
    volume.close().unwrap();
}

/// Memory with the latencies of a slow disk, also for requests that no queue carries.
struct Slow {
    memory: Memory,
    latency: Arc<Latency>,
}

#[derive(Default)]
struct Latency {
    is_on: AtomicBool,
    writes: AtomicUsize,
}

impl Backend for Slow {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        self.memory.description()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.memory.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let Latency { is_on, writes } = &*self.latency;
        if is_on.load(Ordering::Relaxed) {
            match request.op {
                Op::Write if writes.fetch_add(1, Ordering::Relaxed) == 0 => sleep(WRITE_LATENCY),
                Op::Flush => sleep(FLUSH_LATENCY),
                _ => {}
            }
        }
        self.memory.perform(request)
    }
}

/// Of the first write: longer than a sync takes.
const WRITE_LATENCY: Duration = Duration::from_secs(2);
/// Of each flush: the last commit takes longer than a close waits for work in the background.
const FLUSH_LATENCY: Duration = Duration::from_millis(300);

#[test]
fn a_close_waits_for_the_last_commit_of_the_thread_with_the_last_handle() {
    let latency = Arc::new(Latency::default());
    let memory = Memory::new(64 << 20).unwrap();
    let device = Device::new(Slow { memory, latency: latency.clone() }).unwrap();
    let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
    let file = create(&volume, "/a");
    file.write_at(vec![7; 8192], 0).wait().0.unwrap();
    file.sync_all().wait().unwrap();
    latency.is_on.store(true, Ordering::Relaxed);
    let mut write = Box::pin(file.write_at(vec![1; 100], 50));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    while latency.writes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    drop((write, file));
    volume.close().unwrap();
}

#[test]
fn a_drop_saves_what_is_in_page_caches() {
    let sim = Sim::new(SimOptions::new(64 << 20));
    let volume = formatted(&sim);
    let recovered = || Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap());
    volume.create_dir("/d").unwrap();
    volume.write("/d/closed", "1").unwrap();
    let file = volume.open_with("/d/open", OpenOptions::new().write(true).create(true)).unwrap();
    file.write_at("2", 0).wait().0.unwrap();
    let clone = volume.clone();
    drop(volume);
    assert!(!recovered().unwrap().exists("/d").unwrap(), "a clone is left");
    drop(clone);
    let volume = recovered().unwrap();
    assert_eq!(volume.read("/d/closed").unwrap(), b"1");
    assert_eq!(volume.read("/d/open").unwrap(), b"2");
}

#[test]
fn a_close_ends_the_token_operations_of_its_thread() {
    let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
    let file = create(&volume, "/a");
    file.write_at(vec![7; 8192], 0).wait().0.unwrap();
    let reactor = reactor();
    reactor.read_at(&file, Buffer::zeroed(100), 50, Token::new(1)).unwrap();
    drop(file);
    volume.close().unwrap();
    let mut completed = Vec::new();
    reactor.reap(1, None, &mut completed).unwrap();
    assert_eq!(completed[0].result(), Ok(100));
}

#[test]
fn a_close_says_which_files_and_handles_keep_the_volume_open() {
    let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
    let begin = Instant::now();
    let (first, second) = (create(&volume, "/a"), create(&volume, "/a"));
    let (clone, direct) = (volume.clone(), first.direct());
    let text = refused(clone.clone().close());
    let expected = "the volume is still open; 2 files are open: close them; \
                    2 other handles of it (clones, or those whose `as_async` was called) are alive: drop them";
    assert!(text.contains(expected), "{text}");
    drop((second, clone, direct));
    let text = refused(volume.close());
    assert!(text.contains("the volume is still open; 1 file is open: close it"), "{text}");
    assert!(!text.contains("handle"), "{text}");
    assert!(begin.elapsed() < SOON);
    drop(first);
}

#[test]
fn a_close_in_a_task_does_not_wait_for_operations_of_the_tasks_reactor() {
    let volume = formatted(&Sim::new(SimOptions::new(64 << 20)));
    let file = create(&volume, "/a");
    file.write_at(vec![7; 8192], 0).wait().0.unwrap();
    file.sync_all().wait().unwrap();
    let reactor = reactor();
    let begin = Instant::now();
    let task = reactor.spawn(async move {
        let mut read = Box::pin(file.read_at(Buffer::zeroed(100), 50));
        poll_fn(|context| {
            assert!(read.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop((read, file));
        refused(volume.close())
    });
    let text = reactor.block_on(task).unwrap();
    assert!(text.contains("1 operation is in flight: await or reap it"), "{text}");
    assert!(begin.elapsed() < SOON);
}
