//! Zones of random offsets: fio's `random_distribution=zoned` and `zoned_abs`.

use super::value::{SizeOrPercent, per_direction, size};

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

/// Parses the zones of reads and of writes, such as `zoned:60/10:40/90` or `zoned_abs:60/20g:40/100g`.
/// `None` if the text is another distribution.
pub fn zones(text: &str) -> Option<Result<[Option<Vec<Zone>>; 2], String>> {
    let (name, list) = text.split_once(':')?;
    match name {
        "zoned" => Some(per_direction(list, |list| parse(list, percentage))),
        "zoned_abs" => Some(per_direction(list, |list| parse(list, bytes))),
        _ => None,
    }
}

fn percentage(text: &str) -> Result<SizeOrPercent, String> {
    match text.trim_end_matches('%').parse::<u8>() {
        Ok(percent @ 1..=100) => Ok(SizeOrPercent::Percent(percent)),
        _ => Err(format!("`{text}` is not a percentage from 1 to 100")),
    }
}

fn bytes(text: &str) -> Result<SizeOrPercent, String> {
    size(text).map(SizeOrPercent::Bytes)
}

fn parse(
    list: &str,
    length: fn(&str) -> Result<SizeOrPercent, String>,
) -> Result<Vec<Zone>, String> {
    let mut zones = Vec::new();
    for part in list.split(':') {
        let zone =
            part.split_once('/').ok_or_else(|| format!("`{part}` is not PERCENTAGE/SIZE"))?;
        let percent = match zone.0.trim().trim_end_matches('%').parse::<u8>() {
            Ok(percent @ 0..=100) => percent,
            _ => return Err(format!("`{}` is not a percentage", zone.0)),
        };
        zones.push(Zone { percent, length: length(zone.1.trim())? });
    }
    if zones.len() > MAX_ZONES {
        return Err(format!("more than {MAX_ZONES} zones"));
    }
    let sum: u32 = zones.iter().map(|zone| u32::from(zone.percent)).sum();
    if sum != 100 {
        return Err(format!("the percentages of I/Os of `{list}` add up to {sum}, not 100"));
    }
    let lengths = zones.iter().map(|zone| match zone.length {
        SizeOrPercent::Percent(percent) => u32::from(percent),
        SizeOrPercent::Bytes(_) => 0,
    });
    match lengths.sum::<u32>() {
        0..=100 => Ok(zones),
        sum => Err(format!("the sizes of `{list}` add up to {sum} %")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SizeOrPercent::{Bytes, Percent};

    #[test]
    fn zones_have_shares_and_lengths() {
        let zone = |percent, length| Zone { percent, length };
        let both = Some(vec![zone(60, Percent(10)), zone(40, Percent(90))]);
        assert_eq!(zones("zoned:60/10:40/90"), Some(Ok([both.clone(), both.clone()])));
        let writes = Some(vec![zone(70, Bytes(1 << 20)), zone(30, Bytes(1 << 30))]);
        assert_eq!(zones("zoned_abs:70/1m:30/1g").unwrap().unwrap(), [writes.clone(), writes]);
        let [reads, writes] = zones("zoned:60/10:40/90,100/50").unwrap().unwrap();
        assert_eq!((reads, writes), (both, Some(vec![zone(100, Percent(50))])));
        assert_eq!(zones("zipf:1.2"), None);
        for text in ["60/10:50/90", "60/10", "60/60:40/60", "100/0", "100", "x/5", "101/5", ""] {
            assert!(zones(&format!("zoned:{text}")).unwrap().is_err(), "{text}");
        }
        assert!(zones(&format!("zoned:100/1{}", ":0/1".repeat(256))).unwrap().is_err());
    }
}
