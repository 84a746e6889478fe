//! Compares traces of I/O with the installed fio, in both directions.

use super::{fio_ios, fio_trace};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use uringfs_lab::engine::{EngineConfig, EngineKind};
use uringfs_lab::job::{IoLog, IoOp, Parser, ReplayAction, ReplayOptions, UnknownKeys};
use uringfs_lab::run::{Overwrite, Run, RunProgress};

#[test]
fn a_trace_of_fio_is_read_with_all_its_ios() {
    for keys in ["rw=randrw size=256k fsync=8", "rw=read nrfiles=3 size=96k", "rw=trim size=64k"] {
        let keys = format!("{keys} randrepeat=1");
        let log = IoLog::parse(fio_trace(&keys).as_bytes(), &ReplayOptions::default()).unwrap();
        let ios = log.steps.iter().filter_map(|step| match step.action {
            ReplayAction::Io(op) => {
                Some((step.file, op == IoOp::Write, step.offset, u64::from(step.length)))
            }
            ReplayAction::Sync | ReplayAction::DataSync => None,
        });
        let mut expected = fio_ios(&keys);
        // A sync has no length.
        expected.retain(|(_, _, _, length)| *length > 0);
        assert_eq!(ios.collect::<Vec<_>>(), expected, "{keys}");
        let syncs = log.steps.iter().filter(|step| step.action == ReplayAction::Sync).count();
        assert_eq!(syncs > 0, keys.contains("fsync"), "{keys}");
    }
}

/// Runs a job of ours with these keys in a folder.
fn run(folder: &Path, keys: &str) {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    let text = format!("[j]\ndirectory={}\n{keys}\n", folder.display());
    parser.bytes(text.as_bytes(), "test").unwrap();
    let set = parser.finish().unwrap();
    let (config, stop, progress) =
        (EngineConfig::new(EngineKind::Psync), AtomicBool::new(false), RunProgress::default());
    let overwrite = Overwrite::Refuse;
    let run = Run { set: &set, config: &config, overwrite, stop: &stop, progress: &progress };
    assert_eq!(run.run().unwrap().exit_code(), 0);
}

#[test]
fn a_sync_takes_the_turn_of_a_file_as_with_fio() {
    // The file and the action of each line but those that open and close files.
    let actions = |trace: &str| -> Vec<(String, String)> {
        let action = |line: &str| {
            let [_, file, action, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            let file = file.rsplit('.').next()?.to_owned();
            ["write", "sync", "datasync"].contains(&action).then(|| (file, action.to_owned()))
        };
        trace.lines().filter_map(action).collect()
    };
    for keys in [
        "rw=write nrfiles=3 size=96k fsync=7",
        "rw=write nrfiles=3 size=96k fdatasync=5",
        "rw=write nrfiles=3 size=96k fsync=7 file_service_type=sequential",
        "rw=write nrfiles=3 size=96k fsync=7 file_service_type=roundrobin:4",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace").display().to_string();
        let lines = keys.replace(' ', "\n");
        run(folder.path(), &format!("{lines}\nwrite_iolog={trace}"));
        let ours = std::fs::read_to_string(&trace).unwrap();
        assert_eq!(actions(&ours), actions(&fio_trace(keys)), "{keys}");
    }
}

#[test]
fn fio_replays_a_trace_that_is_written_here() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace").display().to_string();
    run(folder.path(), &format!("rw=randrw\nsize=256k\nfsync=8\nwrite_iolog={trace}"));
    let log = IoLog::read(&trace, &ReplayOptions::default()).unwrap();
    let mut command = Command::new("fio");
    command.args(["--name=j", "--thread", "--replay_no_stall=1", "--output-format=json"]);
    command.args(["--ioengine=psync", &format!("--read_iolog={trace}")]);
    let output = command.output().expect("fio must be installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (way, op) in [("read", IoOp::Read), ("write", IoOp::Write)] {
        let ours = log.steps.iter().filter(|step| step.action == ReplayAction::Io(op)).count();
        assert_eq!(report["jobs"][0][way]["total_ios"].as_u64(), Some(ours as u64), "{way}");
    }
}
