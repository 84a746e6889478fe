//! Limited machines: io_uring forbidden or missing, or no locked memory. Everything works on the lower tier, and the
//! reason is reported.

#[path = "../../reactor/tests/tier/mod.rs"]
mod tier;

use std::path::Path;
use std::process::Command;

use rustix::process::{Resource, getrlimit};
use tier::{Tier, on_every_tier};
use uringfs::device::backend::memory::Memory;
use uringfs::device::{Access, Device};
use uringfs::file::FileOptions;
use uringfs::reactor::{Counter, QueueKind, Require};
use uringfs::{Buffer, BufferPool, File, Reactor, ReactorOptions, Token, Tokens};

const SIZE: u64 = 1 << 20;
/// The environment variable that marks a run under limits.
const LIMITED: &str = "URINGFS_TEST_LIMITED";

fn image(folder: &Path) -> File {
    let path = folder.join("image");
    if !path.exists() {
        uringfs::create_image(&path, SIZE).unwrap();
    }
    File::open(&path, Access::ReadWrite).unwrap()
}

fn memory() -> File {
    File::from_device(Device::new(Memory::new(SIZE).unwrap()).unwrap(), FileOptions::default())
}

/// Writes and reads by token and by await, with aligned and unaligned ranges.
fn use_file(reactor: &Reactor, file: &File, pool: &BufferPool) {
    for (fill, offset, length) in [(1, 0, 4096), (2, 8192, 4096), (3, 20_001, 3000)] {
        let mut buffer = pool.get().unwrap();
        drop(buffer.split_off(length));
        buffer.fill(fill);
        reactor.write_at(file, buffer, offset, Token::new(1)).unwrap();
        let mut completed = Vec::new();
        reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed.remove(0).result(), Ok(length as u64));
        assert_eq!(reactor.block_on(file.sync_data()), Ok(()));
        let (read, found) = reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
        assert_eq!(read, Ok(length));
        assert!(found.iter().all(|byte| *byte == fill));
    }
    assert_eq!(reactor.block_on(file.write_zeroes(100, 5000)), Ok(()));
    let (_, found) = reactor.block_on(file.read_at(Buffer::zeroed(5000), 100));
    assert!(found.iter().all(|byte| *byte == 0));
}

#[test]
fn every_tier_works_alike_and_names_its_reason() {
    on_every_tier("every_tier_works_alike_and_names_its_reason", |tier| {
        let folder = tempfile::tempdir().unwrap();
        let pool = BufferPool::new(4096, 4).unwrap();
        for queue in QueueKind::ALL {
            let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
            let file = image(folder.path());
            if tier == Tier::Ring {
                assert!(reactor.tier().starts_with("io_uring"), "{}", reactor.tier());
            } else {
                let why = reactor.tier();
                assert!(why.starts_with("no io_uring") && why.contains(tier.reason()), "{why}");
                assert!(why.contains("seccomp"), "the error names the place to look: {why}");
            }
            if queue == QueueKind::Ring && tier != Tier::Ring {
                let why = reactor.queue_of(file.device()).unwrap_err().to_string();
                assert!(why.contains(tier.reason()), "{why}");
                assert!(reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).is_err());
                continue;
            }
            use_file(&reactor, &file, &pool);
            let (name, why) = reactor.queue_of(file.device()).unwrap();
            match queue {
                QueueKind::Auto => {
                    assert!(tier == Tier::Ring || name != "ring", "{name}: {why}");
                    assert!(tier == Tier::Ring || why.contains(tier.reason()), "{why}");
                }
                queue => assert_eq!(name, queue.name(), "{why}"),
            }
            if matches!(queue, QueueKind::Auto | QueueKind::Sync | QueueKind::Threads) {
                use_file(&reactor, &memory(), &pool);
            }
        }
    });
}

