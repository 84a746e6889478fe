//! Every operation, awaited and by token, over every queue and back end, agrees with a vector of bytes; and no
//! switch changes a result.

use std::pin::Pin;

use uringfs_buffer::Buffer;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Errno, Payload, VirtualClock};
use uringfs_file::{File, FileOptions, Tokens, WriteLocking};
use uringfs_reactor::{CompletionMode, OpResult, Reactor, ReactorOptions, Token};

use crate::harness::loop_device::is_root;
use crate::harness::{BackEnd, Random, join_all, reap_within, scaled};

const SIZE: u64 = 4 << 20;
/// Batches of operations in one run.
const BATCHES: usize = 30;
const MAX_IN_BATCH: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Await,
    Token,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    ReadVectored,
    Write,
    WriteVectored,
    WriteDurably,
    Sync,
    Datasync,
    Discard,
    WriteZeroes,
}

const KINDS: [Kind; 9] = [
    Kind::Read,
    Kind::ReadVectored,
    Kind::Write,
    Kind::WriteVectored,
    Kind::WriteDurably,
    Kind::Sync,
    Kind::Datasync,
    Kind::Discard,
    Kind::WriteZeroes,
];

/// One operation, with memory that begins `skew` bytes after a page and is cut at `cuts`.
#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    offset: u64,
    length: u64,
    skew: usize,
    cuts: Vec<usize>,
    fill: u8,
}

impl Step {
    fn draw(random: &mut Random, fill: u8) -> Step {
        let kind = KINDS[random.below(KINDS.len() as u64) as usize];
        let unit = [1, 512, 4096][random.below(3) as usize];
        let most = match random.below(12) {
            0 => 1,
            1..=4 => 4096,
            5..=10 => 96 << 10,
            // Longer than a bounce buffer and than a simulated transfer.
            _ => 5 << 19,
        };
        let length = random.below(most / unit + 1) * unit;
        // Up to the end and beyond.
        let offset = random.below((SIZE + 8192) / unit) * unit;
        let skew = [0, 0, 512, 1, 100][random.below(5) as usize];
        let pieces = 1 + random.below(5);
        let mut cuts: Vec<_> =
            (1..pieces).map(|_| (random.below(length / unit + 1) * unit) as usize).collect();
        cuts.sort_unstable();
        Step { kind, offset, length, skew, cuts, fill }
    }

    fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::ReadVectored)
    }

    fn writes(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::WriteVectored | Kind::WriteDurably)
    }

    /// Its bytes inside the file.
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.offset.min(SIZE);
        start as usize..(start + self.length.min(SIZE - start)) as usize
    }

    fn overlaps(&self, other: &Step) -> bool {
        let (one, two) = (self.range(), other.range());
        one.start < two.end && two.start < one.end
    }

    fn byte(&self, at: usize) -> u8 {
        self.fill.wrapping_add((at / 7) as u8)
    }

    fn buffer(&self) -> Buffer {
        let mut buffer = Buffer::zeroed(self.skew + self.length as usize).split_off(self.skew);
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = if self.reads() { 0xee } else { self.byte(at) };
        }
        buffer
    }

    fn buffers(&self) -> Vec<Buffer> {
        let mut rest = self.buffer();
        let mut pieces: Vec<_> = self.cuts.iter().rev().map(|cut| rest.split_off(*cut)).collect();
        pieces.push(rest);
        pieces.reverse();
        pieces
    }
}

type Future<'a> = Pin<Box<dyn std::future::Future<Output = OpResult> + 'a>>;

