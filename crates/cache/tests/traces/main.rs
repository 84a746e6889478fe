//! Miss ratios of the eviction policies, on kinds of traces that papers use for comparison.
//!
//! To see the tables: `cargo test -p uringfs-cache --test traces -- --nocapture`

mod policy;
mod workload;

use policy::{Clock, Counts, Lru, S3Fifo, miss_ratio};
use workload::{
    drifting, hot_set_and_scans, hot_set_beside_a_scan, in_small_reads, looping, shifting, zipf,
};

/// Folios in the cache, unless a test sets another number.
const CAPACITY: u32 = 10_000;

/// Approximate number of accesses in a trace.
const ACCESSES: u64 = 500_000;

const SEEDS: [u64; 2] = [1, 20_231_023];

struct Row {
    s3_fifo: f64,
    clock: f64,
    lru: f64,
}

/// Replays one trace with all three policies, and prints the miss ratios.
fn row(name: &str, capacity: u32, trace: &[u64]) -> Row {
    let row = Row {
        s3_fifo: miss_ratio(S3Fifo::new(capacity), trace),
        clock: miss_ratio(Clock::new(capacity), trace),
        lru: miss_ratio(Lru::new(capacity), trace),
    };
    let Row { s3_fifo, clock, lru } = row;
    println!("{name:48} {capacity:6}  S3-FIFO {s3_fifo:.4}  CLOCK {clock:.4}  LRU {lru:.4}");
    row
}

#[test]
fn zipf_traces_miss_no_more_than_clock_and_lru() {
    for (seed, alpha) in SEEDS.into_iter().flat_map(|seed| [(seed, 0.8), (seed, 1.0), (seed, 1.2)])
    {
        let trace = zipf(seed, 100_000, alpha, ACCESSES as usize);
        for capacity in [1_000, 10_000] {
            let name = format!("zipf {alpha:.1} over 100000, seed {seed}");
            let Row { s3_fifo, clock, lru } = row(&name, capacity, &trace);
            assert!(s3_fifo <= clock.min(lru) + 0.01);
        }
    }
}

#[test]
fn scans_do_not_displace_a_hot_set() {
    for (seed, hot) in SEEDS.into_iter().flat_map(|seed| [(seed, 3_000), (seed, 8_000)]) {
        let name = format!("{hot} hot, scans of 20000 between, seed {seed}");
        let trace = hot_set_and_scans(seed, hot, 20_000, 20_000, 25);
        let between = row(&name, CAPACITY, &trace);
        let name = format!("{hot} hot, an endless scan beside, seed {seed}");
        let beside = row(&name, CAPACITY, &hot_set_beside_a_scan(seed, hot, 2 * ACCESSES));
        for Row { s3_fifo, clock, lru } in [between, beside] {
            // Half of the accesses belong to the scan, and miss under any policy.
            assert!(s3_fifo < 0.52);
            assert!(s3_fifo - 0.5 < (clock.min(lru) - 0.5) / 4.0);
        }
    }
}

#[test]
fn a_loop_keeps_a_part_where_lru_keeps_nothing() {
    for folios in [10_500, 11_000, 15_000, 20_000] {
        let name = format!("loop over {folios}");
        let Row { s3_fifo, lru, .. } = row(&name, CAPACITY, &looping(folios, ACCESSES));
        assert_eq!(lru, 1.0);
        // From twice the capacity on, the ghost forgets a key before it comes back: as bad as LRU, not worse.
        assert!(if folios < 20_000 { s3_fifo < 0.6 } else { s3_fifo <= 1.0 });
    }
}

/// The weak side of S3-FIFO. A folio of a new hot set may miss twice where it misses once with LRU, but not more often.
#[test]
fn shifting_hot_sets_miss_less_than_twice_as_often_as_lru() {
    for seed in SEEDS {
        for (hot, stay) in [(3_000, 30_000), (6_000, 30_000), (6_000, 100_000)] {
            let name = format!("{hot} hot, others after {stay}, seed {seed}");
            let trace = shifting(seed, hot, stay, ACCESSES / stay);
            let Row { s3_fifo, lru, .. } = row(&name, CAPACITY, &trace);
            assert!(s3_fifo < 2.0 * lru);
        }
        for (hot, stay) in [(6_000, 3), (6_000, 10), (6_000, 100)] {
            let name = format!("{hot} hot, one more after {stay}, seed {seed}");
            let trace = drifting(seed, hot, stay, ACCESSES);
            let Row { s3_fifo, lru, .. } = row(&name, CAPACITY, &trace);
            assert!(s3_fifo < 2.0 * lru);
        }
    }
}

#[test]
fn a_scan_by_small_reads_leaves_the_main_queue_alone_if_a_visit_counts_once() {
    const READS: usize = 8;
    for seed in SEEDS {
        let whole = hot_set_and_scans(seed, 8_000, 20_000, 20_000, 25);
        let small = in_small_reads(&whole, READS);
        let misses = |counts, trace: &[u64], reads: usize| {
            reads as f64 * miss_ratio(S3Fifo::with_counts(counts, CAPACITY), trace)
        };
        let expected = misses(Counts::OncePerVisit, &whole, 1);
        let once = misses(Counts::OncePerVisit, &small, READS);
        let each = misses(Counts::Each, &small, READS);
        println!(
            "8000 hot, scans by {READS} reads a folio, seed {seed}: misses a visit {once:.4}, \
             {each:.4} when each read counts, {expected:.4} when whole folios are read"
        );
        assert!((once - expected).abs() < 0.01);
        assert!(each > expected + 0.1);
    }
}
