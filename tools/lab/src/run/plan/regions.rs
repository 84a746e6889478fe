//! The part of a file that a job works on, and the bytes of a pass.

use crate::job::{Options, SizeOrPercent};
use crate::workload::{Amount, Region};

/// The region after the end of a file of `whole` bytes: `file_append`.
pub(super) fn end_of(
    options: &Options,
    size: Option<SizeOrPercent>,
    whole: u64,
) -> Result<Region, String> {
    let length = size.map_or(whole, |size| size.resolve(whole));
    match whole.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 && length >= options.largest_block() => {
            Ok(Region { begin: whole, length })
        }
        _ => Err(format!("file_append: size= is no length for I/O after {whole} bytes")),
    }
}

/// The region of a job's thread in a file of `whole` bytes.
pub(super) fn region_of(
    options: &Options,
    thread: u32,
    size: Option<SizeOrPercent>,
    whole: u64,
    missing: bool,
) -> Result<Region, String> {
    // A percentage needs a known size.
    let percent = |extent: &SizeOrPercent| matches!(extent, SizeOrPercent::Percent(_));
    let unknown = missing && whole == 0;
    let offsets = [options.offset, options.offset_increment];
    if unknown && offsets.iter().chain(&size).any(percent) {
        return Err("does not exist, so that a percentage has no meaning; give bytes".into());
    }
    let increment = offsets[1].resolve(whole).checked_mul(thread.into());
    let begin = increment.and_then(|all| all.checked_add(offsets[0].resolve(whole)));
    let begin = begin.and_then(|begin| match offsets.iter().any(percent) {
        // As with fio, a percentage is rounded up to a block, the smallest of all directions.
        true => begin.checked_next_multiple_of(options.offset_unit()),
        false => Some(begin),
    });
    let begin = begin.ok_or("offset reaches beyond what a file can hold")?;
    let rest = whole.saturating_sub(begin);
    let length = match (size, options.file_size) {
        (Some(percent @ SizeOrPercent::Percent(_)), Some(file)) => {
            percent.resolve(whole).min(file.saturating_sub(begin))
        }
        // As with fio: beside filesize, bytes are those of a pass.
        (Some(SizeOrPercent::Bytes(_)), Some(file)) => file.saturating_sub(begin),
        (Some(SizeOrPercent::Bytes(bytes)), None) => bytes,
        (Some(percent), None) => percent.resolve(whole).min(rest),
        (None, Some(file)) => file.saturating_sub(begin),
        (None, None) if unknown => {
            return Err("does not exist; give size= to have it created".into());
        }
        (None, None) => rest,
    };
    let block = options.largest_block();
    if length < block {
        return Err(format!(
            "the region of {length} bytes at {begin} is less than one block of {block}"
        ));
    }
    match begin.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(Region { begin, length }),
        _ => Err("offset and size reach beyond what a file can hold".into()),
    }
}

/// The bytes of one pass. A job with `time_based` and `verify` reads back after each pass, so that its
/// passes have an end.
pub(super) fn amount(options: &Options, regions: &[Region]) -> Amount {
    if options.time_based && !(options.verify.is_some() && options.pattern.writes()) {
        return Amount::Endless;
    }
    let whole = regions.iter().map(|region| region.length).fold(0, u64::saturating_add);
    let limit = match (options.size, options.file_size) {
        (Some(SizeOrPercent::Bytes(bytes)), Some(_)) => bytes,
        _ => u64::MAX,
    };
    let once = match options.io_size {
        Some(SizeOrPercent::Bytes(bytes)) => bytes,
        Some(percent) => percent.resolve(whole).min(limit),
        None => whole.min(limit),
    };
    let most = match options.number_ios {
        0 => u64::MAX - 1,
        ios => ios.saturating_mul(options.largest_block()),
    };
    Amount::Bytes(once.min(most))
}
