//! Changed bytes and failing devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use uringfs_device::backend::sim::{Crash, Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::*;
use crate::catalog::backend::ReadWriteBackend;
use crate::catalog::store::Store;

/// A closed catalog with records.
fn filled(seed: u64) -> (Sim, Records) {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let mut records = Records::new();
    let mut random = Random(seed);
    for _ in 0..6 {
        let batch = random_batch(&mut random, 80, 400, &mut records);
        catalog.checkpoint(&batch).unwrap();
    }
    catalog.close().unwrap();
    (sim, records)
}

/// Blocks of the catalog.
fn catalog_blocks() -> impl Iterator<Item = u64> {
    RUNS.into_iter().flat_map(|run| run.start..run.end())
}

/// Whether records may be missing without an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Never,
    Forged,
}

/// Reads all records, one by one and in order, from a changed catalog. Returns the number of
/// errors.
fn read_damaged(sim: &Sim, records: &Records, missing: Missing, place: &str) -> usize {
    let catalog = match open_on(sim) {
        Ok(catalog) => catalog,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}");
            return 1;
        }
    };
    let mut errors = 0;
    for table in Table::ALL {
        let there = records.keys().filter(|(of, _)| *of == table).count();
        match catalog.scan(table, Vec::new(), None, 4096) {
            Ok(found) => {
                let whole = found.len() == there && found.is_sorted();
                assert!(whole || missing == Missing::Forged, "{place}, {table:?}");
                for (key, value) in found {
                    assert_eq!(records.get(&(table, key)), Some(&value), "{place}, {table:?}");
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}");
                errors += 1;
            }
        }
    }
    for ((table, key), value) in records.iter().filter(|((table, _), _)| *table == Table::Names) {
        let inode = u64::from_be_bytes(key[..8].try_into().unwrap());
        match catalog.get(Key::Name(inode, &key[8..])) {
            Ok(None) => assert!(missing == Missing::Forged, "{place}, {table:?}"),
            Ok(Some(found)) => assert_eq!(found, *value, "{place}, {table:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{place}: {error}");
                errors += 1;
            }
        }
    }
    errors
}

/// Flips two bits of a block, which cannot be corrected.
fn spoil(sim: &Sim, block: u64) {
    sim.flip_bit(block * BLOCK + 100, 0);
    sim.flip_bit(block * BLOCK + 600, 3);
}

#[test]
fn one_flipped_bit_in_any_sector_is_corrected_and_reported() {
    let seed = 21;
    let (sim, records) = filled(seed);
    let mut random = Random(seed);
    let (mut flips, mut reported) = (0, 0);
    for block in catalog_blocks() {
        let mut bytes = vec![0; BLOCK as usize];
        sim.peek(block * BLOCK, &mut bytes);
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        for sector in 0..8 {
            let address = block * BLOCK + sector * 512 + random.below(512);
            let bit = random.below(8) as u32;
            let image = sim.crash_image(Crash::KeepAll);
            image.flip_bit(address, bit);
            let place = format!("seed {seed}, address {address}, bit {bit}");
            flips += 1;
            assert_eq!(read_damaged(&image, &records, Missing::Never, &place), 0, "{place}");
            let catalog = open_on(&image).unwrap();
            assert_eq!(catalog.verify(), Verification::Good, "{place}");
            let warnings = catalog.warnings();
            reported += usize::from(warnings.iter().any(|line| line.contains(&format!("{block}"))));
        }
    }
    assert!(flips > 500 && reported > 100, "{flips} flips, {reported} reported");
}

/// A page with names that does not lead to other pages, and the number of errors without it.
fn leaf_of_names(sim: &Sim, records: &Records) -> (u64, usize) {
    let found = catalog_blocks().find_map(|block| {
        let image = sim.crash_image(Crash::KeepAll);
        spoil(&image, block);
        open_on(&image).ok()?;
        let errors = read_damaged(&image, records, Missing::Never, "");
        let names = records.keys().filter(|(table, _)| *table == Table::Names).count();
        (2..names).contains(&errors).then_some((block, errors))
    });
    found.expect("names fill several pages")
}

#[test]
fn a_damaged_page_loses_only_its_records() {
    let (sim, records) = filled(22);
    let (block, errors) = leaf_of_names(&sim, &records);
    spoil(&sim, block);
    let catalog = open_on(&sim).unwrap();
    // A call that needs the page gets an error which names it. Other calls never see it.
    let error = catalog.scan(Table::Names, Vec::new(), None, 4096).unwrap_err();
    assert!(error.to_string().contains(&format!("block {block}")), "{error}");
    for _ in 0..3 {
        catalog.scan(Table::Names, Vec::new(), None, 4096).unwrap_err();
        let mut batch = Batch::default();
        batch.put(Key::Inode(1000), b"new");
        catalog.checkpoint(&batch).unwrap();
        assert_eq!(catalog.get(Key::Inode(1000)).unwrap().unwrap(), b"new");
    }
    assert!(catalog.failure().is_none());
    assert!(errors >= 2);
}

