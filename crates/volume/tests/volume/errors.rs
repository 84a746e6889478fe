//! Error events: each error is reported once to every listener, with its file and range, for every
//! kind of request and completion.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, FileOptions, Tokens, WriteLocking};
use uringfs_reactor::{CompletionMode, Reactor, ReactorOptions, Token};
use uringfs_volume::{
    BlockOwner, ErrorEvent, ErrorKind, EventStream, InodeNumber, OpenOptions, Volume,
};

use crate::fixture::formatted;

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

fn made() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let volume = formatted(&sim);
    (sim, volume)
}

fn reactor(completion: CompletionMode) -> Reactor {
    Reactor::new(ReactorOptions::new().completion(completion)).unwrap()
}

fn create(volume: &Volume, reactor: &Reactor, path: &str, file: FileOptions) -> File {
    let create = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .switches(file)
        .direct(true);
    let file = volume.open_with(path, create).unwrap();
    assert!(reactor.block_on(file.write_at(Buffer::zeroed(BLOCKS * BLOCK), 0)).0.is_ok());
    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
    file
}

fn taken(errors: &EventStream) -> Vec<ErrorEvent> {
    std::iter::from_fn(|| errors.try_next()).collect()
}

/// The event without its position on the device.
fn summary(event: &ErrorEvent) -> (BlockOwner, Op, u64, Errno) {
    match event {
        ErrorEvent::Request { owner: of, op, length, errno, .. } => (*of, *op, *length, *errno),
        other => panic!("{other}"),
    }
}

/// Runs something that fails once. Returns the events.
fn failing(sim: &Sim, volume: &Volume, op: Op, act: impl FnOnce()) -> Vec<ErrorEvent> {
    let errors = [volume.errors(), volume.errors()];
    sim.inject(Rule::new(op, When::Nth(1), Fault::Error(Errno::IO)));
    act();
    sim.clear_faults();
    let [one, other] = errors.map(|errors| taken(&errors));
    assert_eq!(one, other);
    one
}

#[test]
fn each_error_of_a_file_is_reported_once_with_its_range() {
    for completion in [CompletionMode::Inline, CompletionMode::Worker] {
        for write_lock in [WriteLocking::Shared, WriteLocking::Exclusive] {
            let (sim, volume) = made();
            let reactor = reactor(completion);
            let options = FileOptions::new().write_lock(write_lock);
            let others = create(&volume, &reactor, "/others", options);
            let file = create(&volume, &reactor, "/file", options);
            let inode = InodeNumber(volume.metadata("/file").unwrap().ino());
            let at = |block: usize| BlockOwner::File { inode, offset: (block * BLOCK) as u64 };
            let offset = |block: usize| (block * BLOCK) as u64;
            let length = BLOCK as u64;

            let events = failing(&sim, &volume, Op::Read, || {
                let read = file.read_at(Buffer::zeroed(BLOCK), offset(5));
                assert_eq!(reactor.block_on(read).0, Err(Errno::IO));
            });
            let expected = vec![(at(5), Op::Read, length, Errno::IO)];
            assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);
            assert!(events[0].to_string().contains("reading 4096 bytes of inode"), "{}", events[0]);

            let events = failing(&sim, &volume, Op::Read, || {
                reactor.read_at(&file, Buffer::zeroed(BLOCK), offset(6), Token::new(1)).unwrap();
                let mut completed = Vec::new();
                reactor.reap(1, None, &mut completed).unwrap();
                assert_eq!(completed[0].result(), Err(Errno::IO));
            });
            let expected = vec![(at(6), Op::Read, length, Errno::IO)];
            assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);

            let events = failing(&sim, &volume, Op::Write, || {
                let write = file.write_at(Buffer::zeroed(2 * BLOCK), offset(7));
                assert_eq!(reactor.block_on(write).0, Err(Errno::IO));
            });
            let expected = vec![(at(7), Op::Write, 2 * length, Errno::IO)];
            assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);

            // The block is read, and the write of it fails.
            let events = failing(&sim, &volume, Op::Write, || {
                let write = file.write_at(Buffer::zeroed(10), offset(9) + 100);
                assert_eq!(reactor.block_on(write).0, Err(Errno::IO));
            });
            let expected = vec![(at(9), Op::Write, length, Errno::IO)];
            assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);

            // A sync of a range does not report errors of others.
            assert!(reactor.block_on(others.read_at(Buffer::zeroed(BLOCK), 0)).0.is_ok());
            assert_eq!(taken(&volume.errors()), []);

            let events = failing(&sim, &volume, Op::Flush, || {
                assert_eq!(reactor.block_on(file.sync_data()), Err(Errno::IO));
            });
            let expected = vec![(BlockOwner::Device, Op::Flush, 0, Errno::IO)];
            assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn failed_flushes_of_a_commit_are_reported() {
    let (sim, volume) = made();
    volume.create_dir("/a").unwrap();
    let events = failing(&sim, &volume, Op::Flush, || {
        assert_eq!(volume.sync().unwrap_err().errno(), Errno::IO);
    });
    let expected = vec![(BlockOwner::Device, Op::Flush, 0, Errno::IO)];
    assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), expected);

    let (sim, volume) = made();
    volume.create_dir("/a").unwrap();
    let events = failing(&sim, &volume, Op::Write, || {
        assert_eq!(volume.sync().unwrap_err().errno(), Errno::IO);
    });
    let of: Vec<_> = events.iter().map(|event| summary(event).0).collect();
    assert_eq!(of, [BlockOwner::Catalog]);
}

