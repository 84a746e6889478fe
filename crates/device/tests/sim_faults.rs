//! Injected faults and latencies of the simulated device, and their repetition from
//! the seed.

mod harness;

use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, Spread, When, WriteCache};
use uringfs_device::{
    Backend, Clock, Device, Errno, Op, Payload, Ready, Request, StepCompletion, Tag, VirtualClock,
};

const SIZE: u64 = 1 << 20;
const MICRO: Duration = Duration::from_micros(1);

fn disk(options: SimOptions) -> (Sim, Device) {
    let sim = Sim::new(options);
    (sim.clone(), Device::new(sim).unwrap())
}

fn request(device: &Device, op: Op, address: u64, bytes: &[u8]) -> Request {
    let payload = Payload::Buffer(Buffer::copy_of(bytes));
    Request::new(device.index(), op, address, payload, Tag(address))
}

/// Executes the request in the call, and also returns the content of its memory afterwards.
fn run(sim: &Sim, mut request: Request) -> (Result<u32, Errno>, Vec<u8>) {
    let result = sim.perform(&mut request);
    let bytes = request.segments().flatten().copied().collect();
    (result, bytes)
}

fn write(sim: &Sim, device: &Device, address: u64, byte: u8) -> Result<u32, Errno> {
    run(sim, request(device, Op::Write, address, &[byte; 4096])).0
}

fn read(sim: &Sim, device: &Device, address: u64) -> Result<Vec<u8>, Errno> {
    let (result, bytes) = run(sim, request(device, Op::Read, address, &[0xee; 4096]));
    result.map(|moved| bytes[..moved as usize].to_vec())
}

#[test]
fn the_nth_request_of_a_kind_fails_once() {
    for error in [Errno::IO, Errno::NOSPC, Errno::INTR, Errno::AGAIN, Errno::CANCELED] {
        let (sim, device) = disk(SimOptions::new(SIZE));
        sim.fail_nth(Op::Write, 3, error);
        let results: Vec<_> = (0..5)
            .map(|_| {
                read(&sim, &device, 0).unwrap();
                write(&sim, &device, 0, 1)
            })
            .collect();
        assert_eq!(results, [Ok(4096), Ok(4096), Err(error), Ok(4096), Ok(4096)]);
    }
}

#[test]
fn a_sticky_error_stays_until_it_is_cleared() {
    let (sim, device) = disk(SimOptions::new(SIZE));
    sim.inject(Rule::new(Op::Read, When::From(2), Fault::Error(Errno::IO)).within(0, 8192));
    assert!(read(&sim, &device, 4096).is_ok());
    for _ in 0..5 {
        assert_eq!(read(&sim, &device, 4096), Err(Errno::IO));
        assert!(read(&sim, &device, 8192).is_ok(), "outside of the rule's range");
    }
    sim.clear_faults();
    assert!(read(&sim, &device, 4096).is_ok());
}

#[test]
fn detaching_a_device_fails_requests_in_flight() {
    let clock = VirtualClock::default();
    let options = SimOptions::new(SIZE).latency(MICRO..=MICRO).clock(Clock::Virtual(clock.clone()));
    let (sim, device) = disk(options);
    let mut queue = sim.own_queue(4).unwrap();
    queue.push(request(&device, Op::Write, 0, &[1; 4096])).unwrap();
    queue.submit().unwrap();
    sim.detach(Errno::NODEV);
    queue.push(request(&device, Op::Read, 0, &[0; 4096])).unwrap();
    queue.submit().unwrap();
    for _ in 0..2 {
        let Ready::At(time) = queue.ready() else { panic!("in flight") };
        clock.advance_to(time);
        assert_eq!(queue.reap().unwrap().result, Err(Errno::NODEV));
    }
    sim.reattach();
    assert_eq!(read(&sim, &device, 0).unwrap(), [0; 4096]);
}

