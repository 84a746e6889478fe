//! The word at the end of a comparison.

use super::ratio::{MIN_PAIRS, RatioInterval};
use std::fmt;

/// The answer to "is `b` faster than `a`?"
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval lies above 1, and equal sides differ less.
    Faster,
    /// The interval lies below 1, and equal sides differ less.
    Slower,
    /// Otherwise: the interval has no difference as large as the smallest that matters.
    NoDifference,
    /// Neither.
    TooNoisy,
    /// There are fewer pairs than an interval needs.
    TooFewRuns,
}

impl Verdict {
    /// Judges the ratio `b / a` of a rate. `noise` is the ratio of `a` to itself, measured in the same pairs; `effect` is the
    /// smallest difference that matters: 0.05 is 5 %.
    pub fn new(ratio: &RatioInterval, noise: &RatioInterval, effect: f64) -> Self {
        if ratio.low.is_nan() {
            return Self::TooFewRuns;
        }
        let (least, most) = ((-effect.ln_1p()).exp(), 1.0 + effect);
        // False also without runs for the noise.
        let within_noise = ratio.ratio.ln().abs() <= noise.ratio.ln().abs();
        match () {
            () if ratio.low > 1.0 && !within_noise => Self::Faster,
            () if ratio.high < 1.0 && !within_noise => Self::Slower,
            () if ratio.low >= least && ratio.high <= most => Self::NoDifference,
            () => Self::TooNoisy,
        }
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference shown",
            Self::TooNoisy => "too noisy to say",
            Self::TooFewRuns => "too few runs to say",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewRuns => {
                write!(f, "{}: an interval needs {MIN_PAIRS} of each side", self.name())
            }
            _ => f.write_str(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> RatioInterval {
        RatioInterval { ratio: (low * high).sqrt(), low, high }
    }

    #[test]
    fn each_word_has_its_case() {
        let quiet = interval(0.99, 1.0101);
        let noisy = interval(0.90, 0.97);
        for (low, high, noise, expected) in [
            (1.02, 1.06, quiet, Verdict::Faster),
            (0.94, 0.99, quiet, Verdict::Slower),
            (0.98, 1.03, quiet, Verdict::NoDifference),
            (1.001, 1.004, quiet, Verdict::Faster),
            // Equal sides differ more.
            (1.001, 1.004, noisy, Verdict::NoDifference),
            (1.02, 1.08, noisy, Verdict::TooNoisy),
            (0.93, 1.02, quiet, Verdict::TooNoisy),
            (f64::NAN, f64::NAN, quiet, Verdict::TooFewRuns),
        ] {
            assert_eq!(
                Verdict::new(&interval(low, high), &noise, 0.05),
                expected,
                "{low} to {high}"
            );
        }
    }

    #[test]
    fn a_comparison_without_noise_runs_is_judged_by_its_interval() {
        let none = interval(f64::NAN, f64::NAN);
        assert_eq!(Verdict::new(&interval(1.01, 1.02), &none, 0.05), Verdict::Faster);
    }
}