#[test]
fn salvage_finds_all_records_outside_a_lost_page() {
    let (sim, records) = filled(27);
    let (block, _) = leaf_of_names(&sim, &records);
    spoil(&sim, block);
    let salvage = CatalogOptions {
        access: Access::ReadOnly,
        lost_page_policy: LostPages::Empty,
        ..options()
    };
    let catalog = Catalog::open(&blocks_of(&sim), &RUNS, LOG, salvage).unwrap();
    assert!(matches!(catalog.verify(), Verification::Damaged(_)));
    let found = all_of(&catalog).unwrap();
    let missing: Vec<_> = records.keys().filter(|key| !found.contains_key(key)).collect();
    assert!(found.iter().all(|(key, value)| records[key] == *value));
    assert!(!missing.is_empty() && missing.iter().all(|(table, _)| *table == Table::Names));
    let lost = catalog.damaged_pages();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].block, block);
    assert!(matches!(lost[0].damage, PageDamage::Lost(_)), "{}", lost[0]);
}

#[test]
fn a_corrected_page_is_written_back() {
    let (sim, records) = filled(28);
    let (block, _) = leaf_of_names(&sim, &records);
    sim.flip_bit(block * BLOCK + 100, 0);
    let catalog = open_on(&sim).unwrap();
    assert_eq!(catalog.verify(), Verification::Good);
    assert_eq!(catalog.damaged_pages().len(), 1);
    rewrite_damaged(&sim, catalog);
    assert!(all_of(&open_on(&sim).unwrap()).unwrap() == records);
}

/// Closes a verified catalog and writes the corrected pages.
fn rewrite_damaged(sim: &Sim, catalog: Catalog) {
    let bad: Vec<u64> = catalog.damaged_pages().iter().map(|bad| bad.page).collect();
    drop(catalog);
    Catalog::rewrite(&blocks_of(sim), &RUNS, &bad).unwrap();
    let catalog = open_on(sim).unwrap();
    assert!(catalog.verify() == Verification::Good && catalog.damaged_pages().is_empty());
}

/// Fills a sector with a byte.
fn overwrite(sim: &Sim, address: u64, byte: u8) {
    let (block, inside) = (address / BLOCK, (address % BLOCK) as usize);
    let blocks = blocks_of(sim);
    let mut bytes = blocks.read(block, BLOCK as usize).unwrap();
    bytes[inside..inside + 512].fill(byte);
    blocks.write(block, bytes).unwrap();
}

#[test]
fn lost_checksums_are_recomputed_after_verification() {
    let (sim, records) = filled(29);
    let mut lost = 0;
    for sector in 0..2 {
        for byte in [0, 0xa5] {
            let place = format!("sector {sector} of {byte:#x}");
            let image = sim.crash_image(Crash::KeepAll);
            overwrite(&image, RUNS[0].start * BLOCK + sector * 512, byte);
            read_damaged(&image, &records, Missing::Never, &place);
            if let Ok(catalog) = open_on(&image) {
                let _ = all_of(&catalog);
                assert!(catalog.failure().is_none(), "{place}: {:?}", catalog.failure());
            }
            let reads = CatalogOptions { access: Access::ReadOnly, ..options() };
            let catalog = Catalog::open(&blocks_of(&image), &RUNS, LOG, reads);
            let Ok(catalog) = catalog else { panic!("{place}") };
            if matches!(catalog.verify(), Verification::ChecksumsLost { .. }) {
                let is_sum = |bad: &BadPage| bad.damage == PageDamage::ChecksumLost;
                assert!(catalog.damaged_pages().iter().all(is_sum), "{place}");
                lost += 1;
            }
            rewrite_damaged(&image, catalog);
            assert!(all_of(&open_on(&image).unwrap()).unwrap() == records, "{place}");
        }
    }
    assert!(lost >= 2, "{lost} sectors had checksums in use");
}

#[test]
fn damage_in_redbs_own_pages_does_not_block_reads() {
    let (sim, records) = filled(30);
    let (mut unopened, mut all_there) = (0, 0);
    for block in catalog_blocks() {
        let image = sim.crash_image(Crash::KeepAll);
        spoil(&image, block);
        if open_on(&image).is_ok() {
            continue;
        }
        unopened += 1;
        let reads = CatalogOptions { access: Access::ReadOnly, ..options() };
        let found = Catalog::open(&blocks_of(&image), &RUNS, LOG, reads).and_then(|it| all_of(&it));
        all_there += usize::from(found.is_ok_and(|found| found == records));
    }
    assert!(all_there >= 1 && all_there + 2 >= unopened, "{all_there} of {unopened}");
}

#[test]
fn a_read_of_damage_does_not_break_a_concurrent_commit() {
    let (sim, records) = filled(23);
    let (block, _) = leaf_of_names(&sim, &records);
    spoil(&sim, block);
    let catalog = open_on(&sim).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // So many that each commit meets damage which others have found.
        let readers = [(); 8].map(|()| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    catalog.scan(Table::Names, Vec::new(), None, 4096).unwrap_err();
                }
            })
        });
        let commit = |number: u64| {
            let mut batch = Batch::default();
            batch.put(Key::Inode(1000 + number), &number.to_le_bytes());
            catalog.checkpoint(&batch)
        };
        let committed = (0..200).try_for_each(commit);
        is_done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        committed.unwrap();
    });
    assert_eq!(inodes(&catalog, 1000).len(), 200);
}

