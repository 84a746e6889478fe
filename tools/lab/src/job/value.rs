//! Parses values of fio's keys: numbers with size and time suffixes, percentages, ranges, and
//! arithmetic in brackets. As with fio's default `kb_base=1024`, `k`, `kb` and `ki` are 1024, and
//! `kib` is 1000: against all standards, but old job files rely on it.

use super::direction::DIRECTIONS;
use super::distribution::Distribution;
use std::time::Duration;

/// A length in bytes, or a percentage of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeOrPercent {
    /// A number of bytes.
    Bytes(u64),
    /// Percent of the whole.
    Percent(u8),
}

impl SizeOrPercent {
    /// The length in bytes; `whole` is in bytes, too.
    pub fn resolve(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64,
        }
    }
}

/// The unit of a time without a suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// `runtime` and similar keys.
    Seconds,
    /// `thinktime` and similar keys.
    Microseconds,
}

impl TimeUnit {
    fn microseconds(self) -> i64 {
        match self {
            Self::Seconds => 1_000_000,
            Self::Microseconds => 1,
        }
    }
}

/// A number of bytes: `4k`, `1g`, `0x1000`, `(4k*8)`.
pub fn size(text: &str) -> Result<u64, String> {
    number(text, size_factor, 1).and_then(|n| to_integer(n, text))
}

/// A count. It takes the syntax of sizes, and integers of 64 bits exactly.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.trim().strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text.trim(), 10),
    };
    match u64::from_str_radix(digits, radix) {
        Ok(exact) if !digits.starts_with('+') => Ok(exact),
        _ => size(text),
    }
}

/// A number of bytes, or a percentage such as `20%`.
pub fn size_or_percent(text: &str) -> Result<SizeOrPercent, String> {
    match text.strip_suffix('%') {
        Some(share) => match share.trim().parse::<u8>() {
            Ok(percent @ 1..=100) => Ok(SizeOrPercent::Percent(percent)),
            _ => Err(format!("`{text}` is not a percentage from 1% to 100%")),
        },
        None => size(text).map(SizeOrPercent::Bytes),
    }
}

/// The number of a percentage whose sign may be left out: `20%` or `20`. `None` if it is none.
pub fn percent(text: &str) -> Option<u8> {
    text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| *percent <= 100)
}

/// A duration in seconds, or with a unit as in keys of jobs: `2`, `2m`.
///
/// # Errors
/// The text is no duration, or one of a century or more.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time(text, TimeUnit::Seconds)
}

/// A duration: a number with `us`, `ms`, `s`, `m`, `h` or `d`.
pub fn time(text: &str, unit: TimeUnit) -> Result<Duration, String> {
    // A century in microseconds. A longer time is a typing error, and would overflow a deadline.
    const MAX_TIME_US: u64 = 3_200_000_000_000_000;
    match to_integer(number(text, time_factor, unit.microseconds())?, text) {
        Ok(microseconds) if microseconds < MAX_TIME_US => Ok(Duration::from_micros(microseconds)),
        _ => Err(format!("`{text}` is out of range for a time")),
    }
}

/// Up to three values, for reads, writes and trims, as in `4k,8k`. As with fio, the last value is also for the directions after it,
/// and an empty one (`4k,` or `,8k`) keeps the old value.
pub fn per_direction<T: Clone>(
    text: &str,
    one: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; DIRECTIONS], String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 {
        return Err(format!("`{text}` has more than three parts (reads, writes, trims)"));
    }
    let value = |part: &&str| if part.is_empty() { Ok(None) } else { one(part).map(Some) };
    let values = parts.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    match &values[..] {
        [None] => Err(format!("`{text}` is not a value")),
        [all] => Ok(std::array::from_fn(|_| all.clone())),
        [read, write] => Ok([read.clone(), write.clone(), write.clone()]),
        [read, write, trim] => Ok([read.clone(), write.clone(), trim.clone()]),
        _ => unreachable!("one to three parts"),
    }
}

