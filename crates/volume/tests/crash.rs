//! Power cuts: every operation alone and every pair of a small alphabet, cut at every write, with
//! unflushed writes kept, lost, torn and reordered. What is found is opened by the production open
//! and compared in full with what a model says it may be.

mod drive;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{CrashPlan, Promises, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{Ask, File, Size};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    CheckOptions, FileKind, Follow, FormatOptions, Inode, OpenOptions, Rename, SetXattr, Volume,
    VolumeOptions,
};

const SIZE: u64 = 16 << 20;
/// Pairs of operations that are usual; four times as many are all.
const PAIRS: usize = 100;

/// A volume's whole content: paths, and the bytes of files, where a symbolic link leads, and of
/// directories nothing; and behind each path what else is known of it.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// What can be done to a few names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Append,
    WriteOther,
    WriteAtomic,
    Rename,
    Exchange,
    Link,
    Remove,
    MakeDirectory,
    MoveIntoDirectory,
    Symlink,
    Truncate,
    Cut,
    Lengthen,
    Allocate,
    PunchBlocks,
    PunchPart,
    Zero,
    Chown,
    SetXattr,
    RemoveXattr,
}

const ALPHABET: [Operation; 21] = [
    Operation::Write,
    Operation::Append,
    Operation::WriteOther,
    Operation::WriteAtomic,
    Operation::Rename,
    Operation::Exchange,
    Operation::Link,
    Operation::Remove,
    Operation::MakeDirectory,
    Operation::MoveIntoDirectory,
    Operation::Symlink,
    Operation::Truncate,
    Operation::Cut,
    Operation::Lengthen,
    Operation::Allocate,
    Operation::PunchBlocks,
    Operation::PunchPart,
    Operation::Zero,
    Operation::Chown,
    Operation::SetXattr,
    Operation::RemoveXattr,
];

/// Which bytes of a file an operation writes over where they lie.
fn in_place(operation: Operation) -> Option<Range<usize>> {
    match operation {
        Operation::Write | Operation::WriteOther | Operation::PunchPart => Some(0..usize::MAX),
        // What it covers of the last block; the whole block before becomes unwritten with a commit.
        Operation::Zero => Some(8192..9096),
        _ => None,
    }
}

/// Does it; what is refused changes nothing, which the tree read back shows.
fn perform(volume: &Volume, reactor: &Reactor, operation: Operation) {
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let write = |path: &str, byte: u8, length: usize, at_end: bool| {
        let file = volume.open(path, create).unwrap();
        let offset = if at_end { file.size() } else { 0 };
        let (_, written) =
            reactor.block_on(file.write(Buffer::copy_of(&vec![byte; length]), offset));
        assert_eq!(written, Ok(length));
    };
    let change = |how: fn(&File) -> Ask<Result<(), Errno>>| {
        if let Ok(file) = volume.open("/a", OpenOptions::default()) {
            assert_eq!(reactor.block_on(how(&file)), Ok(()));
        }
    };
    let refused = match operation {
        Operation::Write => return write("/a", 1, 5000, false),
        Operation::Append => return write("/a", 2, 3000, true),
        Operation::WriteOther => return write("/b", 3, 9000, false),
        Operation::WriteAtomic => {
            let file = volume.open("/a", create).unwrap();
            let bytes = Buffer::copy_of(&[4; 8192]);
            return assert_eq!(reactor.block_on(file.write_atomic(bytes, 4096)).1, Ok(8192));
        }
        Operation::Rename => volume.rename("/a", "/b", Rename::Replace),
        Operation::Exchange => volume.rename("/a", "/b", Rename::Exchange),
        Operation::Link => volume.link("/a", "/c"),
        Operation::Remove => volume.remove("/a"),
        Operation::MakeDirectory => volume.make_directory("/d", 0o700),
        Operation::MoveIntoDirectory => volume.rename("/a", "/d/a", Rename::Replace),
        Operation::Symlink => volume.make_symlink(b"a", "/s"),
        Operation::Truncate => {
            let truncate = OpenOptions { truncate: true, ..OpenOptions::default() };
            volume.open("/a", truncate).map(drop)
        }
        Operation::Chown => {
            let give = |inode: &mut Inode| inode.set_owner(Some(1000), Some(100));
            volume.set_attributes("/a", Follow::No, give)
        }
        Operation::SetXattr => {
            volume.set_xattr("/a", Follow::No, "user.x", &[7; 5000], SetXattr::Either)
        }
        Operation::RemoveXattr => volume.remove_xattr("/a", Follow::No, "user.x"),
        Operation::Cut => return change(|file| file.set_size(700)),
        Operation::Lengthen => return change(|file| file.set_size(12_000)),
        Operation::Allocate => return change(|file| file.allocate(0, 20_000, Size::Extend)),
        Operation::PunchBlocks => return change(|file| file.punch_hole(4096, 8192)),
        Operation::PunchPart => return change(|file| file.punch_hole(100, 5500)),
        Operation::Zero => return change(|file| file.zero_range(4096, 5000, Size::Extend)),
    };
    let _ = refused;
}

