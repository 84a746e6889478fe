//! A volume with content. Every input damages its own copy of it.

use std::path::PathBuf;
use std::sync::LazyLock;

use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, Sim, SimOptions};
use uringfs::volume::{CheckOptions, CheckReport};
use uringfs::{
    Buffer, Error as VolumeError, ErrorKind as VolumeErrorKind, FormatOptions, OpenOptions,
    Reactor, ReactorOptions, Volume,
};

pub const BLOCK: u64 = 4096;
pub const SIZE: u64 = 16 << 20;

/// The volume after a close: all metadata lie in the catalog's pages.
static IMAGE: LazyLock<Sim> = LazyLock::new(|| {
    let (sim, volume) = create_volume();
    drop(volume);
    sim.restart_record();
    sim
});

/// The volume after a kill, with records in the catalog's log.
static KILLED: LazyLock<Sim> = LazyLock::new(|| {
    let (sim, volume) = create_volume();
    volume.sync().unwrap();
    let before = volume.statistics();
    for n in 0..6 {
        volume.create_dir(format!("/later {n}")).unwrap();
        volume.remove_file(format!("/d/{}", 3 * n + 1)).unwrap();
        volume.sync().unwrap();
    }
    let after = volume.statistics();
    assert!(after.commits >= before.commits + 6 && after.checkpoints <= before.checkpoints + 1);
    sim.crash_image(Crash::KeepAll)
});

fn create_volume() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    for directory in ["/d", "/d/e"] {
        volume.create_dir(directory).unwrap();
    }
    for n in 0..40 {
        let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
        let path = format!("{}/{n}", ["", "/d", "/d/e"][n % 3]);
        let file = volume.open_with(path, create).unwrap();
        let bytes = Buffer::copy_of(&vec![n as u8; 5000]);
        assert!(reactor.block_on(file.write_at(bytes, n as u64 * 9000)).0.is_ok());
    }
    volume.hard_link("/0", "/d/link").unwrap();
    volume.symlink("d/e", "/s").unwrap();
    (sim, volume)
}

/// Prints each panic as one line. A panic inside the catalog's library is contained and is no crash, and a backtrace
/// would take a good part of the time of an input.
pub fn print_panics_as_lines() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

/// A copy of the volume.
#[allow(dead_code, reason = "each target uses one of the two")]
pub fn copy() -> Sim {
    IMAGE.crash_image(Crash::KeepAll)
}

/// A copy of the volume with records in its log.
#[allow(dead_code, reason = "each target uses one of the two")]
pub fn killed_copy() -> Sim {
    KILLED.crash_image(Crash::KeepAll)
}

/// The checksum of the format.
pub fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

pub fn read(sim: &Sim, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    sim.peek(block * BLOCK, &mut bytes);
    bytes
}

/// Changes a block by flipping single bits.
pub fn write(sim: &Sim, block: u64, bytes: &[u8]) {
    for (index, (old, new)) in read(sim, block).iter().zip(bytes).enumerate() {
        (0..8).filter(|bit| (old ^ new) >> bit & 1 == 1).for_each(|bit| {
            sim.flip_bit(block * BLOCK + index as u64, bit);
        });
    }
}

/// Opens the volume and reads all metadata. Each error must be one line.
pub fn inspect(sim: &Sim) {
    let device = Device::new(sim.crash_image(Crash::KeepAll)).unwrap();
    let volume = match Volume::open_on(device) {
        Ok(volume) => volume,
        Err(error) => return assert_one_line(&error.to_string()),
    };
    volume.warnings().iter().for_each(|line| assert_one_line(line));
    let mut pending = vec![PathBuf::from("/")];
    // Bounded, since a damaged directory may contain itself.
    for _ in 0..100 {
        let Some(directory) = pending.pop() else { break };
        let entries = match volume.read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                assert_one_line(&error.to_string());
                continue;
            }
        };
        // The first batches.
        for entry in entries.take(200) {
            match entry {
                Err(error) => assert_one_line(&error.to_string()),
                Ok(entry) => {
                    let path = entry.path();
                    if entry.file_type().is_dir() {
                        pending.push(path.clone());
                    }
                    if let Err(error) = volume.symlink_metadata(&path) {
                        assert_one_line(&error.to_string());
                    }
                    let _ = volume.open_with(&path, OpenOptions::new().read(true).direct(true));
                }
            }
        }
    }
}

/// Checks the volume, repairs it, and checks again. A repaired volume must be sound. A volume that can be checked can
/// also be repaired, if it has room and this version may write to it.
pub fn check_and_repair(sim: &Sim) {
    let device = Device::new(sim.clone()).unwrap();
    let check = |repair| -> Result<CheckReport, VolumeError> {
        let options = CheckOptions::new().repair(repair).deep(true);
        let checked = Volume::check(&device, options, &mut |_, _| {});
        match &checked {
            Ok(report) => {
                report.findings.iter().for_each(|line| assert_one_line(&line.to_string()));
            }
            Err(error) => assert_one_line(&error.to_string()),
        }
        checked
    };
    let found = check(false);
    let repaired = match check(true) {
        Ok(repaired) => repaired,
        Err(error) => {
            // A volume with features of later versions may be read-only.
            let (no_room, newer) = (VolumeErrorKind::NoSpace, VolumeErrorKind::Unsupported);
            let is_expected = found.is_err() || [no_room, newer].contains(&error.kind());
            return assert!(is_expected, "{error}, after {found:?}");
        }
    };
    assert_eq!(found.is_ok_and(|found| found.is_sound()), repaired.is_sound());
    if repaired.is_repaired() {
        let again = check(false).expect("the volume was checked before");
        assert!(again.is_sound(), "{:?} after {:?}", again.findings, repaired.findings);
        Volume::open_on(device.clone()).expect("a sound volume opens");
    }
}

fn assert_one_line(message: &str) {
    assert!(!message.is_empty() && message.len() < 8192, "{} bytes", message.len());
    assert!(!message.contains('\n'), "{message:?}");
}
