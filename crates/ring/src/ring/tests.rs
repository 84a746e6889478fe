//! A ring transfers files, waits for pipes and sends messages to other rings.

use super::*;
use crate::command::Command;
use crate::poll_events::PollEvents;
use crate::segment::IoSegment;
use crate::transfer::{NextOp, TransferMemory};
use crate::wait::WaitOutput;
use rustix::event::{EventfdFlags, eventfd};
use std::io::Write;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use uringfs_buffer::{Buffer, BufferPool, IoBuf, Registration, SharedMemory};

struct Reading {
    offset: u64,
    buffer: Buffer,
}

// SAFETY: the transfer owns the buffer.
unsafe impl Transfer for Reading {
    fn step(&self) -> NextOp<'_> {
        NextOp::Read(self.offset, TransferMemory::Single(IoSegment::from_buffer(&self.buffer, 0)))
    }

    fn file(&self) -> u32 {
        3
    }
}

fn file_with(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn ring(options: &RingOptions) -> Ring<Reading> {
    let mut ring = Ring::new(options).unwrap();
    ring.install(3, file_with(&[7; 8192]).as_fd()).unwrap();
    ring
}

fn read_one(ring: &mut Ring<Reading>, buffer: Buffer) -> (Buffer, Result<u32, Errno>) {
    assert!(ring.push(Reading { offset: 4096, buffer }).is_ok());
    ring.enter(1, None).unwrap();
    let (reading, result) = reap_all(ring).0.pop().unwrap();
    (reading.buffer, result)
}

type TransferResult = (Reading, Result<u32, Errno>);

fn reap_all(ring: &mut Ring<Reading>) -> (Vec<TransferResult>, Vec<Event>) {
    let (mut transfers, mut events) = (Vec::new(), Vec::new());
    ring.reap(|reading, result| transfers.push((reading.take(), result.get())));
    events.extend(std::iter::from_fn(|| ring.event()));
    (transfers, events)
}

#[test]
fn registered_and_plain_requests_read_the_same_bytes() {
    let pool = BufferPool::new(4096, 2).unwrap();
    for fixed in [true, false] {
        let options =
            RingOptions { fixed_files: fixed, fixed_buffers: fixed, ..RingOptions::default() };
        let mut ring = ring(&options);
        let (buffer, result) = read_one(&mut ring, pool.get().unwrap());
        assert_eq!(result, Ok(4096));
        assert!(buffer.iter().all(|byte| *byte == 7));
        let counters = ring.counters();
        let (files, buffers) = (counters.fixed_files, counters.fixed_buffers);
        assert_eq!((files, buffers), if fixed { (1, 1) } else { (0, 0) });
    }
}

fn held(ring: &mut Ring<Reading>, offset: u64) -> bool {
    ring.hold(Reading { offset, buffer: Buffer::zeroed(4096) }).is_ok()
}

#[test]
fn a_held_transfer_is_executed_by_a_call_of_its_owner() {
    let file = file_with(&[7; 8192]);
    let mut ring = ring(&RingOptions::default());
    for (offset, expected) in [(4096, 4096), (6144, 2048), (8192, 0)] {
        assert!(held(&mut ring, offset));
        assert_eq!((ring.in_flight(), ring.queued()), (1, 1));
        assert_eq!(ring.held_alone(0).map(|reading| reading.offset), Some(offset));
        let (reading, result) = ring.call_held(file.as_fd()).unwrap();
        assert_eq!(result.get(), Ok(expected));
        assert!(reading.take().buffer[..expected as usize].iter().all(|byte| *byte == 7));
        assert_eq!((ring.in_flight(), ring.queued(), ring.counters().enters), (0, 0, 0));
    }
    assert!(ring.call_held(file.as_fd()).is_none());
    assert!(held(&mut ring, 0));
    let directory = std::fs::File::open("/").unwrap();
    let (_, result) = ring.call_held(directory.as_fd()).unwrap();
    assert_eq!(result.get(), Err(Errno::ISDIR));
}

#[test]
fn a_held_transfer_goes_to_the_kernel_when_its_owner_enters() {
    let mut ring = ring(&RingOptions::default());
    assert!(held(&mut ring, 4096));
    assert!(!held(&mut ring, 4096), "one at a time");
    ring.enter(1, None).unwrap();
    let (transfers, _) = reap_all(&mut ring);
    assert_eq!(transfers.into_iter().map(|(_, result)| result).collect::<Vec<_>>(), [Ok(4096)]);
    assert_eq!(ring.counters().plain_buffers, 1);
    // Beside another transfer, it is not alone.
    assert!(held(&mut ring, 4096));
    assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(4096) }).is_ok());
    assert!(ring.held_alone(0).is_none());
    ring.enter(2, None).unwrap();
    assert_eq!(reap_all(&mut ring).0.len(), 2);
    assert!(ring.held_alone(0).is_none());
}

