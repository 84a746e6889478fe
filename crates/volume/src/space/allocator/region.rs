//! One region of the device: its free blocks, and their record on disk, whose bytes may be forged.

use std::fmt;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of a region: 128 MiB.
pub const REGION_BLOCKS: u64 = 32_768;

/// Adjacent blocks in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u16,
    /// Never 0; at most a whole region.
    pub(super) length: u16,
}

impl Span {
    pub(super) fn new(start: u64, length: u64) -> Span {
        assert!(start < REGION_BLOCKS && length > 0 && length <= REGION_BLOCKS - start);
        Span { start: start as u16, length: length as u16 }
    }

    /// The first block after the span.
    fn end(self) -> u32 {
        u32::from(self.start) + u32::from(self.length)
    }
}

/// A set of blocks of a region, as ordered spans that are never adjacent.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct SpanSet {
    spans: Vec<Span>,
    summary: RegionSummary,
}

/// A summary of a region, which is always in memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RegionSummary {
    /// Number of free blocks.
    pub free: u16,
    /// The longest run of free blocks.
    pub longest: u16,
}

impl RegionSummary {
    /// The summary of a region of `blocks` blocks that are all free.
    pub(super) fn free(blocks: u64) -> RegionSummary {
        RegionSummary { free: blocks as u16, longest: blocks as u16 }
    }

    /// Whether a region of `blocks` blocks can have this summary.
    pub(crate) fn is_possible(self, blocks: u64) -> bool {
        u64::from(self.free) <= blocks
            && self.longest <= self.free
            && (self.longest == 0) == (self.free == 0)
    }
}

impl SpanSet {
    /// All blocks of a region.
    pub(super) fn full(blocks: u64) -> SpanSet {
        SpanSet { spans: vec![Span::new(0, blocks)], summary: RegionSummary::free(blocks) }
    }

    pub(super) fn summary(&self) -> RegionSummary {
        self.summary
    }

    /// The spans that begin at `from` or after it.
    pub(super) fn iter_from(&self, from: u16) -> impl Iterator<Item = Span> {
        self.spans[self.spans.partition_point(|span| span.start < from)..].iter().copied()
    }

    /// The first span of at least `length` blocks at or after `from`; otherwise the first such
    /// span of all.
    pub(super) fn find_first(&self, length: u64, from: u16) -> Option<Span> {
        let mut spans = self.iter_from(from).chain(self.iter_from(0));
        spans.find(|span| u64::from(span.length) >= length)
    }

    /// The adjacent blocks of the set from `block` on.
    pub(super) fn run_at(&self, block: u16) -> Option<Span> {
        let holder = self.spans[..self.spans.partition_point(|span| span.start <= block)].last()?;
        let length = holder.end().checked_sub(u32::from(block)).filter(|length| *length > 0)?;
        Some(Span { start: block, length: length as u16 })
    }

    pub(super) fn contains(&self, span: Span) -> bool {
        self.run_at(span.start).is_some_and(|rest| rest.length >= span.length)
    }

    /// Whether the set has a block of `span`.
    pub(super) fn overlaps(&self, span: Span) -> bool {
        let next = self.iter_from(span.start).next();
        self.run_at(span.start).is_some()
            || next.is_some_and(|next| u32::from(next.start) < span.end())
    }

    /// The blocks of `span` that the set has.
    pub(super) fn intersection(&self, span: Span) -> Vec<Span> {
        let first = self.spans.partition_point(|other| other.end() <= u32::from(span.start));
        let meeting =
            self.spans[first..].iter().take_while(|other| u32::from(other.start) < span.end());
        let cut = |other: &Span| {
            let start = other.start.max(span.start);
            let end = other.end().min(span.end());
            Span { start, length: (end - u32::from(start)) as u16 }
        };
        meeting.map(cut).collect()
    }

    /// Adds a span, of which the set has no block.
    pub(super) fn insert(&mut self, span: Span) {
        assert!(!self.overlaps(span), "{span:?} is in the set already");
        let mut joined = span;
        let mut from = self.spans.partition_point(|other| other.start < span.start);
        let mut to = from;
        if let Some(before) = from.checked_sub(1).map(|index| self.spans[index])
            && before.end() == u32::from(span.start)
        {
            joined = Span { start: before.start, length: before.length + joined.length };
            from -= 1;
        }
        if let Some(after) = self.spans.get(to)
            && u32::from(after.start) == span.end()
        {
            joined.length += after.length;
            to += 1;
        }
        self.spans.splice(from..to, [joined]);
        self.summary.free += span.length;
        self.summary.longest = self.summary.longest.max(joined.length);
    }

