//! The rule by which measured rates decide between queues. It is a function of the samples alone, so tests give it
//! samples.
//!
//! # The rule
//!
//! The first queue that works is taken unless another one is *clearly better*. Queues are in this order: the ring, which
//! names registered files and memory, polls, and waits for sockets; calls, where reads complete within them; AIO, for which
//! a reactor must wait in epoll; threads. Each later queue is compared with the one taken so far, round by round, by the
//! ratio of their rates in the same round: what slows the whole machine slows both. Then each is compared once more, since
//! a queue that was not clearly better than an earlier one may be better than what was taken. A queue is clearly better
//!
//! - if in each of at least [`MIN_ROUNDS`] rounds it is faster at the geometric mean over the depths, in the median round by
//!   [`MIN_GAIN`], and at no depth slower than [`MAX_LOSS`]. Between queues that are equally fast, the chance to win one
//!   round is a half, and so that of winning all of 5 rounds is 1/32, of 7 rounds 1/128, whatever the distribution of the
//!   noise. Besides, a gain below the margin is not worth what the ring has;
//! - or if it is at least [`FAR_BETTER`] times as fast at every depth in each of at least [`MIN_FAR_ROUNDS`] rounds. This is
//!   for devices so slow that few rounds were measured: no noise makes all these samples differ so much;
//! - or if it is at least [`FAR_AHEAD`] times as fast at the geometric mean in at least [`MIN_ROUNDS`] rounds, in four of
//!   five or more, and in the median round at no depth slower than [`MAX_LOSS`]. This is for queues that disturb themselves:
//!   threads of the ring that have to share the caller's processor make it wait in each of the ring's rounds.
//!
//! A round does not count in the first case if either queue was *disturbed* in it: the thread had to wait for a processor,
//! or the rate was below half of the queue's own median. Without enough rounds that count, the queue taken so far stays.
//!
//! Where the ring is taken, a thread that waits for a single read may still make the call itself, if calls are clearly
//! better at depth 1, by the first or the third of these: [`rate_of_calls`].
//!
//! The margins bound the loss: a queue that is as fast at one depth, and within the margin at the mean, is at most 10 %
//! faster at the other depth. So the queue that was taken has at least 0.9 of the best rate there.

use std::fmt::Write;

use crate::interface::calibration::{DEPTHS, QueueSamples, median};
use crate::interface::kind::QueueKind;

/// The fewest rounds that prove a small difference.
pub(crate) const MIN_ROUNDS: usize = 5;
/// The ratio in the median round from which on a queue is better, at the geometric mean over the depths.
const MIN_GAIN: f64 = 1.05;
/// The ratio in the median round from which on a queue is no worse at a depth.
const MAX_LOSS: f64 = 0.95;
/// The fewest rounds that prove a large difference.
const MIN_FAR_ROUNDS: usize = 3;
/// A large difference.
const FAR_BETTER: f64 = 2.0;
/// A ratio at the geometric mean over the depths that disturbances do not make in four of five rounds.
const FAR_AHEAD: f64 = 1.5;
/// A rate below this part of the median of all rounds is a disturbed sample.
const DISTURBED: f64 = 0.5;

/// The choice between measured queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The chosen queue, as an index of the samples.
    pub(crate) index: usize,
    /// The queue that would have been taken otherwise, and how it lost. `None` if no other was taken before.
    over: Option<(QueueKind, Advantage)>,
}

/// By what a queue is clearly better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advantage {
    /// It was faster in each of the rounds that count, whose number this is.
    EachRound(usize),
    /// It was at least [`FAR_BETTER`] times as fast in all rounds.
    Far,
    /// It was at least [`FAR_AHEAD`] times as fast at the mean in this number of rounds.
    Ahead(usize),
}

/// Chooses by the rule above.
///
/// # Panics
/// Without a queue.
pub(crate) fn choose(queues: &[QueueSamples]) -> Choice {
    assert!(!queues.is_empty(), "there is no queue");
    let working = (0..queues.len()).filter(|index| works(&queues[*index]));
    let mut choice = Choice { index: working.clone().next().unwrap_or(0), over: None };
    for index in working.clone().skip(1).chain(working) {
        let taken = &queues[choice.index];
        if let Some(advantage) = advantage(&queues[index], taken) {
            choice = Choice { index, over: Some((taken.kind, advantage)) };
        }
    }
    choice
}

/// The rate, in reads per second, of calls of the thread that waits for a single read, if these are clearly better than
/// the ring at depth 1: by the first or the third of the rules above, at this depth alone. Reads of the device complete
/// within calls, if there are samples of `sync`.
pub fn rate_of_calls(queues: &[QueueSamples]) -> Option<f64> {
    let find = |kind| queues.iter().find(|queue| queue.kind == kind && works(queue));
    let (calls, ring) = (find(QueueKind::Sync)?, find(QueueKind::Ring)?);
    let disturbed = [disturbed_rounds(calls), disturbed_rounds(ring)];
    let rounds = calls.rounds.iter().zip(&ring.rounds);
    let ratios: Vec<f64> = rounds.map(|(calls, ring)| calls.rates[0] / ring.rates[0]).collect();
    let counts = |round: &usize| !disturbed.iter().any(|rounds| rounds[*round]);
    let counted: Vec<f64> = (0..ratios.len()).filter(counts).map(|round| ratios[round]).collect();
    let is_faster = counted.len() >= MIN_ROUNDS
        && counted.iter().all(|ratio| *ratio > 1.0)
        && median(counted) >= MIN_GAIN;
    (is_faster || rounds_far_ahead(&ratios).is_some()).then(|| calls.medians()[0])
}

