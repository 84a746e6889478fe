//! A process without free descriptors gets clear errors and no panics. Everything works again once descriptors are
//! free.

#[path = "../../reactor/tests/tier/mod.rs"]
mod tier;

use rustix::process::{Resource, Rlimit, setrlimit};
use tier::{Tier, on_every_tier};
use uringfs::cache::Cache;
use uringfs::device::{Access, Device};
use uringfs::file::{BufferedWait, FileOptions};
use uringfs::reactor::QueueKind;
use uringfs::{Buffer, Errno, File, Reactor, ReactorOptions};

/// Uses up all descriptors but `count`, until the result is dropped.
fn exhaust_but(count: usize) -> Vec<std::fs::File> {
    let open = || std::fs::File::open("/dev/null");
    let mut held: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
    assert!(held.len() >= count, "the limit is lower than {count}");
    held.truncate(held.len() - count);
    held
}

/// Limits this process to 64 descriptors.
fn limit_descriptors() {
    let limits = Rlimit { current: Some(64), maximum: Some(64) };
    setrlimit(Resource::Nofile, limits).unwrap();
}

/// Whether an error names the limit, in one line.
fn is_clear(why: &str) -> bool {
    let named = ["RLIMIT_NOFILE", "ulimit -n", "open files"].iter().any(|name| why.contains(name));
    named && !why.contains('\n')
}

#[test]
fn without_descriptors_errors_are_clear_and_do_not_last() {
    let name = "without_descriptors_errors_are_clear_and_do_not_last";
    on_every_tier(name, |tier| {
        limit_descriptors();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        uringfs::create_image(&path, 1 << 20).unwrap();
        let file = File::open(&path, Access::ReadWrite).unwrap();
        let read = |reactor: &Reactor| reactor.block_on(file.read_at(Buffer::zeroed(4096), 0)).0;
        for queue in QueueKind::ALL.into_iter().filter(|queue| queue.serves(tier)) {
            let new = || Reactor::new(ReactorOptions::new().queue(queue));
            for left in 0..12 {
                let what = format!("{queue}, {left} left");
                let held = exhaust_but(left);
                match new() {
                    Err(error) => assert!(is_clear(&error.to_string()), "{what}: {error}"),
                    Ok(reactor) => {
                        match reactor.queue_of(file.device()) {
                            Err(error) => assert!(is_clear(&error.to_string()), "{what}: {error}"),
                            Ok(_) => {
                                let read = read(&reactor);
                                let fine = read == Ok(4096) || read == Err(Errno::MFILE);
                                assert!(fine, "{what}: {read:?}");
                            }
                        }
                        if let Err(error) = reactor.fd() {
                            assert!(is_clear(&error.to_string()), "{what}: {error}");
                        }
                    }
                }
                drop(held);
                // A temporary shortage does not lower the tier for good.
                let reactor = new().unwrap();
                let expected = if tier == Tier::Ring { "io_uring" } else { "no io_uring" };
                assert!(reactor.tier().starts_with(expected), "{what}: {}", reactor.tier());
                assert_eq!(read(&reactor), Ok(4096), "{what}, then enough");
            }
        }
    });
}

trait Serves {
    fn serves(self, tier: Tier) -> bool;
}

impl Serves for QueueKind {
    fn serves(self, tier: Tier) -> bool {
        self != QueueKind::Ring || tier == Tier::Ring
    }
}

#[test]
fn a_pool_thread_without_descriptors_returns_the_error_and_tries_again() {
    on_every_tier("a_pool_thread_without_descriptors_returns_the_error_and_tries_again", |_| {
        limit_descriptors();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        uringfs::create_image(&path, 1 << 20).unwrap();
        let options = FileOptions::new().buffered_wait(BufferedWait::Thread);
        let device = Device::open(&path, Access::Read).unwrap();
        let file = File::from_device(device, options).buffered(&Cache::new(1 << 20));
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let read = |offset| reactor.block_on(file.read_at(Buffer::zeroed(4096), offset)).0;
        let held = exhaust_but(0);
        assert_eq!(read(0), Err(Errno::MFILE));
        drop(held);
        assert_eq!(read(0), Ok(4096));
    });
}

#[test]
fn waits_without_descriptors_return_errors() {
    on_every_tier("waits_without_descriptors_return_errors", |_| {
        limit_descriptors();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let listener = std::sync::Arc::new(listener.into());
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let held = exhaust_but(0);
        let accepted = reactor.block_on(reactor.accept(&listener, None));
        assert_eq!(accepted.err(), Some(Errno::MFILE));
        drop(held);
        assert!(reactor.block_on(reactor.accept(&listener, None)).is_ok());
        drop(client);
    });
}
