//! Tests the run loop on an engine that records all requests: depth, batches, order, amounts, syncs, and
//! short, failed and corrupt transfers.

mod recording_engine;
mod verify;

use recording_engine::{BLOCK, BLOCKS, RecordingEngine, run_job, whole};
use std::collections::HashSet;
use std::time::Duration;
use uringfs::Errno;
use uringfs_lab::engine::Io;
use uringfs_lab::workload::IoOp;

#[test]
fn each_block_is_done_once_within_depth_and_batch() {
    for measured in ["", "gtod_reduce=1\n"] {
        let keys = "rw=randread\niodepth=16\niodepth_batch=4\niodepth_batch_complete_min=3\n";
        let (result, engine) = run_job(&format!("{keys}{measured}"), RecordingEngine::new(whole));
        let offsets: HashSet<u64> = engine.ios.iter().map(|io| io.offset).collect();
        assert_eq!((offsets.len(), engine.ios.len()), (256, 256));
        assert_eq!((engine.deepest, engine.largest_batch), (16, 4));
        // As with fio, all that are in flight at the end of the pass are waited for at once.
        let (last, before) = engine.waits.split_last().unwrap();
        assert_eq!((before, *last), (&[3; 81][..], 13), "completions waited for");
        let stats = &result.stats;
        assert_eq!((stats.submitted, stats.depth[4]), (256, 244), "12 before the depth is reached");
        assert_eq!(stats.depth[2..4], [4, 8], "the first two and the third batch: {stats:?}");
        assert_eq!((stats.complete[1], stats.complete[3]), (81, 1));
        let read = &result.stats.directions[0];
        assert_eq!((read.ios, read.bytes), (256, 1 << 20));
        assert_eq!(read.clat.summary().count(), if measured.is_empty() { 256 } else { 0 });
        assert!(result.failure.is_none());
    }
}

#[test]
fn with_iodepth_low_the_queue_drains_before_it_fills() {
    let (_, engine) = run_job(
        "rw=read\niodepth=8\niodepth_batch=8\niodepth_low=2\n",
        RecordingEngine::new(whole),
    );
    let offsets: Vec<u64> = engine.ios.iter().map(|io| io.offset).collect();
    assert!(offsets.is_sorted(), "sequential");
    assert_eq!((engine.deepest, engine.largest_batch), (8, 8));
    let (first, others) = engine.depths.split_first().unwrap();
    assert_eq!(*first, 0);
    assert!(others.len() > 40 && others.iter().all(|depth| *depth == 2), "{others:?}");
}

#[test]
fn syncs_come_after_n_writes_with_nothing_in_flight() {
    let (result, engine) =
        run_job("rw=randwrite\niodepth=16\nfsync=10\nend_fsync=1\n", RecordingEngine::new(whole));
    let expected: Vec<u64> = (1..=25).map(|n| n * 10).chain([256]).collect();
    assert_eq!(engine.syncs, expected);
    assert_eq!(result.stats.sync.summary().count(), 25, "the last one is not counted");
    // fio counts those between writes as submissions.
    assert_eq!((result.stats.submitted, result.stats.depth.iter().sum::<u64>()), (256, 281));
}

#[test]
fn the_time_of_a_sync_is_no_latency_of_a_write() {
    let mut engine = RecordingEngine::new(whole);
    engine.sync_time = Duration::from_millis(200);
    let (result, _) = run_job("rw=write\nfsync=64\n", engine);
    let [_, write, _] = &result.stats.directions;
    let sync_ns = result.stats.sync.summary().sum();
    assert!(sync_ns >= 0.8e9, "four syncs: {sync_ns}");
    // A write follows three of them.
    let lat_ns = write.lat.sum();
    assert!(lat_ns < sync_ns / 2.0, "{lat_ns} of 256 writes, {sync_ns} of the syncs");
}

