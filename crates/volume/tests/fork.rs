//! A volume in the child of a fork: its calls return errors and never wait, and the parent is
//! unaffected. A program of its own, since the child has only the forking thread.

use std::fs::OpenOptions as StdOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fork::Fork;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::{Access, Device, Errno};
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{Error, FormatOptions, OpenOptions, Volume};

const SIZE: u64 = 64 << 20;

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

fn made() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

fn filled(value: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(8192);
    buffer.fill(value);
    buffer
}

/// Runs the child. Its exit status is the result.
fn run(act: impl FnOnce() -> i32) -> ! {
    std::process::exit(catch_unwind(AssertUnwindSafe(act)).unwrap_or(99))
}

/// Waits for the child to end. Kills a child that hangs.
fn status_of(child: i32) -> i32 {
    let child = Pid::from_raw(child).unwrap();
    let most = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status().expect("the child exits normally");
        }
        if Instant::now() > most {
            kill_process(child, Signal::KILL).unwrap();
            let _ = waitpid(Some(child), WaitOptions::empty());
            panic!("the child hangs");
        }
        std::thread::yield_now();
    }
}

/// Whether another program finds the volume's lock taken.
fn is_locked(path: &Path) -> bool {
    let file = StdOptions::new().read(true).write(true).open(path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::AGAIN)
}

/// Uses in the child a volume that its parent has open for writing. Returns the number of the first
/// wrong step, or 0.
fn use_writer(volume: Volume, buffered: File, direct: File) -> i32 {
    let is_refused =
        |done: Result<(), Error>| done.is_err_and(|error| error.errno() == Errno::CHILD);
    if !is_refused(volume.sync()) {
        return 1;
    }
    if !is_refused(volume.create_dir("/d")) || !is_refused(volume.remove_file("/direct")) {
        return 2;
    }
    if !is_refused(volume.open_with("/new", made()).map(drop)) {
        return 3;
    }
    let own = reactor();
    for file in [&buffered, &direct] {
        if own.block_on(file.write_at(filled(9), 0)).0 != Err(Errno::CHILD) {
            return 4;
        }
        if own.block_on(file.append(filled(9))).0 != Err(Errno::CHILD) {
            return 5;
        }
        if own.block_on(file.set_len(1)) != Err(Errno::CHILD) {
            return 6;
        }
        if own.block_on(file.sync_all()) != Err(Errno::CHILD) {
            return 7;
        }
    }
    if !is_refused(own.block_on(volume.as_async().sync())) {
        return 8;
    }
    drop((buffered, direct));
    drop(volume);
    0
}

fn formatted(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let image = ImageFile::create(&path, SIZE, Allocation::Written).unwrap();
    Volume::format(&Device::new(image).unwrap(), &FormatOptions::default()).unwrap();
    path
}

/// Other threads may hold any lock when a thread forks, and in the child nothing releases it.
#[test]
fn a_child_forked_beside_commits_waits_for_no_lock() {
    const ROUNDS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let path = formatted(folder.path(), "written");
    let volume = Volume::open_on(Device::open(&path, Access::ReadWrite).unwrap()).unwrap();
    let buffered = volume.open_with("/buffered", made()).unwrap();
    let direct = volume.open_with("/direct", made().direct(true)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (volume, is_over) = (&volume, &is_over);
            scope.spawn(move || {
                let path = format!("/other{number}");
                let file = volume.open_with(&path, made()).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    file.append(filled(1)).wait().0.unwrap();
                    file.sync_data().wait().unwrap();
                    file.set_len(0).wait().unwrap();
                }
            });
        }
        let _over = SetOnDrop(&is_over);
        let own = reactor();
        for round in 0..ROUNDS {
            assert_eq!(own.block_on(buffered.write_at(filled(7), 0)).0, Ok(8192));
            assert_eq!(own.block_on(direct.write_at(filled(7), 0)).0, Ok(8192));
            if round % 2 == 0 {
                assert_eq!(own.block_on(direct.sync_all()), Ok(()));
            }
            let (volume, buffered, direct) = (volume.clone(), buffered.clone(), direct.clone());
            match fork::fork().unwrap() {
                Fork::Child => run(|| use_writer(volume, buffered, direct)),
                Fork::Parent(child) => assert_eq!(status_of(child), 0, "round {round}"),
            }
        }
    });
}

/// Sets a flag at the end of its scope, also if that panics.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_forked_child_gets_errors_and_the_parent_keeps_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = formatted(folder.path(), "written");
    {
        let volume = Volume::open_on(Device::open(&path, Access::ReadWrite).unwrap()).unwrap();
        let buffered = volume.open_with("/buffered", made()).unwrap();
        let direct = volume.open_with("/direct", made().direct(true)).unwrap();
        let own = reactor();
        for file in [&buffered, &direct] {
            assert_eq!(own.block_on(file.write_at(filled(7), 0)).0, Ok(8192));
        }
        assert_eq!(own.block_on(direct.sync_all()), Ok(()));
        match fork::fork().unwrap() {
            Fork::Child => run(|| use_writer(volume, buffered, direct)),
            Fork::Parent(child) => assert_eq!(status_of(child), 0, "the child's first wrong step"),
        }
        assert!(is_locked(&path), "by the writer");
        volume.sync().unwrap();
        for file in [&buffered, &direct] {
            let (read, bytes) = own.block_on(file.read_at(Buffer::zeroed(8192), 0));
            assert_eq!(read, Ok(8192));
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }
    let path = formatted(folder.path(), "read");
    let reader = Volume::open_on(Device::open(&path, Access::Read).unwrap()).unwrap();
    assert!(is_locked(&path), "by the reader");
    match fork::fork().unwrap() {
        Fork::Child => run(|| {
            let opened = reader.open_with("/direct", OpenOptions::new().read(true).direct(true));
            drop(reader);
            i32::from(!opened.is_err_and(|error| error.errno() == Errno::CHILD))
        }),
        Fork::Parent(child) => assert_eq!(status_of(child), 0),
    }
    assert!(is_locked(&path), "by the reader, after its child has ended");
    drop(reader);
}