#[test]
fn a_short_transfer_moves_whole_blocks_and_never_none() {
    let (sim, device) = disk(SimOptions::new(SIZE));
    sim.inject(Rule::new(None, When::From(1), Fault::Short));
    let mut seen = [false; 8];
    for _ in 0..200 {
        let moved = write(&sim, &device, 0, 1).unwrap();
        assert!((512..4096).contains(&moved) && moved.is_multiple_of(512), "{moved}");
        seen[moved as usize / 512] = true;
    }
    assert!(seen[1..].iter().all(|seen| *seen));
    let single = request(&device, Op::Write, 0, &[1; 512]);
    assert_eq!(run(&sim, single).0, Ok(512));
}

#[test]
fn a_torn_write_fails_and_changes_some_sectors() {
    let (sim, device) = disk(SimOptions::new(SIZE).seed(5));
    sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Torn));
    assert_eq!(write(&sim, &device, 0, 7), Err(Errno::IO));
    let found = read(&sim, &device, 0).unwrap();
    let changed = found.chunks(512).filter(|sector| **sector == [7; 512]).count();
    let kept = found.chunks(512).filter(|sector| **sector == [0; 512]).count();
    assert!(changed > 0 && kept > 0 && changed + kept == 8, "{changed} and {kept}");
}

#[test]
fn misdirected_requests_go_to_another_block() {
    let (sim, device) = disk(SimOptions::new(SIZE).seed(6));
    sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Misdirected));
    assert_eq!(write(&sim, &device, 0, 7), Ok(4096));
    assert_eq!(read(&sim, &device, 0).unwrap(), [0; 4096]);
    let mut all = vec![0; SIZE as usize];
    sim.peek(0, &mut all);
    assert_eq!(all.iter().filter(|byte| **byte == 7).count(), 4096);
    for address in (0..SIZE).step_by(4096) {
        write(&sim, &device, address, 1 + (address / 4096 % 200) as u8).unwrap();
    }
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Misdirected));
    let (wrong, right) = (read(&sim, &device, 0).unwrap(), read(&sim, &device, 0).unwrap());
    assert_ne!(wrong, right);
}

#[test]
fn stale_reads_and_lost_writes_report_success() {
    let (sim, device) = disk(SimOptions::new(SIZE));
    write(&sim, &device, 0, 1).unwrap();
    run(&sim, Request::new(device.index(), Op::Flush, 0, Payload::Length(0), Tag(0))).0.unwrap();
    write(&sim, &device, 0, 2).unwrap();
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Stale));
    assert_eq!(read(&sim, &device, 0).unwrap(), [1; 4096]);
    assert_eq!(read(&sim, &device, 0).unwrap(), [2; 4096]);
    sim.inject(Rule::new(Op::Write, When::Nth(1), Fault::Stale));
    assert_eq!(write(&sim, &device, 0, 3), Ok(4096));
    assert_eq!(read(&sim, &device, 0).unwrap(), [2; 4096]);
}

#[test]
fn flipped_bits_stay_and_survive_a_crash() {
    let (sim, device) = disk(SimOptions::new(SIZE));
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::BitRot));
    let first = read(&sim, &device, 4096).unwrap();
    assert_eq!(first.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_eq!(read(&sim, &device, 4096).unwrap(), first);
    let mut found = vec![0; 4096];
    sim.crash_image(Crash::LoseAll).peek(4096, &mut found);
    assert_eq!(found, first);
    sim.flip_bit(0, 7);
    assert_eq!(read(&sim, &device, 0).unwrap()[0], 0x80);
}

#[test]
fn requests_that_a_real_device_refuses_are_refused() {
    let (sim, device) = disk(SimOptions::new(SIZE).block_size(4096).cache(WriteCache::Volatile));
    let refused = |request| run(&sim, request).0;
    assert_eq!(refused(request(&device, Op::Read, 512, &[0; 4096])), Err(Errno::INVAL));
    assert_eq!(refused(request(&device, Op::Read, 0, &[0; 512])), Err(Errno::INVAL));
    assert_eq!(refused(request(&device, Op::Write, SIZE, &[0; 4096])), Err(Errno::NOSPC));
    assert_eq!(refused(request(&device, Op::Read, SIZE, &[0; 4096])), Ok(0));
    let durable = request(&device, Op::Write, 0, &[0; 4096]).durable();
    assert_eq!(refused(durable), Err(Errno::OPNOTSUPP));
    let mut head = Buffer::zeroed(8192);
    let unaligned = Payload::Buffer(head.split_off(100));
    let unaligned = Request::new(device.index(), Op::Read, 0, unaligned, Tag(0));
    assert_eq!(refused(unaligned), Err(Errno::INVAL));
}

