//! Block sizes with weights: fio's `bssplit`.

use super::value::{percent, size};

/// fio's limit.
const MAX_SIZES: usize = 64;

/// A block size and its share of the I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShare {
    /// The size in bytes.
    pub bytes: u64,
    /// The percentage of I/Os; the percentages of a direction add up to 100.
    pub percent: u8,
}

/// Parses the sizes of one direction, such as `4k/10:64k/50:32k/`. Sizes without a percentage share the
/// rest, and the last size has what is left over.
pub fn block_shares(text: &str) -> Result<Vec<BlockShare>, String> {
    let mut sizes: Vec<(u64, Option<u8>)> = Vec::new();
    for part in text.split(':') {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        let share = match share.trim() {
            "" | "%" => None,
            text => match percent(text) {
                Some(share) => Some(share),
                None => return Err(format!("`{part}` is not SIZE/PERCENTAGE")),
            },
        };
        sizes.push((size(bytes.trim())?, share));
    }
    if sizes.len() > MAX_SIZES {
        return Err(format!("more than {MAX_SIZES} sizes"));
    }
    let given: u32 = sizes.iter().filter_map(|(_, percent)| *percent).map(u32::from).sum();
    let Some(mut left) = 100u32.checked_sub(given) else {
        return Err(format!("the percentages of `{text}` add up to {given}"));
    };
    let blanks = sizes.iter().filter(|(_, percent)| percent.is_none()).count() as u32;
    let each = left.checked_div(blanks).unwrap_or(0);
    let mut shares = Vec::new();
    for (bytes, percent) in sizes {
        let percent = match percent {
            Some(percent) => percent,
            None => {
                left -= each;
                each as u8
            }
        };
        shares.push(BlockShare { bytes, percent });
    }
    if let Some(last) = shares.last_mut() {
        last.percent += left as u8;
    }
    shares.retain(|share| share.percent > 0);
    let smallest = shares.iter().map(|share| share.bytes).min().unwrap_or(0);
    let is_odd = |share: &&BlockShare| share.bytes.checked_rem(smallest) != Some(0);
    if let Some(BlockShare { bytes, .. }) = shares.iter().find(is_odd) {
        return Err(format!("{bytes} is not a multiple of the smallest size, {smallest}"));
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(text: &str) -> Vec<(u64, u8)> {
        block_shares(text).unwrap().iter().map(|share| (share.bytes, share.percent)).collect()
    }

    #[test]
    fn percentages_that_are_left_out_share_the_rest() {
        assert_eq!(shares("4k/10:64k/50:32k/40"), [(4096, 10), (65536, 50), (32768, 40)]);
        assert_eq!(shares("4k/50:1k/:32k/"), [(4096, 50), (1024, 25), (32768, 25)]);
        assert_eq!(shares("4k/10:8k:16k:32k"), [(4096, 10), (8192, 30), (16384, 30), (32768, 30)]);
        assert_eq!(shares("4k:8k:16k"), [(4096, 33), (8192, 33), (16384, 34)]);
        assert_eq!(shares("8k"), [(8192, 100)]);
        assert_eq!(shares("4k/60:8k/30"), [(4096, 60), (8192, 40)], "the last has the rest");
        assert_eq!(shares("4k/100:8k/0"), [(4096, 100)]);
    }

    #[test]
    fn bad_splits_are_refused() {
        let many = vec!["4k/1"; 65].join(":");
        for text in [
            "",
            ":",
            "4k/60:8k/50",
            "4k/x",
            "4k/-1",
            "0/50:4k/50",
            "4k/50:6k/50",
            "4k/50/50",
            &many,
        ] {
            assert!(block_shares(text).is_err(), "{text}");
        }
    }
}
