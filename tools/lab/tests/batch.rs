//! Jobs with `batch=on`: the engine `uringfs` issues the I/Os of a submission by its batch interface. Counters prove
//! it.

use serde_json::Value;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use uringfs::Errno;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Engine, EngineConfig, EngineKind, Io, IoCompletion, ReapBounds, Setup, WithEngine,
};
use uringfs_lab::job::{Options, Parser, SyncWrites, UnknownKeys};
use uringfs_lab::run::{Overwrite, Results, Run, RunProgress};
use uringfs_lab::targets::{Access, Target, Volumes};
use uringfs_lab::workload::IoOp;

/// Runs a job with these keys on a target.
fn try_job(kind: EngineKind, target: &str, keys: &str) -> Result<Results, Error> {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    parser.bytes(format!("[one]\nfilename={target}\n{keys}").as_bytes(), "job").unwrap();
    let set = parser.finish().unwrap();
    let (config, stop, progress) =
        (EngineConfig::new(kind), AtomicBool::new(false), RunProgress::default());
    let overwrite = Overwrite::Allow;
    Run { set: &set, config: &config, overwrite, stop: &stop, progress: &progress }.run()
}

/// The report of a job that succeeds with the engine `uringfs`.
fn report(target: &str, keys: &str) -> Value {
    let results = try_job(EngineKind::Uringfs, target, keys).unwrap();
    assert_eq!(results.failures(), [] as [&str; 0], "{target}: {keys}");
    uringfs_lab::report::json(&results)["jobs"][0].clone()
}

fn counter(report: &Value, name: &str) -> u64 {
    report["uringfs"]["counters"][name].as_u64().unwrap_or(0)
}

/// A volume, and the name of a file in it that the first job lays out.
fn file_in_volume(folder: &Path) -> String {
    let image = folder.join("image");
    let options = uringfs::FormatOptions::new().size(64 << 20);
    drop(uringfs::Volume::create(&image, &options).unwrap());
    format!("{}:/file", image.display())
}

#[test]
fn counters_tell_a_batch_from_tokens() {
    let keys = "rw=randread\nbs=4k\nio_size=4m\niodepth=64\niodepth_batch_submit=32\n\
                iodepth_batch_complete_min=32\niodepth_batch_complete_max=32\n\
                device.queue=ring\n";
    let batch = report("null:4m", &format!("{keys}batch=on\n"));
    assert_eq!(batch["read"]["total_ios"].as_u64(), Some(1024));
    assert_eq!((counter(&batch, "batch.transfers"), counter(&batch, "batch.calls")), (1024, 32));
    for off in ["", "batch=off\n"] {
        let tokens = report("null:4m", &format!("{keys}{off}"));
        assert_eq!(counter(&tokens, "batch.transfers") + counter(&tokens, "batch.calls"), 0);
    }
}

#[test]
fn transfers_of_a_file_in_a_volume_take_the_fast_path() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let target = file_in_volume(folder.path());
    report(&target, "rw=write\nbs=64k\nsize=4m\nend_fsync=1\n");
    for (rw, direction, path) in [
        ("randread", "read", "direct.fast_path.taken"),
        ("randwrite", "write", "direct.write.unlocked"),
    ] {
        let keys = format!("rw={rw}\nsize=4m\niodepth=16\nbatch=on\ndevice.queue=ring\n");
        let found = report(&target, &keys);
        let ios = found[direction]["total_ios"].as_u64().unwrap();
        assert_eq!((counter(&found, "batch.transfers"), counter(&found, path)), (ios, ios));
    }
}

#[test]
fn blocks_written_by_batch_are_verified_by_batch() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("file").display().to_string();
    let in_volume = file_in_volume(folder.path());
    for target in [&file, &in_volume, "memory:2m", "sim:2m,short=3"] {
        for keys in [
            "rw=randwrite\nsize=1m\nverify=crc32c\n",
            "rw=randrw\nsize=1m\nverify=crc32c\nverify_backlog=8\nloops=2\n",
            "rw=write\nsize=1m\nverify=pattern\nverify_pattern=0xabc\nfsync=32\n",
            "rw=randwrite\nsize=1m\nverify=crc32c\ndirect=0\nbuffered.cache_bytes=524288\n",
        ] {
            for depth in ["1\n", "16\n", "16\niodepth_batch_submit=4\n"] {
                let found = report(target, &format!("{keys}batch=on\niodepth={depth}"));
                let of = |way: &str| found[way]["total_ios"].as_u64().unwrap();
                assert_eq!(counter(&found, "batch.transfers"), of("read") + of("write"));
            }
        }
    }
}