    /// Removes a span, of which the set has all blocks.
    pub(super) fn remove(&mut self, span: Span) {
        assert!(self.contains(span), "{span:?} is not in the set");
        let index = self.spans.partition_point(|other| other.start <= span.start) - 1;
        let holder = self.spans[index];
        let (before, after) = (span.start - holder.start, (holder.end() - span.end()) as u16);
        let left = (before > 0).then_some(Span { start: holder.start, length: before });
        let right = (after > 0).then(|| Span { start: span.end() as u16, length: after });
        self.spans.splice(index..=index, left.into_iter().chain(right));
        self.summary.free -= span.length;
        if holder.length == self.summary.longest {
            self.summary.longest = self.spans.iter().map(|span| span.length).max().unwrap_or(0);
        }
    }
}

/// The first 4 bytes of a record. Spans or a bitmap follow, whichever is smaller.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: u8,
    form: u8,
    /// Number of spans; 0 for a bitmap.
    count: U16,
}

const VERSION: u8 = 1;
/// First block and length of each free span, in order, not adjacent.
const SPANS: u8 = 0;
/// One bit for each block, the lowest bit of the first byte first; set if the block is free.
const BITMAP: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SpanRecord {
    start: U16,
    length: U16,
}

const BITMAP_WORDS: usize = REGION_BLOCKS as usize / 64;

impl SpanSet {
    /// The record: at most 4,100 bytes.
    pub(super) fn to_record(&self) -> Vec<u8> {
        let header = |form, count: usize| {
            let header = Header { version: VERSION, form, count: (count as u16).into() };
            header.as_bytes().to_vec()
        };
        if size_of_val(self.spans.as_slice()) <= BITMAP_WORDS * 8 {
            let mut record = header(SPANS, self.spans.len());
            for span in &self.spans {
                let span = SpanRecord { start: span.start.into(), length: span.length.into() };
                record.extend_from_slice(span.as_bytes());
            }
            return record;
        }
        let mut words = [0u64; BITMAP_WORDS];
        for block in self.spans.iter().flat_map(|span| u32::from(span.start)..span.end()) {
            words[block as usize / 64] |= 1 << (block % 64);
        }
        let mut record = header(BITMAP, 0);
        record.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        record
    }

    /// Parses the record of a region of `blocks` blocks.
    ///
    /// # Errors
    /// When the record is not valid.
    pub(super) fn parse(record: &[u8], blocks: u64) -> Result<SpanSet, InvalidRegion> {
        let (header, rest) = Header::read_from_prefix(record).map_err(|_| InvalidRegion::Size)?;
        if header.version != VERSION {
            return Err(InvalidRegion::Version);
        }
        let spans = match (header.form, usize::from(header.count.get())) {
            (SPANS, count) => parse_spans(rest, count)?,
            (BITMAP, 0) => parse_bitmap(rest)?,
            _ => return Err(InvalidRegion::Version),
        };
        if spans.last().is_some_and(|span| u64::from(span.end()) > blocks) {
            return Err(InvalidRegion::Bounds);
        }
        let free = spans.iter().map(|span| span.length).sum();
        let longest = spans.iter().map(|span| span.length).max().unwrap_or(0);
        Ok(SpanSet { spans, summary: RegionSummary { free, longest } })
    }
}

fn parse_spans(bytes: &[u8], count: usize) -> Result<Vec<Span>, InvalidRegion> {
    let records = <[SpanRecord]>::ref_from_bytes(bytes).map_err(|_| InvalidRegion::Size)?;
    if records.len() != count {
        return Err(InvalidRegion::Size);
    }
    let mut spans: Vec<Span> = Vec::with_capacity(count);
    for record in records {
        let span = Span { start: record.start.get(), length: record.length.get() };
        if spans.last().is_some_and(|last| u32::from(span.start) <= last.end()) {
            return Err(InvalidRegion::Order);
        }
        if span.length == 0 || u64::from(span.end()) > REGION_BLOCKS {
            return Err(InvalidRegion::Bounds);
        }
        spans.push(span);
    }
    Ok(spans)
}

fn parse_bitmap(bytes: &[u8]) -> Result<Vec<Span>, InvalidRegion> {
    let words = <[U64; BITMAP_WORDS]>::ref_from_bytes(bytes).map_err(|_| InvalidRegion::Size)?;
    let mut spans: Vec<Span> = Vec::new();
    for block in 0..REGION_BLOCKS as u16 {
        if words[usize::from(block) / 64].get() >> (block % 64) & 1 == 0 {
            continue;
        }
        match spans.last_mut() {
            Some(last) if last.end() == u32::from(block) => last.length += 1,
            _ => spans.push(Span { start: block, length: 1 }),
        }
    }
    Ok(spans)
}

/// Why a region, or an operation on its blocks, is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidRegion {
    /// The record has another size than its header says.
    Size,
    /// Unknown version or form.
    Version,
    /// The spans are out of order or adjacent.
    Order,
    /// It names blocks that the region does not have.
    Bounds,
    /// The record and the summary of the region disagree.
    Summary,
    /// Blocks to be freed are free already, or do not exist.
    NotAllocated,
    /// Blocks to be allocated are not free, or do not exist.
    NotFree,
}

