//! Catalogs that are read as one commit left them, while later commits go on.

use super::*;

/// Opens the catalog for reading, as the last commit left it.
fn pinned(catalog: &Catalog, sim: &Sim, max_blocks: u64) -> (PagePin, Catalog) {
    // Without a cache each comparison reads the device.
    let read = CatalogOptions { access: Access::ReadOnly, cache_bytes: 0, ..options() };
    let open = || Catalog::open(&blocks_of(sim), &catalog.runs(), LOG, read);
    catalog.pin_pages(max_blocks, open).unwrap()
}

#[test]
fn a_pinned_catalog_stays_as_its_commit_left_it() {
    let mut compared = 0;
    for seed in 0..8 {
        let (mut random, sim) = (Random(seed), new_sim());
        let (catalog, mut records) = (create_on(&sim), Records::new());
        let mut old = Vec::new();
        for round in 0..60 {
            let batch = random_batch(&mut random, 20, 2000, &mut records);
            match random.below(3) {
                0 => catalog.checkpoint(&batch).unwrap(),
                _ => log_or_checkpoint(&catalog, &batch),
            }
            if round % 12 == 0 {
                let (pin, read) = pinned(&catalog, &sim, u64::MAX);
                old.push((pin, read, records.clone()));
            }
            // A full catalog takes the pages back.
            for (_, read, records) in old.iter().filter(|(pin, ..)| pin.is_held()) {
                assert!(all_of(read).unwrap() == *records, "seed {seed}, round {round}");
                compared += 1;
            }
            if random.below(12) == 0 {
                old.clear();
            }
        }
        assert!(all_of(&catalog).unwrap() == records);
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn a_full_catalog_takes_back_the_pages_of_a_pin() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let overwrite = |n: u64| {
        let mut batch = Batch::default();
        batch.put(Key::Inode(1), &vec![n as u8; 60_000]);
        catalog.checkpoint(&batch).unwrap();
    };
    for _ in 0..4 {
        let (pin, _) = pinned(&catalog, &sim, u64::MAX);
        assert!(pin.is_newest());
        overwrite(0);
        assert!(pin.is_held() && !pin.is_newest());
        // Without the pin this would never fill it.
        (1..200).for_each(overwrite);
        assert!(!pin.is_held());
    }
}

#[test]
fn a_pin_is_released_when_the_catalog_grows_too_much() {
    let sim = new_sim();
    let mut superblock = Superblock::new(DEVICE_BLOCKS, "", RUNS.to_vec(), LOG).unwrap();
    superblock.write(&blocks_of(&sim)).unwrap();
    let catalog = create_on(&sim);
    let (small, _) = pinned(&catalog, &sim, catalog.block_count() + 99);
    let (large, _) = pinned(&catalog, &sim, catalog.block_count() + 100);
    catalog.extend(&mut superblock, &[Run { start: 2000, length: 100 }]).unwrap();
    assert_eq!((small.is_held(), large.is_held()), (false, true));
}
