//! A moment as C's `ctime` prints it, in UTC: what fio's reports carry.

/// `Sat Nov 21 20:04:18 2026` for seconds since 1970.
pub fn of(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{:02} {year}", second % 60)
}

/// Year, month and day of a number of days since 1970 (Hinnant, chrono-compatible date algorithms).
fn civil(days: u64) -> (u64, u64, u64) {
    // His calendar begins in March, so that the leap day is the last of a year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn known_moments() {
        assert_eq!(of(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(of(1_795_291_458), "Sat Nov 21 20:04:18 2026");
        assert_eq!(of(951_782_400), "Tue Feb 29 00:00:00 2000");
    }
}