#[test]
fn a_trimwrite_writes_each_block_after_its_trim_has_ended() {
    for (pattern, depth) in [("trimwrite", 1), ("trimwrite", 8), ("randtrimwrite", 8)] {
        // Blocks are read back: a trim after the write would have destroyed its header.
        let keys = format!("rw={pattern}\niodepth={depth}\nloops=2\nverify=crc32c\n");
        let (result, engine) = run_job(&keys, RecordingEngine::new(whole));
        assert_eq!(result.failure, None, "{keys}");
        assert_eq!(result.stats.directions.each_ref().map(|way| way.ios), [512; 3], "{keys}");
        let [trims, writes] = [IoOp::Trim, IoOp::Write].map(|op| engine.blocks(op));
        assert_eq!(trims, writes);
        assert_eq!(trims[..256].is_sorted(), pattern == "trimwrite");
        assert!(engine.deepest <= depth);
    }
}

#[test]
fn a_sync_of_a_trimwrite_comes_after_n_writes() {
    let keys = "rw=trimwrite\niodepth=16\nfsync=10\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    let expected: Vec<u64> = (1..=25).map(|n| n * 20).collect();
    assert_eq!(engine.syncs, expected, "each write and its trim");
    let keys = "rw=trimwrite\niodepth=16\nverify=crc32c\nverify_backlog=100\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    assert_eq!(engine.blocks(IoOp::Read).len() as u64, BLOCKS);
    assert_eq!(engine.cache_drops, [200, 500, 712], "200 I/Os and 100 reads, again, and the rest");
}

/// A trim may be done in the push, as by the ring.
#[test]
fn the_time_of_a_trim_in_its_push_is_completion_latency() {
    let mut engine = RecordingEngine::new(whole);
    engine.trim_time = Duration::from_millis(1);
    let (result, _) = run_job("rw=trim\nbs=64k\n", engine);
    let [_, _, trim] = &result.stats.directions;
    assert!(trim.clat.summary().sum() >= 16e6, "{}", trim.clat.summary().sum());
    assert!(trim.slat.sum() < 16e6, "{}", trim.slat.sum());
}

#[test]
fn trims_are_counted_apart_and_need_no_buffers() {
    let keys = "rw=randtrim\niodepth=4\nbs=4k,4k,64k\nend_fsync=1\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    let [read, write, trim] = &result.stats.directions;
    assert_eq!((read.ios, write.ios), (0, 0));
    assert_eq!((trim.ios, trim.bytes, trim.clat.summary().count()), (16, 1 << 20, 16));
    assert_eq!((engine.syncs, result.failure), (vec![16], None));
    let (result, _) = run_job("rw=trim\n", RecordingEngine::new(|_, _| Err(Errno::OPNOTSUPP)));
    let what = result.failure.unwrap().what;
    assert_eq!(what, "trim of 4096 bytes at 0, which the target does not have");
}

#[test]
fn a_trace_is_replayed_in_its_order_at_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let text = "fio version 3 iolog\n0 x add\n0 x open\n0 x write 8192 4096\n0 x write 0 512\n\
        0 x read 8192 1024\n0 x sync 0 0\n300000 x trim 4096 4096\n300000 x close\n";
    std::fs::write(&path, text).unwrap();
    for (keys, stalls) in [("", true), ("replay_no_stall=1\nloops=2\n", false)] {
        let keys = format!("read_iolog={}\niodepth=4\n{keys}", path.display());
        let (result, engine) = run_job(&keys, RecordingEngine::new(whole));
        assert_eq!(result.failure, None);
        let found = engine.ios.iter().map(|io| (io.op, io.offset, io.length));
        let once = [
            (IoOp::Write, 8192, 4096),
            (IoOp::Write, 0, 512),
            (IoOp::Read, 8192, 1024),
            (IoOp::Trim, 4096, 4096),
        ];
        let loops = if stalls { 1 } else { 2 };
        assert_eq!(found.collect::<Vec<_>>(), once.repeat(loops));
        let syncs = if stalls { vec![3] } else { vec![3, 7] };
        assert_eq!(engine.syncs, syncs, "with nothing in flight");
        let depths = result.stats.depth.iter().sum::<u64>();
        assert_eq!(depths, result.stats.submitted + syncs.len() as u64, "a sync is a submission");
        if stalls {
            assert!(result.runtime_ns >= 300_000_000, "{}", result.runtime_ns);
        }
    }
}

