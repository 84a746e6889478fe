//! The redo log: records survive reopening, also if one copy is damaged.

use std::sync::atomic::Ordering;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Fault, Rule, When};
use uringfs_device::{Errno, Op};

use super::*;

const HALF: u64 = LOG.length / 2;

/// A catalog with records in its log, as a kill leaves it.
struct LoggedCatalog {
    sim: Sim,
    records: Records,
    /// Blocks of each record, counted from the beginning of a half.
    places: Vec<std::ops::Range<u64>>,
}

/// The log also has old records, after the new ones.
fn logged(seed: u64) -> LoggedCatalog {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let (mut records, mut random) = (Records::new(), Random(seed));
    for _ in 0..HALF {
        let batch = random_batch(&mut random, 5, 100, &mut records);
        assert!(catalog.append_to_log(&batch).unwrap());
    }
    catalog.checkpoint(&random_batch(&mut random, 60, 300, &mut records)).unwrap();
    let mut places = Vec::new();
    for changes in [3, 40, 1, 8] {
        let begin = catalog.log.lock().next_block();
        assert!(
            catalog.append_to_log(&random_batch(&mut random, changes, 300, &mut records)).unwrap()
        );
        places.push(begin..catalog.log.lock().next_block());
    }
    assert!(places[1].end - places[1].start > 1 && places[3].end < HALF, "{places:?}");
    LoggedCatalog { sim: sim.crash_image(Crash::KeepAll), records, places }
}

/// First blocks of the halves.
const HALVES: [u64; 2] = [LOG.start, LOG.start + HALF];

fn put(inode: u64, value: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.put(Key::Inode(inode), value);
    batch
}

/// Overwrites blocks with zeros.
fn clear(sim: &Sim, start: u64, length: u64) {
    blocks_of(sim).write(start, Buffer::zeroed((length * BLOCK) as usize)).unwrap();
}

fn log_warnings(catalog: &Catalog) -> Vec<String> {
    catalog.warnings().into_iter().filter(|line| line.contains("log")).collect()
}

/// Commits and logs in turns, and reads everything back after reopening.
fn assert_commits_survive_reopening(sim: &Sim, mut records: Records) {
    let mut random = Random(1);
    for round in 0..3 {
        let catalog = open_on(sim).unwrap();
        assert!(all_of(&catalog).unwrap() == records, "round {round}");
        for _ in 0..3 {
            log_or_checkpoint(&catalog, &random_batch(&mut random, 4, 100, &mut records));
        }
        drop(catalog);
    }
    assert!(all_of(&open_on(sim).unwrap()).unwrap() == records);
}

#[test]
fn one_flipped_bit_in_the_log_loses_no_record_and_is_reported() {
    let seed = 41;
    let LoggedCatalog { sim, records, places } = logged(seed);
    let mut random = Random(seed);
    let (mut live, mut last, mut old) = (0, 0, 0);
    for sector in 0..LOG.length * 8 {
        let address = LOG.start * BLOCK + sector * 512;
        let mut bytes = [0; 512];
        sim.peek(address, &mut bytes);
        // Bytes after a record do not matter.
        let Some(end) = bytes.iter().rposition(|byte| *byte != 0) else { continue };
        let (byte, bit) = (address + random.below(end as u64 + 1), random.below(8) as u32);
        let image = sim.crash_image(Crash::KeepAll);
        image.flip_bit(byte, bit);
        let place = format!("seed {seed}, byte {byte}, bit {bit}");
        let catalog = open_on(&image).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(all_of(&catalog).unwrap() == records, "{place}");
        let block = sector / 8 % HALF;
        let record = places.iter().position(|place| place.contains(&block));
        let warnings = log_warnings(&catalog);
        match record {
            Some(record) if record + 1 < places.len() => {
                let first = sector / 8 / HALF * HALF + LOG.start + places[record].start;
                assert_eq!(warnings.len(), 1, "{place}");
                assert!(warnings[0].contains(&format!("block {first}:")), "{place}: {warnings:?}");
                live += 1;
            }
            // The last record may be torn, which is no damage.
            _ => {
                assert_eq!(warnings, Vec::<String>::new(), "{place}");
                *(if record.is_some() { &mut last } else { &mut old }) += 1;
            }
        }
        drop(catalog);
        if sector % 5 == 0 {
            assert_commits_survive_reopening(&image, records.clone());
        }
    }
    assert!(live > 20 && last >= 2 && old >= 2, "{live} live, {last} last, {old} old");
}