/// The number of rounds in which the ratio is at least [`FAR_AHEAD`], if they are enough.
fn rounds_far_ahead(ratios: &[f64]) -> Option<usize> {
    let ahead = ratios.iter().filter(|ratio| **ratio >= FAR_AHEAD).count();
    (ahead >= MIN_ROUNDS && ratios.len() - ahead <= ratios.len() / 5).then_some(ahead)
}

/// True if no read has failed.
fn works(queue: &QueueSamples) -> bool {
    queue.rounds.iter().all(|round| round.rates.iter().all(|rate| *rate > 0.0))
}

/// By what `queue` is clearly better than `taken`, if it is. Both work.
fn advantage(queue: &QueueSamples, taken: &QueueSamples) -> Option<Advantage> {
    let ratios: Vec<[f64; DEPTHS.len()]> = queue
        .rounds
        .iter()
        .zip(&taken.rounds)
        .map(|(ours, theirs)| std::array::from_fn(|depth| ours.rates[depth] / theirs.rates[depth]))
        .collect();
    let is_far = |ratios: &[f64; DEPTHS.len()]| ratios.iter().all(|ratio| *ratio >= FAR_BETTER);
    if ratios.len() >= MIN_FAR_ROUNDS && ratios.iter().all(is_far) {
        return Some(Advantage::Far);
    }
    let disturbed = [disturbed_rounds(queue), disturbed_rounds(taken)];
    let counts = |round: &usize| !disturbed.iter().any(|rounds| rounds[*round]);
    let counted: Vec<_> = (0..ratios.len()).filter(counts).map(|round| ratios[round]).collect();
    let (rounds, in_each) = (counted.len(), means(&counted));
    let is_faster =
        || in_each.iter().all(|mean| *mean > 1.0) && median(in_each.clone()) >= MIN_GAIN;
    if rounds >= MIN_ROUNDS && is_faster() && loses_nowhere(&counted) {
        return Some(Advantage::EachRound(rounds));
    }
    rounds_far_ahead(&means(&ratios)).filter(|_| loses_nowhere(&ratios)).map(Advantage::Ahead)
}

/// The geometric mean over the depths, in each round.
fn means(rounds: &[[f64; DEPTHS.len()]]) -> Vec<f64> {
    let mean = |ratios: &[f64; DEPTHS.len()]| {
        ratios.iter().product::<f64>().powf(1.0 / DEPTHS.len() as f64)
    };
    rounds.iter().map(mean).collect()
}

/// True if no depth's median ratio is a loss.
fn loses_nowhere(rounds: &[[f64; DEPTHS.len()]]) -> bool {
    (0..DEPTHS.len())
        .all(|depth| median(rounds.iter().map(|ratios| ratios[depth]).collect()) >= MAX_LOSS)
}

/// For each round, whether the queue was disturbed in it.
fn disturbed_rounds(queue: &QueueSamples) -> Vec<bool> {
    let medians = queue.medians();
    let is_low = |(rate, median): (&f64, &f64)| *rate < DISTURBED * median;
    queue
        .rounds
        .iter()
        .map(|round| round.is_disturbed || round.rates.iter().zip(&medians).any(is_low))
        .collect()
}

/// The choice in one sentence, with the rates.
pub(crate) fn reason(queues: &[QueueSamples], choice: &Choice) -> String {
    let rates = |queue: &QueueSamples| queue.medians().map(thousands).join(" and ");
    let others = queues.iter().enumerate().filter(|(index, _)| *index != choice.index);
    let others = others.map(|(_, queue)| match works(queue) {
        true => format!("{} {}", queue.kind, rates(queue)),
        false => format!("{} failing", queue.kind),
    });
    let chosen = &queues[choice.index];
    let mut text = format!(
        "{} does {} reads per second at depths {}, against {}",
        chosen.kind,
        rates(chosen),
        DEPTHS.map(|depth| depth.to_string()).join(" and "),
        others.collect::<Vec<_>>().join(", "),
    );
    let product = |queue: &QueueSamples| queue.medians().iter().product::<f64>();
    let is_behind = queues.iter().any(|queue| works(queue) && product(queue) > product(chosen));
    // Writing to a string cannot fail.
    let _ = match choice.over {
        Some((other, Advantage::EachRound(rounds))) => {
            write!(text, "; it was faster than {other} in each of {rounds} rounds")
        }
        Some((other, Advantage::Far)) => {
            write!(text, "; it was at least twice as fast as {other} in every round")
        }
        Some((other, Advantage::Ahead(rounds))) => write!(
            text,
            "; it was at least {FAR_AHEAD} times as fast as {other}, at the mean of the depths, in {rounds} rounds"
        ),
        None if is_behind => write!(
            text,
            "; another queue must be {:.0} % faster, in each of {MIN_ROUNDS} undisturbed rounds or more, or {FAR_AHEAD} \
             times as fast in four of five, and at no depth slower by more than {:.0} %",
            100.0 * (MIN_GAIN - 1.0),
            100.0 * (1.0 - MAX_LOSS),
        ),
        None => Ok(()),
    };
    let rounds = chosen.rounds.len();
    let disturbed: Vec<_> =
        queues.iter().filter(|queue| works(queue)).map(disturbed_rounds).collect();
    let disturbed = (0..rounds).filter(|round| disturbed.iter().any(|queue| queue[*round]));
    match disturbed.count() {
        0 => text,
        1 => text + &format!("; 1 of {rounds} rounds was disturbed"),
        count => text + &format!("; {count} of {rounds} rounds were disturbed"),
    }
}

fn thousands(rate: f64) -> String {
    if rate < 10_000.0 { format!("{rate:.0}") } else { format!("{:.0} k", rate / 1000.0) }
}

#[cfg(test)]
mod tests;
