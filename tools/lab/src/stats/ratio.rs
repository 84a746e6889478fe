//! The ratio of two sides, with an interval that holds for few runs and for noise of any shape.
//!
//! A pair is a run of each side, one after the other in random order. The estimate is the median of the means of any two of
//! the pairs' logarithms (Hodges and Lehmann, 1963), the interval that of Wilcoxon's signed-rank test. It needs no more
//! than a symmetric distribution of the logarithms, and the random order gives equal sides that. Sides that were measured
//! apart have no pairs: their interval is that of the Mann-Whitney test, of all differences between a run of one and a run of the other.

/// The fewest pairs that have a 95 % interval. The true ratio lies between the least and the greatest of five ratios in
/// 94 % of cases (1 - 2/2^5), of six in 97 %.
pub const MIN_PAIRS: usize = 6;

/// Up to this many pairs the distribution of ranks is counted out; above it is normal to three digits.
const MAX_COUNTED_PAIRS: usize = 60;

/// A ratio and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioInterval {
    /// The estimate; NaN without values.
    pub ratio: f64,
    /// The lower end; NaN if there are too few values for an interval.
    pub low: f64,
    /// The upper end, or NaN.
    pub high: f64,
}

/// How the number of pairs was chosen. It decides how wide an interval is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// In advance.
    Planned,
    /// The comparison ended when the interval was narrow. Narrow intervals are too narrow more often than others, so that
    /// each is one of 96.9 % (31 of 32) and covers the true ratio in at least 95 %: docs/lab.md has the study.
    WhenNarrow,
}

impl Stopping {
    /// The share of intervals that may miss the true ratio.
    fn error(self) -> f64 {
        match self {
            Self::Planned => 0.05,
            Self::WhenNarrow => 1.0 / 32.0,
        }
    }
}

impl RatioInterval {
    /// The ratio over pairs, whose logarithms are given.
    pub fn of_pairs(logs: &[f64], stopping: Stopping) -> Self {
        let mut means: Vec<f64> = Vec::with_capacity(logs.len() * (logs.len() + 1) / 2);
        for (index, first) in logs.iter().enumerate() {
            means.extend(logs[index..].iter().map(|second| (first + second) / 2.0));
        }
        let n = logs.len();
        Self::of_ranked(means, signed_rank_bound(n, stopping.error()))
    }

    /// The ratio `b / a` of sides that were measured apart, from the logarithms of their runs. The share `error` of such
    /// intervals may miss the true ratio.
    pub fn of_separate_runs(a: &[f64], b: &[f64], error: f64) -> Self {
        let differences = b.iter().flat_map(|b| a.iter().map(move |a| b - a)).collect();
        Self::of_ranked(differences, rank_sum_bound(a.len(), b.len(), error))
    }

    /// The median of `values`, and the values of which `bound` - 1 are less or greater.
    fn of_ranked(mut values: Vec<f64>, bound: usize) -> Self {
        let none = Self { ratio: f64::NAN, low: f64::NAN, high: f64::NAN };
        // A rate of nothing has no logarithm.
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return none;
        }
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let ratio = ((values[(count - 1) / 2] + values[count / 2]) / 2.0).exp();
        match bound {
            0 => Self { ratio, ..none },
            bound => {
                Self { ratio, low: values[bound - 1].exp(), high: values[count - bound].exp() }
            }
        }
    }

    /// Whether there is an interval, and it excludes this ratio.
    pub fn excludes(&self, ratio: f64) -> bool {
        self.low > ratio || self.high < ratio
    }

    /// Whether the interval is so narrow that it excludes 1, or else every difference of `effect` (0.05 is 5 %).
    pub fn is_narrow(&self, effect: f64) -> bool {
        self.high / self.low <= 1.0 + effect
    }
}

/// The rank, from either end, of the mean of two that ends the interval of `n` pairs; 0 if none does.
fn signed_rank_bound(n: usize, error: f64) -> usize {
    if n > MAX_COUNTED_PAIRS {
        let count = n as f64;
        let mean = count * (count + 1.0) / 4.0;
        let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
        return (mean - normal_quantile(1.0 - error / 2.0) * deviation).floor() as usize;
    }
    // The sum of the ranks of positive differences: each rank counts or does not, by a coin.
    let mut shares = vec![0.0; n * (n + 1) / 2 + 1];
    shares[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..shares.len()).rev() {
            let without = shares[sum];
            let with = sum.checked_sub(rank).map_or(0.0, |rest| shares[rest]);
            shares[sum] = (without + with) / 2.0;
        }
    }
    bound(&shares, error)
}

