//! The findings of a check, and the records that repair them.

use std::collections::BTreeSet;

use super::fixes::{Change, Fixes, put};
use super::paths::{Parents, Paths};
use super::report::{CheckReport, Finding};
use crate::catalog::{Catalog, Key, Table};
use crate::error::Error;
use crate::records::inode::{Inode, InodeNumber};

/// The most findings in a report.
const MAX_LISTED: usize = 10_000;
/// Bytes of keys and values that one round of repairs changes, approximately.
const MAX_FIXES: usize = 16 << 20;
/// The most lost inodes that one round remembers. Each pass that finds a further one reports it.
const MAX_LOST: usize = 1 << 20;

/// The object of a finding.
#[derive(Clone, Debug)]
pub(super) enum FindingTarget {
    Volume,
    Inode(u64),
    /// A name, by its directory.
    Name(u64, Vec<u8>),
}

/// All findings so far.
pub(super) struct Findings {
    repairs: bool,
    /// Repaired in this round or before.
    repaired: Vec<(FindingTarget, String)>,
    named: Vec<Finding>,
    /// Not repairable, found in this round.
    left: Vec<(FindingTarget, String)>,
    /// Repaired in this round or before, and not listed.
    unlisted_repaired: u64,
    /// Not repairable, found in this round, and not listed.
    unlisted_left: u64,
    /// Lost inodes of this round.
    lost: BTreeSet<u64>,
    /// Inodes that a repair has replaced by new ones.
    recreated: u64,
    fixes: Fixes,
    fixed_bytes: usize,
}

impl Findings {
    pub(super) fn new(repairs: bool) -> Findings {
        Findings {
            repairs,
            repaired: Vec::new(),
            named: Vec::new(),
            left: Vec::new(),
            unlisted_repaired: 0,
            unlisted_left: 0,
            lost: BTreeSet::new(),
            recreated: 0,
            fixes: Fixes::new(),
            fixed_bytes: 0,
        }
    }

    /// True if the check repairs.
    pub(super) fn repairs(&self) -> bool {
        self.repairs
    }

    /// True if this round has no repairs.
    pub(super) fn is_last_round(&self) -> bool {
        self.fixes.is_empty()
    }

    /// Adds a finding that is repaired outside of records.
    pub(super) fn fixed_in_place(&mut self, what: String) {
        self.named.push(Finding { path: None, inode: None, what, is_repaired: self.repairs });
    }

    /// Adds a finding without a repair.
    pub(super) fn unfixable(&mut self, target: FindingTarget, what: impl Into<String>) {
        match self.left.len() < MAX_LISTED {
            true => self.left.push((target, what.into())),
            false => self.unlisted_left += 1,
        }
    }

    /// Counts further findings without a repair.
    pub(super) fn unfixable_unlisted(&mut self, count: usize) {
        self.unlisted_left += count as u64;
    }

    /// Adds a finding that `changes` repair; `cure` describes the repair. Each record is changed once in a round: other
    /// repairs of it follow in the next round. True if the changes are accepted.
    pub(super) fn fixable(
        &mut self,
        target: FindingTarget,
        what: impl Into<String>,
        cure: &str,
        changes: Vec<Change>,
    ) -> bool {
        if !self.repairs {
            self.unfixable(target, what);
            return false;
        }
        let is_known = changes.iter().any(|(key, _)| self.fixes.contains_key(key));
        if is_known || self.fixed_bytes > MAX_FIXES {
            return false;
        }
        for (key, value) in changes {
            self.fixed_bytes += key.1.len() + value.as_ref().map_or(0, Vec::len);
            self.fixes.insert(key, value);
        }
        match self.repaired.len() + self.named.len() < MAX_LISTED {
            true => self.repaired.push((target, format!("{}; {cure}", what.into()))),
            false => self.unlisted_repaired += 1,
        }
        true
    }

    /// Adds a lost inode, once, whichever pass finds it first. The repair puts `inode` in its place; `cure` describes it.
    pub(super) fn lost_inode(&mut self, number: u64, what: &str, cure: &str, inode: &Inode) {
        if self.is_known_lost(number) {
            return;
        }
        if self.lost.len() < MAX_LOST {
            self.lost.insert(number);
        }
        let changes = vec![put(Key::Inode(number), inode.to_record())];
        if self.fixable(FindingTarget::Inode(number), what, cure, changes) {
            self.recreated += 1;
        }
    }

    /// True if this round has found that an inode is lost, or has a repair that changes its record.
    pub(super) fn is_known_lost(&self, inode: u64) -> bool {
        self.lost.contains(&inode)
            || self.fixes.contains_key(&(Table::Inodes, Key::Inode(inode).bytes()))
    }

    /// Takes the repairs of this round. If there are any, the next round finds the unrepairable findings again.
    pub(super) fn take_fixes(&mut self) -> Fixes {
        if !self.fixes.is_empty() {
            self.left.clear();
            self.unlisted_left = 0;
        }
        self.lost.clear();
        self.fixed_bytes = 0;
        std::mem::take(&mut self.fixes)
    }

    /// Adds paths to the findings of this round.
    pub(super) fn resolve_paths(
        &mut self,
        catalog: &Catalog,
        parents: &Parents,
    ) -> Result<(), Error> {
        let repaired = std::mem::take(&mut self.repaired).into_iter().map(|found| (found, true));
        let left = std::mem::take(&mut self.left).into_iter().map(|found| (found, false));
        let found: Vec<_> = repaired.chain(left).collect();
        let inodes: BTreeSet<u64> = found
            .iter()
            .filter_map(|((target, _), _)| match target {
                FindingTarget::Volume => None,
                FindingTarget::Inode(inode) | FindingTarget::Name(inode, _) => Some(*inode),
            })
            .collect();
        let paths = Paths::find(catalog, parents, inodes)?;
        for ((target, what), is_repaired) in found {
            let (path, inode) = match target {
                FindingTarget::Volume => (None, None),
                FindingTarget::Inode(inode) => (paths.of(inode), Some(InodeNumber(inode))),
                FindingTarget::Name(directory, name) => {
                    (Some(paths.of_name(directory, &name)), None)
                }
            };
            self.named.push(Finding { path, inode, what, is_repaired });
        }
        Ok(())
    }

    pub(super) fn into_report(self, report: CheckReport) -> CheckReport {
        CheckReport {
            findings: self.named,
            unlisted: self.unlisted_repaired + self.unlisted_left,
            unlisted_left: self.unlisted_left,
            recreated: self.recreated,
            ..report
        }
    }
}
