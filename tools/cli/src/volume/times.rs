//! Formats of times, in the time zone of the machine or of `TZ`. Month names are English in every locale.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use uringfs::Time;

/// Half of the mean year, in seconds: for this long, `ls -l` prints the time of day.
const RECENT_SECONDS: i64 = 31_556_952 / 2;

/// The formats of times.
pub struct TimeFormat {
    zone: TimeZone,
    now: Time,
}

impl TimeFormat {
    pub fn new() -> Self {
        Self { zone: TimeZone::system(), now: Time::now() }
    }

    /// A time as `stat` of coreutils prints it: `2026-11-22 07:40:00.000000000 +0000`. A time outside the range of the
    /// calendar is printed in seconds since 1970, in the form that `date` reads: `@1099511627776000`.
    pub fn full(&self, time: Time) -> String {
        match self.date(time) {
            Some(date) => {
                let [seconds, zone] =
                    ["%Y-%m-%d %H:%M:%S", "%z"].map(|format| date.strftime(format));
                format!("{seconds}.{:09} {zone}", time.nanoseconds())
            }
            None => format!("@{}", time.seconds()),
        }
    }

    /// A time as `ls -l` of coreutils prints it in the C locale: `Nov 22 07:40`, or `Nov 22  2025` if it is more than
    /// six months ago or in the future.
    pub fn listed(&self, time: Time) -> String {
        let age = self.now.seconds().saturating_sub(time.seconds());
        let format = match time < self.now && age < RECENT_SECONDS {
            true => "%b %e %H:%M",
            false => "%b %e  %Y",
        };
        self.date(time).map_or_else(
            || format!("@{}", time.seconds()),
            |date| date.strftime(format).to_string(),
        )
    }

    fn date(&self, time: Time) -> Option<ZonedDateTime> {
        Some(Timestamp::from_second(time.seconds()).ok()?.to_zoned_datetime(self.zone.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_zone(zone: &str, now: i64) -> TimeFormat {
        TimeFormat { zone: TimeZone::get(zone).unwrap(), now: Time::new(now, 5).unwrap() }
    }

    #[test]
    fn full_times_are_calendar_dates() {
        let format = in_zone("UTC", 0);
        let text = |seconds: i64| format.full(Time::new(seconds, 99).unwrap());
        assert_eq!(text(0), "1970-01-01 00:00:00.000000099 +0000");
        for (seconds, date) in [
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_333_265, "2026-11-22 07:41:05"),
            (4_102_444_799, "2099-12-31 23:59:59"),
            (-2_082_844_800, "1904-01-01 00:00:00"),
            (-315_619_200, "1960-01-01 00:00:00"),
            (-63_158_400, "1968-01-01 00:00:00"),
            (-9_223_372_037, "1677-09-21 00:12:43"),
            (9_223_372_037, "2262-04-11 23:47:17"),
            (13_569_465_600, "2400-01-01 00:00:00"),
        ] {
            assert_eq!(text(seconds), format!("{date}.000000099 +0000"));
        }
        assert_eq!(text(i64::MIN), "@-9223372036854775808");
    }

    #[test]
    fn listed_times_have_the_time_of_day_for_six_months() {
        const NOW: i64 = 1_795_333_265;
        let format = in_zone("UTC", NOW);
        let text = |seconds: i64| format.listed(Time::new(seconds, 5).unwrap());
        assert_eq!(text(NOW - 1), "Nov 22 07:41");
        assert_eq!(text(NOW), "Nov 22  2026");
        assert_eq!(text(NOW - RECENT_SECONDS + 1), "May 23 16:46");
        assert_eq!(text(NOW - RECENT_SECONDS), "May 23  2026");
        assert_eq!(text(0), "Jan  1  1970");
        assert_eq!(text(i64::MAX), "@9223372036854775807");
    }
}
