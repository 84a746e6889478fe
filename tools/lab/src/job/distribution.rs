//! The distribution of random offsets.

/// The distribution of random offsets: fio's `random_distribution`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Each block is equally likely.
    Uniform,
    /// Zipf, with this exponent.
    Zipf(f64),
    /// Pareto: a share `h` of the blocks gets a share `1 - h` of the draws.
    Pareto(f64),
    /// Uniform in each of the zones of the job's options, which have percentages.
    Zoned,
}
