//! Times an eviction and the insertion that follows it. The argument is the number of folios; without one it runs three
//! sizes: `cargo run --release -p uringfs-cache --example eviction_time [folios]`

use std::hint::black_box;
use std::time::Instant;

use uringfs_cache::eviction::{Eviction, Verdict};

const ROUNDS: u32 = 4_000_000;

fn main() {
    let folios = std::env::args().nth(1).map(|folios| folios.parse().expect("a number of folios"));
    for folios in folios.map_or(vec![10_000, 1_000_000, 10_000_000], |folios| vec![folios]) {
        measure(folios);
    }
}

/// Inserts folios, some new and some evicted a while ago, and counts accesses to others in between.
fn measure(folios: u32) {
    let mut eviction = Eviction::new();
    eviction.grow(folios);
    let mut states: Vec<(u64, u8)> = (0..folios).map(|frame| (hash(frame.into()), 1)).collect();
    let begin = Instant::now();
    for (frame, (key, _)) in states.iter().enumerate() {
        eviction.insert(frame as u32, *key);
    }
    let insert_ns = begin.elapsed().as_nanos() / u128::from(folios);

    let (mut looks, mut next, mut evicting_ns, mut both_ns) = (0_u64, u64::from(folios), 0, 0);
    for round in 0..ROUNDS {
        // A hit, outside the timed part.
        let (_, accesses) = &mut states[hash(round.into()) as usize % folios as usize];
        *accesses = (*accesses + 1).min(3);
        let key = if round % 4 == 0 { hash(next - u64::from(folios)) } else { hash(next) };
        next += 1;

        let begin = Instant::now();
        let mut try_evict = |frame: u32| {
            looks += 1;
            let (key, accesses) = &mut states[frame as usize];
            match *accesses {
                0 | 1 => Verdict::Evicted { key: *key },
                _ => {
                    *accesses -= 1;
                    Verdict::Used
                }
            }
        };
        let frame = (0..).find_map(|_| eviction.evict(&mut try_evict)).expect("no folio is busy");
        let evicted = begin.elapsed().as_nanos();
        eviction.insert(frame, key);
        both_ns += begin.elapsed().as_nanos();
        evicting_ns += evicted;
        states[frame as usize] = (key, 1);
    }
    let per_round = |sum: u128| sum / u128::from(ROUNDS);
    println!(
        "{folios} folios: initial insert {insert_ns} ns each; then evict {} ns with {:.2} looks, insert {} ns, \
         each including one reading of the clock, {} ns",
        per_round(evicting_ns),
        looks as f64 / f64::from(ROUNDS),
        per_round(both_ns - evicting_ns),
        clock_ns(),
    );
}

/// The time that reading the clock takes.
fn clock_ns() -> u128 {
    const LOOKS: u128 = 1_000_000;
    let begin = Instant::now();
    for _ in 0..LOOKS {
        black_box(begin.elapsed());
    }
    begin.elapsed().as_nanos() / LOOKS
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
