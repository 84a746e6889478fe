//! The redo log: what is in it is there, whatever happens to one of its copies, and nothing else is.

use rustix::io::Errno;
use uringfs_device::Op;
use uringfs_device::backend::sim::{Crash, Fault, Rule, When};

use super::*;
use crate::catalog::batch::Reserve;

/// Blocks of a half of the log.
const HALF: u64 = LOG.length / 2;

fn put(inode: u64, bytes: usize) -> Batch {
    let mut batch = Batch::default();
    batch.put(Key::Inode(inode), &vec![inode as u8; bytes]);
    batch
}

/// A catalog with one inode in redb and others in its log, a record each, as a kill leaves it.
fn logged(records: u64) -> Sim {
    let sim = new_sim();
    let catalog = create_on(&sim);
    catalog.commit(&put(0, 100)).unwrap();
    for inode in 1..=records {
        assert!(catalog.log(&put(inode, 100)).unwrap());
    }
    sim.crash_image(Crash::LoseAll)
}

/// The inodes that are there, which are as they were written.
fn found(catalog: &Catalog) -> Vec<u64> {
    let inodes = inodes(catalog, 0);
    assert!(inodes.iter().all(|(inode, value)| *value == vec![*inode as u8; 100]));
    inodes.into_iter().map(|(inode, _)| inode).collect()
}

fn flip(sim: &Sim, block: u64) {
    sim.rot(block * BLOCK + 20, 3);
}

fn cut(sim: &Sim) -> Result<Catalog, Error> {
    let options = CatalogOptions { cuts_log: true, ..options() };
    Catalog::open(&blocks_of(sim), &RUNS, LOG, options)
}

#[test]
fn what_is_logged_is_read_and_goes_into_the_next_commit() {
    let sim = logged(3);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let catalog =
            Catalog::open(&blocks_of(&sim), &RUNS, LOG, CatalogOptions { access, ..options() });
        assert_eq!(found(&catalog.unwrap()), [0, 1, 2, 3]);
    }
    let catalog = open_on(&sim).unwrap();
    assert_eq!(catalog.logged().changes, 3);
    let mut batch = Batch::default();
    batch.delete(Key::Inode(2));
    catalog.commit(&batch).unwrap();
    assert_eq!((catalog.logged(), found(&catalog)), (Size::default(), vec![0, 1, 3]));
    // The records lie there yet, and are old.
    assert_eq!(found(&open_on(&sim.crash_image(Crash::LoseAll)).unwrap()), [0, 1, 3]);
    assert!(catalog.log(&put(4, 100)).unwrap());
    let again = open_on(&sim.crash_image(Crash::LoseAll)).unwrap();
    assert_eq!((again.logged().changes, found(&again)), (1, vec![0, 1, 3, 4]));
}

#[test]
fn a_log_that_was_read_is_not_built_upon() {
    let sim = logged(2);
    let catalog = open_on(&sim).unwrap();
    // Of the last record there may be one copy.
    assert!(!catalog.log(&put(3, 100)).unwrap());
    catalog.commit(&put(3, 100)).unwrap();
    assert!(catalog.log(&put(4, 100)).unwrap());
}

#[test]
fn what_has_no_room_in_the_log_changes_nothing() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let before = sim.record().len();
    assert!(!catalog.log(&put(1, (HALF * BLOCK) as usize)).unwrap());
    assert_eq!(sim.record().len(), before);
    let records = (1..).find(|inode| !catalog.log(&put(*inode, 100)).unwrap()).unwrap() - 1;
    assert_eq!(records, HALF);
    assert_eq!(found(&catalog).len() as u64, records);
}

#[test]
fn one_flipped_bit_in_the_log_costs_nothing_and_is_told_of_all_but_the_last_record() {
    let records = 4;
    let sim = logged(records);
    for half in [LOG.start, LOG.start + HALF] {
        for block in half..half + records {
            for bit in (0..BLOCK * 8).step_by(97) {
                let image = sim.crash_image(Crash::KeepAll);
                image.rot(block * BLOCK + bit / 8, (bit % 8) as u32);
                let catalog = open_on(&image).unwrap();
                assert_eq!(found(&catalog), [0, 1, 2, 3, 4], "block {block}, bit {bit}");
                // A record's end is zeros that nobody reads; the last may have been torn.
                let length = 24 + 8 + 8 + 4 + 100;
                let is_told = bit / 8 < length && block + 1 != half + records;
                let flaws = catalog.flaws();
                assert_eq!(
                    flaws.len(),
                    usize::from(is_told),
                    "block {block}, bit {bit}: {flaws:?}"
                );
                assert!(flaws.iter().all(|line| line.contains(&format!("block {block}"))));
            }
        }
    }
}

