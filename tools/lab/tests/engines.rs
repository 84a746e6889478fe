//! Tests each engine against the contract of the trait `Engine`.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use uringfs_lab::Error;
use uringfs_lab::engine::{
    Engine, EngineConfig, EngineKind, Io, IoCompletion, ReapBounds, Setup, ThreadCost, WithEngine,
};
use uringfs_lab::job::{Options, Parser, SyncWrites, UnknownKeys};
use uringfs_lab::run::{Overwrite, Results, Run, RunProgress};
use uringfs_lab::targets::{Access, Target, Volumes, drop_page_cache};
use uringfs_lab::workload::IoOp;

const BLOCK: usize = 4096;
const DEPTH: u32 = 8;

/// All engines for files except fio, which is a separate program.
fn engines() -> impl Iterator<Item = EngineKind> {
    let others = ["fio", "nvme-passthru", "vhost-user"];
    EngineKind::ALL.iter().copied().filter(move |kind| !others.contains(&kind.name()))
}

/// Writes a block from each slot, and fills the next slot's buffer while earlier writes are in flight. Then
/// reads the blocks back into other slots.
struct FillWhileOthersFly<'a> {
    target: &'a Target,
    kind: EngineKind,
}

impl WithEngine for FillWhileOthersFly<'_> {
    type Output = ();

    fn call<E: Engine>(self) {
        let targets = [self.target.clone()];
        let settings: &[(String, String)] = match self.kind {
            EngineKind::Uringfs => &[("device.queue".into(), "threads".into())],
            _ => &[],
        };
        let setup = Setup {
            targets: &targets,
            volumes: &Volumes::default(),
            access: Access { writes: true, direct: false, sync: SyncWrites::No },
            depth: DEPTH,
            block: BLOCK,
            options: &Options::default(),
            settings,
        };
        let mut engine = E::open(&setup).unwrap();
        let io = |slot: u32, block: u32, op| {
            let offset = u64::from(block) * BLOCK as u64;
            Io { slot, file: 0, op, offset, length: BLOCK as u32 }
        };
        for slot in 0..DEPTH {
            engine.buffer(slot).fill(slot as u8 + 1);
            engine.push(io(slot, slot, IoOp::Write)).unwrap();
            engine.submit().unwrap();
        }
        reap_all(&mut engine);
        for slot in 0..DEPTH {
            engine.push(io(slot, DEPTH - 1 - slot, IoOp::Read)).unwrap();
        }
        reap_all(&mut engine);
        for slot in 0..DEPTH {
            let expected = (DEPTH - slot) as u8;
            let name = self.kind.name();
            assert!(engine.buffer(slot).iter().all(|&byte| byte == expected), "{name}: {slot}");
        }
    }
}

fn reap_all(engine: &mut impl Engine) {
    let mut done: Vec<IoCompletion> = Vec::new();
    while done.len() < DEPTH as usize {
        let min = DEPTH as usize - done.len();
        engine.reap(ReapBounds { min, max: min }, &mut done).unwrap();
    }
    assert!(done.iter().all(|one| one.result == Ok(BLOCK as u32)), "{done:?}");
}

#[test]
fn a_free_slot_s_buffer_can_be_filled_while_others_are_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    for kind in engines() {
        let path = folder.path().join(kind.name());
        std::fs::write(&path, vec![0; BLOCK * DEPTH as usize]).unwrap();
        let target = Target::Path(path);
        kind.with(FillWhileOthersFly { target: &target, kind }).unwrap();
    }
}

/// Whether all of a file is in the kernel's page cache. A read that must not wait (`RWF_NOWAIT`) could not say so: the kernel
/// begins to read what such a read does not find.
fn is_cached(path: &Path) -> bool {
    let mut command = Command::new("fincore");
    let output = command.args(["--noheadings", "--bytes", "--output", "RES"]).arg(path).output();
    let output = output.expect("fincore is in the package util-linux-extra");
    let resident = String::from_utf8(output.stdout).unwrap();
    resident.trim().parse() == Ok(path.metadata().unwrap().len())
}

/// Runs a job with these keys on a file.
fn run_job(kind: EngineKind, path: &Path, keys: &str) {
    let results = try_job(kind, &path.display().to_string(), keys, Overwrite::Refuse).unwrap();
    assert_eq!(results.exit_code(), 0, "{:?}", results.failures());
}