/// The same for the differences between `n` runs and `m` others.
fn rank_sum_bound(n: usize, m: usize, error: f64) -> usize {
    if n == 0 || m == 0 {
        return 0;
    }
    if n + m > MAX_COUNTED_PAIRS {
        let (a, b) = (n as f64, m as f64);
        let deviation = (a * b * (a + b + 1.0) / 12.0).sqrt();
        return (a * b / 2.0 - normal_quantile(1.0 - error / 2.0) * deviation).floor() as usize;
    }
    // Ways to choose k of the first runs with a sum of ranks above the least: one row for each k.
    let mut ways = vec![vec![0.0; n * m + 1]; n + 1];
    ways[0][0] = 1.0;
    for run in 0..n + m {
        for k in (1..=n.min(run + 1)).rev() {
            // The k-th chosen run has `run - (k - 1)` runs below it that were not chosen.
            let more = run + 1 - k;
            for sum in (more..=n * m).rev() {
                ways[k][sum] += ways[k - 1][sum - more];
            }
        }
    }
    let all: f64 = ways[n].iter().sum();
    let shares: Vec<f64> = ways[n].iter().map(|ways| ways / all).collect();
    bound(&shares, error)
}

/// How many of the least sums are together at most half as likely as `error`.
fn bound(shares: &[f64], error: f64) -> usize {
    let mut total = 0.0;
    let fits = |share: &&f64| {
        total += **share;
        // Shares are sums of powers of two; the last bit may be wrong.
        total <= error / 2.0 + 1e-12
    };
    shares.iter().take_while(fits).count()
}

