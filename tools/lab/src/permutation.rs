//! All numbers below `n`, each once, in an order that looks random, in fixed memory. fio uses a bitmap
//! for this. A full-period congruential generator over the next power of two gives the order, a
//! bijective mix hides its pattern, and numbers from `n` on are skipped.

use crate::random::Random;

/// An endless sequence of permutations of `0..length`. Each round has another order.
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    left_in_round: u64,
    state: u64,
    factor: u64,
    increment: u64,
    mix: BijectiveMix,
    random: Random,
}

impl Permutation {
    /// The greatest length.
    pub const MAX_LENGTH: u64 = 1 << 62;

    /// # Panics
    /// If `length` is 0 or above [`Self::MAX_LENGTH`].
    pub fn new(length: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mix = BijectiveMix::new(length, &mut random);
        let mut permutation =
            Self { length, left_in_round: 0, state: 0, factor: 1, increment: 1, mix, random };
        permutation.begin_round();
        permutation
    }

    fn begin_round(&mut self) {
        // Hull and Dobell: modulo 2^k the period is full if the factor is 1 modulo 4 and the
        // increment odd.
        self.factor = (self.random.bits() & !3) | 1;
        self.increment = self.random.bits() | 1;
        self.mix.draw_factors(&mut self.random);
        self.state = self.random.bits() & self.mix.mask;
        self.left_in_round = self.length;
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        if self.left_in_round == 0 {
            self.begin_round();
        }
        self.left_in_round -= 1;
        loop {
            let step = self.state.wrapping_mul(self.factor).wrapping_add(self.increment);
            self.state = step & self.mix.mask;
            let value = self.mix.apply(self.state);
            if value < self.length {
                return value;
            }
        }
    }
}

/// One fixed random permutation of `0..length`.
#[derive(Debug, Clone)]
pub struct Scatter {
    length: u64,
    /// Without the key zero would map to zero.
    key: u64,
    mix: BijectiveMix,
}

impl Scatter {
    /// # Panics
    /// If `length` is 0 or above [`Permutation::MAX_LENGTH`].
    pub fn new(length: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mix = BijectiveMix::new(length, &mut random);
        Self { length, key: random.bits() & mix.mask, mix }
    }

    /// The image of `number`, which must be below the length.
    #[inline]
    pub fn apply(&self, number: u64) -> u64 {
        // A value outside the range is mapped again. Its cycle leads back inside, and no two numbers
        // get one image (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains",
        // 2002).
        let mut value = number;
        loop {
            value = self.mix.apply(value ^ self.key);
            if value < self.length {
                return value;
            }
        }
    }
}

/// A bijection of the numbers below a power of two: multiplication by an odd number and xor with a
/// right shift are both invertible modulo 2^k.
#[derive(Debug, Clone)]
struct BijectiveMix {
    mask: u64,
    shift: u32,
    factors: [u64; 2],
}

impl BijectiveMix {
    /// A mix over the smallest power of two, at least 4, that holds `length` numbers.
    fn new(length: u64, random: &mut Random) -> Self {
        assert!((1..=Permutation::MAX_LENGTH).contains(&length), "length is 0 or above 2^62");
        // The generator has its full period only over four numbers or more.
        let bits = length.next_power_of_two().trailing_zeros().max(2);
        let mut mix = Self { mask: (1 << bits) - 1, shift: bits.div_ceil(2), factors: [1; 2] };
        mix.draw_factors(random);
        mix
    }

    fn draw_factors(&mut self, random: &mut Random) {
        self.factors = [random.bits() | 1, random.bits() | 1];
    }

    #[inline]
    fn apply(&self, mut value: u64) -> u64 {
        value ^= value >> self.shift;
        value = value.wrapping_mul(self.factors[0]) & self.mask;
        value ^= value >> self.shift;
        value = value.wrapping_mul(self.factors[1]) & self.mask;
        value ^ (value >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_round_has_every_number_once(length in 1u64..5000, seed: u64) {
            let mut permutation = Permutation::new(length, seed);
            for _round in 0..2 {
                let mut seen = vec![false; length as usize];
                for _ in 0..length {
                    let number = permutation.next() as usize;
                    prop_assert!(!std::mem::replace(&mut seen[number], true));
                }
            }
        }

        #[test]
        fn no_two_numbers_have_one_image(length in 1u64..5000, seed: u64) {
            let scatter = Scatter::new(length, seed);
            let mut seen = vec![false; length as usize];
            for number in 0..length {
                let place = scatter.apply(number) as usize;
                prop_assert!(!std::mem::replace(&mut seen[place], true));
            }
        }
    }

    #[test]
    fn consecutive_numbers_of_the_order_are_far_apart() {
        let mut permutation = Permutation::new(1 << 18, 3);
        let mut last = permutation.next();
        let mut near = 0;
        for _ in 0..100_000 {
            let next = permutation.next();
            near += u32::from(next.abs_diff(last) < 16);
            last = next;
        }
        // 31 in 262,144 by chance: 12 of 100,000.
        assert!(near < 60, "{near} steps of less than 16");
    }
}
