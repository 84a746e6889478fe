//! A confidence interval for a median: it holds 95 % of the medians of samples that are drawn, with
//! replacement, from the measured values (Efron's percentile bootstrap). The seed is fixed.

use crate::random::Random;

/// The fewest values that have an interval. The true median lies between the least and the greatest of
/// five values in at most 94 % of cases (1 - 2/2^5), of six in 97 %.
pub const MIN_VALUES: usize = 6;

/// A median and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MedianInterval {
    /// The median of the values.
    pub median: f64,
    /// 2.5 % of the drawn medians are below it; NaN with fewer than [`MIN_VALUES`].
    pub low: f64,
    /// 2.5 % of the drawn medians are above it; NaN with fewer than [`MIN_VALUES`].
    pub high: f64,
}

/// The median; NaN for an empty slice.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The median with its 95 % interval.
pub fn median_interval(values: &[f64], seed: u64) -> MedianInterval {
    const DRAWS: usize = 2000;
    if values.len() < MIN_VALUES {
        return MedianInterval { median: median(values), low: f64::NAN, high: f64::NAN };
    }
    let mut random = Random::new(seed);
    let mut sample = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            sample.fill_with(|| values[random.below(values.len() as u64) as usize]);
            sample.sort_by(f64::total_cmp);
            median_of_sorted(&sample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[(share * (DRAWS - 1) as f64).round() as usize];
    MedianInterval { median: median(values), low: at(0.025), high: at(0.975) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_interval_covers_the_true_median_in_95_of_100_cases() {
        let mut random = Random::new(11);
        let mut covered = 0;
        for seed in 0..300 {
            let sample: Vec<f64> = (0..15).map(|_| random.below(1_000_000) as f64 / 1e6).collect();
            let MedianInterval { median, low, high } = median_interval(&sample, seed);
            assert!(low <= median && median <= high);
            covered += u32::from((low..=high).contains(&0.5));
        }
        assert!((270..=300).contains(&covered), "{covered} of 300");
    }

    #[test]
    fn fewer_than_six_values_have_a_median_and_no_interval() {
        let few = median_interval(&[1.0, 3.0, 2.0, 5.0, 4.0], 1);
        assert!(few.median == 3.0 && few.low.is_nan() && few.high.is_nan());
        let enough = median_interval(&[1.0, 3.0, 2.0, 5.0, 4.0, 6.0], 1);
        assert!(enough.low <= enough.median && enough.median <= enough.high);
    }

    #[test]
    fn one_seed_gives_one_interval() {
        let values = [1.1, 1.2, 0.9, 1.0, 1.3, 1.1, 1.05];
        assert_eq!(median_interval(&values, 5), median_interval(&values, 5));
    }
}