/// Starts a step by token, or returns its future.
fn begin<'a>(
    start: Start,
    reactor: &Reactor,
    file: &'a File,
    step: &Step,
    token: u64,
) -> Option<Future<'a>> {
    let token = Token::new(token);
    macro_rules! by {
        ($op:expr) => {
            match start {
                Start::Await => return Some(Box::pin($op.outcome())),
                Start::Token => reactor.start($op, token).unwrap(),
            }
        };
    }
    let (offset, length) = (step.offset, step.length);
    match step.kind {
        Kind::Read if start == Start::Token => {
            reactor.read_at(file, step.buffer(), offset, token).unwrap();
        }
        Kind::Write if start == Start::Token => {
            reactor.write_at(file, step.buffer(), offset, token).unwrap();
        }
        Kind::Read => by!(file.read_at(step.buffer(), offset)),
        Kind::Write => by!(file.write_at(step.buffer(), offset)),
        Kind::ReadVectored => by!(file.read_vectored_at(step.buffers(), offset)),
        Kind::WriteVectored => by!(file.write_vectored_at(step.buffers(), offset)),
        Kind::WriteDurably => by!(file.write_durably(step.buffer(), offset)),
        Kind::Sync => by!(file.sync_all()),
        Kind::Datasync => by!(file.sync_data()),
        Kind::Discard => by!(file.discard(offset, length)),
        Kind::WriteZeroes => by!(file.write_zeroes(offset, length)),
    }
    None
}

/// Runs all steps at once and returns their results in order.
fn run_batch(
    start: Start,
    reactor: &Reactor,
    file: &File,
    steps: &[Step],
    back_end: BackEnd,
) -> Vec<(Result<u64, Errno>, Payload)> {
    let futures: Vec<_> = steps
        .iter()
        .enumerate()
        .filter_map(|(token, step)| begin(start, reactor, file, step, token as u64))
        .collect();
    if start == Start::Await {
        let outcomes = reactor.block_on(join_all(futures));
        return outcomes.into_iter().map(|outcome| (outcome.result, outcome.payload)).collect();
    }
    let mut completed = reap_within(reactor, steps.len(), back_end.timeout());
    completed.sort_by_key(|one| one.token());
    for (place, one) in completed.iter().enumerate() {
        assert_eq!(one.token(), Token::new(place as u64), "each completes once");
    }
    completed.into_iter().map(|one| (one.result(), one.into_payload())).collect()
}

/// Expected content of a file; unknown where bytes were discarded, or if the device moves none.
struct Model {
    bytes: Vec<Option<u8>>,
    block: usize,
    moves: bool,
}

impl Model {
    fn new(file: &File, back_end: BackEnd) -> Model {
        let moves = back_end != BackEnd::Null;
        Model {
            bytes: vec![moves.then_some(0); SIZE as usize],
            block: file.geometry().block_size as usize,
            moves,
        }
    }

    fn expected(&self, step: &Step, file: &File) -> Result<u64, Errno> {
        match step.kind {
            _ if step.reads() => Ok(step.range().len() as u64),
            _ if step.writes() && step.length > 0 && step.offset >= SIZE => Err(Errno::NOSPC),
            _ if step.writes() => Ok(step.range().len() as u64),
            Kind::Discard if file.geometry().discard.is_none() => Err(Errno::OPNOTSUPP),
            Kind::Discard | Kind::WriteZeroes => Ok(step.length),
            _ => Ok(0),
        }
    }

