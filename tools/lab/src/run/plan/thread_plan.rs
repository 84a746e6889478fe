//! One thread of one job, with its targets and regions.

use crate::engine::Capabilities;
use crate::job::Options;
use crate::targets::{Access, Target};
use crate::workload::{Amount, Region};

/// One thread of one job.
#[derive(Debug)]
pub struct ThreadPlan {
    /// Index of the job in the set.
    pub job: usize,
    /// Index of the thread in the job.
    pub index: u32,
    /// Threads of one batch run concurrently; batches run one after the other.
    pub batch: u32,
    /// The reporting group, whose figures are summed.
    pub group: u32,
    /// The files of the thread.
    pub targets: Vec<Target>,
    /// The region of each file.
    pub regions: Vec<Region>,
    /// The bytes of one pass.
    pub amount: Amount,
}

impl ThreadPlan {
    /// How the files of a job are opened.
    pub fn access(options: &Options, capabilities: Capabilities) -> Access {
        let direct = options.direct || !capabilities.buffered;
        Access { writes: options.modifies(), direct, sync: options.sync }
    }
}
