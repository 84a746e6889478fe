//! Pseudo-random numbers that repeat from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, good enough to
/// choose faults and latencies, and equal on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An exponential number that is at most `most` in 99 of 100 draws. Of integers, so that it is equal on every machine.
    pub(crate) fn exponential(&mut self, most: u64) -> u64 {
        let uniform = self.next() | 1;
        // The binary logarithm of its inverse, in units of 2^-32, straight between powers of two.
        let zeros = uniform.leading_zeros();
        let mantissa = (uniform << zeros << 1) >> 32;
        let logarithm = (u64::from(zeros + 1) << 32) - mantissa;
        // That of 100.
        const MOST: u128 = (6.643_856 * (1u64 << 32) as f64) as u128;
        (u128::from(logarithm) * u128::from(most) / MOST) as u64
    }

    /// A uniform number from `0..bound`; 0 for an empty range.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_hundred_exponential_numbers_is_beyond_the_most() {
        let mut random = Random::new(3);
        let numbers: Vec<_> = (0..100_000).map(|_| random.exponential(1_000_000)).collect();
        let beyond = |most| numbers.iter().filter(|number| **number > most).count();
        // Of 100,000: with a mean of 1 / ln 100 of the most.
        assert!((900..1100).contains(&beyond(1_000_000)), "{}", beyond(1_000_000));
        assert!((9_000..11_000).contains(&beyond(500_000)), "{}", beyond(500_000));
        let mean = numbers.iter().sum::<u64>() / 100_000;
        assert!((205_000..230_000).contains(&mean), "{mean}");
    }

    #[test]
    fn a_seed_repeats_and_the_bound_holds() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..10).all(|value| draw(1).contains(&value)));
    }
}
