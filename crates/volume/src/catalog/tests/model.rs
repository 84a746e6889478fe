//! Committed records are read back in order, also after reopening.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Commit { seed: u64, changes: u64, value: u64 },
    Log { seed: u64, changes: u64, value: u64 },
    Close,
    Drop,
    Look { limit: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = || (any::<u64>(), 0..60u64, prop_oneof![Just(20u64), Just(300), Just(6000)]);
    let commit = batch().prop_map(|(seed, changes, value)| Step::Commit { seed, changes, value });
    // Small, so that the log has room for several.
    let log = (any::<u64>(), 0..25u64, prop_oneof![9 => Just(20u64), 1 => Just(900)])
        .prop_map(|(seed, changes, value)| Step::Log { seed, changes, value });
    let look = prop_oneof![Just(1), Just(2), Just(7)].prop_map(|limit| Step::Look { limit });
    prop::collection::vec(
        prop_oneof![
            3 => commit,
            6 => log,
            1 => Just(Step::Close),
            1 => Just(Step::Drop),
            2 => look,
        ],
        1..20,
    )
}

/// Reads `limit` records at a time, of all inodes and of each, and the last key of each table.
fn look(catalog: &Catalog, records: &Records, limit: usize) {
    assert!(all_by(catalog, limit).unwrap() == *records, "{limit} at a time");
    for table in [Table::Names, Table::Extents, Table::Xattrs] {
        for inode in 0..40u64 {
            let prefix = inode.to_be_bytes();
            let (mut found, mut from) = (Vec::new(), prefix.to_vec());
            loop {
                let some = catalog.scan(table, from, Some(inode), limit).unwrap();
                let Some((last, _)) = some.last() else { break };
                from = [last.as_slice(), &[0]].concat();
                assert!(some.len() <= limit);
                found.extend(some);
            }
            let right =
                records.iter().filter(|((of, key), _)| *of == table && key.starts_with(&prefix));
            let right: Vec<_> =
                right.map(|((_, key), value)| (key.clone(), value.clone())).collect();
            assert!(found == right, "{table:?} of inode {inode}, {limit} at a time");
        }
    }
    for table in Table::ALL {
        let last = records.keys().filter(|(of, _)| *of == table).map(|(_, key)| key).max();
        assert!(catalog.last_key(table).unwrap().as_ref() >= last, "{table:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_catalog_equals_a_map(steps in steps()) {
        let sim = Sim::new(SimOptions::new(DEVICE_BLOCKS * BLOCK).max_transfer(16384));
        let mut catalog = create_on(&sim);
        let mut records = Records::new();
        for step in steps {
            match step {
                Step::Commit { seed, changes, value } => {
                    let batch = random_batch(&mut Random(seed), changes, value, &mut records);
                    catalog.checkpoint(&batch).unwrap();
                    prop_assert_eq!(catalog.logged_size(), BatchSize::default());
                }
                Step::Log { seed, changes, value } => {
                    let batch = random_batch(&mut Random(seed), changes, value, &mut records);
                    log_or_checkpoint(&catalog, &batch);
                }
                Step::Look { limit } => {
                    look(&catalog, &records, limit);
                    let access = CatalogOptions { access: Access::ReadOnly, ..options() };
                    let image = sim.crash_image(uringfs_device::backend::sim::Crash::LoseAll);
                    let reader = Catalog::open(&blocks_of(&image), &RUNS, LOG, access).unwrap();
                    look(&reader, &records, limit);
                }
                Step::Close => {
                    catalog.close().unwrap();
                    catalog = open_on(&sim).unwrap();
                }
                Step::Drop => {
                    drop(catalog);
                    catalog = open_on(&sim).unwrap();
                }
            }
            prop_assert!(all_of(&catalog).unwrap() == records);
            prop_assert!(!catalog.was_repaired());
        }
        for ((table, key), value) in &records {
            if *table == Table::State {
                prop_assert_eq!(&catalog.get(Key::State(key)).unwrap(), &Some(value.clone()));
            }
        }
    }
}

#[test]
fn a_scan_is_limited_in_number_and_to_one_inode() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let mut batch = Batch::default();
    for directory in 1..4u64 {
        for number in 0..100u64 {
            let name = format!("{number:03}");
            batch.put(Key::Name(directory, name.as_bytes()), &[directory as u8]);
            batch.put(Key::Extent(directory, number * 7), &number.to_le_bytes());
        }
        batch.put(Key::Orphan(directory), b"");
        batch.put(Key::Region(directory as u32), b"");
    }
    catalog.checkpoint(&batch).unwrap();
    let mut seen = Vec::new();
    let mut from = Key::Name(2, b"").bytes();
    loop {
        let found = catalog.scan(Table::Names, from, Some(2), 7).unwrap();
        let Some((last, _)) = found.last() else { break };
        from = [last.as_slice(), &[0]].concat();
        assert!(found.len() <= 7 && found.iter().all(|(_, value)| *value == [2]));
        seen.extend(found.into_iter().map(|(key, _)| String::from_utf8(key[8..].into()).unwrap()));
    }
    assert_eq!(seen, (0..100).map(|number| format!("{number:03}")).collect::<Vec<_>>());
    let from = Key::Extent(3, 8).bytes();
    let extents = catalog.scan(Table::Extents, from, Some(3), usize::MAX).unwrap();
    assert_eq!(extents.len(), 98);
    assert_eq!(extents[0].0, Key::Extent(3, 14).bytes());
    assert_eq!(
        catalog.scan(Table::Orphans, Vec::new(), None, 2).unwrap(),
        [1, 2].map(|inode| (Key::Orphan(inode).bytes(), vec![]))
    );
    let from = Key::Region(3).bytes();
    let region = (from.clone(), vec![]);
    assert_eq!(catalog.scan(Table::Regions, from, None, 9).unwrap(), [region]);
}

#[test]
fn a_read_only_catalog_writes_nothing() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let mut records = Records::new();
    catalog.checkpoint(&random_batch(&mut Random(5), 50, 100, &mut records)).unwrap();
    // As a crash leaves it: opening would write.
    let image = sim.crash_image(uringfs_device::backend::sim::Crash::LoseAll);
    let access = CatalogOptions { access: Access::ReadOnly, ..options() };
    let reader = Catalog::open(&blocks_of(&image), &RUNS, LOG, access).unwrap();
    assert!(all_of(&reader).unwrap() == records);
    let error = reader.checkpoint(&Batch::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Input);
    reader.close().unwrap();
    let events = image.record();
    let flushes_only = events.iter().all(|event| match event {
        uringfs_device::backend::sim::Event::Begin { action, .. } => {
            matches!(action, uringfs_device::backend::sim::Action::Flush)
        }
        uringfs_device::backend::sim::Event::End { .. } => true,
    });
    assert!(flushes_only, "{} events", events.len());
}

#[test]
fn a_batch_without_space_is_refused_as_a_whole() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let mut batch = Batch::default();
    batch.put(Key::Inode(1), &[]);
    batch.put(Key::Inode(2), &vec![0; 64 << 20]);
    assert_eq!(catalog.checkpoint(&batch).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(catalog.get(Key::Inode(1)).unwrap(), None);
}
