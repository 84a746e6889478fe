//! How random offsets are distributed.

/// How random offsets are drawn: fio's `random_distribution`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Every block as likely as any other.
    Uniform,
    /// By Zipf's law with this exponent.
    Zipf(f64),
    /// By Pareto's law: this share of the blocks takes all but this share of the draws.
    Pareto(f64),
}
