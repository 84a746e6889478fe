//! Published figures of small direct reads in the kernel, for comparison: those of the experiment `simple-read`.

use crate::experiments::{PublishedTable, tables};
use serde_json::{Value, json};

/// 4 KiB random reads per second; the raw device is the first.
fn rates(table: &PublishedTable) -> impl Iterator<Item = (&'static str, f64)> {
    let files = table
        .rows
        .iter()
        .flat_map(|row| [("ext4 or XFS file", row.off), ("ext4 file, patched", row.on)]);
    table.beside.iter().copied().chain(files)
}

fn table() -> &'static PublishedTable {
    tables("simple-read").next().expect("the experiment has a table")
}

/// The figures as text.
pub fn text() -> String {
    let table = table();
    let mut text =
        format!("\npublished ({}): polled, registered, depth 512, a second\n", table.source);
    let raw = rates(table).next().map_or(f64::NAN, |(_, rate)| rate);
    for (what, rate) in rates(table) {
        let (millions, ns, share) = (rate / 1e6, 1e9 / rate, rate / raw);
        text +=
            &format!("  {what:<20} {millions:.2} M   {ns:.0} ns per read   {share:.2} of raw\n");
    }
    text
}

/// The figures as JSON.
pub fn json() -> Value {
    let table = table();
    let rates = rates(table).map(|(what, rate)| json!({"what": what, "iops": rate}));
    json!({"source": table.source, "depth": 512, "rates": rates.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_published_table() {
        let text = text();
        for line in [
            "raw device           3.20 M   312 ns per read   1.00 of raw",
            "patched   2.19 M   457 ns per read   0.68 of raw",
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let found = text.lines().any(|line| {
                let line: Vec<&str> = line.split_whitespace().collect();
                line.ends_with(&words)
            });
            assert!(found, "no `{line}` in\n{text}");
        }
        assert_eq!(json()["rates"][1]["iops"], 1.92e6);
    }
}
