//! A fork while another thread of the parent measures a device. Alone in its program, since the child has only the thread
//! that forked.

use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fork::Fork;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use uringfs_device::Device;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::queue::QueueKind;
use uringfs_device::queue::calibrate::{Calibration, CalibrationOptions};

const OPTIONS: CalibrationOptions =
    CalibrationOptions { has_ring: true, fixed_files: true, fixed_buffers: true, commands: false };

fn calibration() -> Calibration {
    Calibration { kind: QueueKind::Threads, reason: "threads".into(), measured: Vec::new() }
}

/// The exit status of a child; kills one that hangs.
fn status_of(child: i32) -> Option<i32> {
    let child = Pid::from_raw(child).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status();
        }
        thread::yield_now();
    }
    kill_process(child, Signal::KILL).unwrap();
    let _ = waitpid(Some(child), WaitOptions::empty());
    panic!("the child hangs");
}

#[test]
fn a_child_waits_for_no_calibration_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let made = ImageFile::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
    let device = Device::new(made).unwrap();
    let shared = device.core().calibration(OPTIONS);
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let measuring = thread::spawn(move || {
        let measure = || {
            begin.send(()).unwrap();
            ended.recv().unwrap();
            calibration()
        };
        shared.get_or_measure("parent", measure).device
    });
    begun.recv().unwrap();
    match fork::fork().unwrap() {
        Fork::Child => {
            let own = device.core().calibration(OPTIONS).get_or_measure("child", calibration);
            process::exit(if own.device == "child" { 0 } else { 1 })
        }
        Fork::Parent(child) => {
            let status = status_of(child);
            end.send(()).unwrap();
            assert_eq!(status, Some(0));
            assert_eq!(measuring.join().unwrap(), "parent");
        }
    }
}
