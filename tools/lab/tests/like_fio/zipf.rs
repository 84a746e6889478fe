//! Compares zipf and pareto with fio's: a chi-square test of the frequency of each rank.

use super::{LoggedIo, fio_ios, our_ios};
use std::collections::HashMap;

const DRAWS: usize = 1_000_000;

/// The number of draws per class of blocks, sorted from the most to the least popular: each of the first
/// sixteen is a class, and each further class has twice as many blocks.
fn classes(keys: &str, draw: fn(&str) -> Vec<LoggedIo>) -> Vec<f64> {
    let keys = format!("rw=randread bs=4k size=256m io_size=4000000k {keys}");
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let all = draw(&keys);
    assert_eq!(all.len(), DRAWS);
    all.iter().for_each(|(_, _, offset, _)| *counts.entry(*offset).or_default() += 1);
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut classes = vec![0.0; 32];
    for (rank, count) in counts.into_iter().enumerate() {
        let class = if rank < 16 { rank } else { 12 + rank.ilog2() as usize };
        classes[class] += count as f64;
    }
    classes
}

/// The chi-square statistic of two samples of equal size, and its degrees of freedom.
fn chi_square(a: &[f64], b: &[f64]) -> (f64, f64) {
    let classes = a.iter().zip(b).filter(|(a, b)| *a + *b >= 10.0);
    let terms: Vec<f64> = classes.map(|(a, b)| (a - b).powi(2) / (a + b)).collect();
    (terms.iter().sum(), terms.len() as f64 - 1.0)
}

/// The bound of chi-square in 9,999 of 10,000 cases (Wilson and Hilferty, 1931).
fn bound(freedom: f64) -> f64 {
    const NORMAL: f64 = 3.719;
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + NORMAL * part.sqrt()).powi(3)
}

#[test]
fn zipf_and_pareto_have_fio_s_distribution() {
    for (keys, other) in [
        ("random_distribution=zipf:1.2", "random_distribution=zipf:1.19"),
        ("random_distribution=zipf:0.8", "random_distribution=zipf:0.81"),
        ("random_distribution=pareto:0.2", "random_distribution=pareto:0.205"),
    ] {
        let fios = classes(keys, fio_ios);
        let (found, freedom) = chi_square(&classes(keys, our_ios), &fios);
        assert!(found < bound(freedom), "{keys}: {found} with {freedom} degrees of freedom");
        let (found, freedom) = chi_square(&classes(other, our_ios), &fios);
        assert!(found > bound(freedom), "{other} is not distinguished from {keys}: {found}");
    }
}
