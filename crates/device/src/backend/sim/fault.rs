//! Faults, and the rules that select requests for them.

use std::time::Duration;

use uringfs_errno::Errno;

use super::random::Random;
use crate::request::Op;

/// The most rules of a device.
pub const MAX_RULES: usize = 1024;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It fails with this error and moves nothing (EIO, ENOSPC, EINTR, EAGAIN,
    /// ECANCELED ...). After a crash any part of a failed write may be present. No
    /// later flush makes the writes stable that a failed flush covered.
    Error(Errno),
    /// A write fails halfway with EIO: some of its sectors are changed.
    Torn,
    /// A read or write of several blocks moves only some of them, at least one.
    Short,
    /// A read or write accesses another address of the device.
    Misdirected,
    /// A read returns the stable content, without the write cache (zeros if the device
    /// does not record); a write is acknowledged and lost at once.
    Stale,
    /// One bit of the blocks that are read or written is flipped permanently.
    BitRot,
    /// It takes this much longer (on the device's own queue).
    Late(Duration),
    /// The device has this size in bytes from this request on, as with [`Sim::set_size`](super::Sim::set_size).
    Resized(u64),
}

/// The requests that get the fault of a rule, among those that match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The `n`-th from now, counted from 1, once.
    Nth(u64),
    /// The `n`-th from now, and all after it.
    From(u64),
    /// Every `n`-th.
    Every(u64),
    /// One in `n`, at random from the device's seed.
    OneIn(u64),
}

/// A fault, and the requests that get it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Only requests of this kind; `None` for all.
    pub op: Option<Op>,
    /// Only requests that touch this range of addresses, as start and end; `None` for all.
    pub range: Option<(u64, u64)>,
    /// The requests that get the fault, among those that match.
    pub when: When,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// `fault` for the requests that `when` selects, of kind `op` or, with `None`, of any kind.
    pub fn new(op: impl Into<Option<Op>>, when: When, fault: Fault) -> Rule {
        Rule { op: op.into(), range: None, when, fault }
    }

    /// The same rule, only for requests that touch `start..end`.
    pub fn within(self, start: u64, end: u64) -> Rule {
        Rule { range: Some((start, end)), ..self }
    }
}

/// The active rules, each with the number of requests that have matched it.
#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<(Rule, u64)>,
    /// The number of requests that got a fault.
    pub(super) hits: u64,
}

impl Faults {
    pub(super) fn add(&mut self, rule: Rule) {
        assert!(self.rules.len() < MAX_RULES, "more than {MAX_RULES} rules");
        self.rules.push((rule, 0));
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The fault of this request. The first rule that hits decides; every matching
    /// rule counts the request.
    pub(super) fn hit(
        &mut self,
        op: Op,
        address: u64,
        length: u64,
        random: &mut Random,
    ) -> Option<Fault> {
        let mut hit = None;
        self.rules.retain_mut(|(rule, seen)| {
            let wanted = rule.op.is_none_or(|wanted| wanted == op);
            let inside =
                rule.range.is_none_or(|(start, end)| address < end && start < address + length);
            if !wanted || !inside {
                return true;
            }
            *seen += 1;
            let (hits, spent) = match rule.when {
                When::Nth(n) => (*seen == n, *seen >= n),
                When::From(n) => (*seen >= n, false),
                When::Every(n) => (seen.is_multiple_of(n), false),
                When::OneIn(n) => (random.below(n) == 0, false),
            };
            if hits && hit.is_none() {
                hit = Some(rule.fault);
            }
            !spent
        });
        self.hits += u64::from(hit.is_some());
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(when: When) -> Vec<u64> {
        let mut faults = Faults::default();
        faults.add(Rule::new(Op::Read, when, Fault::Short));
        let mut random = Random::new(1);
        (1..=9)
            .filter(|_| {
                assert_eq!(faults.hit(Op::Write, 0, 1, &mut random), None);
                faults.hit(Op::Read, 0, 1, &mut random).is_some()
            })
            .collect()
    }

    #[test]
    fn rules_hit_the_selected_requests() {
        assert_eq!(hits(When::Nth(3)), [3]);
        assert_eq!(hits(When::From(7)), [7, 8, 9]);
        assert_eq!(hits(When::Every(4)), [4, 8]);
        assert_eq!(hits(When::OneIn(1)).len(), 9);
    }

    #[test]
    fn a_rule_can_be_limited_to_a_range() {
        let mut faults = Faults::default();
        faults.add(Rule::new(None, When::From(1), Fault::Short).within(4096, 8192));
        let mut random = Random::new(1);
        assert_eq!(faults.hit(Op::Read, 0, 4096, &mut random), None);
        assert_eq!(faults.hit(Op::Read, 0, 4097, &mut random), Some(Fault::Short));
        assert_eq!(faults.hit(Op::Write, 8192, 512, &mut random), None);
    }
}
