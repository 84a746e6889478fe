//! Reads blocks of 4 KiB at random, by tokens, as `reads.c` beside it does through the C interface. `scripts/bench/c`
//! compares the two.
//!
//!     cargo run --release -p uringfs-c --example reads -- null:1g 32 1000000 pool
//!
//! The memory is a pool's (`pool`) or the allocator's (`own`).

use std::error::Error;
use std::time::Instant;

use uringfs::device::{Access, Target};
use uringfs::file::FileOptions;
use uringfs::{Buffer, BufferPool, File, Reactor, ReactorOptions, Token, Tokens};

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (target, depth, reads, is_pooled) = match &arguments[..] {
        [target, depth, reads, memory] if memory == "pool" => (target, depth, reads, true),
        [target, depth, reads, memory] if memory == "own" => (target, depth, reads, false),
        _ => return Err("usage: reads TARGET DEPTH READS pool|own".into()),
    };
    let (depth, reads): (usize, u64) = (depth.parse()?, reads.parse()?);
    let target: Target = target.parse()?;
    let file = File::from_device(target.open(Access::Read)?, FileOptions::new());
    let blocks = file.len() / BLOCK as u64;
    let reactor = Reactor::new(ReactorOptions::new())?;
    let pool = BufferPool::new(BLOCK, depth)?;
    let mut state = 0x2545_f491_4f6c_dd1d;
    let mut start = |buffer, slot| {
        let offset = next(&mut state) % blocks * BLOCK as u64;
        reactor.read_at(&file, buffer, offset, Token::new(slot))
    };

    let buffer = || match is_pooled {
        true => pool.get().expect("as many as the depth"),
        false => Buffer::zeroed(BLOCK),
    };
    let buffers: Vec<Buffer> = (0..depth).map(|_| buffer()).collect();

    let begin = Instant::now();
    for (slot, buffer) in (0..).zip(buffers) {
        start(buffer, slot)?;
    }
    let (mut begun, mut ended) = (depth as u64, 0);
    while ended < reads {
        for completion in reactor.completions(1, None)? {
            assert_eq!(completion.result()?, BLOCK as u64);
            ended += 1;
            if begun < reads {
                let slot = completion.token().get();
                start(completion.into_buffer(), slot)?;
                begun += 1;
            }
        }
    }
    println!("{:.0}", reads as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

/// A xorshift generator.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
