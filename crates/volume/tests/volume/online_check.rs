//! Checks of a volume while other threads change it: no check ever reports anything, and no operation fails because of
//! a check.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::FallocateSize;
use uringfs_volume::{
    CheckOptions, CheckReport, CheckStep, Error, ErrorKind, Follow, FormatOptions, OpenOptions,
    SetXattr, Volume,
};

use crate::fixture;
use crate::random::{Random, scaled};

const DEVICE: u64 = 160 << 20;
const WRITERS: u64 = 3;

fn lines(report: &CheckReport) -> Vec<String> {
    report.findings.iter().map(ToString::to_string).collect()
}

fn check(volume: &Volume, deep: bool) -> Result<CheckReport, Error> {
    volume.check_online(CheckOptions::new().deep(deep), &mut |_, _| ControlFlow::Continue(()))
}

/// An error that another writer's change explains.
fn is_expected(error: &Error) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY)
}

/// One change of the files that all writers share.
fn change(volume: &Volume, random: &mut Random, round: u64) -> Result<(), Error> {
    let mut path = || format!("/d{}/f{}", random.below(4), random.below(40));
    let (one, other) = (path(), path());
    let size = random.below(200_000);
    match random.below(12) {
        0 | 1 => volume.write(one, vec![round as u8; size as usize]),
        2 => volume.rename(one, other),
        3 => volume.remove_file(one),
        4 => volume.hard_link(one, other),
        5 => {
            let name = format!("user.{}", random.below(3));
            volume.set_xattr(one, Follow::Yes, name, &[7; 3000], SetXattr::Either)
        }
        6 => volume.chown(one, Some(random.below(9) as u32), None),
        7 | 8 => change_blocks(volume, random, &one, size),
        9 => {
            // Enough names that the catalog grows.
            let directory = format!("/many{}", random.below(3));
            match volume.create_dir(&directory) {
                Ok(()) => (0..400)
                    .try_for_each(|n| volume.symlink("x".repeat(300), format!("{directory}/{n}"))),
                Err(_) => volume.remove_dir_all(&directory),
            }
        }
        10 => {
            let directory = format!("/d{}", random.below(4));
            let _ = volume.remove_dir_all("/moved");
            volume.rename(&directory, "/moved")?;
            volume.create_dir(directory)
        }
        _ => volume.sync(),
    }
}

/// Changes the blocks of a file without writing to it.
fn change_blocks(volume: &Volume, random: &mut Random, path: &str, size: u64) -> Result<(), Error> {
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    let file = volume.open_with(path, create)?;
    let done = match random.below(4) {
        0 => file.set_len(file.len() / 2).wait(),
        1 => file.allocate(0, size, FallocateSize::Extend).wait(),
        2 => file.punch_hole(size / 2, size).wait(),
        _ => {
            // It has no name when its blocks change.
            volume.remove_file(path)?;
            file.set_len(size).wait()
        }
    };
    done.map_err(|errno| Error::from(std::io::Error::from(errno)))
}

