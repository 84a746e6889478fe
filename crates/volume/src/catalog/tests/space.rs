//! A catalog that runs out of blocks, and one that gets more.

use uringfs_device::backend::sim::CrashPlan;

use super::*;

fn put(inode: u64, bytes: usize) -> Batch {
    let mut batch = Batch::default();
    batch.put(Key::Inode(inode), &vec![inode as u8; bytes]);
    batch
}

/// Puts records until there is no space. Returns the number of records.
fn fill(catalog: &Catalog, from: u64, bytes: usize) -> u64 {
    for inode in from.. {
        match catalog.checkpoint(&put(inode, bytes)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return inode;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_full_catalog_loses_nothing_and_deletes() {
    for bytes in [5000, 20_000, 60_000] {
        let sim = new_sim();
        let catalog = create_on(&sim);
        let mut count = fill(&catalog, 0, bytes);
        for round in 0..3 {
            assert_eq!(inodes(&catalog, 0).len() as u64, count, "{bytes}, {round}");
            for inode in count / 2..count {
                let mut batch = Batch::default();
                batch.delete(Key::Inode(inode));
                batch.set_reserve(Reserve::Use);
                catalog.checkpoint(&batch).unwrap();
            }
            let again = fill(&catalog, count / 2, bytes);
            assert!(again * 100 > count * 95, "{again} after {count} records of {bytes} bytes");
            count = again;
        }
        assert!(catalog.failure().is_none());
        drop(catalog);
        let catalog = open_on(&sim).unwrap();
        assert_eq!(inodes(&catalog, 0).len() as u64, count);
    }
}

#[test]
fn a_catalog_with_its_wanted_blocks_never_fills() {
    let sim = Sim::new(SimOptions::new(40_000 * BLOCK));
    let blocks = blocks_of(&sim);
    let mut superblock = Superblock::new(40_000, "", RUNS.to_vec(), LOG).unwrap();
    superblock.write(&blocks).unwrap();
    let catalog = create_on(&sim);
    let mut free = 2000;
    let mut random = Random(31);
    for inode in 0..300 {
        let size = put(inode, 60_000).size();
        let wanted = catalog.wanted_blocks(size);
        if wanted > 0 {
            // Two runs: one adjacent to the last, one apart.
            let half = wanted / 2 + 1;
            let apart = free + random.below(2) * 10;
            let more =
                [Run { start: apart, length: half }, Run { start: apart + half, length: half }];
            free = apart + 2 * half;
            catalog.extend(&mut superblock, &more).unwrap();
            assert_eq!(catalog.wanted_blocks(size), 0);
        }
        catalog.checkpoint(&put(inode, 60_000)).unwrap();
    }
    drop(catalog);
    let found = Superblock::read(&blocks).unwrap();
    assert!(found.superblock.catalog.len() < 10 && found.superblock == superblock);
    let catalog = Catalog::open(&blocks, &superblock.catalog, LOG, options()).unwrap();
    assert_eq!(inodes(&catalog, 0).len(), 300);
}

#[test]
fn a_huge_batch_fits_into_the_wanted_blocks() {
    let sim = Sim::new(SimOptions::new(100_000 * BLOCK));
    let blocks = blocks_of(&sim);
    let mut superblock = Superblock::new(100_000, "", RUNS.to_vec(), LOG).unwrap();
    superblock.write(&blocks).unwrap();
    let catalog = create_on(&sim);
    // After the backup superblock.
    let mut free = 20_000;
    // In order, then between existing records, then in place of them.
    for (first, step, bytes) in [(0, 2, 72), (1, 2, 72), (0, 1, 300)] {
        let mut batch = Batch::default();
        for inode in (first..100_000).step_by(step) {
            batch.put(Key::Inode(inode), &vec![bytes as u8; bytes]);
        }
        let wanted = catalog.wanted_blocks(batch.size());
        if wanted > 0 {
            catalog.extend(&mut superblock, &[Run { start: free, length: wanted }]).unwrap();
            free += wanted;
        }
        assert_eq!(catalog.wanted_blocks(batch.size()), 0);
        catalog.checkpoint(&batch).unwrap();
    }
    assert!(catalog.get(Key::Inode(99_999)).unwrap().unwrap() == [300_u16 as u8; 300]);
}

#[test]
fn a_crash_while_blocks_are_added_leaves_a_valid_catalog() {
    let sim = new_sim();
    let blocks = blocks_of(&sim);
    // Blocks that held other bytes before.
    for block in 2000..2600 {
        blocks.write(block, uringfs_buffer::Buffer::copy_of(&[0xa5; BLOCK as usize])).unwrap();
    }
    let mut superblock = Superblock::new(DEVICE_BLOCKS, "", RUNS.to_vec(), LOG).unwrap();
    superblock.write(&blocks).unwrap();
    let catalog = create_on(&sim);
    let count = fill(&catalog, 0, 60_000);
    sim.restart_record();
    catalog.extend(&mut superblock, &[Run { start: 2000, length: 2500 }]).unwrap();
    for inode in count..count + 3 {
        catalog.checkpoint(&put(inode, 60_000)).unwrap();
    }
    drop(catalog);
    let mut grown = 0;
    for image in sim.crash_images(CrashPlan { exhaustive_up_to: 2, samples: 2, seed: 33 }) {
        let blocks = blocks_of(&image.sim);
        let superblock = Superblock::read(&blocks).unwrap().superblock;
        let catalog = Catalog::open(&blocks, &superblock.catalog, LOG, options()).unwrap();
        let found = inodes(&catalog, 0);
        assert!((count..=count + 3).contains(&(found.len() as u64)), "cut {}", image.cut);
        assert!(found.iter().all(|(inode, value)| *value == vec![*inode as u8; 60_000]));
        grown += usize::from(found.len() as u64 > count);
    }
    assert!(grown > 10, "{grown}");
}

#[test]
fn too_few_blocks_and_too_many_runs_are_refused() {
    let sim = new_sim();
    let few = [Run { start: 40, length: MIN_BLOCKS - 1 }];
    let error = Catalog::create(&blocks_of(&sim), &few, LOG, options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Input);
    let catalog = create_on(&sim);
    let mut superblock = Superblock::new(DEVICE_BLOCKS, "", RUNS.to_vec(), LOG).unwrap();
    let many: Vec<Run> = (0..240).map(|n| Run { start: 3000 + 2 * n, length: 1 }).collect();
    let error = catalog.extend(&mut superblock, &many).unwrap_err();
    assert_eq!((error.kind(), superblock.catalog.len()), (ErrorKind::NoSpace, 2));
}
