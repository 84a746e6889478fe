//! The content of the simulated device after a power loss: bytes that may be there, and
//! bytes that must be.

mod harness;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use harness::Random;
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{
    Action, Crash, CrashPlan, Event, FlushMode, Sim, SimOptions, WriteCache,
};
use uringfs_device::{
    Backend, Clock, Device, Errno, Op, Payload, Ready, Request, Tag, VirtualClock,
};

const SIZE: u64 = 64 << 10;
const BLOCK: u64 = 4096;

/// A simulated device whose requests complete in the call.
struct Disk {
    sim: Sim,
    device: Device,
}

impl Disk {
    fn new(options: SimOptions) -> Disk {
        Disk::of(Sim::new(options))
    }

    fn of(sim: Sim) -> Disk {
        let device = Device::new(sim.clone()).unwrap();
        Disk { sim, device }
    }

    fn request(&self, op: Op, address: u64, payload: Payload) -> Request {
        Request::new(self.device.index(), op, address, payload, Tag(0))
    }

    fn write(&self, block: u64, byte: u8) -> Request {
        let payload = Payload::Buffer(Buffer::copy_of(&[byte; BLOCK as usize]));
        self.request(Op::Write, block * BLOCK, payload)
    }

    fn flush(&self) -> Request {
        self.request(Op::Flush, 0, Payload::Length(0))
    }

    fn run(&self, mut request: Request) -> Result<u32, Errno> {
        self.sim.perform(&mut request)
    }

    fn fill(&self, block: u64, byte: u8) {
        assert_eq!(self.run(self.write(block, byte)), Ok(BLOCK as u32));
    }
}

/// The byte that fills a block; `None` for a torn block.
fn block_of(sim: &Sim, block: u64) -> Option<u8> {
    let mut bytes = [0; BLOCK as usize];
    sim.peek(block * BLOCK, &mut bytes);
    bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
}

#[test]
fn flushed_bytes_are_always_found() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    disk.run(disk.flush()).unwrap();
    disk.fill(1, 2);
    for seed in 0..100 {
        let found = disk.sim.crash_image(Crash::Seeded(seed));
        assert_eq!(block_of(&found, 0), Some(1), "seed {seed}");
    }
    assert_eq!(block_of(&disk.sim.crash_image(Crash::LoseAll), 1), Some(0));
    assert_eq!(block_of(&disk.sim.crash_image(Crash::KeepAll), 1), Some(2));
}

#[test]
fn every_subset_of_unflushed_writes_is_reachable() {
    let disk = Disk::new(SimOptions::new(SIZE));
    for block in 0..4 {
        disk.fill(block, 1 + block as u8);
    }
    assert_eq!(disk.sim.unstable_writes(), 4);
    let plan = CrashPlan { exhaustive_up_to: 4, samples: 0, seed: 0 };
    let last = disk.sim.events();
    let found: BTreeSet<Vec<_>> = disk
        .sim
        .crash_images(plan)
        .filter(|image| image.cut == last)
        .map(|image| (0..4).map(|block| block_of(&image.sim, block).unwrap()).collect())
        .collect();
    assert_eq!(found.len(), 16);
    // The second write lost and the third kept: the cache wrote in another order.
    assert!(found.contains(&vec![1, 0, 3, 0]));
}

#[test]
fn tears_are_at_sectors_and_nowhere_else() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 0xff);
    let mut torn = 0;
    for seed in 0..200 {
        let found = disk.sim.crash_image(Crash::Seeded(seed));
        torn += usize::from(block_of(&found, 0).is_none());
        let mut bytes = [0; BLOCK as usize];
        found.peek(0, &mut bytes);
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}");
        }
    }
    assert!((20..180).contains(&torn), "{torn} of 200 torn");
}

#[test]
fn a_broken_flush_loses_writes() {
    let disk = Disk::new(SimOptions::new(SIZE).flush_mode(FlushMode::Broken));
    disk.fill(0, 1);
    disk.run(disk.write(1, 2).durable()).unwrap();
    assert_eq!(disk.run(disk.flush()), Ok(0));
    let found = disk.sim.crash_image(Crash::LoseAll);
    assert_eq!((block_of(&found, 0), block_of(&found, 1)), (Some(0), Some(0)));
    assert_eq!(block_of(&disk.sim, 0), Some(1));
}

#[test]
fn older_writes_never_overwrite_a_durable_write() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    disk.fill(1, 2);
    disk.run(disk.write(0, 3).durable()).unwrap();
    for crash in [Crash::LoseAll, Crash::KeepAll, Crash::Seeded(1), Crash::Seeded(2)] {
        assert_eq!(block_of(&disk.sim.crash_image(crash), 0), Some(3), "{crash:?}");
    }
    assert_eq!(block_of(&disk.sim.crash_image(Crash::LoseAll), 1), Some(0));
}