/// The bytes of a `verify_pattern`: hexadecimal digits after `0x`, a decimal number, a text in double
/// quotes, or a sequence of these.
pub fn pattern(text: &str) -> Result<Vec<u8>, String> {
    // fio's limit.
    const MAX_PATTERN_BYTES: usize = 512;
    let bad = || {
        format!(
            "`{text}` is not a pattern such as 0xdeadbeef, 255 or \"abc\"; files and %o are not supported"
        )
    };
    let mut bytes = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (inside, after) = quoted.split_once('"').ok_or_else(bad)?;
            bytes.extend_from_slice(inside.as_bytes());
            rest = after;
        } else if let Some(digits) = rest.strip_prefix("0x") {
            let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
            // With an odd number of digits the first one is a byte of its own.
            let odd = end % 2;
            let pairs = std::iter::once(&digits[..odd])
                .chain((odd..end).step_by(2).map(|at| &digits[at..at + 2]))
                .filter(|pair| !pair.is_empty());
            for pair in pairs {
                bytes.push(u8::from_str_radix(pair, 16).map_err(|_| bad())?);
            }
            if end == 0 {
                return Err(bad());
            }
            rest = &digits[end..];
        } else {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number: u64 = rest[..end].parse().map_err(|_| bad())?;
            // The number's bytes, little-endian, without leading zeros.
            let length = (64 - number.leading_zeros()).div_ceil(8).max(1);
            bytes.extend_from_slice(&number.to_le_bytes()[..length as usize]);
            rest = &rest[end..];
        }
    }
    match bytes.len() {
        0 => Err(bad()),
        length if length > MAX_PATTERN_BYTES => {
            Err(format!("a pattern of {length} bytes; at most {MAX_PATTERN_BYTES}"))
        }
        _ => Ok(bytes),
    }
}

/// `random`, `zipf:THETA` or `pareto:H`; the parameters default to fio's.
pub fn distribution(text: &str) -> Result<Distribution, String> {
    let (name, parameter) = match text.split_once(':') {
        Some((name, parameter)) => (name, Some(parameter)),
        None => (text, None),
    };
    let number = |default: f64| match parameter {
        None => Ok(default),
        Some(text) => text.parse::<f64>().map_err(|_| format!("`{text}` is not a number")),
    };
    match name {
        "random" if parameter.is_none() => Ok(Distribution::Uniform),
        "zipf" => match number(1.1)? {
            theta if theta > 0.0 && theta < 100.0 && theta != 1.0 => Ok(Distribution::Zipf(theta)),
            theta => Err(format!("zipf needs a theta above 0, below 100 and not 1, not {theta}")),
        },
        "pareto" => match number(0.2)? {
            h if h > 0.0 && h < 1.0 => Ok(Distribution::Pareto(h)),
            h => Err(format!("pareto needs a number between 0 and 1, not {h}")),
        },
        _ => Err(format!(
            "`{text}` is not one of random, zipf:THETA, pareto:H, zoned:PERCENT/PERCENT:..."
        )),
    }
}

/// A list of names, separated by `:`; at least one.
pub fn name_list(text: &str) -> Result<String, String> {
    match text.split(':').all(str::is_empty) {
        true => Err(format!("`{text}` has no name in it")),
        false => Ok(text.to_owned()),
    }
}

/// Splits names at `:`; a literal colon is written `\:`.
pub fn split_names(names: &str) -> Vec<String> {
    let mut list = vec![String::new()];
    let mut letters = names.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = list.len() - 1;
        match letter {
            '\\' if letters.peek() == Some(&':') => list[last].extend(letters.next()),
            ':' => list.push(String::new()),
            _ => list[last].push(letter),
        }
    }
    list.retain(|name| !name.is_empty());
    list
}

/// A range of sizes such as `512-64k`.
pub fn range(text: &str) -> Result<(u64, u64), String> {
    let (low, high) = text.split_once('-').ok_or_else(|| format!("`{text}` is not LOW-HIGH"))?;
    let (low, high) = (size(low.trim())?, size(high.trim())?);
    if low > high {
        Err(format!("`{text}`: the low end is above the high end"))
    } else {
        Ok((low, high))
    }
}

/// A list of CPUs such as `0-3,7`, sorted, without duplicates.
pub fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    const MAX_CPUS: usize = 1024;
    let bad = || format!("`{text}` is not a list of CPUs such as 0-3,7");
    let mut list = Vec::new();
    for part in text.split([',', ':']) {
        let (low, high) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let low: usize = low.trim().parse().map_err(|_| bad())?;
        let high: usize = high.trim().parse().map_err(|_| bad())?;
        if low > high || high >= MAX_CPUS {
            return Err(bad());
        }
        list.extend(low..=high);
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// The factor of a size suffix; the head of this file explains `kib`.
fn size_factor(suffix: &str) -> Option<i64> {
    let suffix = suffix.to_ascii_lowercase();
    if suffix == "b" {
        return Some(1);
    }
    let power = "kmgtp".find(suffix.chars().next()?)? as u32 + 1;
    match &suffix[1..] {
        "" | "b" | "i" => Some(1024i64.pow(power)),
        "ib" => Some(1000i64.pow(power)),
        _ => None,
    }
}

/// The factor of a time suffix, in microseconds.
fn time_factor(suffix: &str) -> Option<i64> {
    Some(match suffix.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    })
}

