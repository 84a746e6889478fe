//! Faults, and the rules of their occurrence.

use std::time::Duration;

use rustix::io::Errno;

use super::random::Random;
use crate::request::Op;

/// The most rules at once.
pub const MAX_RULES: usize = 1024;

/// Something that goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends with this error and moves nothing (EIO, ENOSPC, EINTR, EAGAIN,
    /// ECANCELED ...). Of a failed write any part may be found after a crash;
    /// what a failed flush covered no later flush makes stable.
    Error(Errno),
    /// A write that fails with EIO half way: some of its sectors are changed.
    Torn,
    /// A read or write of several blocks moves only some, at least one.
    Short,
    /// A read returns, or a write changes, another block of the device.
    Misdirected,
    /// A read returns what was stable before the last flush; a write is
    /// acknowledged and lost at once.
    Stale,
    /// One bit of the blocks that are read or written is flipped, for good.
    BitRot,
    /// It takes this much longer (on the device's own queue).
    Late(Duration),
}

/// Which of the requests that a rule watches go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The `n`-th from now, counted from 1, once.
    Nth(u64),
    /// The `n`-th from now, and every one after it.
    From(u64),
    /// Every `n`-th.
    Every(u64),
    /// One in `n`, as the device's seed has it.
    OneIn(u64),
}

/// A fault, and whom it hits.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Only requests of this kind; all when absent.
    pub op: Option<Op>,
    /// Only requests that touch this range of addresses, as start and end; all when absent.
    pub range: Option<(u64, u64)>,
    /// Which of them.
    pub when: When,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// `fault` for every request of kind `op`, or of any, that `when` says.
    pub fn new(op: impl Into<Option<Op>>, when: When, fault: Fault) -> Rule {
        Rule { op: op.into(), range: None, when, fault }
    }

    /// The same, only for requests that touch `start..end`.
    pub fn within(self, start: u64, end: u64) -> Rule {
        Rule { range: Some((start, end)), ..self }
    }
}

/// The rules in force, each with the requests it has seen.
#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<(Rule, u64)>,
    /// Requests that went wrong.
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

    /// The fault of this request; the first rule that hits decides, and
    /// every rule counts.
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