#[test]
fn a_lost_copy_of_the_log_loses_nothing() {
    for half in HALVES {
        let LoggedCatalog { sim, records, places } = logged(42);
        let (start, end) = (half * BLOCK, (half + HALF) * BLOCK);
        sim.inject(Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO)).within(start, end));
        let catalog = open_on(&sim).unwrap();
        assert!(all_of(&catalog).unwrap() == records);
        assert_eq!(log_warnings(&catalog).len(), places.len() - 1);
        drop(catalog);
        sim.clear_faults();
        clear(&sim, half, HALF);
        let catalog = open_on(&sim).unwrap();
        assert!(all_of(&catalog).unwrap() == records);
        assert_eq!(log_warnings(&catalog).len(), places.len() - 1);
        drop(catalog);
        assert_commits_survive_reopening(&sim, records);
    }
}

#[test]
fn a_record_with_a_damaged_and_an_unreadable_copy_is_not_lost() {
    let LoggedCatalog { sim, records, places } = logged(47);
    let place = places[1].start;
    sim.flip_bit((HALVES[1] + place) * BLOCK + 100, 3);
    let start = (HALVES[0] + place) * BLOCK;
    let read = Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO));
    sim.inject(read.within(start, start + BLOCK));
    let error = open_on(&sim).err().expect("an unreadable log is refused");
    assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
    sim.clear_faults();
    assert!(all_of(&open_on(&sim).unwrap()).unwrap() == records);
}

#[test]
fn unreadable_sectors_of_different_records_lose_nothing() {
    let LoggedCatalog { sim, records, places } = logged(43);
    let unreadable = |block: u64| {
        let (start, end) = (block * BLOCK + 512, block * BLOCK + 1024);
        Rule::new(Op::Read, When::Every(1), Fault::Error(Errno::IO)).within(start, end)
    };
    sim.inject(unreadable(HALVES[0] + places[0].start));
    sim.inject(unreadable(HALVES[1] + places[1].start));
    let catalog = open_on(&sim).unwrap();
    assert!(all_of(&catalog).unwrap() == records);
    assert_eq!(log_warnings(&catalog).len(), 2);
    drop(catalog);
    // The same record in both halves: it may be readable later, so the log must not end before it.
    sim.inject(unreadable(HALVES[1] + places[0].start));
    let error = open_on(&sim).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{error}");
    assert!(error.to_string().contains(&format!("block {}", HALVES[0])), "{error}");
    sim.clear_faults();
    assert_commits_survive_reopening(&sim, records);
}

#[test]
fn a_lost_record_before_another_one_is_reported() {
    let LoggedCatalog { sim, places, .. } = logged(44);
    let lost = &places[1];
    HALVES.iter().for_each(|half| sim.flip_bit((half + lost.start) * BLOCK + 100, 3));
    let error = open_on(&sim).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let message = error.to_string();
    assert!(message.contains(&format!("block {}", LOG.start + lost.start)), "{message}");
    assert!(message.contains("uringfs check --repair"), "{message}");
    // Salvage keeps the records before it, and goes on with numbers above all old ones.
    let salvage = CatalogOptions { truncate_damaged_log: true, ..options() };
    let catalog = Catalog::open(&blocks_of(&sim), &RUNS, LOG, salvage).unwrap();
    let records = all_of(&catalog).unwrap();
    assert_eq!(log_warnings(&catalog).len(), 1);
    assert!(!catalog.append_to_log(&put(1, b"no room is left behind damage")).unwrap());
    catalog.checkpoint(&Batch::default()).unwrap();
    catalog.close().unwrap();
    assert_commits_survive_reopening(&sim, records);
}

#[test]
fn a_last_record_torn_in_both_halves_does_not_exist() {
    let LoggedCatalog { sim, places, .. } = logged(45);
    let last = places.last().unwrap().start;
    HALVES.iter().for_each(|half| sim.flip_bit((half + last) * BLOCK + 20, 3));
    let catalog = open_on(&sim).unwrap();
    assert_eq!(log_warnings(&catalog), Vec::<String>::new());
    let records = all_of(&catalog).unwrap();
    drop(catalog);
    assert_commits_survive_reopening(&sim, records);
}