/// A number of an expression. As with fio, whole numbers stay whole: `7/2` is 3.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }

    /// `None` if the result is no number, or too large.
    fn apply(self, operator: char, other: Self) -> Option<Self> {
        if let (Self::Whole(a), Self::Whole(b)) = (self, other) {
            let result = match operator {
                '+' => a.checked_add(b),
                '-' => a.checked_sub(b),
                '*' => a.checked_mul(b),
                '/' => a.checked_div(b),
                '%' => a.checked_rem(b),
                _ => a.checked_pow(u32::try_from(b).ok()?),
            };
            return result.map(Self::Whole);
        }
        let (a, b) = (self.real(), other.real());
        let result = match operator {
            '+' => a + b,
            '-' => a - b,
            '*' => a * b,
            '/' => a / b,
            '^' => a.powf(b),
            // fio has no remainder of fractions.
            _ => return None,
        };
        result.is_finite().then_some(Self::Real(result))
    }
}

/// Fractions are dropped, as by fio.
fn to_integer(value: Number, text: &str) -> Result<u64, String> {
    match value {
        Number::Whole(whole) if whole >= 0 => Ok(whole as u64),
        Number::Real(real) if (0.0..i64::MAX as f64).contains(&real) => Ok(real as u64),
        _ => Err(format!("`{text}` is out of range")),
    }
}

/// A number with a suffix, or an expression in brackets, as in fio. `bare` is the factor if there is no suffix
/// anywhere.
fn number(text: &str, factor: fn(&str) -> Option<i64>, bare: i64) -> Result<Number, String> {
    let trimmed = text.trim();
    let result = match trimmed.starts_with('(') {
        true => {
            ExpressionParser { rest: trimmed, factor, has_suffix: false, nesting: 0 }.whole(bare)
        }
        false => literal(trimmed, factor, bare),
    };
    result.ok_or_else(|| {
        let is_fraction = trimmed.contains('.') && !trimmed.starts_with('(');
        let hint = if is_fraction { "; fractions need brackets, as in (1.5*1k)" } else { "" };
        format!("`{text}` is not a number with a known suffix{hint}")
    })
}

/// A number outside brackets: whole, decimal or hexadecimal.
fn literal(text: &str, factor: fn(&str) -> Option<i64>, bare: i64) -> Option<Number> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let value = i64::from_str_radix(&digits[..end], radix).ok()?;
    let unit = match &digits[end..] {
        "" => bare,
        // fio ignores the suffix of a hexadecimal number.
        _ if radix == 16 => return None,
        suffix => factor(suffix)?,
    };
    value.checked_mul(unit).map(Number::Whole)
}

/// Recursive descent over fio's expressions, from the loosest to the tightest operators: `+ -`, suffixes, `* /`,
/// `^`, `%`, a sign. So `(100/2k)` is 50k. `None` is a syntax error.
struct ExpressionParser<'a> {
    rest: &'a str,
    factor: fn(&str) -> Option<i64>,
    has_suffix: bool,
    nesting: u32,
}

