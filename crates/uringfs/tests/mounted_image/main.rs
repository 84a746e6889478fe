//! Opens and uses untrusted images: the seeds of the fuzz target `mounted_image`, then `PROPTEST_CASES` random ones
//! (default 256). Without the checks of names and extents on read this test must fail (`scripts/planted`).

mod body;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/mounted_image");

/// Panics of every thread: the volume's own threads contain theirs.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn has_panicked(input: &[u8]) -> bool {
    let before = PANICS.load(Ordering::SeqCst);
    catch_unwind(|| body::run(input)).is_err() || PANICS.load(Ordering::SeqCst) != before
}

#[test]
fn an_image_that_opens_is_used_without_harm() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        print(panic);
    }));
    let mut seeds: Vec<_> =
        std::fs::read_dir(SEEDS).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    for seed in seeds {
        let input = std::fs::read(&seed).unwrap();
        if has_panicked(&input) {
            panic!("the seed {} fails", seed.display());
        }
    }
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    for case in 0..cases.unwrap_or(256) {
        let input = random(case);
        if has_panicked(&input) {
            panic!("case {case} fails: {}", input.escape_ascii());
        }
    }
}

/// The bytes of a case, by SplitMix64, so that they are the same on every machine.
fn random(case: u64) -> Vec<u8> {
    let mut state = case << 32;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u8
    };
    let length = 32 + usize::from(draw());
    (0..length).map(|_| draw()).collect()
}
