//! How long something becomes, as the system's `truncate` has it written: `SIZE`, or what is done to the
//! size that it has.

use uringfs::backend::parse_size;

/// A volume's blocks, in bytes.
pub const BLOCK: u64 = 4096;

/// A new size, by itself or from the old one. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChange {
    /// So many.
    Set(u64),
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

impl SizeChange {
    /// Reads any of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(make) = text.chars().next().and_then(Self::from_prefix) else {
            return parse_size(text).map(Self::Set);
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
            None => parse_size(text).map(Self::Set),
        }
    }

    fn from_prefix(prefix: char) -> Option<fn(u64) -> Self> {
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
    pub fn apply(self, size: u64) -> Option<u64> {
        Some(match self {
            Self::Set(to) => to,
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
        let apply = |text: &str, size| SizeChange::parse(text).unwrap().apply(size);
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
            assert_eq!(apply(text, 4000), Some(becomes), "{text}");
        }
        assert_eq!(apply("+1", u64::MAX), None);
        assert_eq!(apply("%1K", u64::MAX), None);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "+", "++1", "+-1", "/0", "%0", "x", "é1", "1kb"] {
            assert!(SizeChange::parse(text).is_err(), "{text}");
        }
        assert_eq!(SizeChange::parse_larger("+1G"), Ok(SizeChange::Grow(1 << 30)));
        for text in ["-1G", "<1G", "%4K", "++1"] {
            assert!(SizeChange::parse_larger(text).is_err(), "{text}");
        }
    }
}
