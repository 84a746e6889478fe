//! Records that no volume of ours writes, under right sums, as an image of a stranger may have them: each is told of
//! as damaged, and what uses the volume all the same neither goes round in circles nor writes where no file lies.

use super::*;
use crate::blocks::Run;
use crate::system_zone::SystemZone;

impl Patient {
    /// Gives a file of one extent, `/d/five`, an extent behind it.
    fn plant_extent(&self, extent: Extent) {
        let number = self.number("/d/five");
        self.plant(|catalog, batch| {
            let mut inode = inode_of(catalog, number);
            inode.size = extent.end() * BLOCK;
            batch.put(Key::Inode(number), &inode.to_record());
            batch.put(Key::Extent(number, extent.offset), &extent_record(extent));
        });
    }
}

#[test]
fn an_extent_on_blocks_that_no_file_can_have_is_damaged_and_not_written_to() {
    let superblock = Patient::new().superblock();
    let (catalog, log) = (superblock.catalog[0], superblock.log);
    let places = [
        Run { start: 0, length: 1 },
        Run { start: 31, length: 1 },
        Run { start: catalog.start, length: 2 },
        Run { start: catalog.end() - 1, length: 1 },
        Run { start: log.start, length: 1 },
        // Free, but for its first block.
        Run { start: log.end() - 1, length: 8 },
    ];
    for Run { start, length } in places {
        let patient = Patient::new();
        patient.plant_extent(Extent { offset: 8, start, length, state: State::Written });
        let volume = patient.open();
        let error = volume.open("/d/five", OpenOptions::direct()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{start}: {error}");
        let number = volume.inode("/d/five", Follow::No).unwrap().0.0;
        assert!(error.to_string().contains(&format!("inode {number}")), "{error}");
        // Nor are the blocks anybody's when the file goes.
        volume.remove("/d/five").unwrap();
        patient.write(&volume, "/new", 0, 9000);
        drop(volume);
        let volume = patient.open();
        assert!(patient.is_whole(&volume, "/new", "/new"));
        drop(volume);
        patient.is_cured_of("it has blocks of the superblock, the catalog or its log");
    }
}

#[test]
fn blocks_that_no_file_can_have_are_not_given_out_though_they_count_as_free() {
    let patient = Patient::new();
    patient.plant(|_, batch| batch.delete(Key::Region(0)));
    let volume = patient.open();
    let zone = SystemZone::of(&patient.superblock());
    for n in 0..40 {
        patient.write(&volume, &format!("/d/{n}"), 0, 64 * BLOCK as usize);
    }
    volume.sync().unwrap();
    drop(volume);
    let catalog = patient.catalog();
    for (key, record) in catalog.scan(Table::Extents, Vec::new(), None, 4096).unwrap() {
        let extent = ExtentRecord::parse(&record, SIZE / BLOCK).unwrap();
        assert!(!zone.overlaps(extent.run()), "{key:?}: {extent:?}");
    }
}

#[test]
fn an_extent_outside_of_the_volume_or_over_another_is_damaged() {
    let total = SIZE / BLOCK;
    let written = |offset, start, length| Extent { offset, start, length, state: State::Written };
    for extent in [
        written(8, total, 1),
        written(8, total - 1, 2),
        written(8, 0, (1 << 48) - 1),
        written(8, (1 << 63) - 1, 1),
        // Over the first one of the file.
        written(2, total - 8, 1),
    ] {
        let patient = Patient::new();
        patient.plant_extent(extent);
        let volume = patient.open();
        let error = volume.open("/d/five", OpenOptions::direct()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{extent:?}: {error}");
    }
}