#[test]
fn a_held_transfer_is_cancelled_as_others_are() {
    let mut ring = ring(&RingOptions::default());
    assert!(held(&mut ring, 4096));
    let mut seen = 0;
    ring.cancel(|_| {
        seen += 1;
        true
    });
    assert_eq!((seen, ring.queued()), (1, 2));
    assert!(ring.held_alone(0).is_none(), "a cancel is to be pushed, too");
    ring.enter(1, None).unwrap();
    while ring.in_flight() > 0 {
        ring.enter(1, None).unwrap();
        reap_all(&mut ring);
    }
    assert!(held(&mut ring, 4096));
    assert_eq!(ring.remove(3), Err(Errno::BUSY));
    // Its drop waits for it.
    drop(ring);
}

#[test]
fn what_a_call_cannot_execute_is_not_held() {
    let mut ring = ring(&RingOptions { transfers: 1, ..RingOptions::default() });
    let buffer = "read only".lend_for_write().unwrap();
    assert!(ring.hold(Reading { offset: 0, buffer }).is_err());
    static BYTES: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
    let bytes = NonNull::from(&BYTES).cast();
    // SAFETY: the bytes live for ever, and only buffers of this memory use them.
    let shared = unsafe { SharedMemory::new(bytes, 4096, Registration::Never, Arc::new(())) };
    let mut buffers = Vec::new();
    shared.append_to(&mut buffers, 0, 4096);
    let buffer = buffers.remove(0);
    assert!(ring.hold(Reading { offset: 0, buffer }).is_err(), "others change it");
    assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(4096) }).is_ok());
    assert!(!held(&mut ring, 0), "no slot is free");
}

fn pinned(buffers: impl IntoIterator<Item = Buffer>) -> PinnedSlots<Reading> {
    PinnedSlots::new(buffers.into_iter().map(|buffer| Reading { offset: 0, buffer }))
}

/// Pushes these slots, as far as they are taken.
fn push_pinned(ring: &mut Ring<Reading>, slots: &mut PinnedSlots<Reading>, which: &[u32]) -> usize {
    let Some(mut batch) = ring.pinned_batch(3, slots, which[0]) else { return 0 };
    batch.push_each(which.iter().map(|slot| (*slot, |reading: &mut Reading| reading.offset = 4096)))
}

#[test]
fn a_panic_of_the_caller_in_a_batch_leaves_what_was_pushed_to_the_ring() {
    let mut ring = ring(&RingOptions::default());
    let mut slots = pinned((0..3).map(|_| Buffer::zeroed(4096)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut batch = ring.pinned_batch(3, &mut slots, 0).unwrap();
        batch.push_each((0..3).map(|slot| {
            let prepare = move |reading: &mut Reading| {
                assert!(slot < 1, "the second transfer cannot be prepared");
                reading.offset = 4096;
            };
            (slot, prepare)
        }))
    }));
    assert!(panicked.is_err());
    assert_eq!((ring.queued(), ring.in_flight()), (1, 1));
    ring.enter(1, None).unwrap();
    assert_eq!(reap_pinned(&mut ring, &slots).0, [0]);
}

