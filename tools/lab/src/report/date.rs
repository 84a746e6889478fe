//! Formats a time as C's `ctime` does, in UTC, for fio's reports.

use jiff::Timestamp;

/// `Sat Nov 21 20:04:18 2026` for seconds since 1970.
pub fn ctime(seconds: u64) -> String {
    let moment =
        i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment.unwrap_or(Timestamp::MAX).strftime("%a %b %e %H:%M:%S %Y").to_string()
}

#[cfg(test)]
mod tests {
    use super::ctime;

    #[test]
    fn known_times() {
        assert_eq!(ctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(1_795_291_458), "Sat Nov 21 20:04:18 2026");
        assert_eq!(ctime(951_782_400), "Tue Feb 29 00:00:00 2000");
    }
}