/// Keeps `depth` reads in flight until `total` have completed. Returns the time that it took.
fn run_for(options: SimOptions, depth: usize, total: usize) -> Duration {
    let clock = VirtualClock::default();
    let time = Clock::Virtual(clock.clone());
    let began = time.now();
    let (sim, device) = disk(options.clock(time.clone()));
    let mut queue = sim.own_queue(depth).unwrap();
    let (mut pushed, mut ended) = (0, 0);
    while ended < total {
        while pushed < total && queue.in_flight() < depth {
            queue.push(request(&device, Op::Read, 0, &[0; 512])).unwrap();
            pushed += 1;
        }
        queue.submit().unwrap();
        if let Ready::At(time) = queue.ready() {
            clock.advance_to(time);
        }
        while let Some(StepCompletion { result, .. }) = queue.reap() {
            assert_eq!(result, Ok(512));
            ended += 1;
        }
    }
    time.now() - began
}

#[test]
fn throughput_is_exactly_units_divided_by_latency() {
    let options = || SimOptions::new(SIZE).latency(100 * MICRO..=100 * MICRO).units(4);
    assert_eq!(run_for(options(), 32, 1000), 25_000 * MICRO);
    assert_eq!(run_for(options(), 4, 1000), 25_000 * MICRO);
    // With fewer requests than units some units are idle: depth divided by latency.
    assert_eq!(run_for(options(), 2, 1000), 50_000 * MICRO);
    assert_eq!(run_for(options(), 1, 1000), 100_000 * MICRO);
    // Without latency there is no waiting.
    assert_eq!(run_for(SimOptions::new(SIZE), 32, 1000), Duration::ZERO);
}

#[test]
fn latency_can_be_a_microsecond_or_a_minute() {
    for latency in [MICRO, Duration::from_secs(60)] {
        let options = SimOptions::new(SIZE).latency(latency..=latency).units(1);
        assert_eq!(run_for(options, 4, 5), 5 * latency);
    }
    let spread = run_for(SimOptions::new(SIZE).latency(MICRO..=99 * MICRO).units(1), 8, 1000);
    assert!((45_000 * MICRO..55_000 * MICRO).contains(&spread), "{spread:?}");
    let options = SimOptions::new(SIZE).latency(MICRO..=100 * MICRO).spread(Spread::Exponential);
    // The mean is a fifth of the time that one in a hundred exceeds.
    let spread = run_for(options, 8, 1000);
    assert!((20_000 * MICRO..26_000 * MICRO).contains(&spread), "{spread:?}");
}

#[test]
fn queues_share_the_devices_units() {
    let clock = VirtualClock::default();
    let time = Clock::Virtual(clock.clone());
    let options = SimOptions::new(SIZE).latency(MICRO..=MICRO).units(1).clock(time.clone());
    let (sim, device) = disk(options);
    let mut queues = [sim.own_queue(4).unwrap(), sim.own_queue(4).unwrap()];
    let began = time.now();
    let expected: Vec<Instant> = (1..=2).map(|nth| began + nth * MICRO).collect();
    let deadlines: Vec<Instant> = queues
        .iter_mut()
        .map(|queue| {
            queue.push(request(&device, Op::Read, 0, &[0; 512])).unwrap();
            queue.submit().unwrap();
            let Ready::At(time) = queue.ready() else { panic!("in flight") };
            time
        })
        .collect();
    assert_eq!(deadlines, expected);
}

