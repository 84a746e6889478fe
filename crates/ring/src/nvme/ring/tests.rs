//! Tests of the ring with `/dev/null`, which takes commands, and `/dev/zero`, which has none.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use uringfs_buffer::BufferPool;

use super::*;
use crate::transfer::Tries;

/// A transfer of each kind, at an address of the namespace.
enum Step {
    Read(Buffer),
    Write(Buffer),
    WriteDurably(Vec<Buffer>),
    Flush,
}

struct Transferring {
    step: Step,
    address: u64,
    tries: Tries,
}

// SAFETY: the transfer owns its buffers.
unsafe impl Transfer for Transferring {
    fn step(&self) -> NextOp<'_> {
        let single = |buffer| TransferMemory::Single(IoSegment::from_buffer(buffer, 0));
        match &self.step {
            Step::Read(buffer) => NextOp::Read(self.address, single(buffer)),
            Step::Write(buffer) => NextOp::Write(self.address, single(buffer)),
            Step::WriteDurably(buffers) => {
                let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
                let memory = TransferMemory::Vectored { buffers, skip: 0, length };
                NextOp::WriteDurably(self.address, memory)
            }
            Step::Flush => NextOp::Flush,
        }
    }

    fn file(&self) -> u32 {
        3
    }

    fn tries(&self) -> Tries {
        self.tries
    }
}

const NAMESPACE: Namespace = Namespace {
    id: 1,
    block_shift: 9,
    max_transfer: 8192,
    size: 1 << 20,
    read_only: false,
    volatile_cache: true,
};

/// A ring over `device`, which is no namespace. `None` if the kernel has no such entries (before Linux 5.19).
fn ring(device: &str, namespace: Namespace) -> Option<NvmeRing<Transferring>> {
    let mut ring = match NvmeRing::new(&RingOptions::default()) {
        Ok(ring) => ring,
        Err(error) => {
            assert!(error.to_string().contains("Linux 5.19"), "{error}");
            println!("not exercised: {error}");
            return None;
        }
    };
    let file = File::options().read(true).write(true).open(device).unwrap();
    ring.install(3, file.as_fd(), namespace).unwrap();
    Some(ring)
}

fn flush() -> Transferring {
    Transferring { step: Step::Flush, address: 0, tries: Tries(1) }
}

fn ignore(_: &Transferring, _: NvmeStatus) {}

fn run(ring: &mut NvmeRing<Transferring>, address: u64, step: Step) -> Result<u32, Errno> {
    assert!(ring.push(Transferring { step, address, tries: Tries(1) }).is_ok());
    ring.enter(1, None).unwrap();
    let mut results = Vec::new();
    let take = |ended: CompletedTransfer<'_, Transferring>, result: StepResult| {
        drop(ended.take());
        results.push(result.get());
    };
    ring.reap(take, ignore);
    assert_eq!((results.len(), ring.transfers_in_flight()), (1, 0));
    assert!(ring.iovec_lists.is_empty());
    results[0]
}

/// `/dev/null` takes every command and does nothing (Linux 6.0).
#[test]
fn a_step_moves_what_its_command_does() {
    let Some(mut ring) = ring("/dev/null", NAMESPACE) else { return };
    let pool = BufferPool::new(4096, 2).unwrap();
    let read = run(&mut ring, 0, Step::Read(pool.get().unwrap()));
    if read == Err(Errno::OPNOTSUPP) {
        return println!("not exercised: /dev/null has no commands before Linux 6.0");
    }
    assert_eq!(read, Ok(4096));
    assert_eq!(run(&mut ring, 4096, Step::Write(pool.get().unwrap())), Ok(4096));
    let counters = ring.counters();
    assert_eq!((counters.fixed_files, counters.fixed_buffers), (2, 2));
    assert_eq!(run(&mut ring, 0, Step::Flush), Ok(0));
    let buffers = || vec![Buffer::zeroed(4096), Buffer::zeroed(512)];
    assert_eq!(run(&mut ring, 0, Step::WriteDurably(buffers())), Ok(4608));
    // The longest transfer, and the end of the namespace.
    assert_eq!(run(&mut ring, 0, Step::Read(Buffer::zeroed(16384))), Ok(8192));
    assert_eq!(run(&mut ring, (1 << 20) - 512, Step::Read(Buffer::zeroed(4096))), Ok(512));
}