/// Reaps. Returns the slots whose transfers have moved all bytes, which stay, and all others.
fn reap_pinned(
    ring: &mut Ring<Reading>,
    slots: &PinnedSlots<Reading>,
) -> (Vec<u32>, Vec<TransferResult>) {
    let (mut ended, mut others) = (Vec::new(), Vec::new());
    while let Some(reaped) = ring.reap_pinned(slots, |slot, _, result| {
        assert!(slots.get(slot).is_none(), "it is the ring's until it has ended");
        let is_whole = result.is(4096);
        ended.extend(is_whole.then_some(slot));
        is_whole
    }) {
        if let Reaped::Transfer(reading, result) = reaped {
            others.push((reading.take(), result.get()));
        }
    }
    others.extend(take_moved(ring));
    (ended, others)
}

fn take_moved(ring: &mut Ring<Reading>) -> Vec<TransferResult> {
    let moved = std::iter::from_fn(|| ring.moved_out());
    moved.map(|(reading, result)| (reading, result.get())).collect()
}

#[test]
fn pinned_transfers_stay_in_place_and_are_counted() {
    let pool = BufferPool::new(4096, 4).unwrap();
    for fixed in [true, false] {
        let options =
            RingOptions { fixed_files: fixed, fixed_buffers: fixed, ..RingOptions::default() };
        let mut ring = ring(&options);
        let mut slots = pinned(std::iter::from_fn(|| pool.get()));
        for round in 1..=3 {
            assert_eq!(push_pinned(&mut ring, &mut slots, &[2, 0, 2, 3]), 2, "one is in flight");
            assert_eq!((ring.queued(), ring.in_flight(), ring.transfers_in_flight()), (2, 2, 2));
            assert!(slots.get(0).is_none() && slots.get_mut(2).is_none() && slots.get(3).is_some());
            assert_eq!(ring.remove(3), Err(Errno::BUSY));
            ring.enter(2, None).unwrap();
            assert_eq!(reap_pinned(&mut ring, &slots).0, [2, 0]);
            assert_eq!(ring.in_flight(), 0);
            for slot in [0, 2] {
                let reading = slots.get_mut(slot).unwrap();
                assert!(reading.buffer.iter().all(|byte| *byte == 7));
                reading.buffer.fill(0);
            }
            let (files, buffers) = (ring.counters().fixed_files, ring.counters().fixed_buffers);
            assert_eq!((files, buffers), if fixed { (2 * round, 2 * round) } else { (0, 0) });
        }
        assert_eq!(push_pinned(&mut ring, &mut slots, &[4]), 0, "there is no such slot");
        assert!(slots.take(0).is_some());
        assert_eq!(push_pinned(&mut ring, &mut slots, &[1, 0]), 1, "it is empty");
        assert_eq!(ring.remove(3), Err(Errno::BUSY));
        ring.enter(1, None).unwrap();
        assert_eq!(reap_pinned(&mut ring, &slots).0, [1]);
        assert_eq!(ring.remove(3), Ok(()));
        assert_eq!(push_pinned(&mut ring, &mut slots, &[1]), 0, "there is no file");
    }
}

#[test]
fn pinned_transfers_of_other_memory_are_refused() {
    let pool = BufferPool::new(4096, 2).unwrap();
    let mut ring = ring(&RingOptions::default());
    let mut slots = pinned([pool.get().unwrap(), Buffer::zeroed(4096), pool.get().unwrap()]);
    assert_eq!(push_pinned(&mut ring, &mut slots, &[0, 1, 2]), 1, "in another region");
    assert_eq!(push_pinned(&mut ring, &mut slots, &[1, 2]), 1);
    ring.enter(2, None).unwrap();
    assert_eq!(reap_pinned(&mut ring, &slots).0, [0, 1]);
    let mut read_only = pinned(["read only".lend_for_write().unwrap()]);
    assert_eq!(push_pinned(&mut ring, &mut read_only, &[0]), 0);
    let mut wide = self::ring(&RingOptions { commands: true, ..RingOptions::default() });
    assert_eq!(push_pinned(&mut wide, &mut slots, &[0]), 0);
}