#[test]
fn a_required_tier_is_present_or_refused_with_the_reason() {
    on_every_tier("a_required_tier_is_present_or_refused_with_the_reason", |tier| {
        let new = |require| Reactor::new(ReactorOptions::new().require(require));
        assert!(new(Require::Any).is_ok());
        for require in [Require::Ring, Require::Full] {
            match new(require) {
                Ok(reactor) => {
                    assert_eq!(tier, Tier::Ring, "{require:?}");
                    let full = reactor.tier().contains("every feature");
                    assert!(full || require == Require::Ring, "{}", reactor.tier());
                }
                Err(error) => {
                    let why = error.to_string();
                    assert!(why.starts_with("ring.require"), "{why}");
                    assert!(tier == Tier::Ring || why.contains(tier.reason()), "{why}");
                    assert!(!why.contains('\n'), "{why}");
                }
            }
        }
    });
}

/// Runs `test` again under limits set by `prlimit` (util-linux), and without the capability to lock memory.
fn run_limited(test: &str, limits: &[&str]) {
    let mut command = Command::new("prlimit");
    command.args(limits);
    if rustix::process::geteuid().is_root() {
        command.args(["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]);
    }
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = command.env(LIMITED, "yes").output().expect("prlimit is installed (util-linux)");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "under {limits:?}:\n{out}{error}");
    assert!(out.contains("1 passed"), "no test is called {test}:\n{out}");
}

fn is_limited() -> bool {
    std::env::var(LIMITED).is_ok()
}

/// Reads `count` blocks into memory of `pool`; returns how many requests used a registered buffer, and how many a plain
/// one.
fn read_with(reactor: &Reactor, file: &File, pool: &BufferPool, count: u64) -> (u64, u64) {
    let counts = || {
        let counters = reactor.counters();
        (counters.get(Counter::FixedBuffers), counters.get(Counter::PlainBuffers))
    };
    let before = counts();
    for token in 0..count {
        reactor.read_at(file, pool.get().unwrap(), token * 4096, Token::new(token)).unwrap();
    }
    let mut completed = Vec::new();
    while completed.len() < count as usize {
        reactor.reap(1, None, &mut completed).unwrap();
    }
    assert!(completed.iter().all(|one| one.result() == Ok(4096)));
    (counts().0 - before.0, counts().1 - before.1)
}

#[test]
fn without_locked_memory_buffers_are_plain() {
    if !is_limited() {
        let test = "without_locked_memory_buffers_are_plain";
        for limit in ["0", "65536", "1048576"] {
            run_limited(test, &[&format!("--memlock={limit}:{limit}")]);
        }
        return;
    }
    const LARGE: usize = 1024;
    let large = BufferPool::new(4096, LARGE).unwrap();
    let limit = getrlimit(Resource::Memlock).current.expect("prlimit set it");
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    if limit < 1 << 20 && reactor.tier().starts_with("no io_uring") {
        // Some kernels count the ring itself against the limit.
        let why = reactor.tier();
        assert!(why.contains("RLIMIT_MEMLOCK") && why.contains(&limit.to_string()), "{why}");
        return use_file(&reactor, &file, &large);
    }
    let options = ReactorOptions::new().queue(QueueKind::Ring);
    let reactor = Reactor::new(options).unwrap();
    assert!(reactor.tier().starts_with("io_uring"), "{}", reactor.tier());
    assert_eq!(reactor.registration_refused(), None, "nothing was registered yet");
    assert_eq!(read_with(&reactor, &file, &large, 16), (0, 16));
    let why = reactor.registration_refused().expect("the registration was refused");
    let bytes = (LARGE * 4096).to_string();
    assert!(why.contains("RLIMIT_MEMLOCK") && why.contains("ulimit -l"), "{why}");
    assert!(why.contains(&bytes) && why.contains(&limit.to_string()), "{why}");
    // Memory within the limit is registered.
    let small = BufferPool::new(4096, 4).unwrap();
    let expected = if limit == 0 { (0, 4) } else { (4, 0) };
    assert_eq!(read_with(&reactor, &file, &small, 4), expected, "limit {limit}: {why}");
    use_file(&reactor, &file, &large);
}
