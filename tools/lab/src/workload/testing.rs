//! A region and jobs on it, for the tests of this folder.

use super::{Amount, NextIo, Region, Workload};
use crate::job::{Options, Pattern};

pub(super) const REGION: Region = Region { begin: 8192, length: 64 * 4096 + 100 };

/// The I/Os of one pass over the region.
pub(super) fn steps(options: &Options, amount: u64) -> Vec<NextIo> {
    let mut workload = Workload::new(options, &[REGION], Amount::Bytes(amount), 1);
    std::iter::from_fn(|| workload.next_io()).collect()
}

pub(super) fn options(pattern: Pattern) -> Options {
    Options { pattern, ..Options::default() }
}
