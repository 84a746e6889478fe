//! Readers that wait for a folio occupy no thread. Alone in its program, since it counts the threads of the
//! process.

mod harness;

use std::pin::Pin;
use std::time::Duration;

use harness::{file_over, join_all, pattern};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Clock, VirtualClock};
use uringfs_reactor::{Counter, Reactor, ReactorOptions};

const SIZE: u64 = 1 << 20;
const LATENCY: Duration = Duration::from_millis(10);
const READERS: usize = 10_000;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn readers_of_one_folio_wait_for_one_fill_without_threads() {
    let clock = Clock::Virtual(VirtualClock::default());
    let options = SimOptions::new(SIZE).latency(LATENCY..=LATENCY).units(4096);
    let direct = file_over(&Sim::new(options.clock(clock.clone())));
    let options = ReactorOptions::new().clock(clock).depth(16384);
    let reactor = Reactor::new(options).unwrap();
    let content = pattern(7, SIZE as usize);
    assert!(reactor.block_on(direct.write_at(pattern(7, SIZE as usize), 0)).0.is_ok());
    let file = direct.buffered(&Cache::new(SIZE));
    let read = reactor.block_on(file.read_at(Buffer::zeroed(1), 65536)).0;
    assert_eq!(read, Ok(1), "what every read takes is there from then on");

    let (before, mut most) = (threads(), 0);
    let reads = (0..READERS).map(|_| -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(async {
            let (read, buffer) = file.read_at(Buffer::zeroed(100), 8192).await;
            read == Ok(100) && buffer[..] == content[8192..8292]
        })
    });
    let reads = join_all(Vec::from_iter(reads));
    let all_are_right = reactor.block_on(async {
        let mut reads = std::pin::pin!(reads);
        std::future::poll_fn(|context| {
            most = most.max(threads());
            reads.as_mut().poll(context)
        })
        .await
    });
    assert!(all_are_right.into_iter().all(|is_right| is_right));
    assert_eq!(most, before, "threads while all wait");
    let counters = reactor.counters();
    assert_eq!(counters.get(Counter::CacheFilled), 2);
    // All but the reader that fills it.
    assert_eq!(counters.get(Counter::CacheWaits), READERS as u64 - 1);
    assert_eq!(counters.get(Counter::CacheRestarted), READERS as u64 - 1);
    assert_eq!(counters.get(Counter::CacheThreads), 0);
}