impl ExpressionParser<'_> {
    /// The value of the whole text; without any suffix in it, in units of `bare`.
    fn whole(mut self, bare: i64) -> Option<Number> {
        let value = self.sum()?;
        match (self.rest.trim_start(), self.has_suffix) {
            ("", true) => Some(value),
            ("", false) => value.apply('*', Number::Whole(bare)),
            _ => None,
        }
    }

    fn eat(&mut self, wanted: &[char]) -> Option<char> {
        let rest = self.rest.trim_start();
        let found = rest.chars().next().filter(|c| wanted.contains(c))?;
        self.rest = &rest[1..];
        Some(found)
    }

    /// Parses one level further down.
    fn nested(&mut self, parse: fn(&mut Self) -> Option<Number>) -> Option<Number> {
        const MAX_NESTING: u32 = 64;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return None;
        }
        let value = parse(self);
        self.nesting -= 1;
        value
    }

    fn sum(&mut self) -> Option<Number> {
        let mut total = self.product()?;
        while let Some(sign) = self.eat(&['+', '-']) {
            total = total.apply(sign, self.product()?)?;
        }
        Some(total)
    }

    fn product(&mut self) -> Option<Number> {
        let mut total = self.power()?;
        loop {
            let text = self.rest.trim_start();
            let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
            if end > 0 {
                total = total.apply('*', Number::Whole((self.factor)(&text[..end])?))?;
                self.rest = &text[end..];
                self.has_suffix = true;
            } else if let Some(operator) = self.eat(&['*', '/']) {
                total = total.apply(operator, self.power()?)?;
            } else {
                return Some(total);
            }
        }
    }

    fn power(&mut self) -> Option<Number> {
        let base = self.remainder()?;
        match self.eat(&['^']) {
            Some(operator) => base.apply(operator, self.nested(Self::power)?),
            None => Some(base),
        }
    }

    fn remainder(&mut self) -> Option<Number> {
        let mut total = self.signed()?;
        while let Some(operator) = self.eat(&['%']) {
            total = total.apply(operator, self.signed()?)?;
        }
        Some(total)
    }

    fn signed(&mut self) -> Option<Number> {
        if self.eat(&['-']).is_some() {
            return Number::Whole(0).apply('-', self.nested(Self::signed)?);
        }
        if self.eat(&['(']).is_none() {
            return self.number();
        }
        let value = self.nested(Self::sum)?;
        self.eat(&[')']).map(|_| value)
    }

    /// A number without its suffix: whole, hexadecimal, a fraction, or with an exponent.
    fn number(&mut self) -> Option<Number> {
        let text = self.rest.trim_start();
        if let Some(digits) = text.strip_prefix("0x") {
            let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
            self.rest = &digits[end..];
            return i64::from_str_radix(&digits[..end], 16).ok().map(Number::Whole);
        }
        let end = |text: &str, is_part: fn(char) -> bool| {
            text.find(|c: char| !is_part(c)).unwrap_or(text.len())
        };
        let mantissa = end(text, |c| c.is_ascii_digit() || c == '.');
        let exponent = text[mantissa..].strip_prefix(['e', 'E']).map_or(0, |after| {
            let digits = after.strip_prefix(['+', '-']).unwrap_or(after);
            match end(digits, |c| c.is_ascii_digit()) {
                0 => 0,
                count => 1 + after.len() - digits.len() + count,
            }
        });
        let (number, rest) = text.split_at(mantissa + exponent);
        self.rest = rest;
        match number.contains('.') || exponent > 0 {
            true => number.parse().ok().filter(|real: &f64| real.is_finite()).map(Number::Real),
            false => number.parse().ok().map(Number::Whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_mean_what_fio_means() {
        let table = [
            ("0", 0),
            ("512", 512),
            ("512b", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4kb", 4096),
            ("4ki", 4096),
            ("4kib", 4000),
            ("1m", 1 << 20),
            ("1MB", 1 << 20),
            ("1mib", 1_000_000),
            ("2g", 2 << 30),
            ("1t", 1 << 40),
            ("1p", 1 << 50),
            ("1pib", 1_000_000_000_000_000),
            ("9999t", 9999 << 40),
            ("0x1000", 4096),
            ("(4k*8)", 32768),
            ("( 1m - 4k ) ", (1 << 20) - 4096),
            ("(2*(1k+1))", 2050),
            ("(1.5k)", 1536),
            ("(1e3)", 1000),
            ("(2.5e+1k)", 25_600),
            ("(1e-1*100)", 10),
            ("(7/2*2)", 6),
            ("(1.9)", 1),
            ("(2^10)", 1024),
            ("(2^3^2)", 512),
            ("(4*7%4)", 12),
            ("(100/2k)", 51_200),
            ("(3-1)k", 2048),
            ("(-1+5)", 4),
            ("(0x10k)", 16_384),
        ];
        for (text, bytes) in table {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        let signs = format!("({}1)", "-".repeat(50_000));
        let powers = format!("(1{})", "^1".repeat(50_000));
        for text in [
            "", "k", "-1", "4q", "4 k k", "4kibi", "1e3", "(4k", "4k*2", "(1/0)", "9999p", "0x10k",
            "1.5k", "(1e)", "(1e999)", "(2^-1)", "(2^64)", "(1.5%1)", "(1-2)", "(.)", &signs,
            &powers,
        ] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size("1.5k").unwrap_err().contains("need brackets"));
    }

    #[test]
    fn percentages_are_from_1_to_100() {
        assert_eq!(size_or_percent("20%"), Ok(SizeOrPercent::Percent(20)));
        assert_eq!(size_or_percent("4k"), Ok(SizeOrPercent::Bytes(4096)));
        assert_eq!(SizeOrPercent::Percent(20).resolve(u64::MAX), u64::MAX / 5);
        assert!(size_or_percent("0%").is_err() && size_or_percent("101%").is_err());
        assert_eq!(["20", "20%", "0"].map(percent), [Some(20), Some(20), Some(0)]);
        assert_eq!(["20%%", "101", "%", "-1", "x"].map(percent), [None; 5]);
    }

    #[test]
    fn times_take_their_unit_from_the_suffix_or_the_key() {
        let table = [
            ("10", 10_000_000),
            ("10s", 10_000_000),
            ("5us", 5),
            ("5usec", 5),
            ("3ms", 3000),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
            ("1d", 86_400_000_000),
            ("(2*3)", 6_000_000),
            ("(1m+5us)", 60_000_005),
            ("(1.5m)", 90_000_000),
        ];
        for (text, us) in table {
            assert_eq!(time(text, TimeUnit::Seconds), Ok(Duration::from_micros(us)), "{text}");
        }
        assert_eq!(time("7", TimeUnit::Microseconds), Ok(Duration::from_micros(7)));
        // fio reads other letters as microseconds.
        for text in ["1w", "5sec", "5min", "1.5s", "200y", "(1d*1000000)"] {
            assert!(time(text, TimeUnit::Seconds).is_err(), "{text}");
        }
    }

    #[test]
    fn directions_ranges_and_processors() {
        let directions = |text| per_direction(text, size);
        assert_eq!(directions("4k"), Ok([Some(4096); 3]));
        assert_eq!(directions("4k,8k"), Ok([Some(4096), Some(8192), Some(8192)]));
        assert_eq!(directions("4k,8k,16k"), Ok([Some(4096), Some(8192), Some(16_384)]));
        assert_eq!(directions(",8k"), Ok([None, Some(8192), Some(8192)]));
        assert_eq!(directions("8k,"), Ok([Some(8192), None, None]));
        assert_eq!(directions(",8k,"), Ok([None, Some(8192), None]));
        assert!(directions("1,2,3,4").is_err() && directions("").is_err());
        assert!(directions("4k,x").is_err());
        assert_eq!(range("512-64k"), Ok((512, 65536)));
        assert!(range("64k-512").is_err() && range("4k").is_err());
        assert_eq!(cpu_list("0-2,5,1"), Ok(vec![0, 1, 2, 5]));
        assert!(cpu_list("3-1").is_err() && cpu_list("x").is_err());
    }

    #[test]
    fn a_list_of_names_has_at_least_one() {
        assert_eq!(name_list("a::b"), Ok("a::b".into()));
        assert_eq!(name_list(r"\:"), Ok(r"\:".into()));
        assert!(name_list(":").is_err() && name_list("::").is_err() && name_list("").is_err());
    }

    #[test]
    fn patterns_are_bytes_numbers_and_texts() {
        for (text, bytes) in [
            ("0xdeadbeef", &[0xde, 0xad, 0xbe, 0xef][..]),
            ("0xfab", &[0x0f, 0xab]),
            ("65", &[65]),
            ("0", &[0]),
            ("258", &[2, 1]),
            ("\"abc\"", b"abc"),
            ("0x00\"a b\"7", &[0, b'a', b' ', b'b', 7]),
        ] {
            assert_eq!(pattern(text).as_deref(), Ok(bytes), "{text}");
        }
        let long = format!("0x{}", "ab".repeat(513));
        for text in ["0x", "\"abc", "\"\"", "'file'", "%o", "-1", "abc", &long] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn distributions_are_those_of_fio() {
        for (text, expected) in [
            ("random", Distribution::Uniform),
            ("zipf", Distribution::Zipf(1.1)),
            ("zipf:0.8", Distribution::Zipf(0.8)),
            ("pareto", Distribution::Pareto(0.2)),
            ("pareto:0.9", Distribution::Pareto(0.9)),
        ] {
            assert_eq!(distribution(text), Ok(expected), "{text}");
        }
        for text in [
            "zipf:1",
            "zipf:0",
            "zipf:x",
            "zipf:NaN",
            "pareto:1",
            "pareto:0",
            "normal:5",
            "random:1",
            "zipf:1.2:0.5",
        ] {
            assert!(distribution(text).is_err(), "{text}");
        }
    }
}