#[test]
fn without_a_cache_completed_writes_survive() {
    let disk = Disk::new(SimOptions::new(SIZE).cache(WriteCache::None));
    disk.fill(0, 1);
    assert_eq!(disk.sim.unstable_writes(), 0);
    assert_eq!(block_of(&disk.sim.crash_image(Crash::LoseAll), 0), Some(1));
}

#[test]
fn no_later_flush_saves_writes_of_a_failed_flush() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    disk.sim.fail_nth(Op::Flush, 1, Errno::IO);
    assert_eq!(disk.run(disk.flush()), Err(Errno::IO));
    disk.fill(1, 2);
    assert_eq!(disk.run(disk.flush()), Ok(0));
    let found = disk.sim.crash_image(Crash::LoseAll);
    assert_eq!((block_of(&found, 0), block_of(&found, 1)), (Some(0), Some(2)));
    assert_eq!(block_of(&disk.sim.crash_image(Crash::KeepAll), 0), Some(1));
    // Written and flushed again the block is safe, and the lost copy does not overwrite it.
    disk.fill(0, 3);
    disk.run(disk.flush()).unwrap();
    for crash in [Crash::LoseAll, Crash::KeepAll] {
        assert_eq!(block_of(&disk.sim.crash_image(crash), 0), Some(3));
    }
}

#[test]
fn a_failed_write_may_or_may_not_survive() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.sim.fail_nth(Op::Write, 1, Errno::IO);
    assert_eq!(disk.run(disk.write(0, 1)), Err(Errno::IO));
    disk.run(disk.flush()).unwrap();
    assert_eq!(block_of(&disk.sim.crash_image(Crash::LoseAll), 0), Some(0));
    assert_eq!(block_of(&disk.sim.crash_image(Crash::KeepAll), 0), Some(1));
}

#[test]
fn a_discard_or_zeroing_can_be_lost_like_a_write() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    disk.fill(1, 1);
    disk.run(disk.flush()).unwrap();
    disk.run(disk.request(Op::Discard, 0, Payload::Length(BLOCK))).unwrap();
    disk.run(disk.request(Op::WriteZeroes, BLOCK, Payload::Length(BLOCK))).unwrap();
    let found: Vec<_> = (0..4)
        .map(|bits| disk.sim.crash_image(Crash::Subset(bits)))
        .map(|sim| (block_of(&sim, 0).unwrap(), block_of(&sim, 1).unwrap()))
        .collect();
    assert_eq!(found, [(1, 1), (0, 1), (1, 0), (0, 0)]);
}

#[test]
fn a_flush_does_not_cover_writes_in_flight_when_it_began() {
    let clock = VirtualClock::default();
    let micro = Duration::from_micros(100);
    let options = SimOptions::new(SIZE).latency(micro..=micro).units(1);
    let disk = Disk::new(options.clock(Clock::Virtual(clock.clone())));
    let mut queue = disk.sim.own_queue(8).unwrap();
    queue.push(disk.write(0, 1)).unwrap();
    queue.push(disk.flush()).unwrap();
    queue.submit().unwrap();
    assert_eq!(disk.sim.unstable_writes(), 1, "in flight");
    let mut ended = Vec::new();
    while let Ready::At(time) = queue.ready() {
        clock.advance_to(time);
        ended.push(queue.reap().expect("it is time").request.op);
    }
    assert_eq!(ended, [Op::Write, Op::Flush]);
    assert_eq!(block_of(&disk.sim.crash_image(Crash::LoseAll), 0), Some(0));
    assert_eq!(disk.sim.unstable_writes(), 1, "completed, in the cache");
}

#[test]
fn crashes_can_be_nested_three_deep() {
    let mut disk = Disk::new(SimOptions::new(SIZE));
    for depth in 0..3 {
        disk.fill(depth, 1 + depth as u8);
        disk.run(disk.flush()).unwrap();
        disk.fill(8 + depth, 9);
        disk = Disk::of(disk.sim.crash_image(Crash::LoseAll));
        assert!(disk.sim.record().is_empty());
    }
    for block in 0..3 {
        assert_eq!(block_of(&disk.sim, block), Some(1 + block as u8));
        assert_eq!(block_of(&disk.sim, 8 + block), Some(0));
    }
}

