//! A device compared with a vector of bytes, by random operations.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_device::{Op, Payload};

use super::{Random, TestQueue};

/// The size of the device, in bytes.
pub const SIZE: u64 = 2 << 20;
/// The most requests in flight.
pub const DEPTH: usize = 8;
const OPERATIONS: usize = 400;

/// The expected content of the device; `None` for discarded bytes, which are undefined.
pub struct Model {
    pub bytes: Vec<Option<u8>>,
}

impl Model {
    fn check(&self, found: &[u8], range: Range<usize>, what: &str) {
        for (at, (found, expected)) in found.iter().zip(&self.bytes[range.clone()]).enumerate() {
            if let Some(expected) = expected {
                assert_eq!(found, expected, "{what}: byte {}", range.start + at);
            }
        }
    }
}

/// `bytes` as one buffer, or split into several at multiples of `unit`.
fn payload(bytes: &[u8], unit: u64, random: &mut Random) -> Payload {
    let units = bytes.len() as u64 / unit;
    let mut rest = Buffer::copy_of(bytes);
    if random.below(2) == 0 {
        return Payload::Buffer(rest);
    }
    let mut pieces = Vec::new();
    let mut left = units;
    while left > 1 && pieces.len() < 6 {
        let head = 1 + random.below(left - 1);
        let tail = rest.split_off((head * unit) as usize);
        pieces.push(std::mem::replace(&mut rest, tail));
        left -= head;
    }
    pieces.push(rest);
    Payload::Buffers(pieces.into())
}

fn bytes_of(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::Buffer(buffer) => buffer.to_vec(),
        Payload::Buffers(buffers) => buffers.iter().flat_map(|buffer| buffer.to_vec()).collect(),
        Payload::Length(_) => Vec::new(),
    }
}

/// Runs random operations from `seed`, with ranges in multiples of `unit` bytes,
/// several at once. Returns the expected content of the device.
pub fn run(tested: &mut TestQueue, seed: u64, unit: u64) -> Model {
    let what = format!("{}, seed {seed}, units of {unit}", tested.name);
    println!("{what}");
    let mut random = Random(seed);
    let mut model = Model { bytes: vec![Some(0); SIZE as usize] };
    let mut under_way: Vec<Range<u64>> = Vec::new();
    for operation in 0..OPERATIONS {
        let length = unit * (1 + random.below((96 << 10) / unit));
        let address = unit * random.below((SIZE - length) / unit + 1);
        let range = address..address + length;
        let overlaps = under_way.iter().any(|one| one.start < range.end && range.start < one.end);
        if overlaps || under_way.len() == DEPTH {
            settle(tested, &model, &what);
            under_way.clear();
        }
        let span = range.start as usize..range.end as usize;
        let filled: Vec<u8> =
            (0..length).map(|at| (operation as u64 * 7 + at / 512) as u8).collect();
        let (kind, durable) = (random.below(10), random.below(3) == 0);
        let mut request = match kind {
            0..=2 => {
                let payload = payload(&vec![0xee; length as usize], unit, &mut random);
                tested.request(Op::Read, address, payload, operation as u64)
            }
            3..=6 => {
                model.bytes[span]
                    .copy_from_slice(&filled.iter().copied().map(Some).collect::<Vec<_>>());
                let payload = payload(&filled, unit, &mut random);
                tested.request(Op::Write, address, payload, operation as u64)
            }
            7 => {
                model.bytes[span].fill(None);
                tested.request(Op::Discard, address, Payload::Length(length), operation as u64)
            }
            8 => {
                model.bytes[span].fill(Some(0));
                tested.request(Op::WriteZeroes, address, Payload::Length(length), operation as u64)
            }
            _ => tested.request(Op::Flush, 0, Payload::Length(0), operation as u64),
        };
        if durable && request.op == Op::Write && tested.device.geometry().durable_writes {
            request = request.durable();
        }
        under_way.push(range);
        tested.queue.push(request).expect("fewer than the depth are in flight");
        if random.below(3) == 0 {
            tested.queue.submit().unwrap();
        }
    }
    settle(tested, &model, &what);
    let found = tested.read(0, SIZE as usize);
    model.check(&found, 0..SIZE as usize, &what);
    model
}

/// Completes all requests in flight and checks the bytes of reads.
fn settle(tested: &mut TestQueue, model: &Model, what: &str) {
    for (request, result) in tested.finish() {
        assert_eq!(result, Ok(request.length()), "{what}: {request:?}");
        if request.op == Op::Read {
            let start = request.address as usize;
            let end = start + request.length() as usize;
            model.check(&bytes_of(&request.payload), start..end, what);
        }
    }
}
