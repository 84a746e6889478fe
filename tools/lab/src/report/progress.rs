//! The progress line for a terminal.

use super::units::{Prefix, number};
use crate::run::{Estimate, Snapshot};

/// The least columns that a long activity is shortened to, if other parts can go instead.
const MIN_ACTIVITY: usize = 8;

/// The activity and, while jobs run, the number of threads, the rates, the share done and the time left, in at most `width` columns.
///
/// If not all fits, the activity is shortened, and then the parts go that say least: bytes per second, the number of threads, the
/// share, the rates. The time left stays, as far as there is room for it.
pub fn progress_line(now: &Snapshot, width: usize) -> String {
    // A control character would move the cursor.
    let activity = now.activity.replace(char::is_control, "?");
    let columns = activity.chars().count();
    let tails = tails(now);
    for tail in &tails {
        let rest = match tail.is_empty() {
            true => width,
            false => width.saturating_sub(tail.chars().count() + SEPARATOR.len()),
        };
        if rest >= columns.min(MIN_ACTIVITY) {
            let parts = [shortened(&activity, rest), tail.clone()];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            return parts.join(SEPARATOR);
        }
    }
    let least = tails.into_iter().rfind(|tail| !tail.is_empty()).unwrap_or(activity);
    shortened(&least, width)
}

const SEPARATOR: &str = "  ";

/// The parts behind the activity, from the longest to the shortest form.
fn tails(now: &Snapshot) -> Vec<String> {
    if now.running == 0 {
        return vec![String::new()];
    }
    let jobs = vec![format!("jobs: {}", now.running)];
    let ways = || {
        ["read", "write", "trim"].into_iter().enumerate().filter(|(at, _)| now.rates.ios[*at] > 0)
    };
    let ios = |at: usize| number(now.rates.ios[at], 4, Prefix::Decimal, " IOPS");
    let bytes = |at: usize| number(now.rates.bytes[at], 4, Prefix::Binary, "B/s");
    let rates: Vec<_> =
        ways().map(|(at, way)| format!("{way} {} {}", bytes(at), ios(at))).collect();
    let short: Vec<_> = ways().map(|(at, way)| format!("{way} {}", ios(at))).collect();
    let (share, left) = match now.estimate {
        Some(Estimate { share, remaining }) => {
            let seconds = remaining.as_secs_f64().ceil() as u64;
            let left = format!("eta {:02}m:{:02}s", seconds / 60, seconds % 60);
            (vec![format!("{:.1} %", share * 100.0)], vec![left])
        }
        None => (Vec::new(), Vec::new()),
    };
    let forms: [&[&[String]]; 5] = [
        &[&jobs, &rates, &share, &left],
        &[&jobs, &short, &share, &left],
        &[&short, &share, &left],
        &[&short, &left],
        &[&left],
    ];
    forms.iter().map(|parts| parts.concat().join(SEPARATOR)).collect()
}

/// The beginning of a text, with a mark if it is not all.
fn shortened(text: &str, width: usize) -> String {
    match text.chars().count() {
        all if all <= width => text.to_owned(),
        _ if width == 0 => String::new(),
        _ => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Rates;
    use std::time::Duration;

    #[test]
    fn the_line_has_rates_share_and_time_left() {
        let line = |now: &Snapshot| progress_line(now, usize::MAX);
        let mut now = Snapshot { activity: "Running scan".into(), ..Snapshot::default() };
        assert_eq!(line(&now), "Running scan");
        now.running = 2;
        assert_eq!(line(&now), "Running scan  jobs: 2");
        now.rates = Rates { bytes: [3 << 20, 0, 0], ios: [768, 0, 0] };
        now.estimate = Some(Estimate { share: 0.25, remaining: Duration::from_millis(61_200) });
        let expected = "Running scan  jobs: 2  read 3072KiB/s 768 IOPS  25.0 %  eta 01m:02s";
        assert_eq!(line(&now), expected);
        now.activity = "Running a\u{1b}[2J\nb".into();
        assert!(line(&now).starts_with("Running a?[2J?b  "), "{}", line(&now));
    }

    #[test]
    fn a_narrow_terminal_has_what_says_most() {
        let now = Snapshot {
            activity: "Running a job with a long name".into(),
            running: 2,
            rates: Rates { bytes: [3 << 20, 1 << 20, 0], ios: [768, 256, 0] },
            estimate: Some(Estimate { share: 0.25, remaining: Duration::from_secs(62) }),
        };
        for (width, expected) in [
            (
                111,
                "Running a job with a long name  jobs: 2  read 3072KiB/s 768 IOPS  write 1024KiB/s 256 IOPS  25.0 %  eta 01m:02s",
            ),
            (
                90,
                "Running …  jobs: 2  read 3072KiB/s 768 IOPS  write 1024KiB/s 256 IOPS  25.0 %  eta 01m:02s",
            ),
            (75, "Running a job…  jobs: 2  read 768 IOPS  write 256 IOPS  25.0 %  eta 01m:02s"),
            (62, "Running a…  read 768 IOPS  write 256 IOPS  25.0 %  eta 01m:02s"),
            (55, "Running a …  read 768 IOPS  write 256 IOPS  eta 01m:02s"),
            (40, "Running a job with a long …  eta 01m:02s"),
            (22, "Running …  eta 01m:02s"),
            (20, "eta 01m:02s"),
            (10, "eta 01m:0…"),
            (1, "…"),
            (0, ""),
        ] {
            assert_eq!(progress_line(&now, width), expected);
        }
        for width in 0..150 {
            assert!(progress_line(&now, width).chars().count() <= width, "{width}");
        }
    }
}
