//! Sizes as `truncate` of coreutils takes them: an absolute size, or a change of the current size.

use uringfs::device::backend::parse_size;

/// The block size of volumes, in bytes.
pub const BLOCK: u64 = 4096;

/// A new size, absolute or relative to the current one, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChange {
    /// `SIZE`: this size.
    Set(u64),
    /// `+SIZE`: larger by this.
    Grow(u64),
    /// `-SIZE`: smaller by this, but not below 0.
    Shrink(u64),
    /// `<SIZE`: at most this.
    AtMost(u64),
    /// `>SIZE`: at least this.
    AtLeast(u64),
    /// `/SIZE`: rounded down to a multiple of this.
    RoundDown(u64),
    /// `%SIZE`: rounded up to a multiple of this.
    RoundUp(u64),
}

impl SizeChange {
    /// Parses any form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(make) = text.chars().next().and_then(Self::from_prefix) else {
            return parse_size(text).map(Self::Set);
        };
        match make(parse_size(&text[1..])?) {
            Self::RoundDown(0) | Self::RoundUp(0) => Err(format!("'{text}': division by zero")),
            size => Ok(size),
        }
    }

    /// Parses `SIZE` or `+SIZE`, for a size that never shrinks.
    pub fn parse_larger(text: &str) -> Result<Self, String> {
        match text.strip_prefix('+') {
            Some(more) => parse_size(more).map(Self::Grow),
            None if text.len() > 1 && text.starts_with('-') => Err("a volume cannot shrink".into()),
            None => parse_size(text).map(Self::Set),
        }
    }

    /// The number that was given, in bytes.
    pub fn amount(self) -> u64 {
        match self {
            Self::Set(amount)
            | Self::Grow(amount)
            | Self::Shrink(amount)
            | Self::AtMost(amount)
            | Self::AtLeast(amount)
            | Self::RoundDown(amount)
            | Self::RoundUp(amount) => amount,
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

    /// The new size for a current size. None if it does not fit into 64 bits.
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

/// The end of a message about a size of a volume, for a size so small that its unit was probably forgotten.
pub fn unit_hint(size: u64) -> &'static str {
    match size {
        0..BLOCK => "; a size without a unit is in bytes; write for example 64M or 4G",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_as_in_truncate() {
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
    fn invalid_sizes_are_refused() {
        for text in ["", "+", "++1", "+-1", "/0", "%0", "x", "é1", "1kb"] {
            assert!(SizeChange::parse(text).is_err(), "{text}");
        }
        assert_eq!(SizeChange::parse_larger("+1G"), Ok(SizeChange::Grow(1 << 30)));
        for text in ["-1G", "<1G", "%4K", "++1"] {
            assert!(SizeChange::parse_larger(text).is_err(), "{text}");
        }
    }
}