/// Short steps, completions that are reaped without the owner, other transfers and waits.
#[test]
fn pinned_transfers_are_moved_out_unless_they_stay() {
    let mut ring = ring(&RingOptions::default());
    let mut slots = pinned([(); 3].map(|()| Buffer::zeroed(4096)));
    let mut others = pinned([Buffer::zeroed(4096)]);
    let file = Arc::new(eventfd(1, EventfdFlags::empty()).unwrap());
    assert!(ring.push_wait(Wait::Poll { file, events: PollEvents::IN }, 9).is_ok());
    assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(10) }).is_ok());
    assert_eq!(push_pinned(&mut ring, &mut others, &[0]), 1);
    let mut batch = ring.pinned_batch(3, &mut slots, 0).unwrap();
    let mut push = |slot, offset| {
        batch.push_each([(slot, move |reading: &mut Reading| reading.offset = offset)])
    };
    assert_eq!(push(0, 8000), 1, "at the end of the file");
    assert_eq!(push(1, 0), 1);
    assert_eq!(batch.finish(), 2);
    ring.enter(5, None).unwrap();
    let (ended, mut moved) = reap_pinned(&mut ring, &slots);
    assert_eq!(ended, [1]);
    moved.sort_by_key(|(_, result)| result.unwrap());
    let results: Vec<_> = moved.iter().map(|(_, result)| *result).collect();
    assert_eq!(results, [Ok(10), Ok(192), Ok(4096)]);
    assert!(matches!(ring.event(), Some(Event::Wait { tag: 9, .. })) && !ring.has_event());
    assert!(slots.get(0).is_none() && others.get(0).is_none(), "they are empty");
    let (short, _) = moved.swap_remove(1);
    slots.put(0, short);
    assert_eq!(slots.get(0).unwrap().offset, 8000);

    assert_eq!(push_pinned(&mut ring, &mut slots, &[0, 1, 2]), 3);
    ring.enter(3, None).unwrap();
    assert!(reap_all(&mut ring).0.is_empty());
    let reaped = take_moved(&mut ring);
    assert!(reaped.len() == 3 && reaped.iter().all(|(_, result)| *result == Ok(4096)));
    assert!((0..3).all(|slot| slots.take(slot).is_none()));
    (0..).zip(reaped).for_each(|(slot, (reading, _))| slots.put(slot, reading));
    assert_eq!(push_pinned(&mut ring, &mut slots, &[1]), 1);
    ring.enter(1, None).unwrap();
    assert!(matches!(ring.reap_one(), Some(Reaped::Event)));
    assert!(ring.moved_out().is_some_and(|(reading, _)| reading.offset == 4096));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn pinned_memory_in_flight_outlives_its_owner() {
    let pool = BufferPool::new(4096, 3).unwrap();
    let mut ring = ring(&RingOptions::default());
    for round in 0..10 {
        let mut slots = pinned(std::iter::from_fn(|| pool.get()));
        assert_eq!(push_pinned(&mut ring, &mut slots, &[1, 2]), 2);
        ring.enter(0, None).unwrap();
        drop(slots);
        assert_eq!(pool.available(), 1, "the kernel may use the others");
        if round % 2 == 0 {
            ring.enter(2, None).unwrap();
            reap_all(&mut ring);
            assert_eq!(take_moved(&mut ring).len(), 2);
        } else {
            ring = self::ring(&RingOptions::default());
        }
        assert_eq!(pool.available(), 3);
        assert!(ring.pinned.tables() <= 1, "tables without owners are reused");
    }
}