#[test]
fn a_lost_half_costs_nothing() {
    for half in 0..2 {
        let zeros = logged(4);
        let first = LOG.start + half * HALF;
        for block in first..first + HALF {
            blocks_of(&zeros).write(block, uringfs_buffer::Buffer::zeroed(BLOCK as usize)).unwrap();
        }
        assert_eq!(found(&open_on(&zeros).unwrap()), [0, 1, 2, 3, 4]);
        let unreadable = logged(4);
        let (start, end) = (first * BLOCK, (first + HALF) * BLOCK);
        unreadable
            .inject(Rule::new(Op::Read, When::From(1), Fault::Error(Errno::IO)).within(start, end));
        let catalog = open_on(&unreadable).unwrap();
        assert_eq!(found(&catalog), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn a_record_that_is_damaged_twice_is_no_end_if_another_follows() {
    let sim = logged(4);
    for half in [LOG.start, LOG.start + HALF] {
        flip(&sim, half + 2);
    }
    let error = open_on(&sim).err().expect("what came after it was acknowledged");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    let block = LOG.start + 2;
    for part in [format!("block {block}"), "record 3".into(), "uringfs check --repair".into()] {
        assert!(error.to_string().contains(&part), "{error}");
    }
    let catalog = cut(&sim).unwrap();
    assert_eq!(found(&catalog), [0, 1, 2]);
    assert!(catalog.flaws().iter().any(|line| line.contains("record 3 is damaged")));
    // Those behind it never come back, and it goes on.
    catalog.commit(&Batch::default()).unwrap();
    drop(catalog);
    let catalog = open_on(&sim).unwrap();
    assert_eq!((found(&catalog), catalog.flaws()), (vec![0, 1, 2], vec![]));
    assert!(catalog.log(&put(7, 100)).unwrap());
    assert_eq!(found(&open_on(&sim.crash_image(Crash::LoseAll)).unwrap()), [0, 1, 2, 7]);
}

#[test]
fn the_last_record_that_is_damaged_twice_was_never_acknowledged() {
    let sim = logged(4);
    for half in [LOG.start, LOG.start + HALF] {
        flip(&sim, half + 3);
    }
    let catalog = open_on(&sim).unwrap();
    assert_eq!((found(&catalog), catalog.flaws()), (vec![0, 1, 2, 3], vec![]));
}

#[test]
fn a_commit_that_is_refused_leaves_what_is_in_the_log_there() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    catalog.commit(&put(0, 100)).unwrap();
    assert!(catalog.log(&put(1, 100)).unwrap());
    let mut large = put(2, 64 << 20);
    large.reserve(Reserve::Use);
    assert_eq!(catalog.commit(&large).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((found(&catalog), catalog.logged().changes), (vec![0, 1], 1));
    // Closing, redb may commit by itself.
    catalog.close().unwrap();
    let catalog = open_on(&sim).unwrap();
    assert_eq!((found(&catalog), catalog.logged().changes), (vec![0, 1], 1));
    catalog.commit(&put(2, 100)).unwrap();
    drop(catalog);
    assert_eq!(found(&open_on(&sim).unwrap()), [0, 1, 2]);
}

#[test]
fn records_of_an_earlier_catalog_in_the_same_place_never_come_back() {
    let sim = logged(4);
    let catalog = create_on(&sim);
    assert!(catalog.log(&put(9, 100)).unwrap());
    drop(catalog);
    assert_eq!(found(&open_on(&sim).unwrap()), [9]);
}

#[test]
fn a_write_or_flush_of_the_log_that_fails_stops_the_catalog() {
    for op in [Op::Write, Op::Flush] {
        let sim = logged(0);
        let catalog = open_on(&sim).unwrap();
        sim.inject(Rule::new(op, When::Nth(1), Fault::Error(Errno::IO)));
        assert_eq!(catalog.log(&put(1, 100)).unwrap_err().errno(), Errno::IO);
        sim.clear_faults();
        let error = catalog.log(&put(1, 100)).unwrap_err();
        assert!(error.to_string().contains("has stopped"), "{error}");
        drop(catalog);
        let found = found(&open_on(&sim).unwrap());
        assert!(found == [0] || found == [0, 1], "{found:?}");
    }
}