/// Runs a job with these keys on a target.
fn try_job(
    kind: EngineKind,
    target: &str,
    keys: &str,
    overwrite: Overwrite,
) -> Result<Results, Error> {
    try_config(&EngineConfig::new(kind), target, keys, overwrite)
}

/// The same with an engine that has switches.
fn try_config(
    config: &EngineConfig,
    target: &str,
    keys: &str,
    overwrite: Overwrite,
) -> Result<Results, Error> {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    let job = format!("[one]\nfilename={target}\n{keys}");
    parser.bytes(job.as_bytes(), "job").unwrap();
    let set = parser.finish().unwrap();
    let (stop, progress) = (AtomicBool::new(false), RunProgress::default());
    let run = Run { set: &set, config, overwrite, stop: &stop, progress: &progress };
    run.run()
}

#[test]
fn trims_make_holes_in_files_and_need_overwrite() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    let name = path.display().to_string();
    for kind in engines() {
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let keys = "rw=randtrim\nbs=16k\nsize=512k\niodepth=4\n";
        let error = try_job(kind, &name, keys, Overwrite::Refuse).unwrap_err().to_string();
        assert!(error.contains("--overwrite allows that"), "{error}");
        let results = try_job(kind, &name, keys, Overwrite::Allow).unwrap();
        assert_eq!(results.failures(), [] as [&str; 0], "{}", kind.name());
        let bytes = std::fs::read(&path).unwrap();
        let (trimmed, others) = bytes.split_at(512 << 10);
        assert!(trimmed.iter().all(|byte| *byte == 0), "{}", kind.name());
        assert!(others.len() == 512 << 10 && others.iter().all(|byte| *byte == 7));
        let results = uringfs_lab::report::json(&results);
        let trim = &results["jobs"][0]["trim"];
        assert_eq!(
            (trim["total_ios"].as_u64(), trim["io_bytes"].as_u64()),
            (Some(32), Some(512 << 10))
        );
        // Bytes that are written after a trim stay.
        let keys = "rw=randtrimwrite\nbs=16k\nsize=512k\niodepth=4\nverify=crc32c\n";
        let results = try_job(kind, &name, keys, Overwrite::Allow).unwrap();
        assert_eq!(results.failures(), [] as [&str; 0], "{}", kind.name());
    }
}

#[test]
fn the_ring_makes_no_calls_for_trims_of_nothing() {
    let keys = "rw=trim\nbs=4k\nsize=64k\niodepth=4\n";
    let results = try_job(EngineKind::Ring, "null:1m", keys, Overwrite::Refuse).unwrap();
    assert_eq!(results.failures(), [] as [&str; 0]);
    let report = uringfs_lab::report::json(&results);
    let job = &report["jobs"][0];
    assert_eq!(job["trim"]["total_ios"].as_u64(), Some(16));
    assert_eq!(job["uringfs"]["system_calls_per_io"].as_f64(), Some(0.0), "{}", job["uringfs"]);
}

#[test]
fn trims_free_the_blocks_of_a_file_in_a_volume() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = uringfs::FormatOptions::new().size(64 << 20);
    drop(uringfs::Volume::create(&image, &options).unwrap());
    let target = format!("{}:/file", image.display());
    let engine = EngineKind::Uringfs;
    // The file is laid out: without blocks nothing would be trimmed.
    let keys = "rw=randtrim\nbs=16k\nsize=1m\niodepth=4\nio_size=512k\nend_fsync=1\n";
    let results = try_job(engine, &target, keys, Overwrite::Refuse).unwrap();
    assert_eq!(results.failures(), [] as [&str; 0]);
    let volume = uringfs::Volume::open(&image).unwrap();
    let file = uringfs::OpenOptions::new().read(true).open(&volume, "/file").unwrap();
    assert_eq!((file.len(), file.allocated()), (1 << 20, 512 << 10));
    drop((file, volume));
    let error = try_job(engine, &target, "rw=trim\nbs=512\n", Overwrite::Allow).unwrap_err();
    assert!(error.to_string().contains("a trim needs multiples of 4096 bytes, and 512"), "{error}");
}