#[test]
fn a_slow_listener_gets_the_last_events_and_a_count() {
    const READS: u64 = 1500;
    let (sim, volume) = made();
    let reactor = reactor(CompletionMode::Inline);
    let file = create(&volume, &reactor, "/file", FileOptions::default());
    let errors = volume.errors();
    sim.inject(Rule::new(Op::Read, When::From(1), Fault::Error(Errno::IO)));
    for read in 0..READS {
        let offset = read % BLOCKS as u64 * BLOCK as u64;
        let read = reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), offset));
        assert_eq!(read.0, Err(Errno::IO));
    }
    sim.clear_faults();
    let events = taken(&errors);
    assert_eq!(events.len() as u64 + errors.missed(), READS);
    assert!(errors.missed() > 0);
    let (BlockOwner::File { offset, .. }, ..) = summary(&events[events.len() - 1]) else {
        panic!("{:?}", events.last());
    };
    assert_eq!(offset, (READS - 1) % BLOCKS as u64 * BLOCK as u64);
    // For a removed file nothing is known.
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Error(Errno::IO)));
    assert!(reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0)).0.is_err());
    drop(file);
    volume.sync().unwrap();
    assert_eq!(summary(&errors.try_next().unwrap()).0, BlockOwner::Unknown);
}

#[test]
fn a_waiting_listener_is_woken() {
    let (sim, volume) = made();
    let reactor = reactor(CompletionMode::Inline);
    let file = create(&volume, &reactor, "/file", FileOptions::default());
    let errors = volume.errors();
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Error(Errno::IO)));
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let reactor = self::reactor(CompletionMode::Inline);
            reactor.block_on(errors.next())
        });
        assert!(reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0)).0.is_err());
        waiting.join().unwrap()
    });
    assert_eq!(summary(&waited).1, Op::Read);
}

#[test]
fn damage_found_by_an_operation_is_reported() {
    let (sim, volume) = made();
    for n in 0..200 {
        volume.create_dir(format!("/{n}")).unwrap();
    }
    drop(volume);
    // The catalog without its beginning and its end. An eighth of so small a volume lies before it.
    let device = Device::new(sim.clone()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let errors = volume.errors();
    let catalog = SIZE / 8;
    for address in (catalog + 2 * BLOCK as u64..catalog + 168 * BLOCK as u64).step_by(512) {
        for bit in 0..4 {
            sim.flip_bit(address + 100, bit);
        }
    }
    let damaged: Vec<String> = (0..200)
        .filter_map(|n| volume.metadata(format!("/{n}")).err())
        .filter(|error| error.kind() == ErrorKind::Damaged)
        .map(|error| error.message())
        .collect();
    assert!(!damaged.is_empty());
    let events = taken(&errors);
    assert_eq!(volume.recent_errors(), events[events.len().saturating_sub(64)..]);
    assert!(events.contains(&ErrorEvent::Damage(damaged[0].clone())), "{events:?}");
}

#[test]
fn data_lost_at_close_is_reported() {
    let (sim, volume) = made();
    let errors = volume.errors();
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    sim.inject(Rule::new(Op::Flush, When::Nth(1), Fault::Error(Errno::IO)));
    drop(volume);
    assert_eq!(taken(&errors).last(), Some(&ErrorEvent::Lost(Errno::IO)));
    let (_, volume) = made();
    let errors = volume.errors();
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    drop(volume);
    assert_eq!(taken(&errors), []);
}

#[test]
fn a_full_device_differs_from_a_full_volume() {
    let (sim, volume) = made();
    let reactor = reactor(CompletionMode::Inline);
    let file = create(&volume, &reactor, "/file", FileOptions::default());
    assert!(volume.shortage().to_string().starts_with("the volume is full"));
    let errors = volume.errors();
    sim.inject(Rule::new(Op::Write, When::OneIn(1), Fault::Error(Errno::NOSPC)));
    let written = reactor.block_on(file.write_at(Buffer::zeroed(BLOCK), 0)).0;
    assert_eq!(written, Err(Errno::NOSPC));
    let event = errors.try_next().expect("the error is reported");
    let full = "the device or file system below the volume is full, not the volume";
    assert!(event.is_device_full() && event.to_string().contains(full), "{event}");
    assert!(volume.shortage().to_string().contains(full));
    volume.create_dir("/d").unwrap();
    let error = volume.sync().expect_err("a full device takes no write");
    assert!(
        matches!(error.kind(), ErrorKind::Io(_)) && error.to_string().contains(full),
        "{error}"
    );
    sim.clear_faults();
    let other = failing(&sim, &volume, Op::Read, || {
        assert!(reactor.block_on(file.read_at(Buffer::zeroed(BLOCK), 0)).0.is_err());
    });
    assert!(!other[0].is_device_full());
}
