//! Published figures of small direct reads in the kernel, for comparison: "iomap: add simple dio path for small direct I/O",
//! version 6, sent to the kernel's mailing list on 30 June 2026. On the authors' machine, with a fast NVMe
//! device and one core: `t/io_uring -p1 -d512 -b4096 -s32 -c32 -F1 -B1 -R1 -X1 -n1 -P1`.

use serde_json::{Value, json};

const SOURCE: &str = "https://lkml.iu.edu/hypermail/linux/kernel/2606.3/12998.html";

/// 4 KiB random reads per second, in millions.
const RATES: &[(&str, f64)] =
    &[("raw device", 3.2), ("ext4 or XFS file", 1.92), ("ext4 file, patched", 2.19)];

/// The figures as text.
pub fn text() -> String {
    let raw = RATES[0].1;
    let mut text = format!("\npublished ({SOURCE}): polled, registered, depth 512, a second\n");
    for (what, millions) in RATES {
        let (ns, share) = (1e3 / millions, millions / raw);
        text +=
            &format!("  {what:<20} {millions:.2} M   {ns:.0} ns per read   {share:.2} of raw\n");
    }
    text
}

/// The figures as JSON.
pub fn json() -> Value {
    let rates = RATES.iter().map(|(what, millions)| json!({"what": what, "iops": millions * 1e6}));
    json!({"source": SOURCE, "depth": 512, "rates": rates.collect::<Vec<_>>()})
}
