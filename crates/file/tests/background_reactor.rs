//! Background reactors: no failure on one leaves a caller waiting. Each test has a process of its own, since a process
//! shares them.

mod gated;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use fork::Fork;
use gated::gated;
use rustix::process::{Pid, WaitOptions, waitpid};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::{Device, Errno};
use uringfs_file::{File, FileOptions};
use uringfs_reactor::set_background_reactors;

/// Set in a process that is to run one test.
const VARIABLE: &str = "URINGFS_TEST_ALONE";
const SIZE: u64 = 1 << 20;

/// Runs `body` in a process of its own. `test` is the calling test's name.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(VARIABLE).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output =
        command.args([test, "--exact", "--nocapture"]).env(VARIABLE, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
}

fn read(file: &File) -> (Result<usize, Errno>, Buffer) {
    gated::wait(file.read_at(Buffer::zeroed(4096), 4096))
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("deliberate panic of a test");
    }
}

#[test]
fn a_panicking_waker_does_not_lose_the_results_of_others() {
    alone("a_panicking_waker_does_not_lose_the_results_of_others", || {
        let (device, gate) = gated(SIZE);
        let file = File::from_device(device, FileOptions::default());
        assert_eq!(read(&file).0, Ok(4096));
        let waker = Waker::from(Arc::new(Panics));
        // The fast path and the slow path.
        for offset in [0, 5] {
            gate.close();
            let mut ops: Vec<_> =
                (0..2).map(|_| Box::pin(file.read_at(Buffer::zeroed(4096), offset))).collect();
            let mut other = Box::pin(file.read_at(Buffer::zeroed(4096), offset));
            assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            for op in &mut ops {
                assert!(op.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            gate.open();
            assert_eq!(gated::wait(other).0, Ok(4096));
            for op in ops {
                assert_eq!(gated::wait(op).0, Ok(4096));
            }
        }
    });
}

#[test]
fn a_panicking_back_end_fails_only_its_own_request() {
    alone("a_panicking_back_end_fails_only_its_own_request", || {
        let (device, gate) = gated(SIZE);
        let file = File::from_device(device, FileOptions::default());
        assert_eq!(read(&file).0, Ok(4096));
        gate.panic_once();
        assert_eq!(read(&file).0, Err(Errno::IO));
        assert_eq!(read(&file).0, Ok(4096));
    });
}

#[test]
fn losing_io_uring_fails_awaits_and_later_ones_use_another_queue() {
    alone("losing_io_uring_fails_awaits_and_later_ones_use_another_queue", || {
        let folder = tempfile::tempdir().unwrap();
        let made =
            ImageFile::create(folder.path().join("image").as_path(), SIZE, Allocation::Written);
        let file = File::from_device(Device::new(made.unwrap()).unwrap(), FileOptions::default());
        assert_eq!(read(&file).0, Ok(4096));
        // setup, enter, register: the same on every architecture.
        let rules = [425, 426, 427].map(|call| (call, Vec::new())).into_iter().collect();
        let refused = SeccompAction::Errno(Errno::PERM.raw_os_error() as u32);
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture);
        let program: BpfProgram = filter.unwrap().try_into().unwrap();
        apply_filter_all_threads(&program).unwrap();
        // Operations that were in flight fail.
        let mut last = read(&file).0;
        for _ in 0..100 {
            if last == Ok(4096) {
                break;
            }
            assert_eq!(last, Err(Errno::IO));
            last = read(&file).0;
        }
        assert_eq!(last, Ok(4096));
    });
}

/// Checks an operation that the parent started, and one that the child starts. Returns the number of the first
/// step that went wrong, or 0.
fn child(file: &File, started: impl Future<Output = (Result<usize, Errno>, Buffer)>) -> i32 {
    if gated::wait(started).0 != Err(Errno::CHILD) {
        return 1;
    }
    let (refused, buffer) = read(file);
    if refused != Err(Errno::CHILD) || buffer.len() != 4096 {
        return 2;
    }
    0
}

#[test]
fn in_a_forked_child_awaits_fail_and_the_parents_complete() {
    alone("in_a_forked_child_awaits_fail_and_the_parents_complete", || {
        let (device, gate) = gated(SIZE);
        let file = File::from_device(device, FileOptions::default());
        assert_eq!(read(&file).0, Ok(4096));
        gate.close();
        let mut started = Box::pin(file.read_at(Buffer::zeroed(4096), 0));
        assert!(started.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        match fork::fork().unwrap() {
            Fork::Child => {
                let run = AssertUnwindSafe(|| child(&file, started));
                std::process::exit(catch_unwind(run).unwrap_or(99));
            }
            Fork::Parent(child) => {
                let (_, status) =
                    waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
                assert_eq!(status.exit_status(), Some(0), "the child's first wrong step");
                gate.open();
                assert_eq!(gated::wait(started).0, Ok(4096));
                assert_eq!(read(&file).0, Ok(4096));
            }
        }
    });
}

#[test]
fn a_forked_child_starts_no_background_reactor_beside_its_parents() {
    alone("a_forked_child_starts_no_background_reactor_beside_its_parents", || {
        set_background_reactors(2);
        let file =
            File::from_device(Device::new(Memory::new(SIZE).unwrap()).unwrap(), FileOptions::new());
        // The first of them serves that thread. This one, the second, has not started any.
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(|| read(&file).0).join().unwrap(), Ok(4096));
        });
        match fork::fork().unwrap() {
            Fork::Child => {
                let run = AssertUnwindSafe(|| i32::from(read(&file).0 != Err(Errno::CHILD)));
                std::process::exit(catch_unwind(run).unwrap_or(99));
            }
            Fork::Parent(child) => {
                let (_, status) =
                    waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
                assert_eq!(status.exit_status(), Some(0), "1: the child has read");
                assert_eq!(read(&file).0, Ok(4096));
            }
        }
    });
}