#[test]
fn each_object_and_the_flushes_have_units_of_their_own() {
    let clock = VirtualClock::default();
    let time = Clock::Virtual(clock.clone());
    let options = SimOptions::new(SIZE).latency(MICRO..=MICRO).object(4096).clock(time.clone());
    let (sim, device) = disk(options);
    let mut queue = sim.own_queue(8).unwrap();
    let began = time.now();
    // Two to the first object, one to the second, and a flush.
    for address in [0, 512, 4096] {
        queue.push(request(&device, Op::Read, address, &[0; 512])).unwrap();
    }
    queue.push(request(&device, Op::Flush, 0, &[])).unwrap();
    queue.submit().unwrap();
    let mut ended = Vec::new();
    while let Ready::At(next) = queue.ready() {
        clock.advance_to(next);
        while let Some(StepCompletion { request, .. }) = queue.reap() {
            ended.push(((next - began).as_micros(), request.op, request.address));
        }
    }
    ended.sort_by_key(|(time, op, address)| (*time, *op == Op::Flush, *address));
    let (read, flush) = (Op::Read, Op::Flush);
    assert_eq!(ended, [(1, read, 0), (1, read, 4096), (1, flush, 0), (2, read, 512)]);
}

#[test]
fn a_late_request_is_overtaken() {
    let clock = VirtualClock::default();
    let (sim, device) = disk(SimOptions::new(SIZE).clock(Clock::Virtual(clock.clone())));
    sim.inject(Rule::new(None, When::Nth(1), Fault::Late(MICRO)));
    let mut queue = sim.own_queue(4).unwrap();
    for address in [0, 512] {
        queue.push(request(&device, Op::Read, address, &[0; 512])).unwrap();
    }
    queue.submit().unwrap();
    assert_eq!(queue.reap().unwrap().request.tag, Tag(512));
    assert!(queue.reap().is_none());
    let Ready::At(time) = queue.ready() else { panic!("in flight") };
    clock.advance_to(time);
    assert_eq!(queue.reap().unwrap().request.tag, Tag(0));
}

/// The observable results of a run.
#[derive(PartialEq)]
struct Trace {
    /// Tags and results, in the order of completion.
    ended: Vec<(u64, Result<u32, Errno>)>,
    /// The content after a crash.
    bytes: Vec<u8>,
}

fn trace(seed: u64) -> Trace {
    let clock = VirtualClock::default();
    let options = SimOptions::new(SIZE).seed(seed).latency(MICRO..=90 * MICRO).units(8);
    let (sim, device) = disk(options.clock(Clock::Virtual(clock.clone())));
    for fault in [Fault::Short, Fault::Torn, Fault::Error(Errno::IO), Fault::BitRot] {
        sim.inject(Rule::new(None, When::OneIn(10), fault));
    }
    let mut queue = sim.own_queue(16).unwrap();
    let mut ended = Vec::new();
    for number in 0..300u64 {
        let op = if number % 3 == 0 { Op::Read } else { Op::Write };
        queue.push(request(&device, op, number % 50 * 4096, &[number as u8; 4096])).unwrap();
        queue.submit().unwrap();
        while queue.in_flight() == 16 || (number == 299 && queue.in_flight() > 0) {
            if let Ready::At(time) = queue.ready() {
                clock.advance_to(time);
            }
            let StepCompletion { request, result } = queue.reap().expect("it is time");
            ended.push((request.tag.0, result));
        }
    }
    let mut bytes = vec![0; SIZE as usize];
    sim.crash_image(Crash::Seeded(seed)).peek(0, &mut bytes);
    Trace { ended, bytes }
}

#[test]
fn the_same_seed_gives_the_same_order_faults_and_bytes() {
    for seed in [1, 2] {
        println!("seed {seed}");
        assert!(trace(seed) == trace(seed), "seed {seed}");
    }
    assert!(trace(1) != trace(2));
}

#[test]
fn the_seed_is_printed() {
    let sim = Sim::new(SimOptions::new(SIZE).seed(4711));
    assert!(format!("{sim:?}").contains("seed 4711"));
    assert!(sim.description().contains("seed 4711"));
}
