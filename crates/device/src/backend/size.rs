//! Parses sizes in text, by the rule of coreutils: `K` and `KiB` are 1024 bytes, `kB` and `KB`
//! are 1000, and so on to `E`. The keys of fio job files follow fio's own rule instead.

/// The units, each 1000 or 1024 times the previous one.
const UNITS: &str = "KMGTPE";

/// A number of bytes: `4096`, `64K`, `1.5GiB` (powers of 1024), `10MB` (of 1000). The letter of a unit may be
/// lowercase. A fraction of a byte is dropped.
///
/// # Errors
/// One line that describes the valid forms.
pub fn parse_size(text: &str) -> Result<u64, String> {
    bytes(text).ok_or_else(|| {
        format!(
            "invalid size '{text}'; use for example 4096, 64K or 1.5GiB (powers of 1024), 10MB (of 1000)"
        )
    })
}

fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = factor(unit)?;
    let (whole, fraction) = match number.split_once('.') {
        // A number of bytes has no fraction.
        Some(_) if unit == 1 => return None,
        Some(parts) => parts,
        None => (number, "0"),
    };
    // At most 2^64 times 2^60, so it does not overflow.
    let scaled = |digits: &str| Some(u128::from(digits.parse::<u64>().ok()?) * u128::from(unit));
    let divisor = 10u128.checked_pow(fraction.len() as u32)?;
    u64::try_from(scaled(whole)? + scaled(fraction)? / divisor).ok()
}

/// The number of bytes of a unit.
fn factor(unit: &str) -> Option<u64> {
    let mut letters = unit.chars();
    let Some(letter) = letters.next() else { return Some(1) };
    let power = UNITS.find(letter.to_ascii_uppercase())? as u32 + 1;
    match letters.as_str() {
        "" | "iB" => Some(1024u64.pow(power)),
        "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_follow_coreutils() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10K", 10 << 10),
            ("10k", 10 << 10),
            ("10KiB", 10 << 10),
            ("10kiB", 10 << 10),
            ("10kB", 10_000),
            ("10KB", 10_000),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("64MB", 64_000_000),
            ("1g", 1 << 30),
            ("0.5GiB", 1 << 29),
            ("0.7GiB", 751_619_276),
            ("1.5TB", 1_500_000_000_000),
            ("2P", 2 << 50),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.5",
            "1.",
            ".5K",
            "1.2.3K",
            "1.K",
            "1 K",
            "1b",
            "1B",
            "1kb",
            "1mib",
            "1Ki",
            "1KiBs",
            "0x10",
            "1e3",
            "16E",
            "18446744073709551616",
            "18446744073709551615K",
            "1.99999999999999999999K",
            "１K",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_refused(text in "[0-9.]{0,24}[kKMGTPEiB]{0,3}|\\PC{0,12}") {
            if let Err(line) = parse_size(&text) {
                prop_assert!(line.contains("invalid size"));
            }
        }

        #[test]
        fn a_size_is_its_number_times_its_unit(
            number in 0u64..=u64::MAX >> 10,
            power in 0usize..6,
            is_binary in any::<bool>(),
        ) {
            let letter = &UNITS[power..=power];
            let (base, rest) = if is_binary { (1024u64, "iB") } else { (1000, "B") };
            let expected = number.checked_mul(base.pow(power as u32 + 1));
            prop_assert_eq!(parse_size(&format!("{number}{letter}{rest}")).ok(), expected);
            prop_assert_eq!(parse_size(&format!("{number}.0{letter}{rest}")).ok(), expected);
        }
    }
}