#[test]
fn no_check_of_a_volume_in_use_reports_anything() {
    let seed = std::process::id().into();
    println!("seed {seed}");
    let device = Device::new(Sim::new(SimOptions::new(DEVICE).seed(seed))).unwrap();
    Volume::format(&device, &FormatOptions::new().size(DEVICE / 2)).unwrap();
    let volume = Volume::open_on(device.clone()).unwrap();
    (0..4).for_each(|n| volume.create_dir(format!("/d{n}")).unwrap());
    let writing = AtomicU64::new(WRITERS);
    let checks = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (volume, writing) = (volume.clone(), &writing);
            scope.spawn(move || {
                let mut random = Random(seed + writer);
                for round in 0..scaled(500) as u64 {
                    if writer == 0 && round % 50 == 49 {
                        let more = volume.statistics().blocks * 4096 + (1 << 20);
                        volume.resize(more.min(DEVICE)).unwrap();
                    }
                    if let Err(error) = change(&volume, &mut random, round) {
                        assert!(is_expected(&error), "seed {seed}, writer {writer}: {error}");
                    }
                }
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        let mut checks = 0;
        while writing.load(Ordering::Acquire) > 0 {
            match check(&volume, checks % 3 == 2) {
                Ok(report) => assert!(report.is_sound(), "seed {seed}: {:?}", lines(&report)),
                Err(error) => assert_eq!(error.errno(), Errno::BUSY, "seed {seed}: {error}"),
            }
            checks += 1;
        }
        checks
    });
    println!("{checks} checks");
    assert!(check(&volume, true).unwrap().is_sound());
    assert_eq!(volume.warnings(), [""; 0]);
    volume.close().unwrap();
    let report = Volume::check(&device, CheckOptions::new(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "seed {seed}: {:?}", lines(&report));
}

/// A volume whose catalog has no more room for names.
fn full_of_names() -> Volume {
    let volume = fixture::formatted(&Sim::new(SimOptions::new(16 << 20)));
    let target = "x".repeat(2000);
    for n in 0.. {
        if let Err(error) = volume.symlink(&target, format!("/{n}")) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            break;
        }
    }
    volume
}

#[test]
fn a_check_of_a_full_volume_takes_no_room_from_operations() {
    let volume = full_of_names();
    let mut starts = 0;
    let report = volume.check_online(CheckOptions::new(), &mut |step, done| {
        if (step, done) != (CheckStep::Pages, 0) {
            return ControlFlow::Continue(());
        }
        starts += 1;
        // During the first snapshot, many commits, each of which copies pages.
        for n in 0..if starts == 1 { 50 } else { 0 } {
            volume.rename(format!("/{n}"), format!("/moved{n}")).unwrap();
            volume.sync().unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(report.unwrap().is_sound());
    assert!(starts > 1, "the catalog took the snapshot's pages back");
    assert!(volume.symlink_metadata("/moved49").is_ok());
    volume.remove_file("/moved0").unwrap();
    volume.symlink("new", "/new").unwrap();
}

#[test]
fn a_check_that_never_keeps_its_snapshot_gives_up() {
    let volume = full_of_names();
    let (mut starts, mut name) = (0, "/0".to_string());
    let outcome = volume.check_online(CheckOptions::new(), &mut |step, done| {
        if (step, done) != (CheckStep::Pages, 0) {
            return ControlFlow::Continue(());
        }
        starts += 1;
        for n in 0..20 {
            let next = format!("/moved{starts}-{n}");
            volume.rename(&name, &next).unwrap();
            volume.sync().unwrap();
            name = next;
        }
        ControlFlow::Continue(())
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.errno(), Errno::BUSY, "{error}");
    assert_eq!(starts, 8);
    assert!(check(&volume, false).unwrap().is_sound());
}

#[test]
fn a_check_is_stopped_at_each_step() {
    let volume = fixture::formatted(&Sim::new(SimOptions::new(16 << 20)));
    volume.write("/a", [7; 9000]).unwrap();
    volume.sync().unwrap();
    let steps = [
        CheckStep::Pages,
        CheckStep::Records,
        CheckStep::Names,
        CheckStep::Blocks,
        CheckStep::Data,
    ];
    for last in steps {
        let mut calls = 0;
        let outcome = volume.check_online(CheckOptions::new().deep(true), &mut |step, _| {
            if step != last {
                return ControlFlow::Continue(());
            }
            calls += 1;
            ControlFlow::Break(())
        });
        assert_eq!((outcome.unwrap_err().errno(), calls), (Errno::CANCELED, 1), "{last:?}");
    }
    assert!(check(&volume, true).unwrap().is_sound());
}

#[test]
fn a_device_that_is_gone_is_an_error() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let volume = fixture::formatted(&sim);
    volume.write("/a", [7; 9000]).unwrap();
    volume.sync().unwrap();
    sim.detach(Errno::NODEV);
    for deep in [false, true] {
        let error = check(&volume, deep).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::NODEV), "{error}");
    }
    sim.reattach();
    assert!(check(&volume, true).unwrap().is_sound());
}