#[test]
fn a_failed_write_or_flush_leaves_the_catalog_for_reading() {
    for op in [Op::Write, Op::Flush] {
        let sim = new_sim();
        let catalog = create_on(&sim);
        let mut records = Records::new();
        catalog.checkpoint(&random_batch(&mut Random(1), 30, 100, &mut records)).unwrap();
        sim.fail_nth(op, 1, Errno::IO);
        let mut batch = Batch::default();
        batch.put(Key::Inode(999), b"lost");
        let error = catalog.checkpoint(&batch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
        for error in [catalog.checkpoint(&batch).unwrap_err(), catalog.failure().unwrap()] {
            assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
            assert!(error.to_string().contains("stopped"), "{error}");
        }
        assert!(all_of(&catalog).unwrap() == records, "{op:?}");
        drop(catalog);
        assert!(all_of(&open_on(&sim).unwrap()).unwrap() == records, "{op:?}");
    }
}

#[test]
fn a_failed_read_is_an_error_and_the_next_one_succeeds() {
    let (sim, records) = filled(24);
    let catalog = open_on(&sim).unwrap();
    sim.inject(Rule::new(Op::Read, When::Nth(1), Fault::Error(Errno::IO)));
    let Err(error) = all_of(&catalog) else { panic!("a failed read gave no error") };
    assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
    assert!(all_of(&catalog).unwrap() == records);
}

#[test]
fn lost_and_misdirected_writes_are_detected() {
    for fault in [Fault::Stale, Fault::Misdirected, Fault::BitRot] {
        let sim = Sim::new(SimOptions::new(DEVICE_BLOCKS * BLOCK).seed(7));
        let catalog = create_on(&sim);
        let mut records = Records::new();
        let mut random = Random(7);
        let mut states = vec![records.clone()];
        sim.inject(Rule::new(Op::Write, When::Every(9), fault));
        for _ in 0..20 {
            let batch = random_batch(&mut random, 20, 400, &mut records);
            states.push(records.clone());
            if catalog.checkpoint(&batch).is_err() {
                break;
            }
        }
        drop(catalog);
        sim.clear_faults();
        // A header that never reached the device leaves an older state, whole; never a mixture.
        match open_on(&sim).and_then(|catalog| all_of(&catalog)) {
            Ok(found) => assert!(states.contains(&found), "{fault:?}, seed 7"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{error}"),
        }
    }
}

#[test]
fn a_bad_copy_of_the_header_is_reported_and_repaired() {
    let (sim, records) = filled(26);
    let head = RUNS[0].start + 1;
    for copy in [0, 2048] {
        sim.flip_bit(head * BLOCK + copy + 300, 4);
        let catalog = open_on(&sim).unwrap();
        let warnings = [format!("catalog header, block {head}, byte {copy}: wrong checksum")];
        assert_eq!(catalog.warnings(), warnings);
        assert!(all_of(&catalog).unwrap() == records);
        drop(catalog);
        assert!(open_on(&sim).unwrap().warnings().is_empty());
    }
    for copy in [0, 2048] {
        sim.flip_bit(head * BLOCK + copy + 300, 4);
    }
    let Err(error) = open_on(&sim) else { panic!("opened without a header") };
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

/// Writes wrong bytes into redb's pages with right checksums, as no failing device would.
#[test]
fn forged_pages_give_errors_and_no_panic() {
    let seed = 25;
    let (sim, records) = filled(seed);
    let mut random = Random(seed);
    let pages =
        Store::open(blocks_of(&sim), &RUNS, Access::ReadOnly, LostPages::Fail).unwrap().length()
            / BLOCK;
    let mut seen = 0;
    for page in (1..pages).step_by(3) {
        for forgery in 0..4 {
            let image = sim.crash_image(Crash::KeepAll);
            let store = Arc::new(
                Store::open(blocks_of(&image), &RUNS, Access::ReadWrite, LostPages::Fail).unwrap(),
            );
            let backend = ReadWriteBackend(store);
            let mut bytes = vec![0; BLOCK as usize];
            if backend.read(page * BLOCK, &mut bytes).is_err() {
                // It was never written.
                continue;
            }
            match forgery {
                0 => bytes.fill(0),
                1 => bytes.fill(0xff),
                // The bytes of redb's types, counts and offsets.
                2 => bytes[random.below(16) as usize] ^= 1 << random.below(8),
                _ => bytes[random.below(BLOCK) as usize] ^= 1 << random.below(8),
            }
            backend.write(page * BLOCK, &bytes).unwrap();
            backend.sync_data().unwrap();
            let place = format!("seed {seed}, page {page}, forgery {forgery}");
            seen += usize::from(read_damaged(&image, &records, Missing::Forged, &place) > 0);
        }
    }
    assert!(seen > 30, "{seen} seen");
}