    fn check(&self, step: &Step, payload: &Payload, what: &str) {
        let pieces: Vec<&Buffer> = match payload {
            Payload::Buffer(buffer) => vec![buffer],
            Payload::Buffers(buffers) => buffers.iter().collect(),
            Payload::Length(_) => Vec::new(),
        };
        let moved = step.reads() || step.writes();
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert_eq!(length as u64, if moved { step.length } else { 0 }, "{what}: memory comes back");
        if !step.reads() {
            let bytes = pieces.iter().flat_map(|piece| piece.iter()).enumerate();
            for (at, found) in bytes {
                assert_eq!(*found, step.byte(at), "{what}: a write changes no memory");
            }
            return;
        }
        let range = step.range();
        let found = pieces.iter().flat_map(|piece| piece.iter()).enumerate();
        for (at, found) in found {
            match self.bytes.get(range.start + at).filter(|_| at < range.len()) {
                Some(Some(expected)) => assert_eq!(found, expected, "{what}: byte {at}"),
                Some(None) => {}
                None => assert_eq!(*found, 0xee, "{what}: byte {at} is beyond the end"),
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        let range = step.range();
        if !self.moves {
            return;
        }
        match step.kind {
            Kind::WriteZeroes => self.bytes[range].fill(Some(0)),
            Kind::Discard => {
                let start = range.start.next_multiple_of(self.block);
                let end = range.end / self.block * self.block;
                if start < end {
                    self.bytes[start..end].fill(None);
                }
            }
            _ if step.writes() => {
                for (at, byte) in self.bytes[range].iter_mut().enumerate() {
                    *byte = Some(step.byte(at));
                }
            }
            _ => {}
        }
    }
}

/// The outcome of a run: every result, and the known content.
#[derive(PartialEq)]
struct Ended {
    results: Vec<Result<u64, Errno>>,
    known: Vec<Option<u8>>,
}

fn run(
    start: Start,
    reactor: &Reactor,
    file: &File,
    back_end: BackEnd,
    seed: u64,
    name: &str,
) -> Ended {
    println!("{name}: seed {seed}");
    let mut random = Random(seed);
    let mut model = Model::new(file, back_end);
    let mut results = Vec::new();
    for number in 0..scaled(BATCHES) {
        let mut steps: Vec<Step> = Vec::new();
        for _ in 0..1 + random.below(MAX_IN_BATCH) {
            let step = Step::draw(&mut random, number as u8);
            if !steps.iter().any(|other| other.overlaps(&step)) {
                steps.push(step);
            }
        }
        let ended = run_batch(start, reactor, file, &steps, back_end);
        for (step, (result, payload)) in steps.iter().zip(ended) {
            let what = format!("{name}, seed {seed}, batch {number}, {step:?}");
            assert_eq!(result, model.expected(step, file), "{what}");
            model.check(step, &payload, &what);
            results.push(result);
        }
        steps.iter().for_each(|step| model.apply(step));
    }
    let whole =
        Step { kind: Kind::Read, offset: 0, length: SIZE, skew: 0, cuts: Vec::new(), fill: 0 };
    let whole_file = std::slice::from_ref(&whole);
    for (result, payload) in run_batch(start, reactor, file, whole_file, back_end) {
        assert_eq!(result, Ok(SIZE), "{name}, seed {seed}");
        model.check(&whole, &payload, &format!("{name}, seed {seed}, at the end"));
    }
    Ended { results, known: model.bytes }
}

/// True if a queue serves a back end; the others refuse it.
fn serves(queue: QueueKind, back_end: BackEnd) -> bool {
    match back_end {
        BackEnd::Image | BackEnd::Block => true,
        BackEnd::Memory => !matches!(queue, QueueKind::Ring | QueueKind::Aio),
        BackEnd::Null => queue != QueueKind::Aio,
        // They have a queue of their own, whatever is requested.
        BackEnd::Sim | BackEnd::SlowSim | BackEnd::ShakySim => true,
    }
}

fn back_ends() -> Vec<BackEnd> {
    let mut all = vec![
        BackEnd::Image,
        BackEnd::Memory,
        BackEnd::Null,
        BackEnd::Sim,
        BackEnd::SlowSim,
        BackEnd::ShakySim,
    ];
    if is_root() {
        all.push(BackEnd::Block);
    } else {
        println!("no block devices: only the superuser can make loop devices");
    }
    all
}

fn every_queue_agrees(start: Start, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    for back_end in back_ends() {
        let mut first: Option<Ended> = None;
        for queue in QueueKind::ALL {
            let clock = VirtualClock::default();
            let made = back_end.make(folder.path(), SIZE, &clock);
            let file = File::from_device(made.device.clone(), FileOptions::default());
            let clock = back_end.clock(&clock);
            let options = ReactorOptions::new().queue(queue).clock(clock);
            let reactor = Reactor::new(options).unwrap();
            let name = format!("{start:?}, {queue} on {back_end:?}");
            if !serves(queue, back_end) {
                let refused = reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(0));
                assert_eq!(refused.unwrap_err().payload.length(), 4096, "{name}");
                let why = reactor.queue_of(file.device()).unwrap_err().to_string();
                assert!(!why.is_empty() && !why.contains('\n'), "{name}: {why}");
                continue;
            }
            let ended = run(start, &reactor, &file, back_end, seed, &name);
            let first = first.get_or_insert_with(|| Ended {
                results: ended.results.clone(),
                known: ended.known.clone(),
            });
            assert!(*first == ended, "{name}, seed {seed}: other results than the first queue");
        }
    }
}

#[test]
fn awaited_operations_agree_with_the_model_on_every_queue_and_back_end() {
    every_queue_agrees(Start::Await, 11);
}

#[test]
fn operations_by_token_agree_with_the_model_on_every_queue_and_back_end() {
    every_queue_agrees(Start::Token, 12);
}

#[test]
fn no_switch_changes_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let seed = 13;
    let usual = || (ReactorOptions::default(), FileOptions::default());
    let (mut worker, mut plain_files, mut plain_buffers, mut general, mut shallow, mut locked) =
        (usual(), usual(), usual(), usual(), usual(), usual());
    worker.0.completion = CompletionMode::Worker;
    plain_files.0.fixed_files = false;
    plain_buffers.0.fixed_buffers = false;
    general.1.simple_read = false;
    shallow.0.depth = MAX_IN_BATCH as u32;
    locked.1.write_lock = WriteLocking::Exclusive;
    let sides = [usual(), worker, plain_files, plain_buffers, general, shallow, locked];
    for back_end in back_ends() {
        for start in [Start::Await, Start::Token] {
            let mut first: Option<Ended> = None;
            for (place, (options, switches)) in sides.iter().enumerate() {
                let clock = VirtualClock::default();
                let made = back_end.make(folder.path(), SIZE, &clock);
                let mut options = options.clone();
                options.clock = back_end.clock(&clock);
                let reactor = Reactor::new(options).unwrap();
                let file = File::from_device(made.device.clone(), *switches);
                let name = format!("{start:?} on {back_end:?}, side {place}");
                let ended = run(start, &reactor, &file, back_end, seed, &name);
                match &first {
                    None => first = Some(ended),
                    Some(first) => assert!(*first == ended, "{name}, seed {seed}"),
                }
            }
        }
    }
}