#[test]
fn a_job_reads_what_the_one_before_has_left_in_its_page_cache() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    let options = uringfs::FormatOptions::new().size(64 << 20);
    drop(uringfs::Volume::create(&image, &options).unwrap());
    let in_volume = format!("{}:/file", image.display());
    let plain = folder.path().join("file").display().to_string();
    let keys = "bs=64k\nsize=8m\nverify=crc32c\ndevice.queue=ring\n";
    let cached = "direct=0\nbuffered.cache_bytes=33554432\n";
    for target in [&in_volume, &plain] {
        // Every block is in the page cache only when the job ends, and when the run ends.
        for round in 0..8 {
            let keys = format!(
                "{keys}{cached}rw=write\ndo_verify=0\n\
                 [two]\nfilename={target}\n{keys}rw=read\nstonewall\n\
                 [three]\nfilename={target}\n{keys}{cached}rw=write\ndo_verify=0\nstonewall\n"
            );
            let results = try_job(EngineKind::Uringfs, target, &keys, Overwrite::Allow).unwrap();
            assert_eq!(results.failures(), [] as [&str; 0], "{target}: round {round}");
        }
    }
}

#[test]
fn verify_only_needs_no_overwrite_and_finds_what_changed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for kind in engines() {
        let path = folder.path().join(kind.name());
        let name = path.display().to_string();
        let keys = "rw=randwrite\nsize=256k\nverify=crc32c\n";
        try_job(kind, &name, keys, Overwrite::Refuse).unwrap();
        let again = || {
            let keys = format!("{keys}verify_only\n");
            try_job(kind, &name, &keys, Overwrite::Refuse).unwrap().failures()
        };
        assert_eq!(again(), [] as [&str; 0], "{}", kind.name());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[70_000] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let failures = again();
        assert!(failures.iter().any(|line| line.contains("offset 69632")), "{failures:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was written");
    }
}

#[test]
fn file_append_writes_after_the_end() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for kind in engines() {
        let path = folder.path().join(kind.name());
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        let keys = "rw=write\nsize=32k\nfile_append=1\nbuffer_pattern=9\n";
        let appended = try_job(kind, &path.display().to_string(), keys, Overwrite::Allow);
        if !kind.capabilities().extends_files {
            let error = appended.unwrap_err().to_string();
            assert!(error.contains("an engine that extends files"), "{error}");
            continue;
        }
        assert_eq!(appended.unwrap().failures(), [] as [&str; 0], "{}", kind.name());
        let bytes = std::fs::read(&path).unwrap();
        let (before, after) = bytes.split_at(64 << 10);
        assert!(before.iter().all(|byte| *byte == 7));
        assert!(after.len() == 32 << 10 && after.iter().all(|byte| *byte == 9));
    }
}

#[test]
fn ranges_are_written_back_by_every_engine() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for kind in engines() {
        let path = folder.path().join(kind.name());
        let keys = "rw=randwrite\nsize=256k\nsync_file_range=wait_before,write,wait_after:16\n";
        let results = try_job(kind, &path.display().to_string(), keys, Overwrite::Refuse).unwrap();
        assert_eq!(results.failures(), [] as [&str; 0], "{}", kind.name());
        let report = uringfs_lab::report::json(&results);
        assert_eq!(report["jobs"][0]["sync"]["total_ios"].as_u64(), Some(4));
    }
}

#[test]
fn traces_are_replayed_on_files_and_written_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for kind in engines() {
        let name = |suffix: &str| {
            folder.path().join(format!("{}-{suffix}", kind.name())).display().to_string()
        };
        let (file, trace, copy) = (name("file"), name("trace"), name("copy"));
        let text = format!(
            "fio version 3 iolog\n0 {file} add\n0 {file} open\n0 {file} write 8192 8192\n\
             0 {file} read 0 4096\n0 {file} sync 0 0\n0 {file} trim 4096 4096\n0 {file} close\n"
        );
        std::fs::write(&trace, text).unwrap();
        let keys = format!("read_iolog={trace}\nwrite_iolog={copy}\nbuffer_pattern=9\n");
        let results = try_job(kind, "unused", &keys, Overwrite::Refuse).unwrap();
        assert_eq!(results.failures(), [] as [&str; 0], "{}", kind.name());
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 16_384, "laid out");
        assert!(bytes[4096..8192].iter().all(|byte| *byte == 0));
        assert!(bytes[8192..].iter().all(|byte| *byte == 9));
        let written = std::fs::read_to_string(&copy).unwrap();
        let actions = written.lines().filter_map(|line| line.split(' ').nth(2));
        let expected = ["iolog", "add", "open", "write", "read", "sync", "trim", "close"];
        // The first line is `fio version 3 iolog`.
        assert_eq!(actions.skip(1).collect::<Vec<_>>(), expected[1..]);
        let report = uringfs_lab::report::json(&results);
        let job = &report["jobs"][0];
        let notes = job["uringfs"]["notes"].to_string();
        assert!(
            notes.contains("filename has no effect: the trace of read_iolog decides"),
            "{notes}"
        );
        let counts = ["read", "write", "trim"].map(|way| job[way]["total_ios"].as_u64());
        assert_eq!(counts, [Some(1); 3]);
    }
}

