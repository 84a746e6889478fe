//! The guarantees of every queue with every back end: its bound, exactly one completion
//! a request, cancelling, and readiness.

mod harness;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use harness::{KERNEL_QUEUES, Random, test_queues, wait};
use uringfs_buffer::{Buffer, SharedMemory};
use uringfs_device::backend::file::{Allocation, File};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::threads::ThreadsQueue;
use uringfs_device::{
    Backend, Device, Errno, Geometry, KernelTarget, Op, Payload, Progress, Queue, Request, Tag,
    VirtualClock,
};

const SIZE: u64 = 1 << 20;

fn block() -> Payload {
    Payload::Buffer(Buffer::zeroed(4096))
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 4) {
        for tag in 0..4 {
            let request = tested.request(Op::Read, tag * 4096, block(), tag);
            tested.queue.push(request).expect("there is room");
        }
        let fifth = tested.request(Op::Read, 0, block(), 4);
        let fifth = tested.queue.push(fifth).expect_err("it is full");
        assert_eq!((fifth.tag, tested.queue.in_flight()), (Tag(4), 4), "{}", tested.name);
        tested.queue.submit().unwrap();
        let fifth = tested.queue.push(fifth).expect_err("it still is, though submitted");
        assert_eq!(tested.finish().len(), 4, "{}", tested.name);
        assert_eq!(tested.run(fifth).1, Ok(4096), "{}", tested.name);
    }
}

#[test]
fn a_request_continues_where_its_last_step_ended() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 4) {
        let two =
            |first: u8, second: u8| Buffer::copy_of(&[[first; 4096], [second; 4096]].concat());
        let vectored = |mut whole: Buffer| {
            let tail = whole.split_off(4096);
            Payload::Buffers(Box::new([whole, tail]))
        };
        for (address, in_pieces) in [(0, false), (65536, true)] {
            let payload = |buffer| match in_pieces {
                true => vectored(buffer),
                false => Payload::Buffer(buffer),
            };
            let mut write = tested.request(Op::Write, address, payload(two(1, 2)), 0);
            let bounds = tested.device.core().bounds();
            assert_eq!(write.advance(Ok(4096), bounds), Progress::Again);
            assert_eq!(tested.run(write).1, Ok(8192), "{}", tested.name);
            let found = tested.read(address, 8192);
            assert_eq!((found[0], found[4096]), (0, 2), "{}: only the rest", tested.name);
            let mut read = tested.request(Op::Read, address, payload(two(8, 9)), 0);
            assert_eq!(read.advance(Ok(4096), bounds), Progress::Again);
            let (read, result) = tested.run(read);
            assert_eq!(result, Ok(8192), "{}", tested.name);
            let first = match &read.payload {
                Payload::Buffer(buffer) => (buffer[0], buffer[4096]),
                Payload::Buffers(buffers) => (buffers[0][0], buffers[1][0]),
                Payload::Length(_) => unreachable!("the request has memory"),
            };
            assert_eq!(first, (8, 2), "{}: only the rest", tested.name);
        }
    }
}

#[test]
fn memory_that_others_change_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 4) {
        let memory = SharedMemory::zeroed(24 << 10);
        let payload = |ranges: &[(usize, usize)]| {
            let mut buffers = Vec::new();
            ranges.iter().for_each(|(at, length)| memory.append_to(&mut buffers, *at, *length));
            match buffers.len() {
                1 => Payload::Buffer(buffers.remove(0)),
                _ => Payload::Buffers(buffers.into()),
            }
        };
        let (one, two): (&[_], &[_]) = (&[(0, 8192)], &[(12288, 4096), (20480, 4096)]);
        let bounds = tested.device.core().bounds();
        let mut found = vec![0; 8192];
        for (address, from, to) in [(0, one, two), (65536, two, one)] {
            let bytes = Random(address).bytes(8192);
            let mut source = payload(from);
            source.copy_from(0, &bytes);
            let write = tested.request(Op::Write, address, source, 0);
            assert_eq!(tested.run(write).1, Ok(8192), "{}", tested.name);
            assert!(tested.read(address, 8192) == bytes, "{}", tested.name);
            let mut target = payload(to);
            target.copy_from(0, &[7; 8192]);
            let mut read = tested.request(Op::Read, address, target, 0);
            assert_eq!(read.advance(Ok(4096), bounds), Progress::Again);
            let (read, result) = tested.run(read);
            assert_eq!(result, Ok(8192), "{}", tested.name);
            read.payload.copy_to(0, &mut found);
            assert!(found[..4096] == [7; 4096], "{}: only the rest", tested.name);
            assert!(found[4096..] == bytes[4096..], "{}", tested.name);
        }
    }
}

#[test]
fn a_request_cancelled_before_submission_has_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 8) {
        for tag in 0..4 {
            let payload = Payload::Buffer(Buffer::copy_of(&[9; 4096]));
            let request = tested.request(Op::Write, tag * 4096, payload, tag);
            tested.queue.push(request).unwrap();
        }
        tested.queue.cancel(Tag(1));
        tested.queue.cancel(Tag(3));
        tested.queue.cancel(Tag(77));
        for (request, result) in tested.finish() {
            let expected = if request.tag.0 % 2 == 1 { Err(Errno::CANCELED) } else { Ok(4096) };
            assert_eq!(result, expected, "{}: {request:?}", tested.name);
        }
        for (tag, expected) in [9, 0, 9, 0].into_iter().enumerate() {
            let found = tested.read(tag as u64 * 4096, 4096);
            assert!(found.iter().all(|byte| *byte == expected), "{}, write {tag}", tested.name);
        }
    }
}

