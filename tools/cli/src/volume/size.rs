//! How long something becomes, as the system's `truncate` has it written: `SIZE`, or what is done to the
//! size that it has.

use uringfs::backend::parse_size;

/// A volume's blocks, in bytes.
pub const BLOCK: u64 = 4096;

/// A new size, by itself or from the old one. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSize {
    /// So many.
    To(u64),
    /// `+`: so many more.
    Grow(u64),
    /// `-`: so many less, or none.
    Shrink(u64),
    /// `<`: so many at most.
    AtMost(u64),
    /// `>`: so many at least.
    AtLeast(u64),
    /// `/`: the next lower multiple.
    RoundDown(u64),
    /// `%`: the next higher multiple.
    RoundUp(u64),
}

impl NewSize {
    /// Reads any of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(make) = text.chars().next().and_then(Self::of_prefix) else {
            return parse_size(text).map(Self::To);
        };
        match make(parse_size(&text[1..])?) {
            Self::RoundDown(0) | Self::RoundUp(0) => Err(format!("'{text}' divides by zero")),
            size => Ok(size),
        }
    }

    /// Reads `SIZE` or `+SIZE`: of what never shrinks.
    pub fn parse_larger(text: &str) -> Result<Self, String> {
        match text.strip_prefix('+') {
            Some(more) => parse_size(more).map(Self::Grow),
            None => parse_size(text).map(Self::To),
        }
    }

    fn of_prefix(prefix: char) -> Option<fn(u64) -> Self> {
        Some(match prefix {
            '+' => Self::Grow,
            '-' => Self::Shrink,
            '<' => Self::AtMost,
            '>' => Self::AtLeast,
            '/' => Self::RoundDown,
            '%' => Self::RoundUp,
            _ => return None,
        })
    }

    /// The new size of what has this one; none, if no number of 64 bits holds it.
    pub fn of(self, size: u64) -> Option<u64> {
        Some(match self {
            Self::To(to) => to,
            Self::Grow(by) => size.checked_add(by)?,
            Self::Shrink(by) => size.saturating_sub(by),
            Self::AtMost(most) => size.min(most),
            Self::AtLeast(least) => size.max(least),
            Self::RoundDown(unit) => size / unit * unit,
            Self::RoundUp(unit) => size.checked_next_multiple_of(unit)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_changed_as_truncate_does() {
        let of = |text: &str, size| NewSize::parse(text).unwrap().of(size);
        for (text, becomes) in [
            ("1K", 1024),
            ("+1K", 5024),
            ("-1K", 2976),
            ("-5kB", 0),
            ("<1K", 1024),
            ("<5K", 4000),
            (">1K", 4000),
            (">5K", 5120),
            ("/1K", 3072),
            ("%1K", 4096),
            ("%4kB", 4000),
        ] {
            assert_eq!(of(text, 4000), Some(becomes), "{text}");
        }
        assert_eq!(of("+1", u64::MAX), None);
        assert_eq!(of("%1K", u64::MAX), None);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "+", "++1", "+-1", "/0", "%0", "x", "é1", "1kb"] {
            assert!(NewSize::parse(text).is_err(), "{text}");
        }
        assert_eq!(NewSize::parse_larger("+1G"), Ok(NewSize::Grow(1 << 30)));
        for text in ["-1G", "<1G", "%4K", "++1"] {
            assert!(NewSize::parse_larger(text).is_err(), "{text}");
        }
    }
}
