//! Operations with memory of other types than `Buffer`: every type, any address and length, every queue, faults, and
//! futures that are dropped. The value comes back with each result, and lives until the kernel is done.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use uringfs_buffer::{Buffer, BufferPool, IoBuf, IoBufMut, MAX_LENGTH};
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Clock, Device, Errno, Op, VirtualClock};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Counter, Reactor, ReactorOptions};

use crate::harness::{BackEnd, file_over, reactor_by};

const SIZE: u64 = 64 << 10;

#[test]
fn every_type_is_written_and_read_over_every_queue() {
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let made = BackEnd::Image.make(folder.path(), SIZE, &VirtualClock::default());
        let file = File::from_device(made.device, FileOptions::default());
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        for file in [file.direct(), file.buffered(&Cache::new(16 * FOLIO))] {
            reactor.block_on(async {
                check_write(&file, || vec![1; 4096]).await;
                check_write(&file, || vec![2; 4097]).await;
                check_write(&file, || Box::<[u8]>::from([3; 100])).await;
                check_write(&file, || Box::new([4; 8192])).await;
                check_write(&file, || Arc::<[u8]>::from([5; 512])).await;
                check_write(&file, || String::from("6666")).await;
                check_write(&file, || "static text").await;
                check_write(&file, || b"static bytes").await;
                check_write(&file, || &b"a static slice"[..]).await;
                check_write(&file, || Buffer::copy_of(&[7; 4096])).await;
                check_write(&file, Vec::new).await;
            });
        }
    }
}

/// Writes a value, and reads its bytes into each type of memory.
async fn check_write<B: IoBuf>(file: &File, value: impl Fn() -> B) {
    let bytes = value().io_bytes().to_vec();
    for offset in [0, 512, 777] {
        let (written, back) = file.write_at(value(), offset).await;
        assert_eq!(written, Ok(bytes.len()));
        assert!(back.io_bytes() == bytes);
        let (written, back) = file.write_all_at(value(), offset).await;
        written.unwrap();
        assert!(back.io_bytes() == bytes);
        check_read(file, Vec::with_capacity(bytes.len()), &bytes, offset).await;
        check_read(file, vec![9; bytes.len()].into_boxed_slice(), &bytes, offset).await;
        check_read(file, Buffer::zeroed(bytes.len()), &bytes, offset).await;
    }
    check_read(file, Box::new([0; 1]), &bytes[..bytes.len().min(1)], 777).await;
}

async fn check_read<B: IoBufMut>(file: &File, into: B, bytes: &[u8], offset: u64) {
    let (read, into) = file.read_at(into, offset).await;
    assert!(read.unwrap() >= bytes.len());
    assert!(into.io_bytes()[..bytes.len()] == *bytes);
    let (read, into) = file.read_exact_at(into, offset).await;
    read.unwrap();
    assert!(into.io_bytes()[..bytes.len()] == *bytes);
}

#[test]
fn a_vec_has_the_bytes_that_were_read() {
    let file = file_over(&Sim::new(SimOptions::new(SIZE)));
    let end = SIZE - 100;
    assert_eq!(file.write_at(vec![7; 100], end).wait().0, Ok(100));
    let (read, bytes) = file.read_at(Vec::with_capacity(4096), end).wait();
    assert_eq!((read, bytes), (Ok(100), vec![7; 100]));
    let (read, bytes) = file.read_at(vec![1; 10], SIZE).wait();
    assert_eq!((read, bytes), (Ok(0), Vec::new()));
    reactor_by(&VirtualClock::default()).block_on(async {
        let (read, bytes) = file.read_exact_at(Vec::with_capacity(4096), end).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(bytes, [7; 100]);
        let parts = vec![Vec::with_capacity(60), Vec::with_capacity(60)];
        let (read, parts) = file.read_vectored_at(parts, end).await;
        assert_eq!((read, parts), (Ok(100), vec![vec![7; 60], vec![7; 40]]));
    });
}