#[test]
fn writes_of_a_read_only_namespace_and_reads_into_read_only_memory_are_refused() {
    use uringfs_buffer::IoBuf;
    let namespace = Namespace { read_only: true, ..NAMESPACE };
    let Some(mut ring) = ring("/dev/null", namespace) else { return };
    let (bad, buffers) = (Err(Errno::BADF), vec![Buffer::zeroed(512)]);
    assert_eq!(run(&mut ring, 0, Step::Write(Buffer::zeroed(4096))), bad);
    assert_eq!(run(&mut ring, 0, Step::WriteDurably(buffers)), bad);
    let memory = "memory that must not be written".lend_for_write().unwrap();
    assert_eq!(run(&mut ring, 0, Step::Read(memory)), bad);
}

#[test]
fn a_file_without_commands_refuses_them() {
    let Some(mut ring) = ring("/dev/zero", NAMESPACE) else { return };
    let read = run(&mut ring, 0, Step::Read(Buffer::zeroed(4096)));
    assert_eq!(read, Err(Errno::OPNOTSUPP));
}

#[test]
fn a_failed_command_is_an_errno_and_the_end_is_no_error() {
    let namespaces = [Namespace::ABSENT, Namespace::ABSENT, Namespace::ABSENT, NAMESPACE];
    let at = |address, step| Transferring { step, address, tries: Tries(1) };
    let read = |address| at(address, Step::Read(Buffer::zeroed(512)));
    let write = |address| at(address, Step::Write(Buffer::zeroed(512)));
    let failure = |ended: Transferring, result| failure(&namespaces, &ended, result, ignore);
    assert_eq!(failure(read(0), 0x4281), -libc::ENODATA);
    assert_eq!(failure(read(0), -libc::EOPNOTSUPP), -libc::EOPNOTSUPP);
    assert_eq!(failure(read(1 << 20), 0x4080), 0);
    assert_eq!(failure(write(1 << 20), 0x4080), -libc::ENOSPC);
    assert_eq!(failure(read(0), 0x4080), -libc::EREMOTEIO);
    let reported: fn(&Transferring, NvmeStatus) = |_, status| panic!("{status}");
    assert_eq!(super::failure(&namespaces, &read(0), 0x82, reported), -libc::EAGAIN);
    // Not reported until the last try, which returns the error of the block device.
    let last = || Transferring { tries: Tries::ALL, ..read(0) };
    assert_eq!(failure(last(), 0x82), -libc::EREMOTEIO);
    // A reset has cut it off.
    assert_eq!(failure(read(0), -libc::EINTR), -libc::EAGAIN);
    assert_eq!(failure(last(), -libc::EINTR), -libc::EIO);
}

#[test]
fn registered_memory_and_polling_need_the_kernel_that_has_them_for_commands() {
    let wanted = RingOptions { polled: true, ..RingOptions::default() };
    let found = |has_defer_taskrun| {
        let found = supported(&wanted, has_defer_taskrun);
        (found.fixed_buffers, found.polled, found.fixed_files)
    };
    assert_eq!(found(true), (true, true, true));
    assert_eq!(found(false), (false, false, true));
    let none = RingOptions { fixed_buffers: false, ..RingOptions::default() };
    let found = supported(&none, true);
    assert!(!found.fixed_buffers && !found.polled);
}

/// `/dev/zero` refuses every command.
#[test]
fn a_flush_without_a_volatile_cache_is_no_command() {
    for (volatile_cache, expected) in [(true, Err(Errno::OPNOTSUPP)), (false, Ok(0))] {
        let namespace = Namespace { volatile_cache, ..NAMESPACE };
        let Some(mut ring) = ring("/dev/zero", namespace) else { return };
        assert_eq!(run(&mut ring, 0, Step::Flush), expected);
    }
}

#[test]
fn a_watched_descriptor_ends_a_wait_once() {
    let Some(mut ring) = ring("/dev/null", NAMESPACE) else { return };
    let event: OwnedFd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    for _ in 0..2 {
        assert!(ring.watch(event.as_fd()) && ring.watch(event.as_fd()));
        ring.enter(0, None).unwrap();
        ring.reap(|_, _| {}, ignore);
        assert!(ring.is_watching());
        rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
        ring.enter(1, None).unwrap();
        ring.reap(|_, _| {}, ignore);
        assert!(!ring.is_watching());
        rustix::io::read(&event, &mut [0; 8]).unwrap();
    }
}

#[test]
fn a_namespace_in_use_is_not_removed() {
    let Some(mut ring) = ring("/dev/null", NAMESPACE) else { return };
    assert!(ring.push(flush()).is_ok());
    assert_eq!(ring.remove(3), Err(Errno::BUSY));
    ring.enter(1, None).unwrap();
    ring.reap(|_, _| {}, ignore);
    assert_eq!((ring.remove(3), ring.remove(3)), (Ok(()), Err(Errno::BADF)));
    assert!(ring.push(flush()).is_err());
}
