//! The NBD client when its server is killed at each message, and started again without what was in its cache.

mod harness;

use std::path::Path;
use std::sync::Arc;

use harness::TestQueue;
use harness::nbd_peer::{ALL_FLAGS, CachedDisk, Cut, Offer, Peer, cached_disk};
use uringfs_buffer::Buffer;
use uringfs_device::backend::nbd::Nbd;
use uringfs_device::{Access, Device, Errno, Op, Payload, Request, Tag};
use uringfs_nbd_protocol::handshake::export_flags;

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;
const SIZE: usize = BLOCKS * BLOCK;

/// A step of a run, which makes one request after another.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Fills blocks with a byte: the first, their number, the byte.
    Write(usize, usize, u8),
    WriteDurably(usize, u8),
    Zero(usize, usize),
    Discard(usize),
    Read,
    Flush,
}

const STEPS: [Step; 14] = [
    Step::Write(0, 4, 1),
    Step::Write(4, 4, 2),
    Step::Flush,
    Step::Write(1, 2, 3),
    Step::Read,
    Step::WriteDurably(8, 4),
    Step::Zero(4, 2),
    Step::Discard(15),
    Step::Flush,
    Step::Flush,
    Step::WriteDurably(9, 5),
    Step::Read,
    Step::Write(0, 1, 6),
    Step::Flush,
];

/// The states that blocks may have.
struct Model {
    /// The content that reads find while nothing is lost.
    current: [u8; BLOCKS],
    /// All contents since the last flush that succeeded. The content of a discarded block is anything.
    possible: Vec<Vec<u8>>,
    is_discarded: [bool; BLOCKS],
}

impl Model {
    fn new() -> Model {
        Model {
            current: [0; BLOCKS],
            possible: vec![vec![0]; BLOCKS],
            is_discarded: [false; BLOCKS],
        }
    }

    fn set(&mut self, blocks: std::ops::Range<usize>, byte: u8, result: Result<u64, Errno>) {
        for block in blocks {
            self.possible[block].push(byte);
            if result.is_ok() {
                self.current[block] = byte;
                self.is_discarded[block] = false;
            }
        }
    }

    fn settle(&mut self, block: usize) {
        self.possible[block] = vec![self.current[block]];
    }

    fn check_stable(&self, stable: &[u8], what: &str) {
        for (block, bytes) in stable.chunks_exact(BLOCK).enumerate() {
            let is_one = bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(self.is_discarded[block] || is_one, "{what}: block {block} is torn");
            assert!(
                self.is_discarded[block] || self.possible[block].contains(&bytes[0]),
                "{what}: block {block} has {}, not one of {:?}",
                bytes[0],
                self.possible[block]
            );
        }
    }
}

/// Where a step is issued.
trait Issue {
    fn issue(
        &mut self,
        step: usize,
        op: Op,
        block: usize,
        payload: Payload,
        durable: bool,
    ) -> (Request, Result<u64, Errno>);
}

/// One queue.
struct OneQueue(TestQueue);

/// Two queues in turn, and calls from no reactor.
struct ManyUsers(Vec<TestQueue>);

fn request(device: &Device, op: Op, block: usize, payload: Payload, durable: bool) -> Request {
    let request = Request::new(device.index(), op, (block * BLOCK) as u64, payload, Tag(0));
    if durable { request.durable() } else { request }
}

impl Issue for OneQueue {
    fn issue(
        &mut self,
        _: usize,
        op: Op,
        block: usize,
        payload: Payload,
        durable: bool,
    ) -> (Request, Result<u64, Errno>) {
        let request = request(&self.0.device, op, block, payload, durable);
        self.0.run(request)
    }
}

impl Issue for ManyUsers {
    fn issue(
        &mut self,
        step: usize,
        op: Op,
        block: usize,
        payload: Payload,
        durable: bool,
    ) -> (Request, Result<u64, Errno>) {
        let users = self.0.len();
        let queue = &mut self.0[step % users];
        let mut request = request(&queue.device, op, block, payload, durable);
        if step % 3 == 2 {
            let bounds = queue.device.core().bounds();
            loop {
                let moved = queue.device.core().perform(&mut request);
                if let uringfs_device::Progress::Done(result) = request.advance(moved, bounds) {
                    return (request, result);
                }
            }
        }
        queue.run(request)
    }
}