#[test]
fn a_request_cancelled_later_completes_once() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 64) {
        for round in 0..20 {
            for tag in 0..64 {
                let request = tested.request(Op::Read, tag * 4096, block(), tag);
                tested.queue.push(request).unwrap();
            }
            tested.queue.submit().unwrap();
            (0..64).for_each(|tag| tested.queue.cancel(Tag(tag)));
            let mut seen = HashSet::new();
            for (request, result) in tested.finish() {
                assert!(seen.insert(request.tag), "{}, round {round}: twice", tested.name);
                assert!(
                    matches!(result, Ok(4096) | Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)),
                    "{}: {result:?}",
                    tested.name
                );
            }
            assert_eq!(seen.len(), 64, "{}, round {round}", tested.name);
        }
    }
}

#[test]
fn a_notifier_is_silent_after_its_completions_are_reaped() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 8) {
        for round in 0..300u64 {
            let count = 1 + round % 8;
            for tag in 0..count {
                let request = tested.request(Op::Read, tag * 4096, block(), tag);
                tested.queue.push(request).unwrap();
            }
            let (mut wakes, mut ended) = (0, 0);
            tested.queue.submit().unwrap();
            while ended < count {
                wait(&*tested.queue, &tested.clock);
                wakes += 1;
                while let Some(completion) = tested.queue.reap() {
                    match completion.result {
                        Ok(_) => ended += 1,
                        Err(_) => tested.queue.push(completion.request).unwrap(),
                    }
                }
                tested.queue.submit().unwrap();
            }
            // Each wake finds a completion, except after a late signal.
            assert!(wakes <= 8 * count + 2, "{}: {wakes} wakes for {count}", tested.name);
        }
        tested.finish();
    }
}

#[test]
fn dropping_a_queue_in_use_waits_and_frees_everything() {
    let folder = tempfile::tempdir().unwrap();
    let pool = uringfs_buffer::BufferPool::new(4096, 16).unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 16) {
        for tag in 0..16 {
            let payload = Payload::Buffer(pool.get().expect("all buffers are back in the pool"));
            let request = tested.request(Op::Read, tag * 4096, payload, tag);
            tested.queue.push(request).unwrap();
            if tag == 11 {
                tested.queue.submit().unwrap();
            }
        }
        let name = tested.name.clone();
        drop(tested);
        assert_eq!(pool.available(), 16, "{name}");
    }
}

#[test]
fn invalid_requests_end_with_einval() {
    let folder = tempfile::tempdir().unwrap();
    for mut tested in test_queues(folder.path(), SIZE, 4) {
        if !tested.name.ends_with("file") {
            continue;
        }
        let without_memory = tested.request(Op::Read, 0, Payload::Length(4096), 0);
        assert_eq!(tested.run(without_memory).1, Err(Errno::INVAL), "{}", tested.name);
        let past_all = tested.request(Op::Read, u64::MAX - 4095, block(), 0);
        assert_eq!(tested.run(past_all).1, Err(Errno::INVAL), "{}", tested.name);
        let nothing = tested.request(Op::Read, SIZE, block(), 0);
        assert_eq!(tested.run(nothing).1, Ok(0), "{}: the end", tested.name);
    }
}

/// Completes requests only three at a time, and counts how many it executes at once.
struct Meeting {
    geometry: Geometry,
    three: Barrier,
    inside: AtomicUsize,
    most: Arc<AtomicUsize>,
}

impl Backend for Meeting {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "a meeting of three".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, _request: &mut Request) -> Result<u32, Errno> {
        let inside = 1 + self.inside.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.three.wait();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(4096)
    }
}

#[test]
fn threads_execute_concurrently_up_to_their_bound() {
    let most = Arc::new(AtomicUsize::new(0));
    let meeting = Meeting {
        geometry: Memory::new(SIZE).unwrap().geometry().clone(),
        three: Barrier::new(3),
        inside: AtomicUsize::new(0),
        most: most.clone(),
    };
    let device = Device::new(meeting).unwrap();
    let mut queue = ThreadsQueue::new(device.core().clone(), 63, 3).unwrap();
    for tag in 0..63 {
        let request = Request::new(device.index(), Op::Read, 0, block(), Tag(tag));
        queue.push(request).unwrap();
    }
    queue.submit().unwrap();
    let clock = VirtualClock::default();
    let mut ended = 0;
    while ended < 63 {
        wait(&queue, &clock);
        ended += std::iter::from_fn(|| queue.reap()).count();
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

/// A file whose back end panics when a queue calls it to execute a request.
struct Panicking(File);

impl Backend for Panicking {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn description(&self) -> String {
        "a file whose calls panic".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.0.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        panic!("a planted panic in {:?}", request.op);
    }
}

#[test]
fn a_back_end_that_panics_fails_the_request_with_eio() {
    let folder = tempfile::tempdir().unwrap();
    for (name, queue) in KERNEL_QUEUES {
        let file = File::create(&folder.path().join(name), SIZE, Allocation::Sparse).unwrap();
        let device = Device::new(Panicking(file)).unwrap();
        let mut queue = queue(device.core().clone(), 4);
        let discard = || Payload::Length(4096);
        for tag in 0..2 {
            let request = Request::new(device.index(), Op::Discard, 0, discard(), Tag(tag));
            queue.push(request).unwrap();
        }
        queue.submit().unwrap();
        // Two threads may end them in either order.
        let mut ended = [0, 1].map(|_| {
            wait(&*queue, &VirtualClock::default());
            let ended = queue.reap().expect("one has ended");
            (ended.request.tag.0, ended.result)
        });
        ended.sort_unstable_by_key(|(tag, _)| *tag);
        assert_eq!(ended, [(0, Err(Errno::IO)), (1, Err(Errno::IO))], "{name}");
    }
}
