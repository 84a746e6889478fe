//! Formats of times, in the time zone of the machine or of `TZ`. Month names are English in every locale.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ZonedDateTime};
use uringfs::volume::Time;

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

    /// A time as `ls -l` of coreutils prints it in the locales C and C.UTF-8: `Nov 22 07:40`, or `Nov 22  2025` if it is more than
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

/// Parses a date in the time zone of the machine, unless it has its own.
pub fn parse_date(text: &str) -> Result<Time, String> {
    let now = Timestamp::now().to_zoned_datetime(TimeZone::system());
    date_from(text.trim(), &now).ok_or_else(|| {
        format!("invalid date '{text}': expected a date, as in '2026-11-22 07:40:05', @SECONDS, or '3 days ago'")
    })
}

/// Parses a time as `touch -t` takes it: `[[CC]YY]MMDDhhmm[.ss]`, in the time zone of the machine. Years without a
/// century are those from 1969 to 2068.
pub fn parse_stamp(text: &str) -> Result<Time, String> {
    let now = Timestamp::now().to_zoned_datetime(TimeZone::system());
    let expected = "expected MMDDhhmm, YYMMDDhhmm or CCYYMMDDhhmm, and .ss for seconds";
    stamp_from(text, &now).ok_or_else(|| format!("invalid time '{text}': {expected}"))
}

fn stamp_from(text: &str, now: &ZonedDateTime) -> Option<Time> {
    let (digits, seconds) = text.split_once('.').unwrap_or((text, "00"));
    let is_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if !is_digits(digits) || !is_digits(seconds) || seconds.len() != 2 {
        return None;
    }
    let number = |at: usize| digits.get(at..at + 2)?.parse::<i16>().ok();
    let (year, rest) = match digits.len() {
        8 => (now.year(), 0),
        10 => match number(0)? {
            year @ ..69 => (2000 + year, 2),
            year => (1900 + year, 2),
        },
        12 => (number(0)? * 100 + number(2)?, 4),
        _ => return None,
    };
    let part = |at: usize| number(rest + at).and_then(|part| i8::try_from(part).ok());
    let seconds = seconds.parse().ok()?;
    let date = DateTime::new(year, part(0)?, part(2)?, part(4)?, part(6)?, seconds, 0).ok()?;
    let moment = date.to_zoned_datetime(now.time_zone().clone()).ok()?.timestamp();
    Time::new(moment.as_second(), 0)
}

fn date_from(text: &str, now: &ZonedDateTime) -> Option<Time> {
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds_from(seconds);
    }
    let in_days = |days: i64| now.checked_add(Span::new().days(days)).ok();
    let civil = |date: DateTime| date.to_zoned_datetime(now.time_zone().clone()).ok();
    let moment = match text {
        "now" | "today" => Some(now.timestamp()),
        "yesterday" => Some(in_days(-1)?.timestamp()),
        "tomorrow" => Some(in_days(1)?.timestamp()),
        _ => None,
    };
    let moment = moment
        .or_else(|| text.parse().ok())
        // The form that `stat` and `ls --full-time` print.
        .or_else(|| Timestamp::strptime("%Y-%m-%d %H:%M:%S%.f %z", text).ok())
        .or_else(|| Some(civil(text.parse().ok()?)?.timestamp()))
        .or_else(|| Some(now.checked_add(text.parse::<Span>().ok()?).ok()?.timestamp()))?;
    Time::new(
        moment.as_nanosecond().div_euclid(1_000_000_000) as i64,
        moment.as_nanosecond().rem_euclid(1_000_000_000) as u32,
    )
}

/// Seconds since 1970, negative before, with up to nine decimals.
fn seconds_from(text: &str) -> Option<Time> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = decimals.bytes().all(|digit| digit.is_ascii_digit());
    if decimals.is_empty() || decimals.len() > 9 || !is_digits {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = format!("{decimals:0<9}").parse().ok()?;
    match whole.starts_with('-') && nanoseconds > 0 {
        true => Time::new(seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds),
        false => Time::new(seconds, nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_in_the_time_zone_unless_they_have_one() {
        let zone = TimeZone::get("Europe/Paris").unwrap();
        let now = Timestamp::from_second(1_795_333_265).unwrap().to_zoned_datetime(zone);
        let is = |text: &str, seconds: i64, nanoseconds: u32| {
            assert_eq!(date_from(text, &now), Time::new(seconds, nanoseconds), "{text}");
        };
        is("2026-11-22 08:41:05", 1_795_333_265, 0);
        is("2026-11-22T08:41:05.25", 1_795_333_265, 250_000_000);
        is("2026-11-22 08:41", 1_795_333_260, 0);
        is("2026-11-22", 1_795_302_000, 0);
        is("2026-11-22T07:41:05Z", 1_795_333_265, 0);
        is("2026-11-22 07:41:05.123456789 +0000", 1_795_333_265, 123_456_789);
        is("1904-01-01T00:00:00Z", -2_082_844_800, 0);
        is("@-1.5", -2, 500_000_000);
        is("@1795333265.5", 1_795_333_265, 500_000_000);
        is("now", 1_795_333_265, 0);
        is("yesterday", 1_795_333_265 - 86_400, 0);
        is("3 days ago", 1_795_333_265 - 3 * 86_400, 0);
        is("2 hours", 1_795_333_265 + 7200, 0);
        for bad in ["", "never", "2026-13-01", "@", "@1.", "@x", "@1.0000000001"] {
            assert_eq!(date_from(bad, &now), None, "{bad}");
        }
    }

    #[test]
    fn stamps_are_those_of_touch() {
        let zone = TimeZone::get("Europe/Paris").unwrap();
        let now = Timestamp::from_second(1_795_333_265).unwrap().to_zoned_datetime(zone);
        let is = |text: &str, seconds: i64| {
            assert_eq!(stamp_from(text, &now), Time::new(seconds, 0), "{text}");
        };
        is("11220841", 1_795_333_260);
        is("2611220841.05", 1_795_333_265);
        is("202611220841.05", 1_795_333_265);
        is("7001010100", 0);
        is("6812312359", 3_124_220_340);
        for bad in [
            "",
            "1122084",
            "112208411",
            "13220841",
            "11220841.5",
            "11220841.x5",
            "+1220841",
            "1é220841",
        ] {
            assert_eq!(stamp_from(bad, &now), None, "{bad}");
        }
    }

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