/// The probability of a sign split at least as uneven, if both signs are equally likely: the sign test, two-sided. Zeros
/// do not count.
pub fn sign_test(logs: &[f64]) -> f64 {
    let positive = logs.iter().filter(|log| **log > 0.0).count();
    let negative = logs.iter().filter(|log| **log < 0.0).count();
    let n = positive + negative;
    // The terms of the binomial distribution, from the uneven end on.
    let mut term = 0.5_f64.powi(n as i32);
    let mut tail = 0.0;
    for k in 0..=positive.min(negative) {
        tail += term;
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    (2.0 * tail).min(1.0)
}

/// How many pairs find a difference of `effect` (0.05 is 5 %) in 95 % of comparisons, with the noise of these pairs.
/// `None` with fewer than two pairs, or without a finite number.
pub fn pairs_to_find(effect: f64, logs: &[f64]) -> Option<usize> {
    // The rank test needs 4.7 % more pairs than one that knows the noise to be normal (Lehmann, Nonparametrics, 1975), and more
    // if there are few. Beyond that, few pairs tell the noise badly: docs/lab.md has what comes of it.
    const MORE: f64 = 1.25;
    const MIN_ADVISED: usize = 8;
    if logs.len() < 2 {
        return None;
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let deviation = (squares / (logs.len() - 1) as f64).sqrt();
    let quantiles = normal_quantile(0.975) + normal_quantile(0.95);
    let pairs = (quantiles * deviation / effect.ln_1p()).powi(2) * MORE;
    pairs.is_finite().then(|| (pairs.ceil() as usize).max(MIN_ADVISED))
}

/// The smallest difference (0.05 is 5 %) that two comparisons of `n` separate runs, each with `m` others, both find in 95 % of cases,
/// if the logarithms have this standard deviation: their intervals, of which the share `error` may miss, exclude 1, and their
/// estimates have logarithms of at least `least`.
pub fn smallest_found(deviation: f64, (n, m): (usize, usize), error: f64, least: f64) -> f64 {
    // The noise is that of these runs alone, and their differences must be rarer than those of a comparison.
    const MORE: f64 = 1.5;
    let spread = deviation * ((1.0 / n as f64 + 1.0 / m as f64) * MORE).sqrt();
    // The comparisons have the `n` runs in common, so that both find a difference somewhat more often.
    let power = normal_quantile(0.95_f64.sqrt()) * spread;
    (normal_quantile(1.0 - error / 2.0) * spread + power).max(least + power).exp_m1()
}

/// The standard deviation of values that two samples have in common, although their means may differ.
pub fn pooled_deviation(a: &[f64], b: &[f64]) -> f64 {
    let squares = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
    };
    let degrees = (a.len() + b.len()).saturating_sub(2).max(1);
    ((squares(a) + squares(b)) / degrees as f64).sqrt()
}

/// The least number of runs whose comparison with `n` others has an interval of which the share `error` may miss; `None` if `n` are so
/// few that a thousand runs have none.
///
/// Even a thousand others have one with two runs or so; one run never has.
pub fn min_runs(n: usize, error: f64) -> Option<usize> {
    const MAX: usize = 1_000;
    (2..=MAX).find(|m| rank_sum_bound(n, *m, error) > 0)
}

/// The quantile of the standard normal distribution, to nine digits, by bisection.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// The share of the standard normal distribution below `x`: half of it, and the integral of the density from 0 by its power
/// series (Abramowitz and Stegun, 26.2.11).
fn normal_share(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x < 0.0 { 0.0 } else { 1.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while f64::abs(term) > 1e-17 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn bounds_are_those_of_the_published_tables() {
        // Wilcoxon and Wilcox (1964), two-sided 5 %: the greatest rank sums that are significant, each plus 1.
        let table = [(5, 0), (6, 1), (7, 3), (8, 4), (9, 6), (10, 9), (15, 26), (20, 53), (25, 90)];
        for (n, expected) in table {
            assert_eq!(signed_rank_bound(n, 0.05), expected, "{n} pairs");
        }
        // Mann and Whitney (1947), as tabulated for two-sided 5 %, each plus 1.
        let table = [(4, 4, 1), (5, 5, 3), (6, 6, 6), (3, 8, 3), (8, 10, 18), (20, 20, 128)];
        for (n, m, expected) in table {
            assert_eq!(rank_sum_bound(n, m, 0.05), expected, "{n} and {m} runs");
            assert_eq!(rank_sum_bound(m, n, 0.05), expected, "{m} and {n} runs");
        }
        assert_eq!((rank_sum_bound(0, 5, 0.05), signed_rank_bound(0, 0.05)), (0, 0));
    }

    #[test]
    fn counted_and_normal_bounds_meet() {
        let at = |n| signed_rank_bound(n, 0.05) as f64;
        let steps = [at(60) - at(59), at(61) - at(60), at(62) - at(61)];
        assert!(steps.iter().all(|step| (20.0..30.0).contains(step)), "{steps:?}");
        let at = |n| rank_sum_bound(n, 30, 0.05) as f64;
        let steps = [at(30) - at(29), at(31) - at(30), at(32) - at(31)];
        assert!(steps.iter().all(|step| (8.0..16.0).contains(step)), "{steps:?}");
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (share, expected) in
            [(0.5, 0.0), (0.95, 1.644_853_6), (0.975, 1.959_964), (0.9995, 3.290_526_7)]
        {
            assert!((normal_quantile(share) - expected).abs() < 1e-6, "{share}");
            assert!((normal_quantile(1.0 - share) + expected).abs() < 1e-6, "{share}");
        }
    }

    #[test]
    fn six_pairs_have_an_interval_from_the_least_to_the_greatest() {
        let logs: Vec<f64> =
            [1.04_f64, 1.01, 0.98, 1.06, 1.02, 1.03].iter().map(|x| x.ln()).collect();
        for stopping in [Stopping::Planned, Stopping::WhenNarrow] {
            let interval = RatioInterval::of_pairs(&logs, stopping);
            assert!((interval.low - 0.98).abs() < 1e-9 && (interval.high - 1.06).abs() < 1e-9);
            assert!((1.02..1.03).contains(&interval.ratio), "{interval:?}");
        }
        let few = RatioInterval::of_pairs(&logs[..5], Stopping::Planned);
        assert!(few.ratio > 1.0 && few.low.is_nan() && !few.excludes(1.0));
    }

    #[test]
    fn an_interval_is_narrow_when_no_difference_of_the_effect_fits_beside_1() {
        let interval = |low, high| RatioInterval { ratio: 1.0, low, high };
        assert!(interval(0.98, 1.025).is_narrow(0.05) && !interval(1.0, 1.051).is_narrow(0.05));
        assert!(!interval(f64::NAN, f64::NAN).is_narrow(0.05));
    }

    #[test]
    fn rates_of_nothing_have_no_ratio() {
        for logs in [&[][..], &[f64::NEG_INFINITY; 8], &[f64::NAN; 8]] {
            let interval = RatioInterval::of_pairs(logs, Stopping::Planned);
            assert!(interval.ratio.is_nan() && interval.low.is_nan(), "{interval:?}");
        }
        assert!(RatioInterval::of_separate_runs(&[], &[1.0], 0.05).ratio.is_nan());
    }

    #[test]
    fn the_sign_test_counts_signs() {
        assert_eq!(sign_test(&[]), 1.0);
        assert_eq!(sign_test(&[0.1, -0.1, 0.0]), 1.0);
        assert_eq!(sign_test(&[0.1; 6]), 2.0 / 64.0);
        // 1 + 8 of 256, twice.
        let one_of_eight = [-1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        assert!((sign_test(&one_of_eight) - 18.0 / 256.0).abs() < 1e-12);
    }

    #[test]
    fn the_advised_pairs_find_the_difference_in_95_of_100_comparisons() {
        let mut random = Random::new(3);
        for deviation in [0.02, 0.05, 0.08] {
            let pilot: Vec<f64> = (0..200).map(|_| normal(&mut random) * deviation).collect();
            let pairs = pairs_to_find(0.05, &pilot).unwrap();
            let found = (0..1000).filter(|_| {
                let logs: Vec<f64> = (0..pairs)
                    .map(|_| 0.05_f64.ln_1p() + normal(&mut random) * deviation)
                    .collect();
                RatioInterval::of_pairs(&logs, Stopping::Planned).low > 1.0
            });
            // Of 1,000 comparisons 950 find it; three standard deviations are 21.
            let found = found.count();
            assert!(found >= 929, "{found} of 1,000 with {pairs} pairs at {deviation}");
        }
        assert_eq!(pairs_to_find(0.05, &[0.1]), None);
        assert_eq!(pairs_to_find(0.05, &[0.0, 0.0]), Some(8));
    }

    #[test]
    fn the_smallest_difference_is_found_twice_in_95_of_100_cases() {
        let mut random = Random::new(9);
        let (error, least) = (0.005, 0.025_f64.ln_1p());
        for deviation in [0.005, 0.02, 0.1] {
            let shift = smallest_found(deviation, (20, 10), error, least).ln_1p();
            let mut runs = |shift: f64, count: usize| -> Vec<f64> {
                (0..count).map(|_| shift + normal(&mut random) * deviation).collect()
            };
            let found = (0..1000).filter(|_| {
                let a = runs(0.0, 20);
                [runs(shift, 10), runs(shift, 10)].iter().all(|b| {
                    let interval = RatioInterval::of_separate_runs(&a, b, error);
                    interval.low > 1.0 && interval.ratio.ln() >= least
                })
            });
            // In 950 of 1,000 cases both find it; three standard deviations are 21.
            let found = found.count();
            assert!(found >= 929, "{found} of 1,000 with {shift} at {deviation}");
            let pooled = pooled_deviation(&runs(0.0, 2000), &runs(1.0, 2000));
            assert!((pooled / deviation - 1.0).abs() < 0.05, "{pooled}");
        }
        assert_eq!(pooled_deviation(&[1.0], &[5.0]), 0.0);
    }

    #[test]
    fn runs_are_enough_when_the_rarest_order_is_rare_enough() {
        // One of 3,003 orders of 10 and 5 runs has all of the 5 at one end, one of 66 of 10 and 2.
        for (share, expected) in [(1.001 / 3_003.0, 5), (1.001 / 66.0, 2), (0.999 / 3_003.0, 6)] {
            assert_eq!(min_runs(10, 2.0 * share), Some(expected));
        }
    }

    #[test]
    fn too_few_runs_have_no_number_of_others_that_is_enough() {
        assert_eq!((min_runs(1, 1e-3), min_runs(2, 1e-9)), (None, None));
        assert!(min_runs(3, 1e-3).is_some());
    }

    #[test]
    fn separate_runs_have_an_interval_that_holds() {
        let mut random = Random::new(5);
        let mut covered = 0;
        for _ in 0..1000 {
            let mut runs =
                |shift: f64| (0..7).map(|_| shift + normal(&mut random)).collect::<Vec<_>>();
            let (a, b) = (runs(0.0), runs(0.3));
            let interval = RatioInterval::of_separate_runs(&a, &b, 0.05);
            covered += u32::from(!interval.excludes(0.3_f64.exp()));
        }
        assert!((930..=985).contains(&covered), "{covered} of 1,000");
    }

    /// A number from the standard normal distribution (Box and Muller, 1958).
    fn normal(random: &mut Random) -> f64 {
        let radius = (-2.0 * random.unit().max(1e-300).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
    }
}
