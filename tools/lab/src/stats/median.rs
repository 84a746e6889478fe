//! The median of some values, and its interval.

/// A median and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MedianInterval {
    /// The median of the values; NaN without values.
    pub median: f64,
    /// The lower end; NaN if there are too few values for an interval.
    pub low: f64,
    /// The upper end, or NaN.
    pub high: f64,
}

/// The median; NaN for an empty slice.
pub fn median(values: &[f64]) -> f64 {
    median_of_sorted(&sorted(values))
}

/// The median with its interval by order statistics: as many values are less than its lower end as are greater than its upper end. It
/// covers the true median in at least 95 % of cases, whatever the distribution, and needs six values.
pub fn median_interval(values: &[f64]) -> MedianInterval {
    let sorted = sorted(values);
    let median = median_of_sorted(&sorted);
    match outside(sorted.len()) {
        Some(outside) => MedianInterval {
            median,
            low: sorted[outside],
            high: sorted[sorted.len() - 1 - outside],
        },
        None => MedianInterval { median, low: f64::NAN, high: f64::NAN },
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The number of values outside of either end of the interval; `None` if not even the whole range is one. Each value is below the true
/// median with a probability of one half, so that their number has the binomial distribution.
fn outside(values: usize) -> Option<usize> {
    let mut share = 0.5_f64.powi(i32::try_from(values).ok()?);
    let (mut sum, mut outside) = (0.0, None);
    for below in 0..values / 2 {
        sum += share;
        if 2.0 * sum > 0.05 {
            break;
        }
        outside = Some(below);
        share *= (values - below) as f64 / (below + 1) as f64;
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn five_values_have_no_interval_and_of_six_it_is_the_whole_range() {
        assert_eq!(
            [0, 1, 5, 6, 8, 9, 15, 30].map(outside),
            [None, None, None, Some(0), Some(0), Some(1), Some(3), Some(9)]
        );
        let found = median_interval(&[5.0, 1.0, 4.0, 2.0, 6.0, 3.0]);
        assert_eq!(found, MedianInterval { median: 3.5, low: 1.0, high: 6.0 });
        assert!(median_interval(&[1.0; 5]).low.is_nan());
    }

    #[test]
    fn the_interval_covers_the_true_median_in_95_of_100_cases() {
        const CASES: usize = 4000;
        let mut random = Random::new(11);
        for count in [6, 7, 9, 15] {
            let mut covered = 0;
            for _ in 0..CASES {
                // A skewed distribution whose median is 1/4.
                let values: Vec<f64> = (0..count)
                    .map(|_| (random.below(1 << 32) as f64 / (1u64 << 32) as f64).powi(2))
                    .collect();
                let found = median_interval(&values);
                covered += usize::from(found.low <= 0.25 && 0.25 <= found.high);
            }
            assert!(covered * 1000 >= CASES * 940, "{count} values: {covered} of {CASES}");
        }
    }
}