#[test]
fn trims_work_on_virtual_targets() {
    for (kind, target) in [
        (EngineKind::Uringfs, "memory:1m"),
        (EngineKind::Uringfs, "null:1m"),
        (EngineKind::Uringfs, "sim:1m"),
        (EngineKind::Ring, "null:1m"),
    ] {
        for keys in ["rw=trim\niodepth=8\n", "rw=trimwrite\niodepth=8\nio_size=3m\n"] {
            let results = try_job(kind, target, keys, Overwrite::Refuse).unwrap();
            assert_eq!(results.failures(), [] as [&str; 0], "{target}: {keys}");
        }
    }
}

/// The CPU time of the job threads, and the cost of the engines' own threads.
fn costs(results: &Results) -> (u64, ThreadCost) {
    let Results::Ours(outcome) = results else { panic!("fio has run") };
    assert_eq!(results.failures(), [] as [&str; 0]);
    let threads = || outcome.threads.iter().map(|thread| &thread.result);
    let helpers = threads().map(|result| result.engine.helper_threads).sum();
    (threads().map(|result| result.usage.cpu_ns).sum(), helpers)
}

#[test]
fn the_threads_of_a_queue_and_of_completions_are_a_cost_of_the_job() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = folder.path().join("file").display().to_string();
    for (switch, value) in [("device.queue", "threads"), ("completion", "worker")] {
        let mut config = EngineConfig::new(EngineKind::Uringfs);
        config.settings.push((switch.into(), value.into()));
        let keys = "rw=randread\nbs=4k\nsize=4m\niodepth=8\n";
        let results = try_config(&config, &name, keys, Overwrite::Refuse).unwrap();
        let (_, helpers) = costs(&results);
        assert!(helpers.cpu_ns > 0 && helpers.context_switches > 0, "{switch}: {helpers:?}");
        std::fs::remove_file(&name).unwrap();
    }
}

#[test]
fn threads_that_jobs_share_count_once() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = folder.path().join("file").display().to_string();
    let keys = "rw=randread\nbs=4k\nsize=16m\niodepth=16\nnumjobs=4\ndirect=0\n\
        buffered.cache_bytes=4194304\nbuffered.wait=thread\n";
    let process = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    // The second run must not count what the first has spent: the pool's threads live on.
    for run in 0..2 {
        let before = process();
        let results = try_job(EngineKind::Uringfs, &name, keys, Overwrite::Refuse).unwrap();
        let (jobs, helpers) = costs(&results);
        let spent = process() - before;
        assert!(helpers.cpu_ns > 0, "run {run}: {helpers:?}");
        assert!(jobs + helpers.cpu_ns <= spent, "run {run}: {jobs} and {helpers:?} of {spent}");
    }
}

#[test]
fn a_job_drops_the_kernel_s_cached_pages_unless_invalidate_is_0() {
    // Not in the default directory, which may be tmpfs: its pages cannot be dropped.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    for (kind, invalidate) in engines().flat_map(|kind| [(kind, true), (kind, false)]) {
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(is_cached(&path));
        let invalidates = u8::from(invalidate);
        let keys = format!("rw=read\nbs=4k\nsize=4k\ndirect=1\ninvalidate={invalidates}\n");
        run_job(kind, &path, &keys);
        assert_eq!(is_cached(&path), !invalidate, "{}", kind.name());
    }
}

#[test]
fn pre_read_reads_the_files_before_the_run() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    // This stack's reads are direct without a page cache of its own.
    let kernel_engines = engines().filter(|kind| kind.capabilities().buffered);
    for (kind, reads_all) in kernel_engines.flat_map(|kind| [(kind, false), (kind, true)]) {
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // The kernel may keep pages that another processor has just handed on.
        assert!((0..1000).any(|_| {
            drop_page_cache(&file);
            !is_cached(&path)
        }));
        let keys = format!("rw=read\nsize=8m\nio_size=4k\npre_read={}\n", u8::from(reads_all));
        run_job(kind, &path, &keys);
        assert_eq!(is_cached(&path), reads_all, "{}", kind.name());
    }
}