#[test]
fn pinned_slots_change_their_ring_when_none_is_in_flight() {
    let mut rings = [ring(&RingOptions::default()), ring(&RingOptions::default())];
    let mut slots = pinned([(); 2].map(|()| Buffer::zeroed(4096)));
    for turn in 0..6 {
        let [one, other] = &mut rings;
        let (one, other) = if turn % 2 == 0 { (one, other) } else { (other, one) };
        assert_eq!(push_pinned(one, &mut slots, &[0]), 1);
        assert_eq!(push_pinned(other, &mut slots, &[1]), 0, "they belong to the other ring");
        assert!(reap_pinned(other, &slots).0.is_empty());
        one.enter(1, None).unwrap();
        assert_eq!(reap_pinned(one, &slots).0, [0]);
        assert!(rings.iter().all(|ring| ring.pinned.tables() <= 1 && ring.in_flight() == 0));
    }
}

#[test]
fn a_cancel_reaches_pinned_transfers() {
    let mut ring = ring(&RingOptions::default());
    let mut slots = pinned([(); 2].map(|()| Buffer::zeroed(4096)));
    assert_eq!(push_pinned(&mut ring, &mut slots, &[0, 1]), 2);
    let mut seen = 0;
    ring.cancel(|_| {
        seen += 1;
        true
    });
    assert_eq!((seen, ring.queued()), (2, 4));
    while ring.in_flight() > 0 {
        ring.enter(1, None).unwrap();
        for (_, result) in reap_pinned(&mut ring, &slots).1 {
            assert_eq!(result, Err(Errno::CANCELED));
        }
    }
}

#[test]
fn a_pinned_batch_ends_where_the_submission_queue_does() {
    let mut ring = Ring::new(&RingOptions::default()).unwrap();
    ring.install_nop(3).unwrap();
    let limit = ring.transfer_limit;
    let which: Vec<_> = (0..2 * limit).collect();
    let mut slots = pinned(which.iter().map(|_| Buffer::zeroed(4096)));
    assert_eq!(push_pinned(&mut ring, &mut slots, &which), limit as usize);
    assert_eq!(push_pinned(&mut ring, &mut slots, &which[limit as usize..]), 0);
    assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(4096) }).is_ok(), "it submits");
    assert_eq!(push_pinned(&mut ring, &mut slots, &which[limit as usize..]), limit as usize - 1);
    ring.enter(2 * limit, None).unwrap();
    let (ended, others) = reap_pinned(&mut ring, &slots);
    assert_eq!((ended.len(), others.len()), (2 * limit as usize - 1, 1));
    assert_eq!(others[0].1, Ok(4096));
}

#[test]
fn memory_that_is_read_only_is_not_read_into() {
    let mut ring = ring(&RingOptions::default());
    let buffer = "read only".lend_for_write().unwrap();
    let (buffer, result) = read_one(&mut ring, buffer);
    assert_eq!((&buffer[..], result), (&b"read only"[..], Err(Errno::BADF)));
}

#[test]
fn a_dropped_pool_frees_its_registration() {
    let mut ring = ring(&RingOptions::default());
    for _ in 0..10 {
        let pool = BufferPool::new(4096, 1).unwrap();
        let (_, result) = read_one(&mut ring, pool.get().unwrap());
        assert_eq!(result, Ok(4096));
    }
    assert_eq!(ring.counters().fixed_buffers, 10);
    assert!(ring.registration().regions <= 2);
    // The next wait unpins dropped regions.
    let (_, result) = read_one(&mut ring, Buffer::zeroed(4096));
    assert_eq!((result, ring.registration().regions), (Ok(4096), 0));
}

#[test]
fn a_file_with_transfers_in_flight_is_not_removed() {
    let mut ring = ring(&RingOptions::default());
    let reading = Reading { offset: 0, buffer: Buffer::zeroed(4096) };
    assert!(ring.push(reading).is_ok());
    assert_eq!(ring.remove(3), Err(Errno::BUSY));
    ring.enter(1, None).unwrap();
    assert_eq!(reap_all(&mut ring).0.len(), 1);
    assert_eq!(ring.remove(3), Ok(()));
    assert_eq!(ring.remove(3), Err(Errno::BADF));
    assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(4096) }).is_err());
}