#[test]
fn a_refused_operation_gives_the_memory_back() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let file = file_over(&sim);
    let address = |bytes: &Vec<u8>| bytes.as_ptr();
    let check = |result: Result<usize, Errno>, error, (before, bytes): (*const u8, Vec<u8>)| {
        assert_eq!((result, address(&bytes)), (Err(error), before));
    };
    // Beyond the end.
    let bytes = vec![1; 100];
    let before = address(&bytes);
    let (written, bytes) = file.write_at(bytes, SIZE).wait();
    assert_eq!(bytes, [1; 100]);
    check(written, Errno::NOSPC, (before, bytes));
    // Cancelled before its start.
    let bytes = vec![1; 100];
    let before = address(&bytes);
    let mut op = file.write_at(bytes, 0);
    op.cancel();
    let (written, bytes) = op.wait();
    assert_eq!(bytes, [1; 100]);
    check(written, Errno::CANCELED, (before, bytes));
    // A failed read, on both paths: a vector then has nothing that was read.
    sim.inject(Rule::new(None, When::Every(1), Fault::Error(Errno::IO)));
    for offset in [0, 1] {
        let bytes = vec![1; 4096];
        let before = address(&bytes);
        let (read, bytes) = file.read_at(bytes, offset).wait();
        assert_eq!(bytes, []);
        check(read, Errno::IO, (before, bytes));
    }
}