#[test]
fn a_latency_target_finds_the_depth_and_counts_its_window_alone() {
    // No I/O takes an hour: the full depth is found, and the last window has few of the I/Os.
    let keys = "rw=randread\nnorandommap\niodepth=8\ntime_based\nruntime=1h\n\
        latency_target=1h\nlatency_window=100ms\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!((result.failure, result.found_depth), (None, Some(8)));
    assert_eq!(engine.deepest, 8);
    // Five windows: depths 1, 2, 4, 8, and 8 once more.
    assert!(result.stats.directions[0].ios < engine.ios.len() as u64);
    assert!(result.runtime_ns >= 100_000_000, "the last window: {}", result.runtime_ns);
    let keys = "rw=read\niodepth=8\nlatency_target=1us\nlatency_window=1s\n";
    fn slow(_: u64, io: Io) -> Result<u32, Errno> {
        std::thread::sleep(Duration::from_micros(10));
        Ok(io.length)
    }
    let (result, engine) = run_job(keys, RecordingEngine::new(slow));
    let failure = result.failure.unwrap();
    assert_eq!((failure.errno, result.found_depth), (Errno::TIMEDOUT, Some(1)));
    assert!(failure.what.ends_with("at depth 1: latency_target"), "{}", failure.what);
    assert_eq!(engine.ios.len(), 1);
}

#[test]
fn what_was_written_is_written_back_after_n_writes() {
    let keys = "rw=rw\niodepth=8\nsync_file_range=wait_before,write:16\nfsync=64\n";
    let (result, engine) = run_job(keys, RecordingEngine::new(whole));
    assert_eq!(result.failure, None);
    // Both orders are sequential: each range has the writes since the one before it.
    let writes = engine.blocks(IoOp::Write);
    assert_eq!(engine.write_backs.len(), writes.len() / 16);
    for (number, (range, flags)) in engine.write_backs.iter().enumerate() {
        let block = |at: usize| writes[at] * u64::from(BLOCK);
        assert_eq!(*range, block(16 * number)..block(16 * number + 15) + u64::from(BLOCK));
        assert_eq!(*flags, 3);
    }
    assert_eq!(engine.syncs.len(), writes.len() / 64);
}

#[test]
fn files_are_synced_once_before_they_are_closed() {
    for keys in ["fsync_on_close=1\n", "fsync_on_close=1\nend_fsync=1\n"] {
        let (_, engine) = run_job(&format!("rw=write\n{keys}"), RecordingEngine::new(whole));
        assert_eq!(engine.syncs, [256], "{keys}");
    }
    let (_, engine) = run_job("rw=read\nfsync_on_close=1\n", RecordingEngine::new(whole));
    assert_eq!(engine.syncs, [] as [u64; 0], "nothing was written");
}

#[test]
fn histograms_of_slat_and_lat_are_kept_if_wanted() {
    for (keys, wanted) in [
        ("", [false, false]),
        ("slat_percentiles=1\n", [true, false]),
        ("lat_percentiles=1\nramp_time=1us\n", [false, true]),
        ("lat_percentiles=1\ndisable_lat=1\n", [false, false]),
        ("slat_percentiles=1\nlat_percentiles=1\ngtod_reduce=1\n", [false, false]),
    ] {
        let keys = format!("rw=read\niodepth=4\n{keys}");
        let (result, _) = run_job(&keys, RecordingEngine::new(whole));
        let read = &result.stats.directions[0];
        for ((histogram, summary), wanted) in
            [(&read.slat_histogram, read.slat), (&read.lat_histogram, read.lat)]
                .into_iter()
                .zip(wanted)
        {
            assert_eq!(histogram.is_some(), wanted, "{keys}");
            let Some(histogram) = histogram else { continue };
            assert_eq!(histogram.summary().count(), read.ios, "{keys}");
            assert_eq!(histogram.summary().max(), summary.max(), "{keys}");
        }
    }
}