fn tree(volume: &Volume, reactor: &Reactor) -> Tree {
    let mut found = Tree::new();
    walk(volume, reactor, "", &mut found);
    found
}

fn walk(volume: &Volume, reactor: &Reactor, directory: &str, found: &mut Tree) {
    let entries = volume.entries(if directory.is_empty() { "/" } else { directory }, b"").unwrap();
    for entry in entries {
        let path = format!("{directory}/{}", String::from_utf8(entry.name).unwrap());
        let (_, inode) = volume.inode(&path, Follow::No).unwrap();
        assert_eq!(inode.kind, entry.kind, "{path}");
        let content = match inode.kind {
            FileKind::Directory => {
                walk(volume, reactor, &path, found);
                None
            }
            FileKind::Symlink => Some(inode.target.to_vec()),
            _ => {
                let file = volume.open(&path, OpenOptions::default()).unwrap();
                let buffer = Buffer::zeroed(file.size() as usize);
                let (buffer, read) = reactor.block_on(file.read(buffer, 0));
                assert_eq!(read, Ok(buffer.len()), "{path}");
                Some(buffer.to_vec())
            }
        };
        let mut about =
            format!("{} {} {:o}", inode.user, inode.group, inode.permissions).into_bytes();
        for name in volume.xattrs(&path, Follow::No).unwrap() {
            about.extend(volume.xattr(&path, Follow::No, &name).unwrap());
            about.extend(name);
        }
        // No path has such an end.
        found.insert(format!("{path}//"), Some(about));
        found.insert(path, content);
    }
}

/// Whether something may be found while a state becomes the next by writing these bytes in place: in files that
/// are as long as they were each of their sectors is old or new, and all else is old.
fn is_between(found: &Tree, old: &Tree, new: &Tree, bytes: &Range<usize>) -> bool {
    let is_written = |sector: usize| sector * 512 < bytes.end && bytes.start < (sector + 1) * 512;
    let is_mixed = |(path, bytes): (&String, &Option<Vec<u8>>)| {
        let contents = (bytes, old.get(path), new.get(path));
        let (Some(found), Some(Some(old)), Some(Some(new))) = contents else {
            return Some(bytes) == contents.1;
        };
        let sectors = found.chunks(512).zip(old.chunks(512).zip(new.chunks(512)));
        found.len() == old.len()
            && found.len() <= new.len()
            && sectors.into_iter().enumerate().all(|(sector, (found, (old, new)))| {
                found == old || is_written(sector) && new.starts_with(found)
            })
    };
    found.len() == old.len() && found.iter().all(is_mixed)
}

