//! Why a comparison does not show that the mechanism is faster.

use crate::compare::{FigureComparison, JobComparison};
use crate::stats::{RatioInterval, Verdict, median};

/// Below this share of the time that the threads could compute, the target may limit the rate.
const MAX_WAITING_SHARE: f64 = 0.75;

/// A possible explanation of any answer other than faster, in a sentence; `None` if it is faster, or if there are too
/// few pairs to ask.
///
/// If equal rates leave the processors waiting, the target may limit both, and the CPU time per I/O shows what the mechanism saves.
/// Otherwise `why` may be the reason; it was not measured. A comparison that is too noisy says nothing about the mechanism.
pub(super) fn reason(
    job: &JobComparison,
    threads: u32,
    processors: usize,
    why: &str,
) -> Option<String> {
    match job.verdict {
        Verdict::Faster | Verdict::TooFewRuns => None,
        Verdict::TooNoisy => {
            let RatioInterval { low, high, .. } = job.rate().noise;
            Some(format!(
                "the noise: a / a, of the two runs of a in each pair, is {low:.3} to {high:.3}"
            ))
        }
        Verdict::Slower => Some(format!("possibly: {why}. The costs per I/O stand above")),
        Verdict::NoDifference => {
            let cpu = job.figures.iter().find(|figure| figure.name == "CPU per I/O");
            let waiting = cpu.and_then(|cpu| waiting_line(cpu, job.rate(), threads, processors));
            Some(waiting.unwrap_or_else(|| format!("possibly: {why}")))
        }
    }
}

/// The sentence that the threads of `b` wait for the target; `None` if they compute for most of the time.
fn waiting_line(
    cpu: &FigureComparison,
    rate: &FigureComparison,
    threads: u32,
    processors: usize,
) -> Option<String> {
    let share = computing_share(cpu, rate, threads, processors);
    let [a, b] = [&cpu.a, &cpu.b].map(|sample| cpu.unit.amount(median(sample)));
    (share < MAX_WAITING_SHARE).then(|| {
        format!(
            "possibly: the target limits the rate, as the threads of b compute for {:.0} % of the time. \
             See the CPU per I/O: {a} with a, {b} with b",
            share * 100.0
        )
    })
}

/// The time in which the threads of `b` compute, as a share of the time in which they could.
fn computing_share(
    cpu: &FigureComparison,
    rate: &FigureComparison,
    threads: u32,
    processors: usize,
) -> f64 {
    let computing = median(&cpu.b) * median(&rate.b) / 1e9;
    computing / (threads as usize).min(processors).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Unit;

    fn job(verdict: Verdict, rate: f64, cpu_ns: f64) -> JobComparison {
        let none = RatioInterval { ratio: 1.0, low: 1.0, high: 1.0 };
        let figure = |name: &str, unit, a: f64, b: f64| FigureComparison {
            name: name.into(),
            unit,
            a: vec![a; 6],
            again: Vec::new(),
            b: vec![b; 6],
            control: Vec::new(),
            ratio: none,
            noise: none,
            sign_test: 1.0,
        };
        let figures = vec![
            figure("rate", Unit::PerSecond, rate, rate),
            figure("CPU per I/O", Unit::Nanoseconds, 2.0 * cpu_ns, cpu_ns),
        ];
        let (job, counters) = ("x".into(), [Vec::new(), Vec::new()]);
        JobComparison { job, figures, counters, verdict, more_pairs: None }
    }

    #[test]
    fn a_target_that_takes_longer_hides_what_the_processor_saves() {
        // 16 k/s of 1 us are 1.6 % of a processor.
        let found = reason(&job(Verdict::NoDifference, 16_000.0, 1_000.0), 1, 2, "why");
        let expected = "possibly: the target limits the rate, as the threads of b compute for 2 % of the time. \
                        See the CPU per I/O: 2.00 us with a, 1.00 us with b";
        assert_eq!(found.as_deref(), Some(expected));
    }

    #[test]
    fn a_rate_that_the_processors_limit_may_have_the_reason_of_its_case() {
        let found = reason(&job(Verdict::NoDifference, 900_000.0, 1_000.0), 8, 1, "why");
        assert_eq!(found.as_deref(), Some("possibly: why"));
        // Two processors could compute twice as much.
        let two = reason(&job(Verdict::NoDifference, 900_000.0, 1_000.0), 8, 2, "why").unwrap();
        assert!(two.contains("45 % of the time"), "{two}");
    }

    #[test]
    fn what_is_slower_is_not_limited_by_the_target_on_which_a_was_faster() {
        let found = reason(&job(Verdict::Slower, 16_000.0, 1_000.0), 1, 2, "why");
        assert_eq!(found.as_deref(), Some("possibly: why. The costs per I/O stand above"));
    }

    #[test]
    fn what_is_too_noisy_says_nothing_about_the_mechanism() {
        let mut job = job(Verdict::TooNoisy, 16_000.0, 1_000.0);
        job.figures[0].noise = RatioInterval { ratio: 1.01, low: 0.93, high: 1.125 };
        let found = reason(&job, 1, 2, "why").unwrap();
        assert!(found.starts_with("the noise: ") && found.ends_with("0.930 to 1.125"), "{found}");
    }

    #[test]
    fn what_is_faster_needs_no_reason() {
        for verdict in [Verdict::Faster, Verdict::TooFewRuns] {
            assert_eq!(reason(&job(verdict, 1.0, 1.0), 1, 1, "why"), None);
        }
    }
}
