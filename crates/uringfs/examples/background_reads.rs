//! Reads per second of threads that have no reactor, with one and with more background reactors.
//!
//! ```text
//! cargo run --release --example background_reads -- [PATH [PAIRS]]
//! ```
//!
//! Each thread keeps 32 reads of 4 KiB in flight, on memory and, if it is given, on the file at PATH, which is read
//! directly. The numbers of reactors alternate, so that a machine that is not idle disturbs all alike; the ratios are
//! medians of the pairs (11 if not given), with the lowest and the highest.

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use uringfs::device::backend::memory::Memory;
use uringfs::device::backend::null::Null;
use uringfs::device::{Access, Device};
use uringfs::file::FileOptions;
use uringfs::reactor::set_background_reactors;
use uringfs::{BufResult, Buffer, File, FileOp};

const DEPTH: usize = 32;
const SIZE: u64 = 64 << 20;
const RUN: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let over = |device| File::from_device(device, FileOptions::new());
    let mut targets = vec![
        ("null", over(Device::new(Null::new(SIZE))?)),
        ("memory", over(Device::new(Memory::new(SIZE)?)?)),
    ];
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next();
    let count = arguments
        .next()
        .map_or(Ok(11), |pairs| pairs.parse::<NonZeroUsize>().map(NonZeroUsize::get))?;
    if let Some(path) = &path {
        targets.push((path, File::open(path, Access::Read)?));
    }
    for (name, file) in &targets {
        for threads in [1, 2, 4] {
            let rates = |_| (rate(file, threads, 1), rate(file, threads, 2));
            let mut pairs: Vec<(f64, f64)> = (0..count).map(rates).collect();
            pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let [low, median, high] = [0, count / 2, count - 1].map(|at| pairs[at].1 / pairs[at].0);
            let (one, two) = pairs[count / 2];
            println!(
                "{name}, {threads} threads: {one:.0} reads/s with 1, {two:.0} with 2; ratio \
                 {median:.2} ({low:.2} to {high:.2})"
            );
        }
    }
    Ok(())
}

/// Reads per second of all threads.
fn rate(file: &File, threads: usize, reactors: usize) -> f64 {
    set_background_reactors(reactors);
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    let reads: u64 = thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| block_on(read(file, &stop)))).collect();
        thread::sleep(RUN);
        stop.store(true, Ordering::Relaxed);
        running.into_iter().map(|thread| thread.join().expect("a thread reads")).sum()
    });
    reads as f64 / began.elapsed().as_secs_f64()
}

/// Keeps [`DEPTH`] reads in flight, and returns their number.
async fn read(file: &File, stop: &AtomicBool) -> u64 {
    let mut reads = 0;
    let mut offset = 0;
    let mut next = |buffer| {
        offset = (offset + 4096 * 7) % SIZE;
        file.read_at(buffer, offset)
    };
    let mut in_flight: Vec<Option<FileOp<BufResult<usize>>>> =
        (0..DEPTH).map(|_| Some(next(Buffer::zeroed(4096)))).collect();
    poll_fn(|context| {
        for slot in &mut in_flight {
            while let Some(operation) = slot {
                let Poll::Ready((read, buffer)) = pin!(operation).poll(context) else { break };
                read.expect("the read succeeds");
                reads += 1;
                *slot = (!stop.load(Ordering::Relaxed)).then(|| next(buffer));
            }
        }
        if in_flight.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    reads
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
