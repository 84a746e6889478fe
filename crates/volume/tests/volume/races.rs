//! Several reactors on one file at once. A seed draws which reactor runs next, how long each
//! request takes, and what each does; the device is nearly full. Every read, then and at the end,
//! must be explained by some order of the operations in which each takes effect between its begin
//! and its end.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::time::{Duration, Instant};

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Recording, Sim, SimOptions};
use uringfs_device::{Clock, Device, Errno, VirtualClock};
use uringfs_file::{FallocateSize, File, Tokens};
use uringfs_reactor::{Completion, Reactor, ReactorOptions, Token};
use uringfs_volume::{CheckOptions, FormatOptions, OpenOptions, Volume};

use crate::fixture::create;
use crate::random::{Random, scaled};

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
/// The longest file, in sectors.
const MAX_SECTORS: u64 = 48 * BLOCK / SECTOR;
/// Bytes left free for the files of the race, so that their blocks are reused often.
const ROOM: u64 = 112 * BLOCK;
const REACTORS: u64 = 3;
const OPERATIONS: usize = 160;
const MAX_IN_FLIGHT: usize = 24;
/// A longer race hangs.
const RACE_TIMEOUT: Duration = Duration::from_secs(60);

/// Sectors of a file. Removed files keep their number.
#[derive(Clone, Debug)]
struct Place {
    file: usize,
    sectors: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    WriteAtomic,
    SetSize,
    PunchHole,
    ZeroRange,
    Sync,
    Datasync,
}

/// An operation, with its begin and end, counted in events.
#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    place: Place,
    begun: u64,
    /// `None` while it is in flight, and forever if it failed: it may have taken effect in part.
    ended: Option<u64>,
}

impl Operation {
    /// Whether it leaves `value` in a sector that it changes. 0 stands for zeros.
    fn leaves(&self, number: usize, value: u32) -> bool {
        match self.kind {
            Kind::Write | Kind::WriteAtomic => value == number as u32,
            _ => value == 0,
        }
    }

    fn changes(&self, file: usize, sector: u64) -> bool {
        let changes = !matches!(self.kind, Kind::Read | Kind::Sync | Kind::Datasync);
        changes && self.place.file == file && self.place.sectors.contains(&sector)
    }
}

/// All operations in the order of their begin. Each writes its number, from 1, everywhere.
#[derive(Default)]
struct History {
    operations: Vec<Operation>,
    now: u64,
}

impl History {
    /// A new file: all zeros.
    fn make(&mut self, file: usize) {
        let number = self.begin(Kind::SetSize, Place { file, sectors: 0..u64::MAX });
        self.end(number);
    }

    fn begin(&mut self, kind: Kind, place: Place) -> usize {
        self.now += 1;
        self.operations.push(Operation { kind, place, begun: self.now, ended: None });
        self.operations.len() - 1
    }

    fn end(&mut self, number: usize) {
        self.now += 1;
        self.operations[number].ended = Some(self.now);
    }

    /// Whether a read may find `value` in a sector. A change must have left the value that began
    /// before the read ended. No other change may have come certainly after it and certainly before
    /// the read.
    fn explains(&self, file: usize, sector: u64, value: u32, read: Range<u64>) -> bool {
        let changes =
            || self.operations.iter().enumerate().filter(|(_, one)| one.changes(file, sector));
        let before = |end: Option<u64>, begun: u64| end.is_some_and(|end| end < begun);
        changes().filter(|(number, one)| one.leaves(*number, value)).any(|(_, one)| {
            let is_hidden = |other: &Operation| {
                before(one.ended, other.begun) && before(other.ended, read.start)
            };
            one.begun < read.end && !changes().any(|(_, other)| is_hidden(other))
        })
    }

    /// Checks the sectors of a read. Bytes past the end of the file count as zeros.
    fn check(&self, place: &Place, bytes: &[u8], read: Range<u64>, what: &str) {
        for sector in place.sectors.clone() {
            let at = ((sector - place.sectors.start) * SECTOR) as usize;
            let found = bytes.get(at..bytes.len().min(at + SECTOR as usize)).unwrap_or_default();
            let mut words =
                found.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
            let value = words.next().unwrap_or(0);
            let is_one = words.all(|word| word == value);
            assert!(is_one, "{what}: sector {sector} of {} holds several values", place.file);
            assert!(
                self.explains(place.file, sector, value, read.clone()),
                "{what}: sector {sector} of {} has {value}: {:?}, {:?}",
                place.file,
                self.operations[value as usize],
                self.operations
                    .iter()
                    .enumerate()
                    .filter(|(_, one)| one.changes(place.file, sector))
                    .collect::<Vec<_>>(),
            );
        }
    }
}