/// Makes every file longer, by a hole: nothing that it held once comes back.
fn lengthen(volume: &Volume, reactor: &Reactor, found: &Tree) {
    for path in found.keys().filter(|path| !path.ends_with('/')) {
        // Also of what a symbolic link leads to, once more.
        let Ok(file) = volume.open(path, OpenOptions::default()) else { continue };
        let (_, inode) = volume.inode(path, Follow::No).unwrap();
        if inode.kind == FileKind::File {
            let size = file.size();
            assert_eq!(reactor.block_on(file.set_size(size + 10_000)), Ok(()));
            let (tail, read) = reactor.block_on(file.read(Buffer::zeroed(20_000), size));
            assert!(read == Ok(10_000) && tail.iter().all(|byte| *byte == 0), "{path}");
        }
    }
}

/// Runs operations with a sync after each, on blocks that held another's bytes before.
struct History {
    sim: Sim,
    /// The tree after each sync, and how many events were recorded then.
    states: Vec<(u64, Tree)>,
    /// What led from each to the next.
    operations: Vec<Operation>,
}

fn run(operations: &[Operation], promises: Promises, discard: bool, reactor: &Reactor) -> History {
    let sim = Sim::new(SimOptions::new(SIZE).promises(promises));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    {
        // Bytes that must never come to light.
        let volume = Volume::open_on(device.clone()).unwrap();
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
        let file = volume.open("/foreign", create).unwrap();
        let foreign = Buffer::copy_of(&[0xee; 1 << 20]);
        assert!(reactor.block_on(file.write(foreign, 0)).1.is_ok());
        drop(file);
        volume.remove("/foreign").unwrap();
        volume.sync().unwrap();
    }
    sim.restart_record();
    let options = VolumeOptions { discard, ..VolumeOptions::default() };
    let volume = Volume::open_with(device, &options).unwrap();
    let mut states = vec![(0, tree(&volume, reactor))];
    for operation in operations {
        perform(&volume, reactor, *operation);
        volume.sync().unwrap();
        states.push((sim.forgotten() + sim.record().len() as u64, tree(&volume, reactor)));
    }
    drop(volume);
    History { sim, states, operations: operations.to_vec() }
}

/// Opens what each power cut leaves. An error says what was found that must not be.
fn check(history: &History, plan: CrashPlan, reactor: &Reactor) -> Result<usize, String> {
    let mut images = 0;
    for image in history.sim.crash_images(plan) {
        let device = Device::new(image.sim.clone()).unwrap();
        let place = format!("cut {} {:?}", image.cut, image.crash);
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {});
        let findings = checked.map_err(|error| format!("{place}: {error}"))?.findings;
        let lines = findings.iter().map(ToString::to_string);
        // What is kept twice may be torn once.
        let is_kept_twice = |line: &String| {
            ["superblock", "catalog head"].iter().any(|kept| line.starts_with(kept))
        };
        if let Some(line) = lines.into_iter().find(|line| !is_kept_twice(line)) {
            return Err(format!("{place}: {line}"));
        }
        let volume = Volume::open_on(device).map_err(|error| format!("{place}: {error}"))?;
        let found = tree(&volume, reactor);
        let synced = history.states.iter().rposition(|(at, _)| *at <= image.cut).unwrap();
        let legal = &history.states[synced..];
        let is_torn = match legal {
            [(_, old), (_, new), ..] => in_place(history.operations[synced])
                .is_some_and(|bytes| is_between(&found, old, new, &bytes)),
            _ => false,
        };
        if !is_torn && !legal.iter().take(2).any(|(_, state)| *state == found) {
            let paths: Vec<_> =
                found.iter().map(|(path, bytes)| (path, bytes.as_ref().map(Vec::len))).collect();
            return Err(format!("{place}: after sync {synced} there is {paths:?}"));
        }
        lengthen(&volume, reactor, &found);
        // It works, too, and what is made of it is kept.
        volume.make_directory("/after", 0o700).map_err(|error| format!("{place}: {error}"))?;
        volume.sync().map_err(|error| format!("{place}: {error}"))?;
        images += 1;
    }
    Ok(images)
}

