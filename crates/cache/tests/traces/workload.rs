//! Traces: sequences of accessed folios, generated from a seed.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The last step of SplitMix64: each bit of the result depends on all bits of `key`.
pub fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Independent accesses. The share of the n-th most frequent folio is proportional to n^-alpha.
pub fn zipf(seed: u64, folios: usize, alpha: f64, accesses: usize) -> Vec<u64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=folios)
        .map(|rank| {
            sum += (rank as f64).powf(-alpha);
            sum
        })
        .collect();
    let mut random = Random(seed);
    let mut draw = || {
        let point = random.unit() * sum;
        sums.partition_point(|sum| *sum <= point) as u64
    };
    (0..accesses).map(|_| draw()).collect()
}

/// A hot set. After each `between` accesses to it follows a scan of `scan` folios that are never read again.
pub fn hot_set_and_scans(seed: u64, hot: u64, between: usize, scan: u64, rounds: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let mut trace = Vec::new();
    for round in 0..rounds {
        trace.extend((0..between).map(|_| random.below(hot)));
        let begin = hot + round * scan;
        trace.extend(begin..begin + scan);
    }
    trace
}

/// A hot set, and an endless scan: every second access belongs to the scan.
pub fn hot_set_beside_a_scan(seed: u64, hot: u64, accesses: u64) -> Vec<u64> {
    let mut random = Random(seed);
    (0..accesses).map(|n| if n % 2 == 0 { random.below(hot) } else { hot + n }).collect()
}

/// The same folios in order, again and again.
pub fn looping(folios: u64, accesses: u64) -> Vec<u64> {
    (0..accesses).map(|n| n % folios).collect()
}

/// A hot set that is replaced after each `stay` accesses; a tenth of the accesses go elsewhere.
pub fn shifting(seed: u64, hot: u64, stay: u64, shifts: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let all = hot * (shifts + 1);
    let mut access = |shift: u64| match random.below(10) {
        0 => random.below(all),
        _ => shift * hot + random.below(hot),
    };
    (0..shifts).flat_map(|shift| vec![shift; stay as usize]).map(&mut access).collect()
}

/// A hot set that moves on by one folio after each `stay` accesses.
pub fn drifting(seed: u64, hot: u64, stay: u64, accesses: u64) -> Vec<u64> {
    let mut random = Random(seed);
    (0..accesses).map(|n| n / stay + random.below(hot)).collect()
}

/// The same trace, with each access split into `reads` small reads.
pub fn in_small_reads(trace: &[u64], reads: usize) -> Vec<u64> {
    trace.iter().flat_map(|key| std::iter::repeat_n(*key, reads)).collect()
}