#[test]
fn an_image_of_odd_length_keeps_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd");
    const ODD: u64 = (64 << 10) + 100;
    for queue in QueueKind::ALL {
        std::fs::write(&path, vec![1; ODD as usize]).unwrap();
        let file = File::open(&path, uringfs_device::Access::ReadWrite).unwrap();
        assert_eq!(file.len(), ODD);
        let options = ReactorOptions::new().queue(queue);
        let reactor = Reactor::new(options).unwrap();
        reactor.block_on(async {
            // Whole blocks up to the end, then a part of the last, then zeros across the end.
            let (written, _) = file.write_at(Buffer::copy_of(&[2; 8192]), ODD - 4196).await;
            assert_eq!(written, Ok(4196), "{queue}");
            let (written, _) = file.write_at(Buffer::copy_of(&[3; 10]), ODD - 50).await;
            assert_eq!(written, Ok(10), "{queue}");
            assert_eq!(file.write_zeroes(ODD - 20, 100).await, Ok(()), "{queue}");
            let (read, tail) = file.read_at(Buffer::copy_of(&[9; 4096]), ODD - 4200).await;
            assert_eq!(read, Ok(4096), "{queue}");
            assert_eq!((&tail[..4], &tail[4..]), (&[1; 4][..], &[2; 4092][..]), "{queue}");
            let (read, tail) = file.read_at(Buffer::copy_of(&[9; 200]), ODD - 100).await;
            assert_eq!(read, Ok(100), "{queue}");
            let expected = [&[2; 50][..], &[3; 10], &[2; 20], &[0; 20], &[9; 100]].concat();
            assert_eq!(tail[..], expected, "{queue}");
        });
        drop(reactor);
        let length = std::fs::metadata(&path).unwrap().len();
        assert_eq!(length, ODD, "{queue}: the image has grown");
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found[ODD as usize - 20..], [0; 20], "{queue}");
    }
}