/// Draws some sectors, of whole blocks half of the time.
fn draw(random: &mut Random, file: usize, is_whole: bool) -> Place {
    let unit = if is_whole { BLOCK / SECTOR } else { 1 };
    let start = random.below(MAX_SECTORS / unit) * unit;
    let most = (MAX_SECTORS - start) / unit;
    let count = 1 + random.below(most.min(if is_whole { 6 } else { 20 }));
    Place { file, sectors: start..start + count * unit }
}

struct Race {
    volume: Volume,
    /// A failing test does not drop them, since each would wait for the others.
    reactors: ManuallyDrop<Vec<Reactor>>,
    files: [File; 2],
    /// The number of the second file.
    second: usize,
    history: History,
    in_flight: usize,
    /// A reactor that does not run before a number of commits, or of steps.
    stopped: Option<(usize, u64, u64)>,
    random: Random,
    what: String,
}

impl Race {
    /// Draws an operation and begins it on one of the reactors.
    fn begin(&mut self) {
        let random = &mut self.random;
        let of_second = random.below(4) == 0;
        let is_whole = random.below(2) == 0;
        let mut place = draw(random, if of_second { self.second } else { 0 }, is_whole);
        let kind = match random.below(20) {
            0..6 => Kind::Read,
            6..13 => Kind::Write,
            13 if is_whole => Kind::WriteAtomic,
            13 | 14 => Kind::SetSize,
            15 => Kind::PunchHole,
            16 => Kind::ZeroRange,
            17 => Kind::Sync,
            18 => Kind::Datasync,
            _ => return self.replace(),
        };
        if kind == Kind::SetSize {
            place.sectors.end = u64::MAX;
        }
        let reactor = &self.reactors[random.below(REACTORS) as usize];
        let number = self.history.begin(kind, place.clone());
        let (offset, token) = (place.sectors.start * SECTOR, Token::new(number as u64));
        let length = (place.sectors.end - place.sectors.start).saturating_mul(SECTOR);
        let file = &self.files[usize::from(of_second)];
        let bytes = || {
            let words = (number as u32).to_le_bytes();
            Buffer::copy_of(&words.repeat(length as usize / words.len()))
        };
        let begun = match kind {
            Kind::Read => {
                reactor.read_at(file, Buffer::zeroed(length as usize), offset, token).map_err(drop)
            }
            Kind::Write => reactor.write_at(file, bytes(), offset, token).map_err(drop),
            Kind::WriteAtomic => {
                reactor.start(file.write_atomic(bytes(), offset), token).map_err(drop)
            }
            Kind::SetSize => reactor.start(file.set_len(offset), token).map_err(drop),
            Kind::PunchHole => reactor.start(file.punch_hole(offset, length), token).map_err(drop),
            Kind::ZeroRange => reactor
                .start(file.zero_range(offset, length, FallocateSize::Extend), token)
                .map_err(drop),
            Kind::Sync => reactor.start(file.sync_all(), token).map_err(drop),
            Kind::Datasync => reactor.start(file.sync_data(), token).map_err(drop),
        };
        assert!(begun.is_ok(), "{}: {kind:?} was refused", self.what);
        self.in_flight += 1;
    }

    /// Removes the second file while it is in use, and makes another.
    fn replace(&mut self) {
        self.volume.remove_file("/b").unwrap();
        self.second += 1;
        self.history.make(self.second);
        self.files[1] = create(&self.volume, "/b");
    }

    /// Runs one of the reactors, unless it is stopped.
    fn turn(&mut self) {
        let reactor = self.random.below(REACTORS) as usize;
        let commits = self.volume.statistics().commits;
        match &mut self.stopped {
            Some((_, until, steps)) if commits < *until && *steps > 0 => *steps -= 1,
            stopped => *stopped = None,
        }
        match self.stopped {
            Some((stopped, ..)) if stopped == reactor => return,
            None if self.random.below(100) == 0 => {
                self.stopped = Some((reactor, commits + 2, 2000))
            }
            _ => {}
        }
        let mut completed = Vec::new();
        self.reactors[reactor].turn().unwrap();
        self.reactors[reactor].reap(0, None, &mut completed).unwrap();
        for one in completed {
            self.in_flight -= 1;
            self.ended(one);
        }
    }

