//! Catalogs that are read as one commit left them, while later commits go on.

use super::*;

/// Opens the catalog for reading, as the last commit left it.
fn pinned(catalog: &Catalog, sim: &Sim, max_blocks: u64) -> (PagePin, Catalog) {
    let read = CatalogOptions { access: Access::ReadOnly, ..options() };
    let open = || Catalog::open(&blocks_of(sim), &catalog.runs(), LOG, read);
    catalog.pin_pages(max_blocks, open).unwrap()
}

#[test]
fn a_pinned_catalog_stays_as_its_commit_left_it() {
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
            for (pin, read, records) in &old {
                assert!(pin.is_held());
                assert!(all_of(read).unwrap() == *records, "seed {seed}, round {round}");
            }
            if random.below(12) == 0 {
                old.clear();
            }
        }
        assert!(all_of(&catalog).unwrap() == records);
    }
}

/// Overwrites one record until the catalog is full, or `times` times.
fn overwrite(catalog: &Catalog, times: u64) -> Result<(), Error> {
    (0..times).try_for_each(|n| {
        let mut batch = Batch::default();
        batch.put(Key::Inode(1), &vec![n as u8; 60_000]);
        catalog.checkpoint(&batch)
    })
}

#[test]
fn released_pages_are_used_again() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    overwrite(&catalog, 300).unwrap();
    let (pin, _) = pinned(&catalog, &sim, u64::MAX);
    assert_eq!(overwrite(&catalog, 300).unwrap_err().kind(), ErrorKind::NoSpace);
    catalog.release_pins();
    assert!(!pin.is_held());
    let mut small = Batch::default();
    small.set_reserve(Reserve::Use);
    catalog.checkpoint(&small).unwrap();
    overwrite(&catalog, 300).unwrap();
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