#[test]
fn a_full_log_refuses_and_a_checkpoint_empties_it() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    for round in 0..3 {
        let before = all_of(&catalog).unwrap();
        // Larger than the whole log.
        assert!(!catalog.append_to_log(&put(1, &vec![1; (HALF * BLOCK) as usize])).unwrap());
        assert!(all_of(&catalog).unwrap() == before);
        for inode in 0..HALF {
            assert!(catalog.append_to_log(&put(100 * round + inode, b"short")).unwrap(), "{inode}");
        }
        let (before, size) = (all_of(&catalog).unwrap(), catalog.logged_size());
        let events = sim.events();
        assert!(!catalog.append_to_log(&put(99, b"one more")).unwrap());
        assert_eq!(sim.events(), events, "a full log writes nothing");
        assert!(all_of(&catalog).unwrap() == before && catalog.logged_size() == size);
        catalog.checkpoint(&put(99, b"one more")).unwrap();
        assert_eq!(catalog.logged_size(), BatchSize::default());
    }
    assert_eq!(inodes(&catalog, 0).len() as u64, 3 * HALF + 1);
}

#[test]
fn a_record_fills_the_log_to_its_last_byte() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    // Eight bytes of each block are the mark; header, change, key and checksum take 36.
    let max = (HALF * (BLOCK - 8)) as usize - 36;
    assert!(!catalog.append_to_log(&put(7, &vec![5; max + 1])).unwrap());
    assert!(catalog.append_to_log(&put(7, &vec![5; max])).unwrap());
    assert!(!catalog.append_to_log(&Batch::default()).unwrap());
    drop(catalog);
    let catalog = open_on(&sim).unwrap();
    assert_eq!(catalog.get(Key::Inode(7)).unwrap().unwrap(), vec![5; max]);
}

