//! The depth distributions of a job, and which of its latencies have a submission, compared with fio's. They depend on the number
//! of I/Os, and on no time.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use uringfs_lab::engine::{EngineConfig, EngineKind};
use uringfs_lab::job::{Parser, UnknownKeys};
use uringfs_lab::report;
use uringfs_lab::run::{Overwrite, Run, RunProgress};

/// The I/Os of a job, unless its keys say otherwise.
const IOS: f64 = 256.0;

/// fio's report of the only entry of a job.
fn fio_job(folder: &Path, keys: &str) -> Value {
    let mut command = Command::new("fio");
    command.current_dir(folder).args(["--name=j", "--size=1m", "--bs=4k", "--output-format=json"]);
    let output = command.args(keys.split(' ').map(|key| format!("--{key}"))).output();
    let output = output.expect("fio must be installed");
    assert!(output.status.success(), "{keys}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    // Notes come before it.
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    report["jobs"][0].clone()
}

/// Our report of the same.
fn our_job(folder: &Path, keys: &str, engine: EngineKind) -> Value {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    let lines = keys.replace(' ', "\n");
    let text = format!("[j]\nsize=1m\nbs=4k\ndirectory={}\n{lines}\n", folder.display());
    parser.bytes(text.as_bytes(), "test").unwrap();
    let (stop, progress) = (AtomicBool::new(false), RunProgress::default());
    let run = Run {
        set: &parser.finish().unwrap(),
        config: &EngineConfig::new(engine),
        overwrite: Overwrite::Refuse,
        stop: &stop,
        progress: &progress,
    };
    report::json(&run.run().unwrap())["jobs"][0].clone()
}

#[test]
fn depths_are_distributed_as_by_fio() {
    use EngineKind::{Psync, Threads};
    for (keys, engine) in [
        ("rw=read ioengine=psync", Psync),
        ("rw=randrw ioengine=psync iodepth=8", Psync),
        ("rw=write ioengine=psync fsync=1", Psync),
        ("rw=write ioengine=psync fdatasync=8", Psync),
        ("rw=write ioengine=psync end_fsync=1", Psync),
        ("rw=randread ioengine=libaio", Threads),
        ("rw=randread ioengine=libaio iodepth=3", Threads),
        ("rw=randread ioengine=libaio iodepth=32", Threads),
        ("rw=randwrite ioengine=libaio iodepth=128", Threads),
        ("rw=randread ioengine=libaio iodepth=16 iodepth_low=4", Threads),
        (
            "rw=randread ioengine=libaio iodepth=64 iodepth_batch=16 iodepth_batch_complete=16",
            Threads,
        ),
        ("rw=randread ioengine=libaio iodepth=8 iodepth_batch=8 iodepth_batch_complete=8", Threads),
        ("rw=randread ioengine=libaio iodepth=8 loops=3", Threads),
        ("rw=randrw ioengine=libaio iodepth=8 numjobs=2 group_reporting=1", Threads),
    ] {
        // Without it, a reap of ours takes all that have ended, fio's no more than it waits for.
        let most = keys.split_once("complete=").map_or("1", |(_, least)| least);
        let keys = &format!("{keys} iodepth_batch_complete_max={most}");
        let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let theirs = fio_job(theirs.path(), keys);
        let ours = our_job(ours.path(), keys, engine);
        for name in ["iodepth_level", "iodepth_submit", "iodepth_complete"] {
            let [theirs, ours] = [&theirs, &ours].map(|job| job[name].as_object().unwrap());
            assert!(theirs.keys().eq(ours.keys()), "{keys}: {name}: {theirs:?} {ours:?}");
            for (class, share) in theirs {
                let off = share.as_f64().unwrap() - ours[class].as_f64().unwrap();
                // fio leaves out the sync after the last write.
                assert!(off.abs() <= 1.2 * 100.0 / IOS, "{keys}: {name}: {theirs:?} {ours:?}");
            }
        }
        for way in ["read", "write"] {
            for latency in ["slat_ns", "clat_ns", "lat_ns"] {
                // Of both, a job decides by chance which I/Os are reads.
                let of_all = |job: &Value| job[way][latency]["N"] == job[way]["total_ios"];
                assert_eq!(of_all(&theirs), of_all(&ours), "{keys}: {way} {latency}");
            }
        }
    }
}