/// Runs all steps. Returns whether writes were reported as lost.
fn run(issuer: &mut impl Issue, disk: &CachedDisk, what: &str) -> bool {
    let mut model = Model::new();
    let (mut is_lost, mut has_read_old) = (false, false);
    for (number, step) in STEPS.into_iter().enumerate() {
        let what = format!("{what}, step {number} {step:?}");
        let filled = |blocks, byte| Payload::Buffer(Buffer::copy_of(&vec![byte; blocks * BLOCK]));
        let result = match step {
            Step::Write(first, blocks, byte) => {
                let payload = filled(blocks, byte);
                let (_, result) = issuer.issue(number, Op::Write, first, payload, false);
                model.set(first..first + blocks, byte, result);
                result
            }
            Step::WriteDurably(block, byte) => {
                let (_, result) = issuer.issue(number, Op::Write, block, filled(1, byte), true);
                model.set(block..block + 1, byte, result);
                if result.is_ok() {
                    model.settle(block);
                    model.check_stable(&disk.stable(), &what);
                }
                result
            }
            Step::Zero(first, blocks) => {
                let length = Payload::Length((blocks * BLOCK) as u64);
                let (_, result) = issuer.issue(number, Op::WriteZeroes, first, length, false);
                model.set(first..first + blocks, 0, result);
                result
            }
            Step::Discard(block) => {
                model.is_discarded[block] = true;
                let length = Payload::Length(BLOCK as u64);
                issuer.issue(number, Op::Discard, block, length, false).1
            }
            Step::Read => {
                let payload = Payload::Buffer(Buffer::zeroed(SIZE));
                let (request, result) = issuer.issue(number, Op::Read, 0, payload, false);
                assert_eq!(result, Ok(SIZE as u64), "{what}: reads go on");
                let Payload::Buffer(found) = &request.payload else { unreachable!() };
                for (block, bytes) in found.chunks_exact(BLOCK).enumerate() {
                    let is_current = bytes.iter().all(|byte| *byte == model.current[block]);
                    has_read_old |= !is_current && !model.is_discarded[block];
                }
                Ok(0)
            }
            Step::Flush => {
                let nothing = Payload::Length(0);
                let (_, result) = issuer.issue(number, Op::Flush, 0, nothing, false);
                if result.is_ok() {
                    assert!(!has_read_old, "{what}: reads found old bytes, and the flush succeeds");
                    (0..BLOCKS).for_each(|block| model.settle(block));
                    model.check_stable(&disk.stable(), &what);
                }
                result
            }
        };
        match result {
            Ok(_) => assert!(!is_lost || matches!(step, Step::Read), "{what}: it is sticky"),
            Err(errno) => {
                assert_eq!(errno, Errno::IO, "{what}");
                is_lost = true;
            }
        }
        model.check_stable(&disk.stable(), &what);
    }
    is_lost
}

fn open(peer: &Peer) -> Device {
    Device::new(Nbd::open(&peer.target(), Access::ReadWrite).unwrap()).unwrap()
}

fn one_queue(
    folder: &Path,
    disk: &Arc<CachedDisk>,
    offer: &Offer,
    cuts: Vec<Cut>,
    what: &str,
) -> (bool, u64) {
    let peer = cached_disk(folder, disk, offer.clone(), cuts);
    let mut issuer = OneQueue(TestQueue::own(open(&peer)));
    (run(&mut issuer, disk, what), peer.messages())
}

fn several(
    folder: &Path,
    disk: &Arc<CachedDisk>,
    offer: &Offer,
    cuts: Vec<Cut>,
    what: &str,
) -> (bool, u64) {
    let peer = cached_disk(folder, disk, offer.clone(), cuts);
    let device = open(&peer);
    let queues = (0..2).map(|_| TestQueue::own(device.clone())).collect();
    (run(&mut ManyUsers(queues), disk, what), peer.messages())
}

/// The handshake of the first connection: it cannot be cut.
const HANDSHAKE: u64 = 8;

type Run = fn(&Path, &Arc<CachedDisk>, &Offer, Vec<Cut>, &str) -> (bool, u64);

