//! Times a random 4 KiB read of a fully cached file, compared with the kernel's page cache and with copying the same
//! pages in the same order. Also times access without a copy, to the first 64 bytes of a snapshot.
//!
//!     cargo run --release --example cached_reads -- FOLDER [MEBIBYTES [ROUNDS]] [--json]
//!
//! Creates a file of that size (default 64) in FOLDER, reads it once through both caches, and removes it at the end.
//! Each round times every method once, in a rotating order. Prints the median of all rounds (default 15) in nanoseconds
//! a read, the ratio to the kernel's pread, and the read rate of two threads relative to one. With `--json` it prints
//! the figures of all rounds instead: nanoseconds a read, and reads a second.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use uringfs::cache::Cache;
use uringfs::device::Access;
use uringfs::{Buffer, File, Reactor, ReactorOptions, Token, Tokens};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Reads the first 64 bytes, as for a page header.
fn look_at(bytes: &[u8]) {
    let words = bytes[..64]
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    black_box(words.fold(0, |all, word| all ^ word));
}

/// One method to read at an offset.
type Method<'a> = Box<dyn FnMut(u64) + 'a>;

const PAGE: usize = 4096;
/// Reads by each method in a round.
const READS: usize = 100_000;

fn main() -> Result<()> {
    let (flags, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--json");
    let (folder, rest) = arguments
        .split_first()
        .ok_or("usage: cached_reads FOLDER [MEBIBYTES [ROUNDS]] [--json]")?;
    let mebibytes: usize = rest.first().map_or(Ok(64), |text| text.parse())?;
    let rounds: usize = rest.get(1).map_or(Ok(15), |text| text.parse())?;
    let path = PathBuf::from(folder).join(format!("cached-reads-{}", std::process::id()));
    let result = measure(&path, mebibytes << 20, rounds, !flags.is_empty());
    fs::remove_file(path)?;
    result
}

fn measure(path: &PathBuf, size: usize, rounds: usize, as_json: bool) -> Result<()> {
    uringfs::create_image(path, size as u64)?;
    let cache = Cache::new(size as u64 + (8 << 20));
    let file = File::open(path, Access::Read)?.buffered(&cache);
    let kernel = fs::File::open(path)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let mut memory = Buffer::zeroed(size);
    for offset in (0..size).step_by(1 << 20) {
        let end = size.min(offset + (1 << 20));
        kernel.read_exact_at(&mut memory[offset..end], offset as u64)?;
        reactor.block_on(file.read_at(Buffer::zeroed(end - offset), offset as u64)).0?;
    }
    let mut bytes = Buffer::zeroed(PAGE);
    let mut token_buffer = Some(Buffer::zeroed(PAGE));
    let mut completed = Vec::new();
    let pages = (size / PAGE) as u64;
    let mut methods: Vec<(&str, Method<'_>)> = vec![
        (
            "copy",
            Box::new({
                let mut into = Buffer::zeroed(PAGE);
                let memory = &memory;
                move |offset| {
                    into.copy_from_slice(&memory[offset as usize..offset as usize + PAGE]);
                    black_box(&into);
                }
            }),
        ),
        (
            "pread",
            Box::new({
                let (mut into, kernel) = (Buffer::zeroed(PAGE), &kernel);
                move |offset| {
                    kernel.read_exact_at(&mut into, offset).expect("the file has this range");
                }
            }),
        ),
        (
            "try_read",
            Box::new(|offset| {
                assert_eq!(file.try_read_at(&mut bytes, offset), Ok(PAGE));
            }),
        ),
        (
            "token",
            Box::new(|offset| {
                let buffer = token_buffer.take().expect("the buffer was returned");
                reactor.read_at(&file, buffer, offset, Token::new(1)).expect("one at a time");
                reactor.reap(1, None, &mut completed).expect("the page is cached");
                token_buffer = completed.pop().map(|read| read.into_buffer());
            }),
        ),
        (
            "page",
            Box::new(|offset| {
                let page = file.page(offset).expect("the page is cached");
                look_at(&page);
            }),
        ),
    ];
    let mut times = vec![Vec::new(); methods.len()];
    for round in 0..rounds {
        for turn in 0..methods.len() {
            let method = (round + turn) % methods.len();
            let mut state = round as u64 + 1;
            let begin = Instant::now();
            for _ in 0..READS {
                (methods[method].1)(next(&mut state) % pages * PAGE as u64);
            }
            times[method].push(begin.elapsed().as_nanos() as f64 / READS as f64);
        }
    }
    let median = |times: &[f64]| {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let ratios = |method: usize| -> Vec<f64> {
        times[1].iter().zip(&times[method]).map(|(kernel, own)| kernel / own).collect()
    };
    let names: Vec<&str> = methods.iter().map(|(name, _)| *name).collect();
    drop(methods);
    let rates = |threads: u64| -> Vec<f64> {
        let seconds =
            (0..rounds as u64).map(|round| concurrent_reads(&file, pages, threads, round));
        seconds.map(|time| (threads * READS as u64) as f64 / time).collect()
    };
    let (one, two) = (rates(1), rates(2));
    if as_json {
        let times: Vec<_> =
            names.iter().zip(&times).map(|(name, times)| format!("{name:?}: {times:?}")).collect();
        println!(
            "{{\"nanoseconds\": {{{}}}, \"rates\": {{\"one\": {one:?}, \"two\": {two:?}}}}}",
            times.join(", ")
        );
        return Ok(());
    }
    println!("{} MiB, {rounds} rounds of {READS} reads", size >> 20);
    for (method, name) in names.iter().enumerate() {
        let (time, ratio) = (median(&times[method]), median(&ratios(method)));
        println!("{name:>10} {time:8.1} ns  pread takes {ratio:.2} times as long");
    }
    let ratio = median(&two) / median(&one);
    println!("{:>10} {ratio:8.2} times as many reads a second as one thread", "two");
    Ok(())
}

/// The time in seconds for `threads` concurrent threads that read [`READS`] times each.
fn concurrent_reads(file: &File, pages: u64, threads: u64, round: u64) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut bytes = Buffer::zeroed(PAGE);
                let mut state = 2 * round + thread + 1;
                for _ in 0..READS {
                    assert_eq!(
                        file.try_read_at(&mut bytes, next(&mut state) % pages * PAGE as u64),
                        Ok(PAGE)
                    );
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}

/// A linear congruential generator.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}