    fn ended(&mut self, completed: Completion) {
        let number = completed.token().get() as usize;
        let result = completed.result();
        let operation = self.history.operations[number].clone();
        let what = format!("{}: {operation:?}", self.what);
        match result {
            // All free blocks may be waiting for a read to end.
            Err(error) => assert!(
                error == Errno::NOSPC
                    && !matches!(operation.kind, Kind::Read | Kind::Sync | Kind::Datasync),
                "{what}: {error}"
            ),
            Ok(done) => {
                self.history.end(number);
                let length = (operation.place.sectors.end - operation.place.sectors.start)
                    .saturating_mul(SECTOR);
                match operation.kind {
                    Kind::Read => {
                        let read = operation.begun..self.history.now;
                        let bytes = completed.into_buffer();
                        self.history.check(&operation.place, &bytes[..done as usize], read, &what);
                    }
                    Kind::Write | Kind::WriteAtomic => assert_eq!(done, length, "{what}"),
                    _ => {}
                }
            }
        }
    }

    /// Closes everything. Returns the history and the number of the second file.
    fn end(self) -> (History, usize) {
        drop(ManuallyDrop::into_inner(self.reactors));
        (self.history, self.second)
    }
}

/// Reads both files completely, with nothing in flight.
fn check_all(volume: &Volume, reactor: &Reactor, (history, second): (&History, usize), what: &str) {
    for (number, path) in [(0, "/a"), (second, "/b")] {
        let file =
            volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)).unwrap();
        let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
        assert_eq!(read, Ok(bytes.len()), "{what}");
        let place = Place { file: number, sectors: 0..MAX_SECTORS };
        let after = history.now + 1..history.now + 2;
        history.check(&place, &bytes, after, what);
    }
}

fn race(seed: u64) {
    let clock = VirtualClock::default();
    let latency = Duration::from_micros(10)..=Duration::from_micros(500);
    let sim =
        SimOptions::new(16 << 20).seed(seed).block_size(BLOCK as u32).units(8).latency(latency);
    let sim = Sim::new(sim.clock(Clock::Virtual(clock.clone())).recording(Recording::Off));
    let device = Device::new(sim).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device.clone()).unwrap();
    let options = ReactorOptions::new().clock(Clock::Virtual(clock.clone()));
    let reactor = || Reactor::new(options.clone()).unwrap();
    let last = reactor();
    let filler = create(&volume, "/filler");
    let free = volume.statistics().free_blocks * BLOCK - ROOM;
    assert_eq!(last.block_on(filler.allocate(0, free, FallocateSize::Extend)), Ok(()));
    let files = ["/a", "/b"].map(|path| create(&volume, path));
    volume.sync().unwrap();
    let mut race = Race {
        reactors: ManuallyDrop::new((0..REACTORS).map(|_| reactor()).collect()),
        files,
        second: 1,
        volume: volume.clone(),
        history: History::default(),
        in_flight: 0,
        stopped: None,
        random: Random(seed),
        what: format!("seed {seed}"),
    };
    [0, 1].into_iter().for_each(|file| race.history.make(file));
    let mut left = OPERATIONS;
    let begun = Instant::now();
    while left > 0 || race.in_flight > 0 {
        assert!(
            begun.elapsed() < RACE_TIMEOUT,
            "seed {seed}: {} operations never end",
            race.in_flight
        );
        match race.random.below(4) {
            0 if left > 0 && race.in_flight < MAX_IN_FLIGHT => {
                left -= 1;
                race.begin();
            }
            1 => {
                let time = Duration::from_micros(race.random.below(300));
                clock.advance_to(options.clock.now() + time);
            }
            _ => race.turn(),
        }
    }
    let (history, second) = race.end();
    check_all(&volume, &last, (&history, second), &format!("seed {seed}, at the end"));
    // The device holds the same.
    drop((volume, filler));
    let deep = CheckOptions::new().deep(true);
    let report = Volume::check(&device, deep, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, [], "seed {seed}");
    let volume = Volume::open_on(device).unwrap();
    check_all(&volume, &last, (&history, second), &format!("seed {seed}, reopened"));
}

#[test]
fn every_read_is_explained_by_some_order_of_operations() {
    (0..scaled(150) as u64).for_each(race);
}
