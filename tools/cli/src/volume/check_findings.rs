//! The findings of a check, one for each damage, and what a repair has given up.

use std::collections::HashMap;
use uringfs::volume::Finding;

/// How the check describes an inode that is lost, and its repair. The tests of the command compare these texts with
/// the library's.
const LOST_INODE: &str = "inode is lost";
const OF_LOST_INODE: &str = "it has an extended attribute, but does not exist";
const RECREATED: &str = "recreated, with mode";

/// Merges the findings about one lost inode: without a repair, the passes over names, extents and attributes each find
/// it again.
pub(super) fn merge_lost_inodes(findings: Vec<Finding>) -> Vec<Finding> {
    let mut lost = HashMap::new();
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let file = match &finding.path {
            Some(path) => (Some(path.clone()), None),
            None => (None, finding.inode),
        };
        let is_lost = finding.what.ends_with(LOST_INODE);
        match lost.get(&file) {
            Some(first) if is_lost || finding.what == OF_LOST_INODE => {
                let first: &mut Finding = &mut merged[*first];
                first.inode = first.inode.or(finding.inode);
            }
            _ => {
                if is_lost {
                    lost.insert(file, merged.len());
                }
                merged.push(finding);
            }
        }
    }
    merged
}

/// The number of files whose attributes a repair has replaced by defaults.
pub(super) fn count_recreated(findings: &[Finding]) -> u64 {
    findings.iter().filter(|finding| finding.what.contains(RECREATED)).count() as u64
}
