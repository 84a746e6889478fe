//! The offsets and lengths of a job that its targets allow.

use crate::job::{BlockRange, Options, SizeOrPercent};
use crate::targets::{Target, TargetInfo};
use crate::workload::{IoOp, Region};

/// How offsets and lengths of a job are changed.
pub(super) fn alignment_hint(options: &Options) -> &'static str {
    match options.iolog {
        Some(_) => {
            "for an offset give replay_align=, for a length replay_redirect= with a target of smaller blocks"
        }
        None => "change bs=, blockalign= or offset=",
    }
}

/// An offset or a length of a job's trims that is no multiple of `unit`.
pub(super) fn unaligned_trim(options: &Options, region: Region, unit: u64) -> Option<u64> {
    let BlockRange { min, max } = options.block[IoOp::Trim as usize];
    let values = [min, max, options.block_align[IoOp::Trim as usize], region.begin];
    values.into_iter().find(|value| options.pattern.trims() && value % unit != 0)
}

/// Refuses trims of less than a block, which would fail or do nothing.
pub(super) fn check_trims(
    options: &Options,
    target: &Target,
    found: &TargetInfo,
    unaligned: impl FnOnce(u64) -> Option<u64>,
) -> Result<(), String> {
    const SECTOR: u64 = 512;
    const VOLUME_BLOCK: u64 = 4096;
    let unit = match target {
        Target::InVolume(_) => VOLUME_BLOCK,
        Target::Path(_) | Target::Virtual(_) => found.alignment().max(SECTOR),
    };
    match unaligned(unit) {
        Some(value) => Err(format!(
            "a trim needs multiples of {unit} bytes, and {value} is not one; {}",
            alignment_hint(options)
        )),
        None => Ok(()),
    }
}

/// Refuses zones that begin beyond the region: fio does, too.
pub(super) fn check_zones(options: &Options, region: Region) -> Result<(), String> {
    for zones in &options.zones {
        let mut begin = 0u64;
        for zone in zones {
            let SizeOrPercent::Bytes(length) = zone.length else { break };
            if zone.percent > 0 && begin >= region.length {
                return Err(format!(
                    "a zone begins at {begin}, beyond the region of {} bytes; change random_distribution=",
                    region.length
                ));
            }
            begin = begin.saturating_add(length);
        }
    }
    Ok(())
}