#[test]
fn a_batch_is_of_one_file_and_a_job_may_have_more() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let names = ["a", "b", "c"].map(|name| folder.path().join(name).display().to_string());
    let keys = "rw=randrw\nsize=768k\nverify=crc32c\niodepth=8\nbatch=on\n";
    for order in ["roundrobin", "sequential"] {
        let found = report(&names.join(":"), &format!("{keys}file_service_type={order}\n"));
        assert!(counter(&found, "batch.transfers") >= 192, "{found}");
    }
}

#[test]
fn latencies_and_logs_are_those_of_each_io() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log").display().to_string();
    let keys =
        format!("rw=randread\nsize=256k\niodepth=8\nbatch=on\nwrite_lat_log={log}\nlog_offset=1\n");
    let found = report("sim:256k,latency=200us", &keys);
    assert!(found["read"]["clat_ns"]["min"].as_u64().unwrap() >= 200_000, "{found}");
    assert_eq!(found["read"]["clat_ns"]["N"].as_u64(), Some(64));
    let lines = std::fs::read_to_string(format!("{log}_clat.1.log")).unwrap();
    let mut offsets: Vec<u64> =
        lines.lines().map(|line| line.split(", ").nth(4).unwrap().parse().unwrap()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..64).map(|block| block * 4096).collect::<Vec<_>>());
}

#[test]
fn an_error_of_one_transfer_names_it() {
    let results =
        try_job(EngineKind::Uringfs, "sim:1m,errors=20", "rw=read\niodepth=8\nbatch=on\n");
    let failures = results.unwrap().failures();
    assert!(failures[0].contains("read of 4096 bytes at "), "{failures:?}");
}

#[test]
fn another_engine_says_that_it_has_no_batch_interface() {
    let keys = |batch| format!("rw=read\nsize=64k\nbatch={batch}\n");
    for (batch, is_noted) in [("on", true), ("off", false)] {
        let results = try_job(EngineKind::Ring, "null:1m", &keys(batch)).unwrap();
        let notes = uringfs_lab::report::json(&results)["jobs"][0]["uringfs"]["notes"].to_string();
        let note = "batch has no effect: engine ring: only engine uringfs has a batch interface";
        assert_eq!(notes.contains(note), is_noted, "{notes}");
    }
}

/// Writes a block, then moves its second half alone: the rest of a short I/O.
struct MoveARest;

impl WithEngine for MoveARest {
    type Output = ();

    fn call<E: Engine>(self) {
        let targets = [Target::Virtual("memory:64k".into())];
        let setup = Setup {
            targets: &targets,
            volumes: &Volumes::default(),
            access: Access { writes: true, direct: true, sync: SyncWrites::No },
            depth: 2,
            block: 4096,
            options: &Options { batch: true, ..Options::default() },
            settings: &[],
        };
        let mut engine = E::open(&setup).unwrap();
        let io = |slot, op, offset, length| Io { slot, file: 0, op, offset, length };
        let finish = |engine: &mut E, io: Io| -> Result<u32, Errno> {
            let mut done: Vec<IoCompletion> = Vec::new();
            engine.push(io).unwrap();
            engine.reap(ReapBounds { min: 1, max: 1 }, &mut done).unwrap();
            assert_eq!((done.len(), done[0].slot), (1, io.slot));
            done[0].result
        };
        engine.buffer(0).fill(1);
        assert_eq!(finish(&mut engine, io(0, IoOp::Write, 0, 4096)), Ok(4096));
        engine.buffer(0).fill(2);
        assert_eq!(finish(&mut engine, io(0, IoOp::Write, 2048, 2048)), Ok(2048));
        assert_eq!(finish(&mut engine, io(1, IoOp::Read, 0, 4096)), Ok(4096));
        let halves = |block: &[u8]| (block[2047], block[2048], block[4095]);
        assert_eq!(halves(engine.buffer(1)), (1, 2, 2));
        engine.buffer(1).fill(9);
        assert_eq!(finish(&mut engine, io(1, IoOp::Read, 2048, 512)), Ok(512));
        assert_eq!((engine.buffer(1)[511], engine.buffer(1)[512]), (2, 9));
    }
}

#[test]
fn the_rest_of_a_short_io_is_moved_beside_the_batch() {
    EngineKind::Uringfs.with(MoveARest).unwrap();
}