#[test]
fn a_full_table_gives_the_transfer_back() {
    let mut ring = ring(&RingOptions { transfers: 2, ..RingOptions::default() });
    let reading = || Reading { offset: 0, buffer: Buffer::zeroed(512) };
    assert!(ring.push(reading()).is_ok());
    assert!(ring.push(reading()).is_ok());
    assert!(ring.push(reading()).is_err());
}

#[test]
fn dropping_a_ring_waits_for_its_transfers() {
    let mut ring = ring(&RingOptions::default());
    for _ in 0..100 {
        let reading = Reading { offset: 0, buffer: Buffer::zeroed(4096) };
        assert!(ring.push(reading).is_ok());
    }
    ring.enter(0, None).unwrap();
}

#[test]
fn a_wait_can_be_cancelled_and_a_message_wakes() {
    let mut ring = ring(&RingOptions::default());
    let (reader, _writer) = std::io::pipe().unwrap();
    let file: Arc<std::os::fd::OwnedFd> = Arc::new(reader.into());
    let wait = Wait::Poll { file, events: crate::PollEvents::IN };
    let handle = ring.push_wait(wait, 11).unwrap();
    ring.enter(0, None).unwrap();
    assert!(reap_all(&mut ring).1.is_empty());
    ring.cancel_wait(handle);
    let mut events = Vec::new();
    while events.is_empty() {
        ring.enter(1, None).unwrap();
        events = reap_all(&mut ring).1;
    }
    let Some(Event::Wait { tag: 11, result, .. }) = events.pop() else { panic!("one wait") };
    assert_eq!(result.unwrap_err(), Errno::CANCELED);
    let mut other: Ring<Reading> = Ring::new(&RingOptions::default()).unwrap();
    assert!(other.send_message(ring.descriptor(), &event()));
    ring.enter(1, None).unwrap();
    assert!(matches!(reap_all(&mut ring).1[..], [Event::Message]));
}

#[test]
fn an_event_wakes_one_of_the_exclusive_polls() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file: Arc<OwnedFd> = Arc::new(reader.into());
    let mut woken_of_three = |events| {
        let mut rings = [(); 3].map(|()| ring(&RingOptions::default()));
        for ring in &mut rings {
            ring.push_wait(Wait::Poll { file: file.clone(), events }, 0).unwrap();
            ring.enter(0, None).unwrap();
        }
        writer.write_all(b"1").unwrap();
        let woken = rings.iter_mut().map(|ring| {
            ring.enter(0, None).unwrap();
            reap_all(ring).1.len()
        });
        let woken: usize = woken.sum();
        assert_eq!(rustix::io::read(&file, &mut [0; 8]), Ok(1));
        woken
    };
    assert_eq!(woken_of_three(crate::PollEvents::IN), 3);
    assert_eq!(woken_of_three(crate::PollEvents::IN | crate::PollEvents::EXCLUSIVE), 1);
}

fn event() -> Arc<OwnedFd> {
    Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

fn is_written(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0u8; 8]).is_ok()
}

#[test]
fn a_message_that_fails_at_once_is_reported_as_not_sent() {
    let mut ring = ring(&RingOptions::default());
    // This descriptor is not of a ring.
    assert!(!ring.send_message(event().as_fd(), &event()));
}

#[test]
fn a_message_that_fails_later_signals_the_targets_eventfd() {
    let (mut ring, event) = (ring(&RingOptions::default()), event());
    assert!(ring.push_message(event.as_fd(), &event).is_some());
    ring.enter(0, None).unwrap();
    assert!(!is_written(&event));
    assert_eq!(ring.in_flight(), 1);
    reap_all(&mut ring);
    assert!(is_written(&event));
    assert_eq!((ring.in_flight(), Arc::strong_count(&event)), (0, 1));
}