/// Cuts a run at each message. Returns the number of runs, and of those that lost writes.
fn cut_everywhere(run: Run, offer: &Offer) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let (is_lost, messages) = run(folder.path(), &CachedDisk::new(SIZE), offer, vec![], "no cut");
    assert!(!is_lost);
    let (mut runs, mut lost) = (0, 0);
    for after in HANDSHAKE..messages {
        for in_the_middle in [false, true] {
            // The second one cuts the reconnection, or what follows it.
            for second in [None, Some(after + 1 + after % 13)] {
                let cut = |after| Cut { after, in_the_middle };
                let cuts = second.into_iter().chain([after]).map(cut).collect();
                let what = format!("cut at {after}, {second:?}, in the middle: {in_the_middle}");
                let disk = CachedDisk::new(SIZE);
                lost += u64::from(run(folder.path(), &disk, offer, cuts, &what).0);
                runs += 1;
            }
        }
    }
    (runs, lost)
}

#[test]
fn a_cut_at_each_message_loses_nothing_unnoticed() {
    let mut offer = Offer::new(SIZE as u64, ALL_FLAGS);
    let (runs, lost) = cut_everywhere(one_queue, &offer);
    println!("{runs} runs, {lost} of them lost writes and said so");
    assert!(0 < lost && lost < runs);
    offer.structured = false;
    offer.block_sizes = None;
    let (runs, lost) = cut_everywhere(one_queue, &offer);
    assert!(0 < lost && lost < runs);
}

#[test]
fn a_cut_of_several_connections_loses_nothing_unnoticed() {
    for flags in [ALL_FLAGS, ALL_FLAGS | export_flags::CAN_MULTI_CONN] {
        let (runs, lost) = cut_everywhere(several, &Offer::new(SIZE as u64, flags));
        println!("flags {flags:#x}: {runs} runs, {lost} of them lost writes and said so");
        assert!(0 < lost && lost < runs);
    }
}

#[test]
fn a_cut_without_unflushed_writes_is_not_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = CachedDisk::new(SIZE);
    let peer = cached_disk(folder.path(), &disk, Offer::new(SIZE as u64, ALL_FLAGS), vec![]);
    let mut tested = TestQueue::own(open(&peer));
    let write = |tested: &TestQueue, byte| {
        let payload = Payload::Buffer(Buffer::copy_of(&[byte; BLOCK]));
        tested.request(Op::Write, 0, payload, 0)
    };
    for byte in 1..5 {
        let request = write(&tested, byte);
        assert_eq!(tested.run(request).1, Ok(BLOCK as u64));
        let flush = tested.request(Op::Flush, 0, Payload::Length(0), 0);
        assert_eq!(tested.run(flush).1, Ok(0));
        peer.cut();
        assert_eq!(tested.read(0, BLOCK), [byte; BLOCK]);
        let durable = write(&tested, byte + 100).durable();
        assert_eq!(tested.run(durable).1, Ok(BLOCK as u64));
        peer.cut();
        assert_eq!(tested.read(0, BLOCK), [byte + 100; BLOCK]);
    }
    assert!(peer.connections() > 8);
}

#[test]
fn a_flush_over_a_new_connection_does_not_cover_writes_of_a_lost_one() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ALL_FLAGS | export_flags::CAN_MULTI_CONN;
    let disk = CachedDisk::new(SIZE);
    let peer = cached_disk(folder.path(), &disk, Offer::new(SIZE as u64, flags), vec![]);
    let device = open(&peer);
    let mut first = TestQueue::own(device.clone());
    let payload = || Payload::Buffer(Buffer::copy_of(&[7; BLOCK]));
    // Until the queue uses its own connection. Then one write that only this one has acknowledged.
    let mut write = || {
        let write = first.request(Op::Write, 0, payload(), 0);
        assert_eq!(first.run(write).1, Ok(BLOCK as u64));
    };
    while disk.last_writer() == 0 {
        write();
    }
    let mut second = TestQueue::own(device.clone());
    let flush = second.request(Op::Flush, 0, Payload::Length(0), 0);
    assert_eq!(second.run(flush).1, Ok(0));
    write();
    assert_eq!(disk.last_writer(), 1);
    peer.cut();
    let mut second = TestQueue::own(device);
    let flush = second.request(Op::Flush, 0, Payload::Length(0), 0);
    assert_eq!(second.run(flush).1, Err(Errno::IO));
    let write = second.request(Op::Write, 0, payload(), 0);
    assert_eq!(second.run(write).1, Err(Errno::IO));
    assert_eq!(first.read(0, BLOCK), [7; BLOCK], "reads go on, of what was flushed");
    let reopened = open(&peer);
    let mut again = TestQueue::own(reopened);
    let flush = again.request(Op::Flush, 0, Payload::Length(0), 0);
    assert_eq!(again.run(flush).1, Ok(0));
}
