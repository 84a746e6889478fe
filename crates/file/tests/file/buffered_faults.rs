//! Direct and buffered I/O on a device where one request in a few fails. Acknowledged bytes are found by every
//! read that succeeds, and on the device after a sync that succeeds. Each handle reports an error once.

use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Clock, Errno, Op, VirtualClock};
use uringfs_file::{Advice, File};
use uringfs_reactor::{Reactor, ReactorOptions};

use crate::harness::{Random, file_over, scaled};

const SIZE: u64 = 128 << 10;
const MAX_LENGTH: u64 = 24 << 10;

struct Worker {
    sim: Sim,
    /// One direct handle, two buffered ones.
    files: [File; 3],
    reactor: Reactor,
    cache: Cache,
    random: Random,
    /// The possible values of each byte: one, or several after a failed write.
    bytes: Vec<Vec<u8>>,
    steps: u64,
    is_virtual: bool,
}

impl Worker {
    fn new(seed: u64) -> Worker {
        const QUEUES: [QueueKind; 4] =
            [QueueKind::Auto, QueueKind::Ring, QueueKind::Threads, QueueKind::Sync];
        let latency = Duration::from_micros(100);
        let options = SimOptions::new(SIZE).seed(seed);
        // In virtual time the flusher runs on this reactor, in repeatable order.
        let (options, reactor) = match seed.is_multiple_of(2) {
            true => {
                let clock = Clock::Virtual(VirtualClock::default());
                let options = options.latency(latency..=latency).clock(clock.clone());
                (options, ReactorOptions::new().clock(clock))
            }
            false => {
                let queue = QUEUES[seed as usize / 2 % 4];
                (options, ReactorOptions::new().queue(queue))
            }
        };
        let sim = Sim::new(options);
        // In a small cache, writers wait up to a second for folios that cannot be written back: only in virtual
        // time.
        let cache = Cache::new([8, 200, 20, 200][seed as usize % 4] * FOLIO);
        let file = file_over(&sim);
        Worker {
            files: [file.clone(), file.buffered(&cache), file.buffered(&cache)],
            reactor: Reactor::new(reactor).unwrap(),
            cache,
            random: Random(seed),
            bytes: vec![vec![0]; SIZE as usize],
            steps: 0,
            is_virtual: seed.is_multiple_of(2),
            sim,
        }
    }

    fn begin_faults(&self) {
        let fault = |op, one_in, fault| self.sim.inject(Rule::new(op, When::OneIn(one_in), fault));
        fault(Op::Read, 9, Fault::Error(Errno::IO));
        fault(Op::Write, 7, Fault::Error(Errno::IO));
        fault(Op::Write, 9, Fault::Torn);
        fault(Op::Write, 11, Fault::Short);
        fault(Op::Read, 11, Fault::Short);
        fault(Op::Flush, 9, Fault::Error(Errno::IO));
        // A device error, not a cancel.
        fault(Op::Write, 13, Fault::Error(Errno::TIMEDOUT));
    }

    /// A range, in bytes, sectors or folios.
    fn range(&mut self) -> (u64, usize) {
        let unit = [1, 512, FOLIO][self.random.below(3) as usize];
        let length = (1 + self.random.below(MAX_LENGTH / unit)) * unit;
        (self.random.below((SIZE - length) / unit + 1) * unit, length as usize)
    }

