//! Formats numbers as fio does: at most four digits and a prefix.

/// Decimal or binary prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// k, M, G: 1000
    Decimal,
    /// Ki, Mi, Gi: 1024
    Binary,
}

/// fio's `num2str`: a number with at most `digits` digits, decimals if there is room, and a prefix.
pub fn number(value: u64, digits: usize, prefix: Prefix, unit: &str) -> String {
    let (names, step): ([&str; 6], u64) = match prefix {
        Prefix::Decimal => (["", "k", "M", "G", "T", "P"], 1000),
        Prefix::Binary => (["", "Ki", "Mi", "Gi", "Ti", "Pi"], 1024),
    };
    let (mut whole, mut rest, mut index) = (value, None, 0);
    while whole.to_string().len() > digits && index + 1 < names.len() {
        rest = Some(whole % step);
        whole /= step;
        index += 1;
    }
    let length = whole.to_string().len();
    match rest {
        Some(rest) if digits > length + 1 => {
            let places = digits - length - 1;
            let share = format!("{:.places$}", rest as f64 / step as f64);
            // As fio: the leading digit is cut off, so that 0.99 becomes .0 with one decimal.
            format!("{whole}.{}{}{unit}", &share[2..], names[index])
        }
        Some(rest) => format!("{}{}{unit}", whole + u64::from(rest >= step / 2), names[index]),
        None => format!("{whole}{}{unit}", names[index]),
    }
}

/// Bytes per second with both kinds of prefix: `161MiB/s (169MB/s)`.
pub fn bandwidth(bytes: u64) -> String {
    let binary = number(bytes, 4, Prefix::Binary, "B/s");
    format!("{binary} ({})", number(bytes, 4, Prefix::Decimal, "B/s"))
}

/// The unit for a group of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeScale {
    /// nsec
    Nanoseconds,
    /// usec
    Microseconds,
    /// msec
    Milliseconds,
}

impl TimeScale {
    /// fio's choice for a minimum and a maximum.
    pub fn from_range(min_ns: u64, max_ns: u64) -> Self {
        if min_ns > 2_000_000 && max_ns > 99_999_999 {
            Self::Milliseconds
        } else if min_ns > 2_000 && max_ns > 99_999 {
            Self::Microseconds
        } else {
            Self::Nanoseconds
        }
    }

    /// fio's name of the unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nsec",
            Self::Microseconds => "usec",
            Self::Milliseconds => "msec",
        }
    }

    /// The unit in nanoseconds.
    pub fn ns(self) -> u64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1000,
            Self::Milliseconds => 1_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_by_fio() {
        assert_eq!(number(41_333, 4, Prefix::Decimal, ""), "41.3k");
        assert_eq!(number(44_000, 4, Prefix::Decimal, ""), "44.0k");
        assert_eq!(number(2_031_616, 4, Prefix::Binary, "B"), "1984KiB");
        assert_eq!(number(999, 4, Prefix::Decimal, ""), "999");
        assert_eq!(number(650_123, 4, Prefix::Decimal, ""), "650k");
        assert_eq!(bandwidth(169_301_333), "161MiB/s (169MB/s)");
        assert_eq!(bandwidth(0), "0B/s (0B/s)");
    }

    #[test]
    fn the_unit_depends_on_minimum_and_maximum() {
        assert_eq!(TimeScale::from_range(16_296, 137_583), TimeScale::Microseconds);
        assert_eq!(TimeScale::from_range(1155, 1_000_000_000), TimeScale::Nanoseconds);
        assert_eq!(TimeScale::from_range(3_000_000, 200_000_000), TimeScale::Milliseconds);
    }
}
