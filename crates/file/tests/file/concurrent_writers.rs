//! Several threads, each with a reactor of its own, write one file: neighbours in a block never undo each
//! other.

use std::sync::Barrier;

use uringfs_buffer::Buffer;
use uringfs_device::VirtualClock;
use uringfs_file::{File, FileOptions};
use uringfs_reactor::{Reactor, ReactorOptions};

use crate::harness::loop_device::is_root;
use crate::harness::{BackEnd, Random, scaled};

const SIZE: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn back_ends() -> Vec<BackEnd> {
    let mut all = vec![BackEnd::Image, BackEnd::Memory, BackEnd::Sim, BackEnd::ShakySim];
    if is_root() {
        all.push(BackEnd::Block);
    }
    all
}

/// The work of one thread on the file in a round, given the round's number.
type Job = Box<dyn Fn(&Reactor, &File, u8) + Send + Sync>;

fn write(offset: u64, length: usize) -> Job {
    Box::new(move |reactor: &Reactor, file: &File, round: u8| {
        let mut buffer = Buffer::zeroed(length);
        buffer.fill(round);
        let (written, _) = reactor.block_on(file.write_at(buffer, offset));
        assert_eq!(written, Ok(length));
    })
}

fn zero(offset: u64, length: u64) -> Job {
    Box::new(move |reactor: &Reactor, file: &File, _: u8| {
        assert_eq!(reactor.block_on(file.write_zeroes(offset, length)), Ok(()));
    })
}

fn discard(offset: u64, length: u64) -> Job {
    Box::new(move |reactor: &Reactor, file: &File, _: u8| {
        assert_eq!(reactor.block_on(file.discard(offset, length)), Ok(()));
    })
}

/// Runs every job at once in a thread of its own, round by round. `check` gets the first 16 KiB after each
/// round.
fn at_once(name: &str, back_end: BackEnd, jobs: Vec<Job>, check: impl Fn(&[u8], u8, &str)) {
    let folder = tempfile::tempdir().unwrap();
    let made = back_end.make(folder.path(), SIZE, &VirtualClock::default());
    let file = File::from_device(made.device.clone(), FileOptions::default());
    let rounds = scaled(150);
    let gate = Barrier::new(jobs.len() + 1);
    std::thread::scope(|scope| {
        for job in &jobs {
            let (file, gate) = (file.clone(), &gate);
            scope.spawn(move || {
                let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                for round in 0..rounds {
                    gate.wait();
                    job(&reactor, &file, (round % 250) as u8 + 1);
                    gate.wait();
                }
            });
        }
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        for round in 0..rounds {
            gate.wait();
            gate.wait();
            let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(4 * BLOCK), 0));
            assert_eq!(read, Ok(4 * BLOCK));
            let what = format!("{name} on {back_end:?}, round {round}");
            check(&found, (round % 250) as u8 + 1, &what);
        }
    });
}

fn all(bytes: &[u8], expected: &[u8], what: &str) {
    let wrong = bytes.iter().position(|byte| !expected.contains(byte));
    assert_eq!(wrong, None, "{what}: {:?} instead of {expected:?}", wrong.map(|at| bytes[at]));
}

#[test]
fn writes_to_neighbouring_bytes_all_stay() {
    for back_end in back_ends() {
        let jobs =
            vec![write(0, 100), write(100, 300), write(400, 12), write(412, 5000), write(5412, 7)];
        at_once("neighbours", back_end, jobs, |found, round, what| {
            all(&found[..5419], &[round], what);
            all(&found[5419..], &[0], what);
        });
    }
}

#[test]
fn partial_writes_undo_no_whole_block_write() {
    for back_end in back_ends() {
        // The second and third block are written as a whole, and in parts, too.
        let whole = write(BLOCK as u64, 2 * BLOCK);
        let jobs = vec![whole, write(BLOCK as u64 + 100, 50), write(2 * BLOCK as u64 - 300, 600)];
        at_once("parts and wholes", back_end, jobs, |found, round, what| {
            // Every byte is of this round, whichever writer was last.
            all(&found[BLOCK..3 * BLOCK], &[round], what);
            all(&found[..BLOCK], &[0], what);
            all(&found[3 * BLOCK..], &[0], what);
        });
    }
}

#[test]
fn adjacent_whole_and_partial_writes_all_stay() {
    for back_end in back_ends() {
        let block = BLOCK as u64;
        let jobs =
            vec![write(0, BLOCK), write(block + 1, 2 * BLOCK), write(3 * block + 1, BLOCK - 1)];
        at_once("side by side", back_end, jobs, |found, round, what| {
            all(&found[..BLOCK], &[round], what);
            all(&found[BLOCK..=BLOCK], &[0], what);
            all(&found[BLOCK + 1..], &[round], what);
        });
    }
}

#[test]
fn zeroing_and_discarding_undo_no_write() {
    for back_end in back_ends() {
        let block = BLOCK as u64;
        let jobs = vec![
            write(0, 1000),
            zero(1000, block),
            write(block + 1000, 1000),
            // Keeps the blocks that it covers in part.
            discard(block + 1500, block),
            write(2 * block + 1400, 200),
            zero(2 * block + 1600, 300),
            write(3 * block, BLOCK),
        ];
        at_once("zeros and discards", back_end, jobs, |found, round, what| {
            let block = BLOCK;
            all(&found[..1000], &[round], what);
            all(&found[1000..1000 + block], &[0], what);
            // Nothing is lost up to the next block of the device.
            all(&found[block + 1000..block + 1500], &[round], what);
            all(&found[2 * block + 1500..2 * block + 1600], &[round], what);
            all(&found[2 * block + 1600..2 * block + 1900], &[0], what);
            all(&found[3 * block..], &[round], what);
        });
    }
}

#[test]
fn writers_of_disjoint_bytes_undo_nothing() {
    const WRITERS: u64 = 4;
    const STRIDE: u64 = 1000;
    for back_end in back_ends() {
        let seed = 31;
        println!("{back_end:?}: seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let made = back_end.make(folder.path(), SIZE, &VirtualClock::default());
        let file = File::from_device(made.device.clone(), FileOptions::default());
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let file = file.clone();
                scope.spawn(move || {
                    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                    let mut random = Random(seed + writer);
                    let mut model = vec![0; SIZE as usize];
                    let places = SIZE / (WRITERS * STRIDE);
                    for round in 0..scaled(300) {
                        let place = random.below(places) * WRITERS * STRIDE + writer * STRIDE;
                        let skip = random.below(STRIDE);
                        let length = (1 + random.below(STRIDE - skip)) as usize;
                        let at = (place + skip) as usize;
                        if random.below(3) > 0 {
                            let byte = (round as u8) | 1;
                            let mut buffer = Buffer::zeroed(length);
                            buffer.fill(byte);
                            let op = file.write_at(buffer, at as u64);
                            assert_eq!(reactor.block_on(op).0, Ok(length));
                            model[at..at + length].fill(byte);
                        } else {
                            let op = file.read_at(Buffer::zeroed(length), at as u64);
                            let (read, found) = reactor.block_on(op);
                            assert_eq!(read, Ok(length));
                            assert!(found[..] == model[at..at + length], "{back_end:?} at {at}");
                        }
                    }
                });
            }
        });
    }
}