    fn step(&mut self) {
        self.steps += 1;
        let which = self.random.below(3) as usize;
        let (file, (offset, length)) = (self.files[which].clone(), self.range());
        let byte = (self.steps % 251) as u8 + 1;
        match self.random.below(20) {
            0..7 => {
                let bytes: Vec<u8> = (0..length).map(|n| byte ^ (n / 512) as u8).collect();
                let (result, bytes) =
                    self.reactor.block_on(file.write_at(Buffer::copy_of(&bytes), offset));
                self.written(offset, &bytes, result);
            }
            7 => {
                let bytes = vec![byte; length];
                let write = file.write_durably(Buffer::copy_of(&bytes), offset);
                let (result, _) = self.reactor.block_on(write);
                self.written(offset, &bytes, result);
            }
            8 => {
                let result = self.reactor.block_on(file.write_zeroes(offset, length as u64));
                self.written(offset, &vec![0; length], result.map(|()| length));
            }
            9 => self.sync(which),
            10 => {
                // Readahead errors are not reported.
                let advice = [Advice::WillNeed, Advice::DoNotNeed][self.random.below(2) as usize];
                let advise = file.advise(advice, offset, length as u64);
                assert_eq!(self.reactor.block_on(advise), Ok(()));
            }
            11 => drop(self.cache.shrink(self.random.below(8) * FOLIO)),
            12 => {
                let mut found = vec![0; length];
                if let Ok(read) = file.try_read_at(&mut found, offset) {
                    self.found(offset, &found[..read], "try_read");
                }
            }
            // The other handle stays open, so nothing is discarded. The flusher of the closed one runs in real
            // time.
            13 if which > 0 && !self.is_virtual => {
                self.files[which] = self.files[0].buffered(&self.cache);
            }
            _ => {
                let (read, found) =
                    self.reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
                match read {
                    Ok(read) => self.found(offset, &found[..read], "read"),
                    Err(error) => assert!(self.is_device_error(error), "{error}"),
                }
            }
        }
    }

    fn is_device_error(&self, error: Errno) -> bool {
        [Errno::IO, Errno::TIMEDOUT].contains(&error)
    }

    /// Acknowledged bytes are known; the rest may be old or new.
    fn written(&mut self, offset: u64, bytes: &[u8], result: Result<usize, Errno>) {
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                assert!(self.is_device_error(error), "{error}");
                0
            }
        };
        let at = &mut self.bytes[offset as usize..][..bytes.len()];
        for (n, (known, byte)) in at.iter_mut().zip(bytes).enumerate() {
            match n < done {
                true => *known = vec![*byte],
                false if known.contains(byte) => {}
                false => known.push(*byte),
            }
        }
    }

    fn found(&mut self, offset: u64, found: &[u8], by: &str) {
        for (n, byte) in found.iter().enumerate() {
            let at = offset as usize + n;
            let known = &mut self.bytes[at];
            assert!(
                known.contains(byte),
                "{by}, step {}: {byte} at {at}, not {known:?}",
                self.steps
            );
            // A byte that was read is known.
            *known = vec![*byte];
        }
    }

    fn sync(&mut self, which: usize) {
        let synced = self.reactor.block_on(self.files[which].sync_all());
        let faults = self.sim.faults_hit();
        match synced {
            Ok(()) => {
                assert_eq!(self.cache.statistics().dirty_bytes, 0);
                self.look_at_device();
            }
            Err(error) => assert!(self.is_device_error(error) && faults > 0, "{error}"),
        }
    }

    fn look_at_device(&mut self) {
        let mut found = vec![0; SIZE as usize];
        self.sim.peek(0, &mut found);
        self.found(0, &found, "the device");
    }
}

#[test]
fn acknowledged_writes_survive_failing_requests() {
    for seed in 0..scaled(64) as u64 {
        eprintln!("seed {seed}");
        let mut worker = Worker::new(seed);
        for _ in 0..4 {
            worker.begin_faults();
            (0..100).for_each(|_| worker.step());
            worker.sim.clear_faults();
            // Each handle reports an error at most once.
            for which in 0..3 {
                worker.sync(which);
                assert_eq!(worker.reactor.block_on(worker.files[which].sync_all()), Ok(()));
            }
            worker.look_at_device();
            let faults = worker.sim.faults_hit();
            (0..20).for_each(|_| worker.step());
            assert_eq!(worker.sim.faults_hit(), faults);
        }
        assert!(worker.sim.faults_hit() > 20);
    }
}
