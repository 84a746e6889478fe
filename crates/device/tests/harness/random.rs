//! Repeatable random numbers, and the amount of work of a test. Other crates' tests include this file.

#![allow(dead_code)] // each test uses its own part

/// Scales an amount of work by `PROPTEST_CASES`, of which 256 are usual.
pub fn scaled(usual: usize) -> usize {
    const USUAL_CASES: usize = 256;
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    (usual * cases.unwrap_or(USUAL_CASES) / USUAL_CASES).max(1)
}

/// SplitMix64: the same numbers on every machine.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}