impl fmt::Display for InvalidRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            InvalidRegion::Size => "a region's record has another size than its header says",
            InvalidRegion::Version => "a region's record has an unknown version or form",
            InvalidRegion::Order => "a region's record has spans out of order",
            InvalidRegion::Bounds => "a region's record names blocks that do not exist",
            InvalidRegion::Summary => "a region's record and its summary disagree",
            InvalidRegion::NotAllocated => "blocks to be freed are not allocated",
            InvalidRegion::NotFree => "blocks to be claimed are not free",
        })
    }
}

impl std::error::Error for InvalidRegion {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(list: &[(u64, u64)]) -> SpanSet {
        let mut spans = SpanSet::default();
        list.iter().for_each(|(start, length)| spans.insert(Span::new(*start, *length)));
        spans
    }

    #[test]
    fn few_spans_are_encoded_as_spans_and_many_as_a_bitmap() {
        let few = spans(&[(5, 3), (32_000, 768)]);
        assert_eq!(few.to_record(), [1, 0, 2, 0, 5, 0, 3, 0, 0x00, 0x7D, 0x00, 0x03]);
        let many = spans(&(0..1025).map(|index| (index * 3 + 1, 2)).collect::<Vec<_>>());
        let record = many.to_record();
        assert_eq!(
            (record.len(), &record[..6]),
            (4100, &[1, 1, 0, 0, 0b1011_0110, 0b0110_1101][..])
        );
        for spans in [few, many, SpanSet::default(), SpanSet::full(REGION_BLOCKS)] {
            assert_eq!(SpanSet::parse(&spans.to_record(), REGION_BLOCKS), Ok(spans));
        }
    }

    #[test]
    fn invalid_records_are_refused_with_the_reason() {
        let refused = |record: &[u8]| SpanSet::parse(record, 100).unwrap_err();
        assert_eq!(refused(&[]), InvalidRegion::Size);
        assert_eq!(refused(&[1, 0, 0]), InvalidRegion::Size);
        assert_eq!(refused(&[1, 0, 1, 0]), InvalidRegion::Size);
        assert_eq!(refused(&[1, 0, 0, 0, 1, 0, 1, 0]), InvalidRegion::Size);
        assert_eq!(refused(&[1, 0, 1, 0, 1, 0, 1]), InvalidRegion::Size);
        assert_eq!(refused(&[1, 1, 0, 0, 1]), InvalidRegion::Size);
        assert_eq!(refused(&[2, 0, 0, 0]), InvalidRegion::Version);
        assert_eq!(refused(&[1, 2, 0, 0]), InvalidRegion::Version);
        assert_eq!(
            refused(&[[1, 1, 1, 0].as_slice(), &[0; 4096]].concat()),
            InvalidRegion::Version
        );
        assert_eq!(refused(&[1, 0, 1, 0, 1, 0, 0, 0]), InvalidRegion::Bounds);
        assert_eq!(refused(&[1, 0, 1, 0, 99, 0, 2, 0]), InvalidRegion::Bounds);
        assert_eq!(refused(&[1, 0, 1, 0, 255, 255, 255, 255]), InvalidRegion::Bounds);
        assert_eq!(
            refused(&[[1, 1, 0, 0].as_slice(), &[255; 4096]].concat()),
            InvalidRegion::Bounds
        );
        // Adjacent, overlapping, and out of order.
        assert_eq!(refused(&[1, 0, 2, 0, 1, 0, 2, 0, 3, 0, 1, 0]), InvalidRegion::Order);
        assert_eq!(refused(&[1, 0, 2, 0, 1, 0, 4, 0, 2, 0, 1, 0]), InvalidRegion::Order);
        assert_eq!(refused(&[1, 0, 2, 0, 9, 0, 1, 0, 2, 0, 1, 0]), InvalidRegion::Order);
    }

    proptest! {
        #[test]
        fn a_parsed_record_is_consistent(
            form in 0u8..2,
            list in proptest::collection::vec((0u16..40_000, 0u16..9), 0..20),
            sorted: bool,
        ) {
            let mut list = list;
            if sorted {
                list.sort();
            }
            let mut record = vec![1, form, if form == 0 { list.len() as u8 } else { 0 }, 0];
            for (start, length) in &list {
                record.extend([start.to_le_bytes(), length.to_le_bytes()].concat());
            }
            if form == BITMAP {
                record.resize(4 + 4096, 0);
            }
            if let Ok(parsed) = SpanSet::parse(&record, REGION_BLOCKS) {
                let mut built = SpanSet::default();
                parsed.iter_from(0).for_each(|span| built.insert(span));
                prop_assert_eq!(&built, &parsed);
                prop_assert!(parsed.summary().is_possible(REGION_BLOCKS));
            }
        }
    }
}
