//! Devices that fail to read blocks of the catalog: an unreadable block is not damage, and its contents are not lost.

use std::collections::BTreeMap;

use uringfs_device::backend::sim::{Crash, Event, Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::pages::pages_in_use;
use super::*;
use crate::superblock::SLOTS;

const FILES: [&str; 5] = ["/one", "/a/two", "/a/b/three", "/a/b/c/four", "/d/five"];
const ACCEPT: CheckOptions = CheckOptions { accept_unreadable: true, ..REPAIR };

impl TestVolume {
    /// A copy of the volume, on a device of its own.
    fn copy(&self) -> TestVolume {
        let sim = self.sim.crash_image(Crash::KeepAll);
        let device = Device::new(sim.clone()).unwrap();
        sim.restart_record();
        TestVolume { sim, device, reactor: Reactor::new(ReactorOptions::default()).unwrap() }
    }

    fn fail_reads_of(&self, block: u64, when: When) {
        let rule = Rule::new(Op::Read, when, Fault::Error(Errno::IO));
        self.sim.inject(rule.within(block * BLOCK, (block + 1) * BLOCK));
    }

    fn writes(&self) -> usize {
        let is_change = |event: &&Event| matches!(event, Event::Begin { .. });
        self.sim.record().iter().filter(is_change).count()
    }

    /// Each block of a file, with its contents.
    fn blocks_of_files(&self) -> BTreeMap<u64, Vec<u8>> {
        let catalog = self.catalog();
        let extents = catalog.scan(Table::Extents, Vec::new(), None, 4096).unwrap();
        let extents =
            extents.iter().map(|(_, record)| ExtentRecord::parse(record, SIZE / BLOCK).unwrap());
        let blocks = extents.flat_map(|extent| extent.start..extent.run().end());
        blocks.map(|block| (block, self.peek(block))).collect()
    }

    fn peek(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        self.sim.peek(block * BLOCK, &mut bytes);
        bytes
    }

    fn repair(&self, options: CheckOptions) -> Result<CheckReport, Error> {
        Volume::check(&self.device, options, &mut |_, _| {})
    }
}

#[test]
fn an_unreadable_block_does_not_count_as_lost() {
    let fixture = TestVolume::new();
    for block in pages_in_use(&fixture) {
        let copy = fixture.copy();
        copy.fail_reads_of(block, When::Every(1));
        let error = copy.repair(REPAIR).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
        assert!(error.to_string().contains(&format!("block {block}")), "{block}: {error}");
        assert_eq!(copy.writes(), 0, "{block}");
        copy.sim.clear_faults();
        copy.assert_sound();
        let volume = copy.open();
        assert!(FILES.iter().all(|path| copy.is_whole(&volume, path, path)));
    }
}

#[test]
fn a_read_that_fails_once_costs_nothing() {
    let fixture = TestVolume::new();
    for nth in 1.. {
        let copy = fixture.copy();
        copy.sim.fail_nth(Op::Read, nth, Errno::IO);
        match copy.repair(REPAIR) {
            Ok(report) if copy.sim.faults_hit() == 0 => {
                assert!(report.is_sound() && nth > 10);
                break;
            }
            Ok(report) => assert!(report.is_repaired(), "{nth}: {}", text(&report)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{nth}: {error}"),
        }
        copy.sim.clear_faults();
        copy.assert_sound();
        let volume = copy.open();
        assert!(FILES.iter().all(|path| copy.is_whole(&volume, path, path)), "{nth}");
    }
}

#[test]
fn accepted_unreadable_blocks_cost_their_records_and_no_file_blocks() {
    let fixture = TestVolume::new();
    let (files, mut repaired) = (fixture.blocks_of_files(), 0);
    for block in pages_in_use(&fixture) {
        let copy = fixture.copy();
        copy.fail_reads_of(block, When::Every(1));
        let Ok(report) = copy.repair(ACCEPT) else { continue };
        repaired += 1;
        assert!(text(&report).contains(&format!("block {block}")), "{}", text(&report));
        copy.sim.clear_faults();
        // The blocks are not allocated either: fill the volume with another file.
        let volume = copy.open();
        for n in 0.. {
            let create = OpenOptions::new().read(true).write(true).create(true).direct(true);
            let Ok(file) = volume.open_with(format!("/full{n}"), create) else { break };
            let bytes = Buffer::copy_of(&vec![0xff; 1 << 20]);
            if copy.reactor.block_on(file.write_at(bytes, 0)).0.is_err() {
                break;
            }
        }
        drop(volume);
        for (file_block, was) in &files {
            assert!(copy.peek(*file_block) == *was, "block {file_block} after {block} was unread");
        }
        let again = copy.repair(REPAIR).unwrap();
        assert!(again.is_repaired(), "{}", text(&again));
        copy.assert_sound();
    }
    assert!(repaired > 4, "{repaired}");
}

/// A volume after a kill, with records in its log.
fn killed() -> TestVolume {
    let fixture = TestVolume::new();
    let volume = fixture.open();
    for n in 0..4 {
        volume.create_dir(format!("/later{n}")).unwrap();
        volume.sync().unwrap();
    }
    let copy = fixture.copy();
    drop(volume);
    copy
}

#[test]
fn an_unreadable_block_at_open_is_a_device_error_and_not_damage() {
    let fixture = killed();
    let check_open = |copy: &TestVolume, what: String| {
        match Volume::open_on(copy.device.clone()) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{what}: {error}"),
            Ok(volume) => {
                for n in 0..4 {
                    let found = volume.symlink_metadata(format!("/later{n}"));
                    if let Err(error) = found {
                        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{what}: {error}");
                    }
                }
            }
        }
        copy.sim.clear_faults();
        let volume = copy.open();
        assert!((0..4).all(|n| volume.symlink_metadata(format!("/later{n}")).is_ok()), "{what}");
    };
    for nth in 1.. {
        let copy = fixture.copy();
        copy.sim.fail_nth(Op::Read, nth, Errno::IO);
        let hit = || copy.sim.faults_hit();
        drop(Volume::open_on(copy.device.clone()));
        if hit() == 0 {
            assert!(nth > 5);
            break;
        }
        let copy = fixture.copy();
        copy.sim.fail_nth(Op::Read, nth, Errno::IO);
        check_open(&copy, format!("read {nth}"));
    }
    let log = fixture.superblock().log;
    let catalog = fixture.superblock().catalog[0];
    let half = log.length / 2;
    for block in
        SLOTS.into_iter().chain(catalog.start..catalog.start + 40).chain(log.start..log.end())
    {
        let copy = fixture.copy();
        copy.fail_reads_of(block, When::Every(1));
        check_open(&copy, format!("block {block}"));
    }
    for pair in [SLOTS, [log.start, log.start + half], [log.start + 1, log.start + half + 1]] {
        let copy = fixture.copy();
        pair.iter().for_each(|block| copy.fail_reads_of(*block, When::Every(1)));
        check_open(&copy, format!("blocks {pair:?}"));
    }
}

#[test]
fn a_log_record_with_a_damaged_and_an_unreadable_copy_is_not_lost() {
    let fixture = killed();
    let log = fixture.superblock().log;
    for half in [0, log.length / 2] {
        let copy = fixture.copy();
        let (damaged, unread) = (log.start + half, log.start + log.length / 2 - half);
        copy.sim.flip_bit(damaged * BLOCK + 20, 1);
        copy.fail_reads_of(unread, When::Every(1));
        for result in [
            Volume::open_on(copy.device.clone()).map(drop),
            copy.repair(REPAIR).map(drop),
            copy.repair(ACCEPT).map(drop),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
            assert!(error.to_string().contains(&format!("block {unread}")), "{error}");
        }
        copy.sim.clear_faults();
        let volume = copy.open();
        assert!((0..4).all(|n| volume.symlink_metadata(format!("/later{n}")).is_ok()));
    }
}
