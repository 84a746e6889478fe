//! The token interface, for servers and benchmarks: random reads with 64 in flight, submitted and reaped in batches.
//! Each read is one request without a task.
//!
//!     cargo run --example tokens [IMAGE]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use uringfs::device::Access;
use uringfs::reactor::Counter;
use uringfs::{BufferPool, File, Reactor, ReactorOptions, Token, Tokens};

const DEPTH: usize = 64;
const BATCH: usize = 16;
const READS: u64 = 20_000;
const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("image");
            uringfs::create_image(&path, 64 << 20)?;
            path
        }
    };
    let file = File::open(&path, Access::Read)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let blocks = file.len() / BLOCK as u64;
    if blocks == 0 {
        return Err(format!("{} is shorter than a block", path.display()).into());
    }

    // The ring registers the pool's memory at its first use.
    let pool = BufferPool::new(BLOCK, DEPTH)?;
    let mut state = 0x2545_f491_4f6c_dd1d;
    let mut start = |token| {
        let buffer = pool.get().expect("as many buffers as reads in flight");
        reactor.read_at(&file, buffer, random(&mut state) % blocks * BLOCK as u64, token)
    };

    let begin = Instant::now();
    let mut started = DEPTH as u64;
    for number in 0..started {
        start(Token::new(number))?;
    }
    let mut ended = 0;
    while ended < READS {
        // Submits all started reads, and waits until a batch has ended: one system call.
        for completion in reactor.completions(BATCH, None)? {
            ended += 1;
            assert_eq!(completion.result()?, BLOCK as u64);
            // The buffer goes back to the pool before the next read takes one.
            drop(completion.into_buffer());
            if started < READS {
                start(Token::new(started))?;
                started += 1;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();

    let (queue, why) = reactor.queue_of(file.device())?;
    println!("{READS} reads of {BLOCK} bytes, {:.0} a second", READS as f64 / seconds);
    println!("queue {queue}: {why}");
    let counters = reactor.counters();
    println!("fast-path reads: {}", counters.get(Counter::FastPathTaken));
    println!("system calls for the ring: {}", counters.get(Counter::Enters));
    Ok(())
}

/// A xorshift generator.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