#[test]
fn the_log_keeps_its_records_when_a_commit_is_refused() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    let mut count = 0;
    while catalog.checkpoint(&put(count, &[7; 20_000])).is_ok() {
        count += 1;
    }
    for round in 0..3 {
        assert!(catalog.append_to_log(&put(10_000 + round, b"small")).unwrap());
        let error = catalog.checkpoint(&put(count, &[7; 60_000])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
    // redb commits by itself when it closes.
    let found = all_of(&catalog).unwrap();
    catalog.close().unwrap();
    let catalog = open_on(&sim).unwrap();
    assert!(all_of(&catalog).unwrap() == found);
    assert_eq!(inodes(&catalog, 10_000).len(), 3);
    assert_eq!(catalog.get(Key::Inode(count)).unwrap(), None);
}

#[test]
fn records_of_an_old_catalog_never_reappear() {
    let sim = new_sim();
    let catalog = create_on(&sim);
    for inode in 0..HALF {
        assert!(catalog.append_to_log(&put(100 + inode, b"old")).unwrap());
    }
    drop(catalog);
    let catalog = create_on(&sim);
    assert!(all_of(&catalog).unwrap().is_empty());
    // With the number that the first old record had.
    assert!(catalog.append_to_log(&put(1, b"new")).unwrap());
    drop(catalog);
    let catalog = open_on(&sim).unwrap();
    assert_eq!(inodes(&catalog, 0), [(1, b"new".to_vec())]);
}

/// A record in whole blocks, as the log has it.
fn forged(number: u64, batch: &Batch) -> Vec<u8> {
    let sim = new_sim();
    let catalog = create_on(&sim);
    (1..number).for_each(|_| {
        catalog.append_to_log(&Batch::default()).unwrap();
        catalog.checkpoint(&Batch::default()).unwrap();
    });
    assert!(catalog.append_to_log(batch).unwrap());
    let mut bytes = vec![0; BLOCK as usize];
    sim.peek(LOG.start * BLOCK, &mut bytes);
    bytes
}

#[test]
fn a_value_that_looks_like_a_record_is_not_replayed() {
    for number in [2, 3, 9] {
        let forgery = forged(number, &put(1, b"forged"));
        // A block begins at any offset of the value.
        for before in 0..80 {
            let sim = new_sim();
            let catalog = create_on(&sim);
            let mut value = vec![0; BLOCK as usize - before];
            value.extend_from_slice(&forgery);
            let mut batch = Batch::default();
            batch.put(Key::Xattr(1, b"user.a"), &value);
            assert!(catalog.append_to_log(&batch).unwrap());
            drop(catalog);
            let catalog = open_on(&sim).unwrap_or_else(|e| panic!("{before} before: {e}"));
            assert_eq!(inodes(&catalog, 0), [], "{before} before");
            // Now the value is an old record, after a new one.
            catalog.checkpoint(&put(2, b"right")).unwrap();
            assert!(catalog.append_to_log(&put(3, b"right")).unwrap());
            drop(catalog);
            let catalog = open_on(&sim).unwrap_or_else(|e| panic!("{before} before: {e}"));
            assert_eq!(inodes(&catalog, 0).len(), 2, "{before} before");
        }
    }
}

#[test]
fn extreme_record_numbers_do_not_overflow_or_block_commits() {
    for number in [u64::MAX, u64::MAX - 1] {
        let sim = new_sim();
        create_on(&sim).close().unwrap();
        let mut bytes = forged(1, &put(1, b"far away"));
        bytes[16..24].copy_from_slice(&number.to_le_bytes());
        let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let sum = checksum(&bytes[12..24 + length]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        blocks_of(&sim).write(LOG.start, Buffer::copy_of(&bytes)).unwrap();
        assert_eq!(open_on(&sim).err().unwrap().kind(), ErrorKind::Damaged);
        let salvage = CatalogOptions { truncate_damaged_log: true, ..options() };
        let catalog = Catalog::open(&blocks_of(&sim), &RUNS, LOG, salvage).unwrap();
        catalog.checkpoint(&put(2, b"near")).unwrap();
        catalog.close().unwrap();
        for inode in 3..6 {
            let catalog = open_on(&sim).unwrap();
            log_or_checkpoint(&catalog, &put(inode, b"near"));
            drop(catalog);
        }
        assert_eq!(inodes(&open_on(&sim).unwrap(), 0).len(), 4);
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[test]
fn a_catalog_without_a_log_commits_to_redb() {
    let sim = new_sim();
    create_on(&sim).close().unwrap();
    let none = Run { start: 0, length: 0 };
    let open = || Catalog::open(&blocks_of(&sim), &RUNS, none, options()).unwrap();
    let catalog = open();
    assert!(!catalog.append_to_log(&put(1, b"")).unwrap());
    catalog.checkpoint(&put(1, b"")).unwrap();
    assert_eq!(catalog.all_runs(), RUNS);
    drop(catalog);
    assert_eq!(inodes(&open(), 0).len(), 1);
}

#[test]
fn a_failed_write_of_the_log_stops_the_catalog_and_loses_nothing() {
    let [by_fua, flushed] = CACHES;
    for (cache, op, nth) in [
        (flushed, Op::Write, 1),
        (flushed, Op::Write, 2),
        (flushed, Op::Flush, 1),
        (by_fua, Op::Write, 1),
        (by_fua, Op::Write, 2),
    ] {
        let sim = new_sim_with(cache);
        let catalog = create_on(&sim);
        assert!(catalog.append_to_log(&put(1, b"acknowledged")).unwrap());
        sim.fail_nth(op, nth, Errno::IO);
        let error = catalog.append_to_log(&put(2, b"perhaps")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO), "{op:?} {nth}: {error}");
        assert!(catalog.failure().is_some());
        assert!(catalog.append_to_log(&put(3, b"never")).is_err());
        assert!(catalog.checkpoint(&put(3, b"never")).is_err());
        drop(catalog);
        sim.clear_faults();
        for crash in [Crash::KeepAll, Crash::LoseAll] {
            let image = sim.crash_image(crash);
            let catalog = open_on(&image).unwrap();
            let found: Vec<u64> = inodes(&catalog, 0).into_iter().map(|(inode, _)| inode).collect();
            assert!(found == [1] || found == [1, 2], "{op:?} {nth}: {found:?}");
            let records = all_of(&catalog).unwrap();
            drop(catalog);
            assert_commits_survive_reopening(&image, records);
        }
    }
}

#[test]
fn concurrent_reads_see_all_acknowledged_commits() {
    const COMMITS: u64 = 400;
    let sim = new_sim();
    let catalog = create_on(&sim);
    let acknowledged = std::sync::atomic::AtomicU64::new(0);
    let counter =
        |value: Option<Vec<u8>>| value.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            loop {
                let before = acknowledged.load(Ordering::SeqCst);
                let last = counter(catalog.get(Key::State(b"last")).unwrap());
                let there = inodes(&catalog, 1);
                assert!(last >= before && there.len() as u64 >= before, "{last}, {before}");
                reads += 1;
                if before == COMMITS {
                    return reads;
                }
            }
        });
        for number in 1..=COMMITS {
            let mut batch = put(number, b"there");
            batch.put(Key::State(b"last"), &number.to_be_bytes());
            log_or_checkpoint(&catalog, &batch);
            acknowledged.store(number, Ordering::SeqCst);
        }
        assert!(reader.join().unwrap() > 10);
    });
}
