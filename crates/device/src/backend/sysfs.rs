//! The limits of a block device from `/sys/dev/block`, with worst-case assumptions
//! for a device without them (`Documentation/ABI/stable/sysfs-block`).

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

/// The queue limits of a block device from sysfs. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub volatile_cache: bool,
    pub fua: bool,
    pub rotational: bool,
    pub read_only: bool,
    /// `None` if unknown.
    pub memory_alignment: Option<u32>,
    pub physical_block_size: Option<u32>,
    pub max_transfer: Option<u32>,
    /// The driver's own limit, which no setting changes.
    pub max_hardware_transfer: Option<u32>,
    /// Of memory, in one request.
    pub max_segments: Option<u32>,
    pub discard_granularity: u32,
    pub discard_max: u64,
    pub write_zeroes_max: u64,
}

/// The assumptions for a device without limits in sysfs.
const WORST_CASE: Limits = Limits {
    volatile_cache: true,
    fua: false,
    rotational: false,
    read_only: false,
    memory_alignment: None,
    physical_block_size: None,
    max_transfer: None,
    max_hardware_transfer: None,
    max_segments: None,
    discard_granularity: 0,
    discard_max: 0,
    write_zeroes_max: 0,
};

/// The limits of block device `major:minor`, or of its disk if it is a partition.
pub(super) fn limits(major: u32, minor: u32) -> Limits {
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let partition = own.join("partition").exists();
    let queue = if partition { own.join("../queue") } else { own.join("queue") };
    let read = |name: &str| fs::read_to_string(queue.join(name)).ok();
    let number = |name: &str| read(name).and_then(|text| parse::<u64>(&text));
    let Some(cache) = read("write_cache") else { return WORST_CASE };
    let as_u32 = |number: u64| u32::try_from(number).ok();
    Limits {
        volatile_cache: cache.trim() != "write through",
        fua: number("fua") == Some(1),
        rotational: number("rotational") == Some(1),
        read_only: fs::read_to_string(own.join("ro")).is_ok_and(|text| text.trim() == "1"),
        // A mask: 511 means multiples of 512.
        memory_alignment: number("dma_alignment").and_then(|mask| as_u32(mask + 1)),
        physical_block_size: number("physical_block_size").and_then(as_u32),
        max_transfer: number("max_sectors_kb").and_then(|kib| as_u32(kib << 10)),
        max_hardware_transfer: number("max_hw_sectors_kb").and_then(|kib| as_u32(kib << 10)),
        max_segments: number("max_segments").and_then(as_u32),
        discard_granularity: number("discard_granularity").and_then(as_u32).unwrap_or(0),
        discard_max: number("discard_max_bytes").unwrap_or(0),
        write_zeroes_max: number("write_zeroes_max_bytes").unwrap_or(0),
    }
}

fn parse<T: FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_queue_gets_the_worst_case_limits() {
        let limits = limits(0, 4095);
        assert_eq!(limits, WORST_CASE);
        assert!(limits.volatile_cache && !limits.fua);
    }
}
