//! Zones of random offsets: fio's `random_distribution=zoned` and `zoned_abs`.

use super::direction::DIRECTIONS;
use super::value::{SizeOrPercent, per_direction, percent, size};

/// fio's limit.
const MAX_ZONES: usize = 256;

/// A part of a file, after the parts before it, and its share of the I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// The percentage of I/Os; the percentages of a direction add up to 100.
    pub percent: u8,
    /// The length of the part: of all zones either bytes or percentages.
    pub length: SizeOrPercent,
}

/// Parses the zones of reads, writes and trims, such as `zoned:60/10:40/90` or `zoned_abs:60/20g:40/100g`.
/// `None` if the text is another distribution.
pub fn zones(text: &str) -> Option<Result<[Option<Vec<Zone>>; DIRECTIONS], String>> {
    let (name, list) = text.split_once(':')?;
    match name {
        "zoned" => Some(per_direction(list, |list| parse(list, percentage))),
        "zoned_abs" => Some(per_direction(list, |list| parse(list, bytes))),
        _ => None,
    }
}

/// A length; `None` if it is left out.
type Length = fn(&str) -> Result<Option<SizeOrPercent>, String>;

fn percentage(text: &str) -> Result<Option<SizeOrPercent>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match percent(text) {
        Some(share @ 1..) => Ok(Some(SizeOrPercent::Percent(share))),
        _ => Err(format!("`{text}` is not a percentage from 1 to 100")),
    }
}

fn bytes(text: &str) -> Result<Option<SizeOrPercent>, String> {
    size(text).map(|bytes| Some(SizeOrPercent::Bytes(bytes)))
}

fn parse(list: &str, length: Length) -> Result<Vec<Zone>, String> {
    let mut parts = Vec::new();
    for part in list.split(':') {
        let (share, length_text) = part.split_once('/').unwrap_or((part, ""));
        let share =
            percent(share.trim()).ok_or_else(|| format!("`{share}` is not a percentage"))?;
        parts.push((share, length(length_text.trim())?));
    }
    if parts.len() > MAX_ZONES {
        return Err(format!("more than {MAX_ZONES} zones"));
    }
    let sum: u32 = parts.iter().map(|(percent, _)| u32::from(*percent)).sum();
    if sum != 100 {
        return Err(format!("the percentages of I/Os of `{list}` add up to {sum}, not 100"));
    }
    let lengths = parts.iter().map(|(_, length)| match length {
        Some(SizeOrPercent::Percent(percent)) => u32::from(*percent),
        Some(SizeOrPercent::Bytes(_)) | None => 0,
    });
    let sum = lengths.sum::<u32>();
    let Some(left) = 100u32.checked_sub(sum) else {
        return Err(format!("the sizes of `{list}` add up to {sum} %"));
    };
    // Zones without a size share the rest.
    let blanks = parts.iter().filter(|(_, length)| length.is_none()).count() as u32;
    let each = left.checked_div(blanks).unwrap_or(0) as u8;
    if blanks > 0 && each == 0 {
        return Err(format!("`{list}` leaves nothing for the zones without a size"));
    }
    let zone = |(percent, length): (u8, Option<SizeOrPercent>)| Zone {
        percent,
        length: length.unwrap_or(SizeOrPercent::Percent(each)),
    };
    Ok(parts.into_iter().map(zone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use SizeOrPercent::{Bytes, Percent};

    #[test]
    fn zones_have_shares_and_lengths() {
        let zone = |percent, length| Zone { percent, length };
        let both = Some(vec![zone(60, Percent(10)), zone(40, Percent(90))]);
        assert_eq!(
            zones("zoned:60/10:40/90"),
            Some(Ok([both.clone(), both.clone(), both.clone()]))
        );
        let writes = Some(vec![zone(70, Bytes(1 << 20)), zone(30, Bytes(1 << 30))]);
        let all = [writes.clone(), writes.clone(), writes];
        assert_eq!(zones("zoned_abs:70/1m:30/1g").unwrap().unwrap(), all);
        let [reads, writes, _] = zones("zoned:60/10:40/90,100/50").unwrap().unwrap();
        assert_eq!((reads, writes), (both, Some(vec![zone(100, Percent(50))])));
        let rest = vec![zone(50, Percent(5)), zone(30, Percent(47)), zone(20, Percent(47))];
        assert_eq!(zones("zoned:50/5:30/:20"), Some(Ok([(); 3].map(|()| Some(rest.clone())))));
        assert_eq!(zones("zipf:1.2"), None);
        for text in [
            "60/10:50/90",
            "60/10",
            "60/60:40/60",
            "100/0",
            "x/5",
            "101/5",
            "100%%/5",
            "100/5%%",
            "",
            "60/100:40/",
        ] {
            assert!(zones(&format!("zoned:{text}")).unwrap().is_err(), "{text}");
        }
        assert!(zones(&format!("zoned:100/1{}", ":0/1".repeat(256))).unwrap().is_err());
        assert!(zones("zoned_abs:60/1m:40/").unwrap().is_err());
    }
}
