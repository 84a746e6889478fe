//! Appends from many threads and reactors. Each lies as a whole at the end that the file had at its
//! turn. Durable appends survive a power cut, although many share a commit.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;

use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::null::Null;
use uringfs_device::backend::sim::{Action, Crash, Event, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Backend, Device, Errno, Geometry, KernelTarget, Op, Queue, Request};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Counter, Reactor};
use uringfs_volume::{FormatOptions, Volume};

use crate::fixture::{create, formatted, reactor};

const SIZE: u64 = 32 << 20;

fn new_volume() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    (sim, volume)
}

fn content(reactor: &Reactor, file: &File) -> Vec<u8> {
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
    assert_eq!(read, Ok(bytes.len()));
    bytes.to_vec()
}

#[test]
fn durable_appends_share_flushes_and_syncs_of_overwrites_do_not() {
    let (_sim, volume) = new_volume();
    let file = create(&volume, "/log");
    let reactor = reactor();
    let flushes_of = |run: &dyn Fn()| {
        let before = file.device().flushes();
        run();
        file.device().flushes() - before
    };
    let append = |file: File| async move {
        file.append_durably(vec![1; 4096]).await.0.unwrap();
    };
    reactor.block_on(append(file.clone()));
    let alone = flushes_of(&|| reactor.block_on(append(file.clone())));
    assert!(alone > 0);
    let shared = flushes_of(&|| {
        let appends: Vec<_> = (0..16).map(|_| reactor.spawn(append(file.clone()))).collect();
        appends.into_iter().for_each(|append| reactor.block_on(append).unwrap());
    });
    assert!(shared <= 4 * alone, "{shared} for 16 appends, {alone} for one");

    for number in 0..3 {
        reactor.block_on(file.write_at(vec![2; 4096], number * 4096)).0.unwrap();
        assert_eq!(flushes_of(&|| reactor.block_on(file.sync_data()).unwrap()), 1);
    }
}

#[test]
fn appends_of_many_threads_leave_no_gap() {
    const APPENDS: usize = 60;
    let (_sim, volume) = new_volume();
    let file = create(&volume, "/log");
    let appended = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            // Each thread has its own handle.
            let (file, appended) = (create(&volume, "/log"), &appended);
            scope.spawn(move || {
                let reactor = reactor();
                for n in 0..APPENDS {
                    // Parts of blocks, whole blocks, and more than one block.
                    let length = [100, 4096, 4097, 512, 8192, 12_000, 1][(n + thread as usize) % 7];
                    let bytes = Buffer::copy_of(&vec![thread + 1; length]);
                    let (offset, _) = reactor.block_on(file.append(bytes));
                    appended.lock().unwrap().insert(offset.unwrap(), (length, thread + 1));
                }
            });
        }
    });
    let (bytes, mut end) = (content(&reactor(), &file), 0);
    for (offset, (length, byte)) in appended.into_inner().unwrap() {
        assert_eq!(offset, end);
        end += length as u64;
        assert!(bytes[offset as usize..end as usize].iter().all(|found| *found == byte));
    }
    assert_eq!(bytes.len() as u64, end);
}

#[test]
fn appends_during_truncation_are_whole_and_at_an_end() {
    let (_sim, volume) = new_volume();
    let file = create(&volume, "/log");
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let reactor = reactor();
            for n in 0..400_u64 {
                let bytes = Buffer::copy_of(&[(n % 250) as u8 + 1; 700]);
                // At one of the ends: a multiple of the common length, or 0.
                assert_eq!(reactor.block_on(file.append(bytes)).0.unwrap() % 700, 0);
            }
        });
        let reactor = reactor();
        while !appending.is_finished() {
            assert_eq!(reactor.block_on(file.set_len(0)), Ok(()));
        }
    });
    let bytes = content(&reactor(), &file);
    for append in bytes.chunks(700) {
        assert!(append[0] > 0 && append.iter().all(|byte| *byte == append[0]));
    }
}

