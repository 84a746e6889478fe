//! Tests verification: writes are read back, and wrong blocks are found and named.

use super::recording_engine::{BLOCK, BLOCKS, RecordingEngine, run_job, whole};
use uringfs::Errno;
use uringfs_lab::engine::Io;
use uringfs_lab::run::LoopResult;
use uringfs_lab::workload::IoOp;

/// Makes some transfers short and interrupts others.
fn rough(n: u64, io: Io) -> Result<u32, Errno> {
    match n % 5 {
        0 if io.length > 1024 => Ok(1024),
        1 => Err(Errno::INTR),
        _ => Ok(io.length),
    }
}

#[test]
fn each_pass_of_writes_is_read_back_in_the_same_order() {
    for verify in ["verify=crc32c\n", "verify_pattern=0xdeadbe\n"] {
        let keys = format!("rw=randwrite\niodepth=8\nloops=2\nend_fsync=1\n{verify}");
        let (result, engine) = run_job(&keys, RecordingEngine::new(whole));
        assert_eq!(result.failure, None);
        let (reads, writes) = (engine.blocks(IoOp::Read), engine.blocks(IoOp::Write));
        assert_eq!(reads.len() as u64, 2 * BLOCKS);
        assert_eq!(reads, writes);
        assert_ne!(writes[..256], writes[256..], "each pass has an order of its own");
        assert_eq!(engine.syncs, [256, 768], "before reading back");
        assert_eq!(engine.cache_drops, [256, 768], "reading back reads the device");
        let [read_ns, written_ns, _] = result.direction_ns;
        assert!(read_ns > 0 && written_ns > 0);
        assert_eq!(read_ns + written_ns, result.runtime_ns, "the two times add up");
    }
}

#[test]
fn a_backlog_is_read_back_before_more_is_written() {
    let keys = "rw=randwrite\niodepth=8\nverify=crc32c\nloops=2\nverify_backlog=100\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    assert_eq!(engine.blocks(IoOp::Read), engine.blocks(IoOp::Write), "in the same order");
    let mut runs: Vec<(IoOp, usize)> = Vec::new();
    for io in &engine.ios {
        match runs.last_mut() {
            Some((op, count)) if *op == io.op => *count += 1,
            _ => runs.push((io.op, 1)),
        }
    }
    let pass = [100, 100, 56].map(|count| [(IoOp::Write, count), (IoOp::Read, count)]).concat();
    assert_eq!(runs, [pass.clone(), pass].concat());
    assert_eq!(engine.cache_drops, [100, 300, 456, 612, 812, 968], "the reads are of the device");
    let [read_ns, written_ns, _] = result.direction_ns;
    assert_eq!(read_ns + written_ns, result.runtime_ns);
}

/// 256 writes at 4,000 a second: whatever reading back takes, the last one is not due before 63.75 ms.
#[test]
fn a_rate_holds_over_the_backlogs() {
    let keys = "rw=write\nverify=crc32c\nverify_backlog=1\nrate_iops=4000\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!((result.failure, engine.blocks(IoOp::Write).len()), (None, 256));
    let writing_ns = result.direction_ns[1];
    assert!(writing_ns >= 63_000_000, "{writing_ns} ns");
}

/// The coarse clock is behind the exact one, with which a run begins.
#[test]
fn a_job_without_time_stamps_verifies() {
    for rw in ["rw=write", "rw=randrw"] {
        let keys = format!("{rw}\niodepth=8\nverify=crc32c\ngtod_reduce=1\nloops=3\n");
        let (result, engine) = run_job(&keys, RecordingEngine::new(whole));
        assert_eq!(result.failure, None);
        assert!(!engine.blocks(IoOp::Read).is_empty());
    }
}

#[test]
fn a_lost_write_is_found_in_its_backlog() {
    let mut engine = RecordingEngine::new(whole);
    engine.lost = Some(20);
    let keys = "verify=crc32c\nverify_backlog=32\nverify_fatal=1\n";
    let (result, engine) = run_job(&format!("rw=randwrite\n{keys}"), engine);
    assert!(result.failure.unwrap().what.contains("wrong block"));
    assert_eq!(engine.blocks(IoOp::Write).len(), 32, "no more was written before the check");
    assert_eq!(engine.blocks(IoOp::Read).len(), 21);
}

