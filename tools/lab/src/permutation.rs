//! Every number below `n` once, in an order that looks random, in fixed memory: what fio needs a
//! bitmap for. A full-period congruential generator over the next power of two gives the order,
//! an invertible mix hides its pattern, and numbers from `n` on are skipped.

use crate::random::Random;

/// A permutation of `0..length`, endless: after one round another begins, in another order.
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    left: u64,
    mask: u64,
    shift: u32,
    state: u64,
    factor: u64,
    increment: u64,
    mix: [u64; 2],
    random: Random,
}

impl Permutation {
    /// # Panics
    /// If `length` is 0 or above 2^62.
    pub fn new(length: u64, seed: u64) -> Self {
        assert!((1..=1 << 62).contains(&length), "nothing to permute, or too much");
        // The generator has its full period only from four numbers on.
        let bits = length.next_power_of_two().trailing_zeros().max(2);
        let mut permutation = Self {
            length,
            left: 0,
            mask: (1 << bits) - 1,
            shift: bits.div_ceil(2),
            state: 0,
            factor: 1,
            increment: 1,
            mix: [1; 2],
            random: Random::new(seed),
        };
        permutation.begin_round();
        permutation
    }

    fn begin_round(&mut self) {
        // Hull and Dobell: modulo 2^k the period is full if the factor is 1 modulo 4 and the
        // increment odd. Odd multipliers and shifts right are invertible modulo 2^k.
        self.factor = (self.random.bits() & !3) | 1;
        self.increment = self.random.bits() | 1;
        self.mix = [self.random.bits() | 1, self.random.bits() | 1];
        self.state = self.random.bits() & self.mask;
        self.left = self.length;
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.begin_round();
        }
        self.left -= 1;
        loop {
            self.state =
                self.state.wrapping_mul(self.factor).wrapping_add(self.increment) & self.mask;
            let mut value = self.state;
            value ^= value >> self.shift;
            value = value.wrapping_mul(self.mix[0]) & self.mask;
            value ^= value >> self.shift;
            value = value.wrapping_mul(self.mix[1]) & self.mask;
            value ^= value >> self.shift;
            if value < self.length {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_comes_once_a_round(length in 1u64..5000, seed: u64) {
            let mut permutation = Permutation::new(length, seed);
            for _round in 0..2 {
                let mut seen = vec![false; length as usize];
                for _ in 0..length {
                    let number = permutation.next() as usize;
                    prop_assert!(!std::mem::replace(&mut seen[number], true));
                }
            }
        }
    }

    #[test]
    fn neighbours_in_the_order_are_not_neighbours_in_number() {
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
