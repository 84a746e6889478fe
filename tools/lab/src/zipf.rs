//! Blocks of which some are asked for more often than others: fio's `random_distribution`. A rank
//! is drawn by Zipf's or Pareto's law, with the formulas of Gray et al., "Quickly generating
//! billion-record synthetic databases" (SIGMOD 1994), and ranks are scattered over the blocks, so
//! that the popular ones do not lie side by side.

use crate::permutation::Scatter;
use crate::random::Random;

/// Draws block numbers.
#[derive(Debug, Clone)]
pub struct SkewedDistribution {
    blocks: u64,
    law: Law,
    scatter: Scatter,
}

#[derive(Debug, Clone, Copy)]
enum Law {
    Zipf {
        /// The sum of all ranks' weights, and of the first two.
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
    /// Zipf's law: the k-th rank comes as often as `1/k^theta` says. `theta` is above 0 and not 1;
    /// the seed decides where the popular blocks lie.
    pub fn zipf(theta: f64, blocks: u64, seed: u64) -> Self {
        let zeta = zeta(blocks, theta);
        let zeta_two = 1.0 + 0.5f64.powf(theta);
        let ratio = (2.0 / blocks as f64).powf(1.0 - theta);
        let eta = (1.0 - ratio) / (1.0 - zeta_two / zeta);
        let law = Law::Zipf { zeta, zeta_two, eta, alpha: 1.0 / (1.0 - theta) };
        Self { blocks, law, scatter: Scatter::new(blocks, seed) }
    }

    /// Pareto's law: of the draws all but a share of `h`, between 0 and 1, go to that share of the
    /// blocks.
    pub fn pareto(h: f64, blocks: u64, seed: u64) -> Self {
        let law = Law::Pareto { power: h.ln() / (1.0 - h).ln() };
        Self { blocks, law, scatter: Scatter::new(blocks, seed) }
    }

    /// The next block.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        self.scatter.apply(self.rank(random.unit()))
    }

    /// The rank at `quantile` of the way through all draws, the most popular rank being 0.
    fn rank(&self, quantile: f64) -> u64 {
        let n = self.blocks as f64;
        let rank = match self.law {
            Law::Zipf { zeta, .. } if quantile * zeta < 1.0 => 0.0,
            Law::Zipf { zeta, zeta_two, .. } if quantile * zeta < zeta_two => 1.0,
            Law::Zipf { eta, alpha, .. } => n * (eta * quantile - eta + 1.0).powf(alpha),
            Law::Pareto { power } => (n - 1.0) * quantile.powf(power),
        };
        // Rounding may reach the end.
        (rank as u64).min(self.blocks - 1)
    }
}

/// The sum of `1/i^theta` for i from 1 to `n`: term by term at first, then by the formula of Euler
/// and Maclaurin, whose error is far below what an f64 keeps of the sum.
fn zeta(n: u64, theta: f64) -> f64 {
    const TERMS: u64 = 4096;
    let first = n.min(TERMS);
    // The small ones first, for the sake of precision.
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
    fn the_short_way_to_zeta_is_the_long_way() {
        for (n, theta) in [(1, 1.2), (100, 0.5), (100_000, 0.7), (100_000, 1.2), (1_000_000, 2.5)] {
            let exact: f64 = (1..=n).rev().map(|i| (i as f64).powf(-theta)).sum();
            let found = zeta(n, theta);
            assert!((found / exact - 1.0).abs() < 1e-12, "{n} {theta}: {found} {exact}");
        }
    }

    #[test]
    fn ranks_are_as_frequent_as_their_law_says() {
        const DRAWS: u64 = 200_000;
        let distribution = SkewedDistribution::zipf(1.2, 1000, 1);
        let mut random = Random::new(1);
        let mut counts = [0u64; 2];
        for _ in 0..DRAWS {
            if let Some(count) = counts.get_mut(distribution.rank(random.unit()) as usize) {
                *count += 1;
            }
        }
        // The first two ranks are exact; the others follow a curve laid through them.
        let share = |rank: f64| rank.powf(-1.2) / zeta(1000, 1.2) * DRAWS as f64;
        for (rank, count) in counts.into_iter().enumerate() {
            let expected = share(rank as f64 + 1.0);
            assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {count}");
        }
    }

    #[test]
    fn pareto_with_a_fifth_gives_a_fifth_of_the_blocks_four_fifths_of_the_draws() {
        let distribution = SkewedDistribution::pareto(0.2, 1000, 1);
        let mut random = Random::new(1);
        let popular = (0..100_000).filter(|_| distribution.rank(random.unit()) < 200).count();
        assert!(popular.abs_diff(80_000) < 700, "{popular}");
    }

    #[test]
    fn few_blocks_are_all_drawn_and_no_other() {
        for blocks in 1..6 {
            // Pareto's formula never reaches the last of several.
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