#[test]
fn a_crash_image_and_its_device_are_independent() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    let image = Disk::of(disk.sim.crash_image(Crash::KeepAll));
    image.fill(0, 2);
    disk.fill(1, 3);
    assert_eq!((block_of(&disk.sim, 0), block_of(&disk.sim, 1)), (Some(1), Some(3)));
    assert_eq!((block_of(&image.sim, 0), block_of(&image.sim, 1)), (Some(2), Some(0)));
}

#[test]
fn record_and_cache_are_bounded() {
    let disk = Disk::new(SimOptions::new(SIZE));
    for round in 0..70_000u64 {
        let payload = Payload::Buffer(Buffer::copy_of(&[1 + (round % 2) as u8; 512]));
        let address = if round == 0 { 0 } else { 512 + round % 100 * 512 };
        disk.run(disk.request(Op::Write, address, payload)).unwrap();
    }
    assert!(disk.sim.forgotten() > 0);
    assert!(disk.sim.record().len() <= 1 << 17);
    assert_eq!(disk.sim.events(), 2 * 70_000);
    assert!(disk.sim.unstable_writes() <= 1 << 16);
    let mut first = [0; 512];
    disk.sim.crash_image(Crash::LoseAll).peek(0, &mut first);
    assert_eq!(first, [1; 512]);
}

#[test]
fn events_and_cuts_count_what_the_record_has_dropped() {
    let disk = Disk::new(SimOptions::new(SIZE));
    disk.fill(0, 1);
    disk.sim.restart_record();
    let before = disk.sim.events();
    disk.fill(1, 2);
    assert_eq!((before, disk.sim.record().len(), disk.sim.events()), (2, 2, 4));
    let cuts: BTreeSet<_> =
        disk.sim.crash_images(CrashPlan::default()).map(|image| image.cut).collect();
    assert_eq!(cuts, BTreeSet::from([2, 3, 4]));
}

/// The legal bytes of each sector at one moment: an independent oracle.
#[derive(Default)]
struct Legal {
    stable: HashMap<u64, u8>,
    since: HashMap<u64, Vec<u8>>,
}

impl Legal {
    fn apply(&mut self, event: &Event, last: &mut Option<Action>) {
        match event {
            Event::Begin { action, .. } => {
                if let Action::Write { address, bytes } = action {
                    for sector in 0..bytes.len() as u64 / 512 {
                        let at = address / 512 + sector;
                        self.since.entry(at).or_default().push(bytes[sector as usize * 512]);
                    }
                }
                *last = Some(action.clone());
            }
            Event::End { .. } if matches!(last, Some(Action::Flush)) => {
                for (sector, values) in self.since.drain() {
                    self.stable.insert(sector, *values.last().unwrap());
                }
            }
            Event::End { .. } => {}
        }
    }

    fn check(&self, sim: &Sim, what: &str) {
        for sector in 0..SIZE / 512 {
            let mut bytes = [0; 512];
            sim.peek(sector * 512, &mut bytes);
            let value = bytes[0];
            assert!(bytes.iter().all(|byte| *byte == value), "{what}: torn inside {sector}");
            let stable = self.stable.get(&sector).copied().unwrap_or(0);
            let since = self.since.get(&sector).map_or(&[][..], Vec::as_slice);
            assert!(
                value == stable || since.contains(&value),
                "{what}: sector {sector} holds {value}, not {stable} or one of {since:?}"
            );
        }
    }
}

#[test]
fn every_crash_image_at_every_moment_is_legal() {
    for seed in 0..5 {
        println!("seed {seed}");
        let disk = Disk::new(SimOptions::new(SIZE).seed(seed));
        let mut random = Random(seed);
        for operation in 0..120 {
            if random.below(8) == 0 {
                disk.run(disk.flush()).unwrap();
                continue;
            }
            let sectors = 1 + random.below(16);
            let address = random.below(SIZE / 512 - sectors) * 512;
            let bytes = vec![1 + operation as u8; sectors as usize * 512];
            let payload = Payload::Buffer(Buffer::copy_of(&bytes));
            disk.run(disk.request(Op::Write, address, payload)).unwrap();
        }
        let record = disk.sim.record();
        let (mut legal, mut applied, mut last) = (Legal::default(), 0, None);
        let plan = CrashPlan { exhaustive_up_to: 3, samples: 5, seed };
        let mut images = 0;
        for image in disk.sim.crash_images(plan) {
            while applied < image.cut {
                legal.apply(&record[applied as usize], &mut last);
                applied += 1;
            }
            let what = format!("seed {seed}, cut {}, {:?}", image.cut, image.crash);
            legal.check(&image.sim, &what);
            images += 1;
        }
        assert_eq!(applied, record.len() as u64);
        assert!(images > 1000, "{images} images");
    }
}
