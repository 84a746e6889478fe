//! Samples of a rate over time. Rates of concurrent threads add up.

use super::Summary;

/// Rate samples of one thread or several. For several, minimum, maximum and mean are sums, as in fio's
/// groups.
#[derive(Debug, Clone, Default)]
pub struct RateSamples {
    /// One summary per thread.
    threads: Vec<Summary>,
}

impl RateSamples {
    /// Adds one sample.
    pub fn record(&mut self, value: u64) {
        if self.threads.is_empty() {
            self.threads.push(Summary::default());
        }
        self.threads[0].record(value);
    }

    /// Adds the samples of threads that ran at the same time.
    pub fn add(&mut self, other: &Self) {
        self.threads.extend_from_slice(&other.threads);
    }

    /// The number of samples of all threads.
    pub fn count(&self) -> u64 {
        self.threads.iter().map(Summary::count).sum()
    }

    /// The minimum; 0 without samples.
    pub fn min(&self) -> u64 {
        self.threads.iter().map(Summary::min).sum()
    }

    /// The maximum; 0 without samples.
    pub fn max(&self) -> u64 {
        self.threads.iter().map(Summary::max).sum()
    }

    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        self.sum_of(Summary::mean)
    }

    /// The standard deviation, if the threads are independent.
    pub fn deviation(&self) -> f64 {
        self.sum_of(|one| one.deviation().powi(2)).sqrt()
    }

    fn sum_of(&self, figure: impl Fn(&Summary) -> f64) -> f64 {
        // `Iterator::sum` of nothing is -0.0, which would be printed with its sign.
        self.threads.iter().map(figure).fold(0.0, |sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[u64]) -> RateSamples {
        let mut samples = RateSamples::default();
        values.iter().for_each(|value| samples.record(*value));
        samples
    }

    #[test]
    fn rates_of_concurrent_threads_add_up() {
        let mut both = samples(&[100, 140]);
        both.add(&samples(&[10, 20, 30]));
        both.add(&RateSamples::default());
        assert_eq!((both.count(), both.min(), both.max()), (5, 110, 170));
        assert_eq!(both.mean(), 140.0);
        assert!((both.deviation() - (800.0_f64 + 100.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn the_mean_without_samples_has_no_sign() {
        let nothing = RateSamples::default();
        assert!(nothing.mean().is_sign_positive() && nothing.deviation().is_sign_positive());
    }
}
