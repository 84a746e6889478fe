//! Random blocks, some more popular than others: fio's `random_distribution`. A rank is drawn from a
//! Zipf or Pareto distribution, with the formulas of Gray et al., "Quickly generating billion-record
//! synthetic databases" (SIGMOD 1994). Ranks are scattered over the blocks, so that popular blocks do
//! not lie side by side.

use crate::permutation::Scatter;
use crate::random::Random;

/// Draws block numbers; some are more popular than others.
#[derive(Debug, Clone)]
pub struct SkewedDistribution {
    blocks: u64,
    law: Law,
    scatter: Scatter,
}

#[derive(Debug, Clone, Copy)]
enum Law {
    Zipf {
        /// The sum of the weights of all ranks, and of the first two.
        zeta: f64,
        zeta_two: f64,
        eta: f64,
        alpha: f64,
    },
    Pareto {
        power: f64,
    },
}

impl SkewedDistribution {
    /// A Zipf distribution: rank k has the weight `1/k^theta`. `theta` is above 0 and not 1. The seed
    /// decides where the popular blocks lie.
    pub fn zipf(theta: f64, blocks: u64, seed: u64) -> Self {
        let zeta = zeta(blocks, theta);
        let zeta_two = 1.0 + 0.5f64.powf(theta);
        let ratio = (2.0 / blocks as f64).powf(1.0 - theta);
        let eta = (1.0 - ratio) / (1.0 - zeta_two / zeta);
        let law = Law::Zipf { zeta, zeta_two, eta, alpha: 1.0 / (1.0 - theta) };
        Self { blocks, law, scatter: Scatter::new(blocks, seed) }
    }

    /// A Pareto distribution: a share `h` of the blocks gets a share `1 - h` of the draws. `h` is
    /// between 0 and 1.
    pub fn pareto(h: f64, blocks: u64, seed: u64) -> Self {
        let law = Law::Pareto { power: h.ln() / (1.0 - h).ln() };
        Self { blocks, law, scatter: Scatter::new(blocks, seed) }
    }

    /// Draws a block number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.scatter.apply(self.rank(random.unit()))
    }

    /// The rank at a quantile from 0 to 1. Rank 0 is the most popular.
    fn rank(&self, quantile: f64) -> u64 {
        let n = self.blocks as f64;
        let rank = match self.law {
            Law::Zipf { zeta, .. } if quantile * zeta < 1.0 => 0.0,
            Law::Zipf { zeta, zeta_two, .. } if quantile * zeta < zeta_two => 1.0,
            Law::Zipf { eta, alpha, .. } => n * (eta * quantile - eta + 1.0).powf(alpha),
            Law::Pareto { power } => (n - 1.0) * quantile.powf(power),
        };
        // Rounding may give `blocks`, which is out of range.
        (rank as u64).min(self.blocks - 1)
    }
}

/// The sum of `1/i^theta` for i from 1 to `n`: the first terms one by one, the rest by the formula of
/// Euler and Maclaurin. Its error is far below the precision of an f64.
fn zeta(n: u64, theta: f64) -> f64 {
    const TERMS: u64 = 4096;
    let first = n.min(TERMS);
    // The small terms first, for precision.
    let sum: f64 = (1..=first).rev().map(|i| (i as f64).powf(-theta)).sum();
    if first == n {
        return sum;
    }
    let (a, b) = (first as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
    let slopes = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
    sum + integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zeta_formula_equals_the_sum() {
        for (n, theta) in [(1, 1.2), (100, 0.5), (100_000, 0.7), (100_000, 1.2), (1_000_000, 2.5)] {
            let exact: f64 = (1..=n).rev().map(|i| (i as f64).powf(-theta)).sum();
            let found = zeta(n, theta);
            assert!((found / exact - 1.0).abs() < 1e-12, "{n} {theta}: {found} {exact}");
        }
    }

    #[test]
    fn zipf_ranks_have_their_frequencies() {
        const DRAWS: u64 = 200_000;
        let distribution = SkewedDistribution::zipf(1.2, 1000, 1);
        let mut random = Random::new(1);
        let mut counts = [0u64; 2];
        for _ in 0..DRAWS {
            if let Some(count) = counts.get_mut(distribution.rank(random.unit()) as usize) {
                *count += 1;
            }
        }
        // The first two ranks are exact. The others follow an approximate curve.
        let share = |rank: f64| rank.powf(-1.2) / zeta(1000, 1.2) * DRAWS as f64;
        for (rank, count) in counts.into_iter().enumerate() {
            let expected = share(rank as f64 + 1.0);
            assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {count}");
        }
    }

    #[test]
    fn pareto_of_a_fifth_gives_it_four_fifths_of_the_draws() {
        let distribution = SkewedDistribution::pareto(0.2, 1000, 1);
        let mut random = Random::new(1);
        let popular = (0..100_000).filter(|_| distribution.rank(random.unit()) < 200).count();
        assert!(popular.abs_diff(80_000) < 700, "{popular}");
    }

    #[test]
    fn all_of_a_few_blocks_are_drawn_and_no_others() {
        for blocks in 1..6 {
            // The Pareto formula never gives the last of several blocks.
            let pareto =
                (SkewedDistribution::pareto(0.3, blocks, 3), blocks.saturating_sub(1).max(1));
            for (distribution, wanted) in
                [(SkewedDistribution::zipf(1.1, blocks, 3), blocks), pareto]
            {
                let mut random = Random::new(7);
                let mut seen = vec![false; blocks as usize];
                (0..2000).for_each(|_| seen[distribution.draw(&mut random) as usize] = true);
                let count = seen.iter().filter(|seen| **seen).count() as u64;
                assert_eq!(count, wanted, "{:?} over {blocks}", distribution.law);
            }
        }
    }
}
