//! A region's free blocks as bits, for checks. Independent of an allocator, which trusts its
//! records.

use super::region::{InvalidRegion, REGION_BLOCKS, RegionSummary, Span, SpanSet};

/// One bit for each block of a region, set if the block is free.
pub(crate) type FreeBits = [u64; REGION_BLOCKS as usize / 64];

/// Parses the record of a region of `blocks` blocks.
///
/// # Errors
/// When the record is not valid.
pub(crate) fn free_bits(record: &[u8], blocks: u64) -> Result<Box<FreeBits>, InvalidRegion> {
    let mut bits = Box::new([0; REGION_BLOCKS as usize / 64]);
    for span in SpanSet::parse(record, blocks)?.iter_from(0) {
        (u64::from(span.start)..u64::from(span.start) + u64::from(span.length))
            .for_each(|block| bits[block as usize / 64] |= 1 << (block % 64));
    }
    Ok(bits)
}

/// The summary and the record of these free blocks.
pub(crate) fn encode_free_bits(bits: &FreeBits) -> (RegionSummary, Vec<u8>) {
    let mut free = SpanSet::default();
    let is_free = |block: u64| bits[block as usize / 64] >> (block % 64) & 1 == 1;
    let mut block = 0;
    while block < REGION_BLOCKS {
        let length = (block..REGION_BLOCKS).take_while(|block| is_free(*block)).count() as u64;
        if length > 0 {
            free.insert(Span::new(block, length));
        }
        block += length + 1;
    }
    (free.summary(), free.to_record())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_encoded_and_parsed_unchanged() {
        let mut bits = Box::new([0; 512]);
        assert_eq!(encode_free_bits(&bits).0, RegionSummary::default());
        bits[0] = 0b1011;
        bits[511] = u64::MAX << 60;
        let (summary, record) = encode_free_bits(&bits);
        assert_eq!(summary, RegionSummary { free: 7, longest: 4 });
        assert_eq!(free_bits(&record, REGION_BLOCKS), Ok(bits));
        assert_eq!(free_bits(&record, 32_767), Err(InvalidRegion::Bounds));
        let all = Box::new([u64::MAX; 512]);
        let (summary, record) = encode_free_bits(&all);
        assert_eq!(summary, RegionSummary { free: 32_768, longest: 32_768 });
        assert_eq!(free_bits(&record, REGION_BLOCKS), Ok(all));
    }
}
