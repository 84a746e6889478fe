//! The memory that a folio takes besides its bytes.

use allocation_counter::measure;
use uringfs_cache::{Cache, FOLIO};

const FOLIOS: u64 = 1_000_000;

#[test]
fn a_million_folios_cost_at_most_64_bytes_each() {
    let mut kept = None;
    let cost = measure(|| {
        let cache = Cache::new(FOLIOS * FOLIO);
        let file = cache.file_folios(0);
        // As many again are evicted, and the ghost remembers them.
        for index in (0..2 * FOLIOS).step_by(500) {
            let fills = file.begin_fill(index..index + 500, 0).unwrap();
            fills.into_iter().for_each(|fill| fill.end(Ok(())));
        }
        kept = Some((cache, file));
    });
    let statistics = kept.as_ref().unwrap().0.statistics();
    assert_eq!((statistics.used_bytes, statistics.evicted), (FOLIOS * FOLIO, FOLIOS));
    let each = cost.bytes_current as f64 / FOLIOS as f64;
    assert!((32.0..=64.0).contains(&each), "{each} bytes a folio");
    println!("{each} bytes a folio");
}