#[test]
fn a_longer_latency_than_max_latency_ends_the_job() {
    fn slow(n: u64, io: Io) -> Result<u32, Errno> {
        if n == 100 {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(io.length)
    }
    let (result, engine) = run_job("rw=read\nmax_latency=20ms\n", RecordingEngine::new(slow));
    let failure = result.failure.unwrap();
    assert_eq!((failure.errno, failure.file), (Errno::TIMEDOUT, Some(0)));
    assert!(failure.what.contains(": max_latency"), "{}", failure.what);
    // The machine may delay an earlier one as much.
    assert!(engine.ios.len() <= 101, "the run continued");
    let (result, engine) = run_job("rw=read\nmax_latency=1h\n", RecordingEngine::new(slow));
    assert_eq!((result.failure, engine.ios.len()), (None, 256));
}

#[test]
fn short_and_interrupted_transfers_continue() {
    fn rule(n: u64, io: Io) -> Result<u32, Errno> {
        match n % 7 {
            0 if io.length == BLOCK => Ok(512),
            1 => Err(Errno::AGAIN),
            2 => Err(Errno::INTR),
            _ => Ok(io.length),
        }
    }
    let (result, engine) = run_job("rw=randwrite\niodepth=8\n", RecordingEngine::new(rule));
    let write = &result.stats.directions[1];
    assert_eq!((write.ios, write.bytes), (256, 1 << 20));
    let rests: Vec<&Io> = engine.ios.iter().filter(|io| io.length == BLOCK - 512).collect();
    assert!(write.short > 10 && rests.len() as u64 >= write.short);
    assert!(rests.iter().all(|io| io.offset % u64::from(BLOCK) == 512));
    assert!(result.failure.is_none());
}

#[test]
fn the_first_error_ends_the_run_and_is_reported() {
    fn rule(n: u64, io: Io) -> Result<u32, Errno> {
        if n >= 100 { Err(Errno::IO) } else { Ok(io.length) }
    }
    let (result, engine) = run_job("rw=read\niodepth=8\n", RecordingEngine::new(rule));
    let failure = result.failure.unwrap();
    assert_eq!(failure.errno, Errno::IO);
    assert_eq!(failure.what, "read of 4096 bytes at 409600");
    assert_eq!(failure.file, Some(0));
    assert_eq!(result.stats.directions[0].ios, 100);
    assert!(engine.ios.len() < 120, "the run continued");
}

#[test]
fn the_end_of_the_target_is_an_error() {
    let (result, _) =
        run_job("rw=read\n", RecordingEngine::new(|n, io| Ok(if n == 5 { 0 } else { io.length })));
    assert!(result.failure.unwrap().what.ends_with("at the end of the target"));
}

#[test]
fn loops_repeat_all_blocks_from_the_beginning() {
    let (result, engine) =
        run_job("rw=write\niodepth=4\nloops=3\nend_fsync=1\n", RecordingEngine::new(whole));
    let offsets: Vec<u64> = engine.ios.iter().map(|io| io.offset / u64::from(BLOCK)).collect();
    let once = 0..BLOCKS;
    assert_eq!(offsets, once.clone().chain(once.clone()).chain(once).collect::<Vec<_>>());
    assert_eq!(engine.syncs, [256, 512, 768]);
    assert!(result.failure.is_none());
}

#[test]
fn while_one_direction_waits_a_direction_with_share_0_stays_unused() {
    for (share, only) in [(100, IoOp::Read), (0, IoOp::Write)] {
        let keys = format!("rw=randrw\nrwmixread={share}\nrate_iops=2000\n");
        let (_, engine) = run_job(&keys, RecordingEngine::new(whole));
        assert_eq!(engine.blocks(only).len() as u64, BLOCKS);
    }
}

#[test]
fn the_order_of_later_loops_is_the_same_at_any_depth() {
    let order = |depth: u32| {
        let (_, engine) =
            run_job(&format!("rw=randrw\nloops=3\niodepth={depth}\n"), RecordingEngine::new(whole));
        engine.ios.iter().map(|io| (io.op, io.offset)).collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(16));
}
