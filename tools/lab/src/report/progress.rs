//! The progress line for a terminal.

use super::units::{Prefix, number};
use crate::run::{Estimate, Snapshot};

/// The activity and, while jobs run, the number of threads, the rates, the share done and the time left.
pub fn progress_line(now: &Snapshot) -> String {
    let mut parts = vec![now.activity.clone()];
    if now.running > 0 {
        parts.push(format!("jobs: {}", now.running));
        for (index, way) in ["read", "write"].into_iter().enumerate() {
            if now.rates.ios[index] > 0 {
                let bytes = number(now.rates.bytes[index], 4, Prefix::Binary, "B/s");
                let ios = number(now.rates.ios[index], 4, Prefix::Decimal, " IOPS");
                parts.push(format!("{way} {bytes} {ios}"));
            }
        }
        if let Some(Estimate { share, remaining }) = now.estimate {
            let remaining = remaining.as_secs_f64().ceil() as u64;
            let eta = format!("eta {:02}m:{:02}s", remaining / 60, remaining % 60);
            parts.push(format!("{:.1} %", share * 100.0));
            parts.push(eta);
        }
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Rates;
    use std::time::Duration;

    #[test]
    fn the_line_has_rates_share_and_time_left() {
        let mut now = Snapshot { activity: "Running scan".into(), ..Snapshot::default() };
        assert_eq!(progress_line(&now), "Running scan");
        now.running = 2;
        assert_eq!(progress_line(&now), "Running scan  jobs: 2");
        now.rates = Rates { bytes: [3 << 20, 0], ios: [768, 0] };
        now.estimate = Some(Estimate { share: 0.25, remaining: Duration::from_millis(61_200) });
        let line = "Running scan  jobs: 2  read 3072KiB/s 768 IOPS  25.0 %  eta 01m:02s";
        assert_eq!(progress_line(&now), line);
    }
}