#[test]
fn dropping_a_ring_wakes_the_targets_of_its_messages() {
    let (mut ring, event) = (ring(&RingOptions::default()), event());
    assert!(ring.push_message(event.as_fd(), &event).is_some());
    drop(ring);
    assert!(is_written(&event));
}

#[test]
fn messages_are_bounded_and_their_slots_are_reused() {
    let (mut ring, event) = (ring(&RingOptions::default()), event());
    let target: Ring<Reading> = Ring::new(&RingOptions::default()).unwrap();
    for _ in 0..3 {
        let mut sent = 0;
        while ring.push_message(target.descriptor(), &event).is_some() {
            sent += 1;
        }
        assert_eq!((sent, ring.in_flight()), (32, 32));
        ring.enter(0, None).unwrap();
        reap_all(&mut ring);
        assert_eq!(ring.in_flight(), 0);
    }
    assert!(!is_written(&event));
}

#[test]
fn a_timeout_ends_the_wait() {
    let mut ring = ring(&RingOptions::default());
    ring.enter(1, Some(Duration::from_millis(1))).unwrap();
    assert!(reap_all(&mut ring).0.is_empty());
}

#[test]
fn thousands_of_cancels_all_complete() {
    let mut ring = ring(&RingOptions { transfers: 64, waits: 4096, ..RingOptions::default() });
    let (reader, _writer) = std::io::pipe().unwrap();
    let file: Arc<std::os::fd::OwnedFd> = Arc::new(reader.into());
    let mut completed = 0;
    for _ in 0..3 {
        let handles: Vec<_> = (0..4096)
            .map(|tag| {
                let events = crate::PollEvents::IN;
                ring.push_wait(Wait::Poll { file: file.clone(), events }, tag).unwrap()
            })
            .collect();
        for handle in handles {
            ring.cancel_wait(handle);
        }
        while ring.in_flight() > 0 {
            ring.enter(1, None).unwrap();
            for event in reap_all(&mut ring).1 {
                assert!(matches!(event, Event::Wait { result: Err(Errno::CANCELED), .. }));
                completed += 1;
            }
        }
    }
    assert_eq!(completed, 3 * 4096);
}

/// `SOCKET_URING_OP_SIOCINQ`: the bytes that a socket has received.
const RECEIVED: u32 = 0;

#[test]
fn a_command_reaches_the_driver_beside_reads() {
    let options = RingOptions { commands: true, ..RingOptions::default() };
    // Since Linux 5.19.
    let Ok(mut ring) = Ring::new(&options) else {
        println!("not exercised: a ring with entries of 128 bytes");
        return;
    };
    ring.install(3, file_with(&[7; 8192]).as_fd()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.write_all(b"bytes").unwrap();
    receiver.peek(&mut [0; 5]).unwrap();
    let buffers = [Buffer::zeroed(8), Buffer::zeroed(8)];
    // SAFETY: the command accesses no memory.
    let mut command = unsafe { Command::new(Arc::new(receiver.into()), buffers) };
    for (operation, expected) in [(RECEIVED, Ok(5)), (u32::MAX, Err(Errno::OPNOTSUPP))] {
        command.set(operation, [0; 80]);
        assert!(ring.push(Reading { offset: 0, buffer: Buffer::zeroed(4096) }).is_ok());
        ring.push_wait(Wait::Command(Box::new(command)), 7).unwrap();
        ring.enter(2, None).unwrap();
        let (mut transfers, mut events) = reap_all(&mut ring);
        assert_eq!(transfers.pop().unwrap().1, Ok(4096));
        let Some(Event::Wait { wait: Wait::Command(ended), tag: 7, result }) = events.pop() else {
            panic!("the command has not ended: {events:?}");
        };
        let result = result.map(|output| match output {
            WaitOutput::Ended(value) => value,
            other => panic!("{other:?}"),
        });
        // Sockets have commands since Linux 6.5.
        match (operation, result) {
            (RECEIVED, Err(Errno::OPNOTSUPP)) => println!("not exercised: a command's result"),
            _ => assert_eq!(result, expected),
        }
        command = *ended;
    }
}