#[test]
fn an_operation_is_there_in_full_or_not_at_all() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let mut images = 0;
    for operation in ALPHABET {
        let operations = [Operation::Write, operation];
        let history = run(&operations, Promises::Kept, true, &reactor);
        let plan = CrashPlan { exhaustive_up_to: 1, samples: 1, seed: 1 };
        images += check(&history, plan, &reactor).unwrap_or_else(|e| panic!("{operations:?} {e}"));
    }
    assert!(images > 500, "{images}");
}

#[test]
fn every_pair_of_operations_is_there_up_to_some_point_after_the_last_sync() {
    let count = ALPHABET.len();
    let every = (count.pow(2) / drive::volume(PAIRS)).max(1);
    // Each operation comes first as often as every other, and second.
    let pairs = (0..count).flat_map(|one| (0..count).map(move |other| (one, other)));
    let pairs = Mutex::new(pairs.filter(|(one, other)| (one + other) % every == 0));
    let work = || {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let next = || pairs.lock().unwrap().next();
        while let Some((one, other)) = next() {
            let pair = [ALPHABET[one], ALPHABET[other]];
            let operations = [Operation::Write, Operation::WriteOther, pair[0], pair[1]];
            let history = run(&operations, Promises::Kept, one % 2 == 1, &reactor);
            let seed = (one * count + other) as u64;
            let plan = CrashPlan { exhaustive_up_to: 0, samples: 1, seed };
            check(&history, plan, &reactor).unwrap_or_else(|e| panic!("{operations:?} {e}"));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn while_the_catalog_grows_no_block_is_given_to_two() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let sim = Sim::new(SimOptions::new(32 << 20));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    sim.restart_record();
    const COUNT: usize = 20_000;
    let name = |file: usize| format!("{file:0100}");
    for file in 0..COUNT {
        volume.make(name(file), Inode::new(FileKind::File, 0o600)).unwrap();
    }
    // After the large commit some small ones.
    (0..4).for_each(|_| volume.sync().unwrap());
    let (mut none, mut grown) = (0, 0);
    let images = sim.crash_images(CrashPlan { exhaustive_up_to: 0, samples: 0, seed: 7 });
    for image in images.step_by((150 / drive::volume(20)).max(1)) {
        let place = format!("cut {} {:?}", image.cut, image.crash);
        let device = Device::new(image.sim.clone()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        // Every block that counts as free gets other bytes.
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
        let file = volume.open("/all", create).unwrap();
        let full = (0..).find_map(|part| {
            let bytes = Buffer::copy_of(&[0xee; 64 << 10]);
            reactor.block_on(file.write(bytes, part * (64 << 10))).1.err()
        });
        assert_eq!(full, Some(Errno::NOSPC), "{place}");
        drop((file, volume));
        let volume = Volume::open_on(device).unwrap();
        assert_eq!(volume.flaws(), Vec::<String>::new(), "{place}");
        let mut there: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = there.last().map_or(&b""[..], |name| name);
            let entries = volume.entries("/", after).unwrap();
            if entries.is_empty() {
                break;
            }
            there.extend(entries.into_iter().map(|entry| entry.name));
        }
        assert_eq!(there.pop().unwrap(), b"all");
        assert!(there.iter().enumerate().all(|(file, found)| *found == name(file).into_bytes()));
        none += usize::from(there.is_empty());
        // As many as these do not fit what the catalog begins with.
        grown += usize::from(there.len() > COUNT / 2);
    }
    assert!(none > 0 && grown > 0, "{none}, {grown}");
}

#[test]
fn a_device_that_drops_flushes_is_found_out() {
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let operations = [Operation::Write, Operation::WriteOther, Operation::Rename];
    let history = run(&operations, Promises::Broken, false, &reactor);
    let plan = CrashPlan { exhaustive_up_to: 0, samples: 4, seed: 1 };
    assert!(check(&history, plan, &reactor).is_err());
}