/// A simulated device whose flushes wait at a gate while it is closed.
struct Gated {
    sim: Sim,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.opened.notify_all();
    }
}

impl Backend for Gated {
    fn geometry(&self) -> &Geometry {
        self.sim.geometry()
    }

    fn description(&self) -> String {
        self.sim.description()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.sim.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if request.op == Op::Flush {
            let closed = self.gate.is_closed.lock().unwrap();
            drop(self.gate.opened.wait_while(closed, |is_closed| *is_closed).unwrap());
        }
        self.sim.perform(request)
    }

    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        self.sim.own_queue(depth)
    }
}

#[test]
fn durable_appends_survive_a_power_cut_and_share_commits() {
    const FILES: usize = 16;
    let (sim, gate) = (Sim::new(SimOptions::new(SIZE)), Arc::new(Gate::default()));
    let device = Device::new(Gated { sim: sim.clone(), gate: gate.clone() }).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let reactor = reactor();
    let files: Vec<File> = (0..FILES).map(|n| create(&volume, &format!("/{n}"))).collect();
    volume.sync().unwrap();
    let before = volume.statistics();
    for round in 0..10 {
        let asked = || reactor.counters().get(Counter::DeferredFlush);
        let (commits, asked_before) = (volume.statistics().commits, asked());
        // The first commit cannot end before all appends have requested one.
        gate.close();
        reactor.block_on(async {
            let bytes = || Buffer::copy_of(&[round + 1; 512]);
            let mut all: Vec<_> =
                files.iter().map(|file| Box::pin(file.append_durably(bytes()))).collect();
            std::future::poll_fn(|context| {
                for one in &mut all {
                    assert!(one.as_mut().poll(context).is_pending());
                }
                context.waker().wake_by_ref();
                match asked() - asked_before == FILES as u64 {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            gate.open();
            for one in all {
                assert_eq!(one.await.0, Ok(u64::from(round) * 512));
            }
        });
        let commits = volume.statistics().commits - commits;
        assert!((1..=2).contains(&commits), "{commits} commits for {FILES} appends");
        let cut = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
        let found = Volume::open_on(cut).unwrap();
        for n in 0..FILES {
            let bytes = content(&reactor, &create(&found, &format!("/{n}")));
            assert_eq!(bytes.len(), (usize::from(round) + 1) * 512);
            assert!(bytes[usize::from(round) * 512..].iter().all(|byte| *byte == round + 1));
        }
    }
    let (commits, checkpoints) = {
        let now = volume.statistics();
        (now.commits - before.commits, now.checkpoints - before.checkpoints)
    };
    assert!(checkpoints * 3 <= commits, "{checkpoints} of {commits} commits were checkpoints");
}

/// Polls each future once: the first append writes, and the others queue meanwhile.
async fn begin<F: Future + Unpin>(all: &mut [F]) {
    std::future::poll_fn(|context| {
        for one in &mut *all {
            assert!(std::pin::Pin::new(one).poll(context).is_pending());
        }
        Poll::Ready(())
    })
    .await;
}

#[test]
fn queued_appends_share_a_write_and_a_commit() {
    const APPENDS: u64 = 20;
    let (sim, volume) = new_volume();
    let (reactor, file) = (reactor(), create(&volume, "/log"));
    for round in 0..5 {
        let before = reactor.counters().get(Counter::DeferredFlush);
        reactor.block_on(async {
            let appends = (0..APPENDS).map(|n| {
                let bytes = Buffer::copy_of(&vec![n as u8 + 1; 300]);
                // Only some of them are durable.
                if n % 3 == 2 { file.append(bytes) } else { file.append_durably(bytes) }
            });
            let mut all: Vec<_> = appends.collect();
            begin(&mut all).await;
            for (n, one) in (0..).zip(all) {
                let (offset, bytes) = one.await;
                assert_eq!(offset, Ok((round * APPENDS + n) * 300));
                assert!(bytes.len() == 300 && bytes.iter().all(|byte| *byte == n as u8 + 1));
            }
        });
        // The first append writes its own data, the second those of all others. One commit may
        // serve both.
        let commits = reactor.counters().get(Counter::DeferredFlush) - before;
        assert!((1..=2).contains(&commits), "{commits}");
        let cut = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
        let found = Volume::open_on(cut).unwrap();
        let bytes = content(&reactor, &create(&found, "/log"));
        assert_eq!(bytes.len() as u64, (round + 1) * APPENDS * 300);
        for (n, append) in (0..).zip(bytes.chunks(300)) {
            assert!(append.iter().all(|byte| u64::from(*byte) == n % APPENDS + 1));
        }
    }
}

#[test]
fn whole_blocks_from_many_buffers_are_one_write() {
    let (sim, volume) = new_volume();
    let (reactor, file) = (reactor(), create(&volume, "/log"));
    let block = |n: u8| Buffer::copy_of(&[n + 1; 4096]);
    let writes = || {
        let is_write =
            |event: &Event| matches!(event, Event::Begin { action: Action::Write { .. }, .. });
        let writes = sim.record().iter().filter(|event| is_write(event)).count();
        sim.restart_record();
        writes
    };
    writes();
    reactor.block_on(async {
        let mut all: Vec<_> = (0..20).map(|n| file.append(block(n))).collect();
        begin(&mut all).await;
        for (n, one) in (0..).zip(all) {
            assert_eq!(one.await.0, Ok(n * 4096));
        }
    });
    assert_eq!(writes(), 2, "one of the first append, and one of all others");
    let blocks = (20..40).map(block).collect();
    assert_eq!(reactor.block_on(file.write_vectored_at(blocks, 20 * 4096)).0, Ok(20 * 4096));
    assert_eq!(writes(), 1, "into new blocks");
    let found = content(&reactor, &file);
    assert!((1..).zip(found.chunks(4096)).all(|(n, block)| block == [n; 4096]));
}

#[test]
fn a_cancelled_append_does_not_cancel_others() {
    let (_sim, volume) = new_volume();
    let (reactor, file) = (reactor(), create(&volume, "/log"));
    for cancelled in 0..6 {
        reactor.block_on(async {
            let bytes = |n| Buffer::copy_of(&[n; 700]);
            let mut all: Vec<_> = (0..6).map(|n| file.append_durably(bytes(n))).collect();
            begin(&mut all).await;
            all[cancelled].cancel();
            for (n, one) in all.into_iter().enumerate() {
                let (result, back) = one.await;
                assert!(back.len() == 700 && back.iter().all(|byte| usize::from(*byte) == n));
                match result {
                    Ok(_) => {}
                    Err(error) => assert_eq!((n, error), (cancelled, Errno::CANCELED)),
                }
            }
        });
        let bytes = content(&reactor, &file);
        let found: Vec<u8> = bytes.chunks(700).map(|append| append[0]).collect();
        assert!(bytes.chunks(700).all(|append| append.iter().all(|byte| *byte == append[0])));
        for n in (0..6).filter(|n| usize::from(*n) != cancelled) {
            assert_eq!(found.iter().filter(|found| **found == n).count(), 1, "{found:?}");
        }
        reactor.block_on(file.set_len(0)).unwrap();
    }
}

#[test]
fn an_append_without_space_does_not_fail_others() {
    let (_sim, volume) = new_volume();
    let (reactor, file) = (reactor(), create(&volume, "/log"));
    let free = volume.statistics().free_blocks as usize * 4096;
    let lengths = [100, 100, free, 100, 4096, 100];
    reactor.block_on(async {
        let mut all: Vec<_> =
            lengths.iter().map(|length| file.append(Buffer::zeroed(*length))).collect();
        begin(&mut all).await;
        for (length, one) in lengths.into_iter().zip(all) {
            let (result, back) = one.await;
            assert_eq!(back.len(), length);
            match result {
                Ok(_) => assert!(length < free),
                Err(error) => assert_eq!((length, error), (free, Errno::NOSPC)),
            }
        }
    });
    assert_eq!(file.len(), lengths.iter().sum::<usize>() as u64 - free as u64);
}

#[test]
fn a_raw_device_takes_no_append_and_an_empty_append_adds_nothing() {
    let reactor = reactor();
    let image = File::from_device(Device::new(Null::new(SIZE)).unwrap(), FileOptions::default());
    let appended = reactor.block_on(image.append(Buffer::zeroed(100))).0;
    assert_eq!(appended, Err(Errno::OPNOTSUPP));
    let (_sim, volume) = new_volume();
    let file = create(&volume, "/a");
    assert_eq!(reactor.block_on(file.append(Buffer::zeroed(100))).0, Ok(0));
    assert_eq!(reactor.block_on(file.append(Buffer::zeroed(0))).0, Ok(100));
    assert_eq!(reactor.block_on(file.set_len(i64::MAX as u64)), Ok(()));
    assert_eq!(reactor.block_on(file.append(Buffer::zeroed(1))).0, Err(Errno::FBIG));
    assert_eq!(file.len(), i64::MAX as u64);
}

#[test]
fn a_buffered_reader_at_the_end_sees_whole_appends() {
    const APPENDS: u64 = 4000;
    for length in [50, 5000] {
        let volume = formatted(&Sim::new(SimOptions::new(SIZE)));
        let (log, cache) = (create(&volume, "/log"), Cache::new(1 << 20));
        let tail = log.buffered(&cache);
        std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                let reactor = reactor();
                for _ in 0..APPENDS * 50 / length {
                    let bytes = Buffer::copy_of(&vec![7; length as usize]);
                    reactor.block_on(log.append(bytes)).0.unwrap();
                }
            });
            let (reactor, mut at) = (reactor(), 0);
            while !appending.is_finished() || at < tail.len() {
                let (read, bytes) = reactor.block_on(tail.read_at(Buffer::zeroed(64 << 10), at));
                let read = read.unwrap();
                assert!(bytes[..read].iter().all(|byte| *byte == 7), "zeros at {at} or after");
                at += read as u64;
                let mut few = [7; 32];
                if let Ok(read) = tail.try_read_at(&mut few, at) {
                    assert_eq!(few, [7; 32], "{read} bytes at {at}");
                }
            }
        });
    }
}