#[test]
fn the_backlog_of_a_mix_is_its_writes() {
    let keys = "rw=randrw\nrwmixread=30\niodepth=4\nverify=crc32c\nverify_backlog=32\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    let writes = engine.blocks(IoOp::Write).len();
    assert_eq!(engine.blocks(IoOp::Read).len() as u64, BLOCKS, "of the mix, and of reading back");
    assert_eq!(engine.cache_drops.len(), writes / 32 + 1);
}

#[test]
fn a_job_that_does_not_read_back_has_no_backlog() {
    let keys = "rw=write\niodepth=8\nverify_backlog=32\nverify=crc32c\ndo_verify=0\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!((result.failure, engine.cache_drops.len()), (None, 0));
    assert!(engine.depths.iter().skip(8).all(|depth| *depth == 7), "it never pauses");
}

#[test]
fn the_writes_of_a_mix_are_read_back() {
    let (result, engine) =
        run_job("rw=randrw\niodepth=8\nverify=crc32c\n", RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    let (reads, writes) = (engine.blocks(IoOp::Read), engine.blocks(IoOp::Write));
    assert_eq!(reads.len() as u64, BLOCKS, "the reads of the mix, and of reading back");
    assert_eq!(reads[reads.len() - writes.len()..], writes);
}

#[test]
fn reads_and_writes_of_different_sizes_destroy_no_header() {
    for order in ["", "norandommap\n", "random_distribution=zipf:1.2\n"] {
        for bs in ["bs=4k,8k", "bs=8k,4k", "bs=4k,12k", "bsrange=4k-8k,8k-8k"] {
            let keys = format!("rw=randrw\n{bs}\niodepth=8\nloops=3\nverify=crc32c\n{order}");
            let (result, engine) = run_job(&keys, RecordingEngine::new(whole));
            assert_eq!(result.failure, None, "{keys}");
            assert!(!engine.blocks(IoOp::Write).is_empty());
        }
    }
}

#[test]
fn blocks_from_several_short_transfers_verify() {
    for verify in ["verify=crc32c\n", "verify_pattern=\"some pattern \"\n"] {
        let keys = format!("rw=randwrite\niodepth=8\n{verify}");
        let (result, _) = run_job(&keys, RecordingEngine::new(rough));
        assert_eq!(result.failure, None);
        let [reads, writes, _] = &result.stats.directions;
        assert!(reads.short > 10 && writes.short > 10);
    }
}

#[test]
fn a_pattern_restarts_at_each_block_for_any_reader() {
    // Three bytes do not divide a block, and reading back draws sizes of its own.
    let keys = "rw=randrw\nbsrange=4k-16k\nloops=3\nverify_pattern=0xdeadbe\n";
    let (result, _) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!((result.failure, result.wrong_blocks.len()), (None, 0));
    let write = "rw=write\nbsrange=4k-16k\n";
    let (_, engine) =
        run_job(&format!("{write}verify_pattern=0xdeadbe\n"), RecordingEngine::new(whole));
    let mut again = RecordingEngine::new(whole);
    again.file = engine.file;
    let (result, _) = run_job("rw=read\nbs=4k\nverify_pattern=0xdeadbe\n", again);
    assert_eq!((result.failure, result.wrong_blocks.len()), (None, 0));
}

#[test]
fn reading_back_has_no_rate_limit() {
    // With the rate limit of its reads it would take a week. The runtime bounds that, and is long enough
    // for a machine that stalls.
    let keys = "rw=write\nverify=crc32c\nrate=1,\nruntime=60\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    assert_eq!(engine.blocks(IoOp::Read).len() as u64, BLOCKS);
}

/// Runs a job that writes, changes the file, and runs another job that verifies it.
fn run_then_corrupt(keys: &str, corrupt: fn(&mut [u8])) -> (LoopResult, RecordingEngine) {
    let (result, mut engine) =
        run_job(&format!("rw=write\ndo_verify=0\n{keys}"), RecordingEngine::new(whole));
    assert_eq!((result.failure, engine.blocks(IoOp::Read).len()), (None, 0));
    corrupt(&mut engine.file);
    let mut again = RecordingEngine::new(whole);
    again.file = engine.file;
    run_job(&format!("rw=read\n{keys}"), again)
}

#[test]
fn a_wrong_block_is_named_and_the_job_continues() {
    let (result, engine) =
        run_then_corrupt("verify=crc32c\niodepth=4\n", |file| file[8192 + 100] ^= 1);
    let failure = result.failure.unwrap();
    assert_eq!(failure.errno, Errno::ILSEQ);
    assert_eq!(failure.to_string(), "verify found 1 wrong block (EILSEQ)");
    assert_eq!((engine.ios.len() as u64, result.wrong_blocks.len()), (BLOCKS, 1));
    let wrong = result.wrong_blocks[0].to_string();
    assert!(wrong.starts_with("wrong block at offset 8192: expected crc32c "), "{wrong}");
    assert_eq!(result.wrong_blocks[0].file, Some(0));
}

#[test]
fn a_misdirected_block_with_a_right_sum_is_found() {
    let swap = |file: &mut [u8]| file.copy_within(4096..8192, 40960);
    let (result, _) = run_then_corrupt("verify=crc32c\n", swap);
    let wrong = result.wrong_blocks[0].to_string();
    let expected = "wrong block at offset 40960: expected the block of this offset, \
                    found that of offset 4096";
    assert!(wrong.starts_with(expected), "{wrong}");
}

#[test]
fn many_wrong_blocks_are_counted_and_the_first_are_named() {
    let (result, _) = run_then_corrupt("verify=crc32c\n", |file| file[65536..].fill(0));
    assert_eq!(result.failure.unwrap().to_string(), "verify found 240 wrong blocks (EILSEQ)");
    assert_eq!(result.wrong_blocks.len(), 16);
}

#[test]
fn verify_fatal_stops_at_the_first_wrong_block() {
    let corrupt = |file: &mut [u8]| file.fill(0);
    let (result, engine) = run_then_corrupt("verify_pattern=0xab\nverify_fatal=1\n", corrupt);
    let failure = result.failure.unwrap().to_string();
    assert!(failure.contains("offset 0: expected ab at byte 0, found 00"), "{failure}");
    assert_eq!(engine.ios.len(), 1);
}

#[test]
fn a_lost_write_is_found_in_its_pass() {
    // Two passes of 256 writes and 256 reads: write 100 of the second pass is lost.
    let mut engine = RecordingEngine::new(whole);
    engine.lost = Some(2 * BLOCKS + 100);
    let (result, _) = run_job("rw=write\nverify=crc32c\nloops=2\n", engine);
    assert_eq!(result.wrong_blocks.len(), 1);
    let wrong = result.wrong_blocks[0].to_string();
    let place = format!("offset {}: ", 100 * BLOCK);
    assert!(wrong.contains(&place), "{wrong}");
    assert!(wrong.contains("expected a block of pass 2, found one of pass 1"), "{wrong}");
}

#[test]
fn verify_only_reads_back_an_earlier_run_and_writes_nothing() {
    for pattern in ["write", "randwrite", "randtrimwrite"] {
        let keys = format!("rw={pattern}\niodepth=8\nverify=crc32c\n");
        let (_, written) = run_job(&keys, RecordingEngine::new(whole));
        let again = |file: Vec<u8>, keys: &str| {
            let mut engine = RecordingEngine::new(whole);
            engine.file = file;
            run_job(&format!("{keys}verify_only=1\n"), engine)
        };
        let (result, engine) = again(written.file.clone(), &format!("{keys}loops=2\n"));
        assert_eq!(result.failure, None, "{pattern}");
        assert_eq!(engine.blocks(IoOp::Read).len() as u64, 2 * BLOCKS);
        assert_eq!(engine.ios.len() as u64, 2 * BLOCKS);
        assert_eq!(result.stats.directions[0].ios, 2 * BLOCKS);
        let mut file = written.file;
        file[5000] ^= 1;
        let (result, _) = again(file, &keys);
        assert_eq!(result.failure.unwrap().what, "verify found 1 wrong block");
        assert_eq!(result.wrong_blocks.len(), 1);
    }
}
