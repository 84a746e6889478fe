//! Tests each engine against the contract of the trait `Engine`.

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use uringfs_lab::engine::{
    Engine, EngineConfig, EngineKind, Io, IoCompletion, ReapBounds, Setup, WithEngine,
};
use uringfs_lab::job::{Options, Parser, SyncWrites, UnknownKeys};
use uringfs_lab::run::{Overwrite, Run, RunProgress};
use uringfs_lab::targets::{Access, Target, Volumes, drop_page_cache};
use uringfs_lab::workload::IoOp;

const BLOCK: usize = 4096;
const DEPTH: u32 = 8;

/// All engines for files except fio, which is a separate program.
fn engines() -> impl Iterator<Item = EngineKind> {
    let others = ["fio", "vhost-user"];
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

/// Whether the last block of a file is in the kernel's page cache.
fn is_cached(file: &File) -> bool {
    let at = file.metadata().unwrap().len() - BLOCK as u64;
    let mut block = [0; BLOCK];
    match preadv2(file, &mut [IoSliceMut::new(&mut block)], at, ReadWriteFlags::NOWAIT) {
        Ok(bytes) => bytes == BLOCK,
        Err(errno) => {
            assert_eq!(errno, Errno::AGAIN);
            false
        }
    }
}

/// Runs a job with these keys on a file.
fn run_job(kind: EngineKind, path: &Path, keys: &str) {
    let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
    let job = format!("[one]\nfilename={}\n{keys}", path.display());
    parser.bytes(job.as_bytes(), "job").unwrap();
    let set = parser.finish().unwrap();
    let (config, stop, progress) =
        (EngineConfig::new(kind), AtomicBool::new(false), RunProgress::default());
    let run = Run {
        set: &set,
        config: &config,
        overwrite: Overwrite::Refuse,
        stop: &stop,
        progress: &progress,
    };
    assert_eq!(run.run().unwrap().exit_code(), 0);
}

#[test]
fn a_job_drops_the_kernel_s_cached_pages_unless_invalidate_is_0() {
    // Not in the default directory, which may be tmpfs: its pages cannot be dropped.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    for (kind, invalidate) in engines().flat_map(|kind| [(kind, true), (kind, false)]) {
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        assert!(is_cached(&file));
        let invalidates = u8::from(invalidate);
        let keys = format!("rw=read\nbs=4k\nsize=4k\ndirect=1\ninvalidate={invalidates}\n");
        run_job(kind, &path, &keys);
        assert_eq!(is_cached(&file), !invalidate, "{}", kind.name());
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
        drop_page_cache(&file);
        let keys = format!("rw=read\nsize=8m\nio_size=4k\npre_read={}\n", u8::from(reads_all));
        run_job(kind, &path, &keys);
        assert_eq!(is_cached(&file), reads_all, "{}", kind.name());
    }
}