/// A group that the device does not write as a whole is not there in part.
#[test]
fn a_group_that_fails_leaves_no_part_of_itself() {
    const MIB: usize = 1 << 20;
    let (sim, volume) = new_volume();
    let (reactor, file) = (reactor(), create(&volume, "/log"));
    reactor.block_on(file.append(Buffer::copy_of(&vec![1; MIB - 100]))).0.unwrap();
    reactor.block_on(async {
        // The first one writes alone; the others are a group whose bytes are in two parts, of which the second fails.
        let lengths = [50, 30, 60, 70];
        let bytes = |n: u8| Buffer::copy_of(&vec![n + 2; lengths[usize::from(n)]]);
        let mut all: Vec<_> = (0..4).map(|n| file.append(bytes(n))).collect();
        sim.inject(Rule::new(Op::Write, When::Nth(3), Fault::Error(Errno::IO)));
        begin(&mut all).await;
        let mut expected = MIB as u64 - 100;
        for (length, one) in lengths.into_iter().zip(all) {
            assert_eq!(one.await.0, Ok(expected));
            expected += length as u64;
        }
    });
    let found = content(&reactor, &file);
    let mut expected = vec![1; MIB - 100];
    for (n, length) in (2..).zip([50, 30, 60, 70]) {
        expected.extend(vec![n; length]);
    }
    assert!(
        found == expected,
        "{:?}",
        found[MIB - 100..].chunk_by(|a, b| a == b).collect::<Vec<_>>()
    );
}