#[test]
fn memory_over_the_limit_is_an_error() {
    let file = file_over(&Sim::new(SimOptions::new(SIZE)));
    let long = || vec![0; MAX_LENGTH + 1];
    let (written, bytes) = file.write_at(long(), 0).wait();
    assert_eq!((written, bytes.len()), (Err(Errno::INVAL), MAX_LENGTH + 1));
    let parts = vec![vec![1], bytes];
    let (written, parts) = file.write_vectored_at(parts, 0).wait();
    assert_eq!((written, parts[0].len(), parts[1].len()), (Err(Errno::INVAL), 1, MAX_LENGTH + 1));
    let (read, bytes) = file.read_at(long(), 0).wait();
    assert_eq!((read, bytes.len()), (Err(Errno::INVAL), 0));
    reactor_by(&VirtualClock::default()).block_on(async {
        let (written, bytes) = file.write_all_at(long(), 0).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidInput);
        let (read, _) = file.read_exact_at(bytes, 0).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

/// Only the address decides whether a transfer of whole blocks needs a copy.
#[test]
fn a_copy_is_made_only_of_unaligned_memory() {
    let reactor = reactor_by(&VirtualClock::default());
    let file = file_over(&Sim::new(SimOptions::new(SIZE)));
    let alignment = u64::from(file.geometry().memory_alignment);
    #[repr(align(4096))]
    struct Page([u8; 8192]);
    static PAGE: Page = Page([5; 8192]);
    let mut copies = 0;
    reactor.block_on(async {
        for skip in [0, 1, 16, 512, 4096] {
            let bytes: &'static [u8] = &PAGE.0[skip..skip + 4096];
            copies += u64::from(!(bytes.as_ptr() as u64).is_multiple_of(alignment));
            assert_eq!(file.write_at(bytes, 0).await.0, Ok(4096));
            assert_eq!(reactor.counters().get(Counter::Bounced), copies, "{skip}");
        }
    });
    assert_eq!(copies, 2);
}

/// A clone of the memory shows when the operation drops its own.
#[test]
fn the_memory_of_a_dropped_future_lives_until_the_kernel_is_done() {
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let made = BackEnd::Image.make(folder.path(), SIZE, &VirtualClock::default());
        let file = File::from_device(made.device, FileOptions::default());
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        // Futures that are polled outside of it are its own from now on.
        reactor.turn().unwrap();
        for offset in [0, 100] {
            let bytes = Arc::<[u8]>::from([7; 8192]);
            let mut op = Box::pin(file.write_at(bytes.clone(), offset));
            let mut context = Context::from_waker(Waker::noop());
            assert!(op.as_mut().poll(&mut context).is_pending());
            drop(op);
            assert_eq!(Arc::strong_count(&bytes), 2, "it has not been reaped");
            let mut read = Box::pin(file.read_at(vec![0; 8192], offset));
            assert!(read.as_mut().poll(&mut context).is_pending());
            drop(read);
            reactor.reap(usize::MAX, None, &mut Vec::new()).unwrap();
            assert_eq!(Arc::strong_count(&bytes), 1, "{queue}, at {offset}");
            let read = reactor.block_on(file.read_at(vec![0; 8192], offset)).1;
            assert_eq!(read, *bytes);
        }
        // The same by the drop of the reactor.
        let bytes = Arc::<[u8]>::from([8; 8192]);
        let mut op = Box::pin(file.write_at(bytes.clone(), 1));
        assert!(op.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop((op, reactor));
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}

#[test]
fn dropped_at_any_step_it_is_neither_leaked_nor_freed_early() {
    let clock = VirtualClock::default();
    let micro = Duration::from_micros;
    let options = SimOptions::new(SIZE).latency(micro(50)..=micro(400)).max_transfer(8 << 10);
    let file = file_over(&Sim::new(options.clock(Clock::Virtual(clock.clone()))));
    let reactor = reactor_by(&clock);
    // Futures that are polled outside of it are its own from now on.
    reactor.turn().unwrap();
    for steps in 0..40 {
        let bytes = Arc::<[u8]>::from(vec![steps; 30_000]);
        {
            let mut write = pin!(file.write_all_at(bytes.clone(), 333));
            let mut read = pin!(file.read_exact_at(Vec::with_capacity(20_000), 5));
            for _ in 0..steps {
                let context = &mut Context::from_waker(Waker::noop());
                if write.as_mut().poll(context).is_ready() || read.as_mut().poll(context).is_ready()
                {
                    break;
                }
                reactor.reap(1, Some(micro(40)), &mut Vec::new()).unwrap();
            }
        }
        reactor.reap(usize::MAX, None, &mut Vec::new()).unwrap();
        assert_eq!(Arc::strong_count(&bytes), 1, "after {steps} steps");
    }
}

/// One operation of the model.
#[derive(Clone, Debug)]
struct Step {
    call: Call,
    offset: u64,
    length: usize,
    byte: u8,
    buffered: bool,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    ReadVec { spare: usize },
    ReadBox,
    ReadPooled,
    ReadVectored,
    WriteVec { spare: usize },
    WriteShared,
    WriteVectored,
    WriteDurably,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let call = prop_oneof![
        (0usize..2000).prop_map(|spare| Call::ReadVec { spare }),
        Just(Call::ReadBox),
        Just(Call::ReadPooled),
        Just(Call::ReadVectored),
        (0usize..2000).prop_map(|spare| Call::WriteVec { spare }),
        Just(Call::WriteShared),
        Just(Call::WriteVectored),
        Just(Call::WriteDurably),
    ];
    let offset = prop_oneof![0..SIZE + 512, (0..SIZE / 4096 + 1).prop_map(|block| block * 4096)];
    let length = prop_oneof![0usize..10_000, (0usize..8).prop_map(|blocks| blocks * 4096)];
    let step = (call, offset, length, any::<u8>(), any::<bool>());
    let step = step.prop_map(|(call, offset, length, byte, buffered)| Step {
        call,
        offset,
        length,
        byte,
        buffered,
    });
    vec(step, 1..20)
}

proptest! {
    /// Results, bytes and lengths are those of a vector of bytes, on a device with faults.
    #[test]
    fn any_memory_agrees_with_a_vector(steps in steps(), seed: u64) {
        let sim = Sim::new(SimOptions::new(SIZE).seed(seed).max_transfer(16 << 10));
        sim.inject(Rule::new(None, When::Every(3), Fault::Short));
        sim.inject(Rule::new(None, When::Every(5), Fault::Error(Errno::INTR)));
        sim.inject(Rule::new(Some(Op::Write), When::OneIn(20), Fault::Error(Errno::NOMEM)));
        let direct = File::from_device(Device::new(sim).unwrap(), FileOptions::default());
        let buffered = direct.buffered(&Cache::new(64 * FOLIO));
        let reactor = reactor_by(&VirtualClock::default());
        let pool = BufferPool::new(40_000, 1).unwrap();
        let mut model = vec![Some(0); SIZE as usize];
        reactor.block_on(async {
            for step in &steps {
                let file = if step.buffered { &buffered } else { &direct };
                run(step, file, &pool, &mut model).await;
            }
        });
    }
}

/// Runs a step and compares it. `None` is a byte that a failed write left unknown.
async fn run(step: &Step, file: &File, pool: &BufferPool, model: &mut [Option<u8>]) {
    let Step { offset, length, byte, .. } = *step;
    let start = offset.min(SIZE) as usize;
    let bytes: Vec<u8> = (0..length).map(|at| byte.wrapping_add((at / 7) as u8)).collect();
    let compare = |read: Result<usize, Errno>, bytes: &[u8], room: usize| {
        let expected = room.min(SIZE as usize - start);
        if step.buffered || read.is_ok() {
            assert_eq!(read, Ok(expected), "{step:?}");
        } else {
            // A direct read first writes dirty folios back.
            return assert_eq!(read, Err(Errno::NOMEM), "{step:?}");
        }
        let differs = bytes.iter().zip(&model[start..start + expected]);
        let differs = differs.filter(|(byte, model)| model.is_some_and(|model| model != **byte));
        assert_eq!(differs.count(), 0, "{step:?}");
    };
    let written = match step.call {
        Call::ReadVec { spare } => {
            let mut into = Vec::with_capacity(length + spare);
            into.resize(length, byte);
            let room = into.capacity();
            let (read, into) = file.read_at(into, offset).await;
            assert_eq!((into.len(), into.capacity()), (read.unwrap_or(0), room), "{step:?}");
            return compare(read, &into, room);
        }
        Call::ReadBox => {
            let (read, into) = file.read_at(bytes.into_boxed_slice(), offset).await;
            return compare(read, &into, length);
        }
        Call::ReadPooled => {
            let mut into = pool.get().expect("it has come back");
            drop(into.split_off(length));
            let (read, into) = file.read_at(into, offset).await;
            return compare(read, &into, length);
        }
        Call::ReadVectored => {
            let parts = vec![vec![0; length / 3], vec![0; length - length / 3]];
            let (read, parts) = file.read_vectored_at(parts, offset).await;
            return compare(read, &parts.concat(), length);
        }
        Call::WriteVec { spare } => {
            let mut from = Vec::with_capacity(length + spare);
            from.extend(&bytes);
            let (written, from) = file.write_at(from, offset).await;
            assert_eq!((&from, from.capacity() >= length + spare), (&bytes, true), "{step:?}");
            written
        }
        Call::WriteShared => {
            let (written, from) = file.write_at(Arc::<[u8]>::from(&bytes[..]), offset).await;
            assert_eq!((&from[..], Arc::strong_count(&from)), (&bytes[..], 1), "{step:?}");
            written
        }
        Call::WriteVectored => {
            let (head, tail) = bytes.split_at(length / 3);
            let parts = vec![head.to_vec(), tail.to_vec()];
            let (written, parts) = file.write_vectored_at(parts, offset).await;
            assert_eq!(parts.concat(), bytes, "{step:?}");
            written
        }
        Call::WriteDurably => {
            let (written, from) = file.write_durably(bytes.clone(), offset).await;
            assert_eq!(from, bytes, "{step:?}");
            written
        }
    };
    let range = start..start + length.min(SIZE as usize - start);
    match written {
        Ok(written) => assert_eq!(written, range.len(), "{step:?}"),
        Err(Errno::NOSPC) => assert!(range.is_empty() && length > 0, "{step:?}"),
        Err(error) => assert_eq!(error, Errno::NOMEM, "{step:?}"),
    }
    for (model, byte) in model[range].iter_mut().zip(bytes) {
        *model = written.is_ok().then_some(byte);
    }
}
