//! A device that cannot be attached leaves nothing in the reactor's tables.

mod tier;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tier::{Tier, on_every_tier};
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::QueueKind;
use uringfs_device::queue::calibrate::{NowaitSupport, probe_nowait};
use uringfs_device::{Device, Errno};
use uringfs_reactor::{Reactor, ReactorOptions};

#[test]
fn a_device_refused_by_the_polled_ring_attaches_at_the_next_try() {
    on_every_tier("a_device_refused_by_the_polled_ring_attaches_at_the_next_try", |tier| {
        if tier != Tier::Ring {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = ImageFile::create(&folder.path().join("a"), 1 << 20, Allocation::Written);
        let device = Device::new(made.unwrap()).unwrap();
        // Without registered files each ring keeps a descriptor of its own.
        let options = ReactorOptions::new().queue(QueueKind::Ring).polled(true).fixed_files(false);
        let reactor = Reactor::new(options).unwrap();
        let limits = getrlimit(Resource::Nofile);
        // The lowest free number is the only one below the limit: the main ring's descriptor takes it.
        let free = eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_raw_fd();
        let one_more = Rlimit { current: Some(free as u64 + 1), ..limits };
        setrlimit(Resource::Nofile, one_more).unwrap();
        let refused = reactor.queue_of(&device).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::MFILE));
        setrlimit(Resource::Nofile, limits).unwrap();
        assert_eq!(reactor.queue_of(&device).unwrap().0, "ring, polled");
    });
}

#[test]
fn a_queue_is_in_epoll_before_a_wait_needs_it() {
    let reactor = Reactor::new(ReactorOptions::new().queue(QueueKind::Threads)).unwrap();
    let epoll = reactor.fd().unwrap().as_raw_fd();
    let watched = || {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap();
        info.lines().filter(|line| line.starts_with("tfd:")).count()
    };
    let before = watched();
    let device = Device::new(Memory::new(1 << 20).unwrap()).unwrap();
    assert_eq!(reactor.queue_of(&device).unwrap().0, "threads");
    assert_eq!(watched(), before + 1);
}

#[test]
fn equal_files_share_a_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let devices = ["a", "b", "c", "d"].map(|name| {
        let made = ImageFile::create(&folder.path().join(name), 1 << 20, Allocation::Written);
        Device::new(made.unwrap()).unwrap()
    });
    let reactor = Reactor::new(ReactorOptions::new()).unwrap();
    let (queue, reason) = reactor.queue_of(&devices[0]).unwrap();
    let measured = reactor.calibration_of(&devices[0]).expect("the queue was chosen by that");
    assert!(!reason.contains("measured on"), "{reason}");
    for device in &devices[1..] {
        let (other, reason) = reactor.queue_of(device).unwrap();
        assert_eq!(other, queue, "{reason}");
        let first = format!("measured on {}", devices[0].description());
        assert!(reason.contains(&first), "{reason}");
        assert!(Arc::ptr_eq(&reactor.calibration_of(device).unwrap(), &measured));
    }
    // Another use of the device is measured by itself.
    let plain = Reactor::new(ReactorOptions::new().fixed_buffers(false)).unwrap();
    let (_, reason) = plain.queue_of(&devices[3]).unwrap();
    assert!(!reason.contains("measured on"), "{reason}");
}

#[test]
fn a_thread_with_commands_or_descriptors_uses_the_ring_if_the_device_supports_nowait() {
    let name = "a_thread_with_commands_or_descriptors_uses_the_ring_if_the_device_supports_nowait";
    on_every_tier(name, |tier| {
        if tier != Tier::Ring {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let made = ImageFile::create(&folder.path().join("a"), 1 << 20, Allocation::Written);
        let device = Device::new(made.unwrap()).unwrap();
        if probe_nowait(device.core()) != NowaitSupport::Supported {
            println!("not exercised: a file that supports RWF_NOWAIT");
            return;
        }
        for (options, word) in [
            (ReactorOptions::new().commands(true), "commands"),
            (ReactorOptions::new().serving(true), "descriptors"),
        ] {
            let reactor = Reactor::new(options.clone()).unwrap();
            let (queue, reason) = reactor.queue_of(&device).unwrap();
            assert_eq!(queue, "ring", "{reason}");
            assert!(reason.contains(word), "{reason}");
            // The user's choice comes first.
            let reactor = Reactor::new(options.queue(QueueKind::Aio)).unwrap();
            assert_eq!(reactor.queue_of(&device).unwrap().0, "aio");
        }
    });
}
