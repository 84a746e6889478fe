//! How often verdicts are right: comparisons of simulated sides under noise, as `bench compare` stops and judges them.
//!
//! The variable `PROPTEST_CASES` sets the number of comparisons in each row. The table of docs/lab.md is that of
//!
//!     PROPTEST_CASES=20000 cargo test -p uringfs-lab --test verdicts -- --nocapture --test-threads 1

use uringfs_lab::compare::MAX_PAIRS;
use uringfs_lab::gate::FALSE_ALARMS;
use uringfs_lab::stats::{
    MIN_PAIRS, RatioInterval, Stopping, Verdict, pairs_to_find, pooled_deviation, smallest_found,
};

/// The smallest difference that matters, and the difference of sides that differ.
const EFFECT: f64 = 0.05;

/// The most pairs whose comparisons are tried.
const MAX_TRIED_PAIRS: usize = 150;

/// Rates of equal runs one after the other on a virtual machine with two processors while it compiled and tested: 4 KiB
/// reads of `null:`, a quarter of a second each.
const BUSY_MACHINE: &str = include_str!("noise/busy.txt");

/// The same on this machine while it did nothing else.
const IDLE_MACHINE: &str = include_str!("noise/idle.txt");

/// How the logarithms of a machine's speed follow each other, run after run.
#[derive(Clone)]
enum Noise {
    /// Independent and normal.
    Normal(f64),
    /// Independent, with heavy tails: Student's distribution with three degrees of freedom.
    HeavyTails(f64),
    /// Each is 0.8 of the one before, and something new.
    Autocorrelated(f64, f64),
    /// The machine gets slower by as much each run.
    Drift(f64, f64),
    /// As recorded, from a random run on.
    Recorded(Vec<f64>, usize),
}

impl Noise {
    fn recorded(rates: &str) -> Self {
        let logs: Vec<f64> = rates.lines().map(|line| line.parse::<f64>().unwrap().ln()).collect();
        assert!(logs.len() >= 200, "{} runs", logs.len());
        Self::Recorded(logs, 0)
    }

    /// Begins a comparison.
    fn begin(&mut self, random: &mut Random) {
        match self {
            Self::Autocorrelated(_, last) => *last = 0.0,
            Self::Drift(_, runs) => *runs = 0.0,
            Self::Recorded(logs, at) => *at = random.bits() as usize % logs.len(),
            Self::Normal(_) | Self::HeavyTails(_) => {}
        }
    }

    /// The logarithm of the machine's speed in the next run.
    fn next(&mut self, random: &mut Random) -> f64 {
        match self {
            Self::Normal(deviation) => random.normal() * *deviation,
            Self::HeavyTails(deviation) => {
                let squares: f64 = (0..3).map(|_| random.normal().powi(2)).sum();
                // The variance of this distribution is 3.
                random.normal() / (squares / 3.0).sqrt() * *deviation / 3_f64.sqrt()
            }
            Self::Autocorrelated(deviation, last) => {
                *last = *last * 0.8 + random.normal() * *deviation * 0.6;
                *last
            }
            Self::Drift(step, runs) => {
                *runs += 1.0;
                -*step * *runs + random.normal() * 0.01
            }
            Self::Recorded(logs, at) => {
                *at = (*at + 1) % logs.len();
                logs[*at]
            }
        }
    }
}

/// The words of many comparisons.
#[derive(Default, Debug)]
struct Words {
    faster: u32,
    slower: u32,
    no_difference: u32,
    noisy: u32,
    /// Intervals that have the true ratio in them.
    covered: u32,
    pairs: u64,
}

impl Words {
    fn all(&self) -> u32 {
        self.faster + self.slower + self.no_difference + self.noisy
    }

    fn share(&self, count: u32) -> f64 {
        f64::from(count) / f64::from(self.all())
    }
}

/// Compares sides of which `b` has the rate `ratio` of `a`. Without a number of pairs, each comparison ends when its
/// interval is narrow.
fn compare(noise: &Noise, ratio: f64, pairs: Option<usize>, comparisons: u32) -> Words {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut words = Words::default();
    for _ in 0..comparisons {
        let mut noise = noise.clone();
        noise.begin(&mut random);
        let (mut logs, mut again_logs) = (Vec::new(), Vec::new());
        let stopping = if pairs.is_some() { Stopping::Planned } else { Stopping::WhenNarrow };
        let interval = loop {
            // a, a again, b and the control, in random order.
            let mut order = [0, 1, 2, 3];
            (1..4).rev().for_each(|last| order.swap(last, random.bits() as usize % (last + 1)));
            let mut speed = [0.0; 4];
            order.iter().for_each(|member| speed[*member] = noise.next(&mut random));
            logs.push(speed[2] + ratio.ln() - speed[0]);
            again_logs.push(speed[1] - speed[0]);
            match pairs {
                Some(pairs) if logs.len() < pairs => {}
                None if logs.len() < MIN_PAIRS => {}
                _ => {
                    let interval = RatioInterval::of_pairs(&logs, stopping);
                    if pairs.is_some()
                        || interval.is_narrow(EFFECT)
                        || logs.len() >= MAX_PAIRS as usize
                    {
                        break interval;
                    }
                }
            }
        };
        let again = RatioInterval::of_pairs(&again_logs, stopping);
        match Verdict::new(&interval, &again, EFFECT) {
            Verdict::Faster => words.faster += 1,
            Verdict::Slower => words.slower += 1,
            Verdict::NoDifference => words.no_difference += 1,
            Verdict::TooNoisy => words.noisy += 1,
            Verdict::TooFewRuns => unreachable!("every comparison has six pairs"),
        }
        words.covered += u32::from(!interval.excludes(ratio));
        words.pairs += logs.len() as u64;
    }
    words
}

/// The comparisons of each row.
fn comparisons() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(400)
        .max(400)
}

/// A bound for a share whose true value is `share`, that 1 in 30,000 samples passes: four standard deviations.
fn slack(share: f64) -> f64 {
    4.0 * (share * (1.0 - share) / f64::from(comparisons())).sqrt()
}

fn noises() -> Vec<(&'static str, Noise)> {
    vec![
        ("normal, 1 %", Noise::Normal(0.01)),
        ("normal, 3 %", Noise::Normal(0.03)),
        ("normal, 10 %", Noise::Normal(0.10)),
        ("heavy tails, 3 %", Noise::HeavyTails(0.03)),
        ("autocorrelated, 3 %", Noise::Autocorrelated(0.03, 0.0)),
        ("autocorrelated, 10 %", Noise::Autocorrelated(0.10, 0.0)),
        ("drift of 1 % a run", Noise::Drift(0.01, 0.0)),
        ("recorded, idle", Noise::recorded(IDLE_MACHINE)),
        ("recorded, busy", Noise::recorded(BUSY_MACHINE)),
    ]
}

#[test]
fn identical_sides_differ_in_at_most_5_of_100_comparisons() {
    println!(
        "{:22} {:>7} {:>8} {:>8} {:>7}",
        "equal sides", "alarms", "no diff.", "covered", "pairs"
    );
    for (name, noise) in noises() {
        let words = compare(&noise, 1.0, None, comparisons());
        let alarms = words.share(words.faster + words.slower);
        let pairs = words.pairs as f64 / f64::from(words.all());
        println!(
            "{name:22} {:6.1} % {:6.1} % {:6.1} % {pairs:7.1}",
            alarms * 100.0,
            words.share(words.no_difference) * 100.0,
            words.share(words.covered) * 100.0
        );
        assert!(alarms <= 0.05 + slack(0.05), "{name}: {words:?}");
        assert!(words.share(words.covered) >= 0.95 - slack(0.05), "{name}: {words:?}");
    }
}

/// With as many pairs as the noise of a long comparison advises.
#[test]
fn a_slow_down_of_5_percent_is_found_in_95_of_100_comparisons() {
    println!("{:22} {:>7} {:>8} {:>7}", "b is 5 % slower", "found", "covered", "pairs");
    for (name, noise) in noises() {
        let mut random = Random(7);
        let mut pilot = noise.clone();
        pilot.begin(&mut random);
        let mut differences = Vec::new();
        for _ in 0..2000 {
            let mut speed = [(); 4].map(|()| pilot.next(&mut random));
            (1..4).rev().for_each(|last| speed.swap(last, random.bits() as usize % (last + 1)));
            differences.push(speed[0] - speed[1]);
        }
        let pairs = pairs_to_find(EFFECT, &differences).unwrap();
        if pairs > MAX_TRIED_PAIRS {
            println!("{name:22} needs {pairs} pairs");
            continue;
        }
        let words = compare(&noise, 1.0 - EFFECT, Some(pairs), comparisons());
        let (found, covered) = (words.share(words.slower), words.share(words.covered));
        println!("{name:22} {:6.1} % {:6.1} % {pairs:7}", found * 100.0, covered * 100.0);
        assert!(words.faster == 0 || words.share(words.faster) < 0.01, "{name}: {words:?}");
        assert!(found >= 0.95 - slack(0.05), "{name}: {words:?} with {pairs} pairs");
    }
}

/// The rounds of a baseline and of each measurement of a gate, as by default, and the figures that the gate judges: those of four jobs.
const RECORDED_PAIRS: usize = 20;
const GATE_PAIRS: usize = 10;
const FIGURES: usize = 8;

/// A shift lasts for so many rounds, or as long as the measurement.
const SHIFTED_PAIRS: usize = 20;

/// Gates under noise.
struct Gates {
    noise: Noise,
    /// The rounds of the baseline.
    recorded_pairs: usize,
    /// The standard deviation of what the machine adds to all figures of a measurement as a whole, as its other work costs
    /// the jobs more or less than the control.
    shift: f64,
}

struct GateOutcome {
    is_measured_twice: bool,
    fails: bool,
    /// The smallest slow-down of the first figure that the gate claims to find.
    finds: f64,
}

impl Gates {
    /// The series of so many figures, as logarithms of multiples of the control's.
    fn measure(
        &self,
        figures: usize,
        count: usize,
        ratio: f64,
        random: &mut Random,
    ) -> Vec<Vec<f64>> {
        let shifts: Vec<f64> =
            (0..count.div_ceil(SHIFTED_PAIRS)).map(|_| random.normal() * self.shift).collect();
        let mut figure = |_| {
            let mut noise = self.noise.clone();
            noise.begin(random);
            let round = |round: usize| {
                let speed = [noise.next(random), noise.next(random)];
                // The control comes first or last.
                let at = random.bits() as usize & 1;
                speed[at] - speed[1 - at] + ratio.ln() + shifts[round / SHIFTED_PAIRS]
            };
            (0..count).map(round).collect()
        };
        (0..figures).map(&mut figure).collect()
    }

    /// A gate of so many figures, whose program has the rate `ratio` of the recorded one.
    fn gate(&self, figures: usize, ratio: f64, random: &mut Random) -> GateOutcome {
        let error = 2.0 * FALSE_ALARMS / FIGURES as f64;
        let least = (EFFECT / 2.0).ln_1p();
        let recorded = self.measure(figures, self.recorded_pairs, 1.0, random);
        let worse_than_recorded = |now: &[Vec<f64>]| -> Vec<bool> {
            let is_worse = |(recorded, now): (&Vec<f64>, &Vec<f64>)| {
                let interval = RatioInterval::of_separate_runs(recorded, now, error);
                interval.high < 1.0 && -interval.ratio.ln() >= least
            };
            recorded.iter().zip(now).map(is_worse).collect()
        };
        let first = self.measure(figures, GATE_PAIRS, ratio, random);
        let worse = worse_than_recorded(&first);
        let is_measured_twice = worse.contains(&true);
        let fails = is_measured_twice && {
            let second = self.measure(figures, GATE_PAIRS, ratio, random);
            worse.iter().zip(worse_than_recorded(&second)).any(|(first, second)| *first && second)
        };
        let deviation = pooled_deviation(&recorded[0], &first[0]);
        let runs = (self.recorded_pairs, GATE_PAIRS);
        let finds = smallest_found(deviation, runs, error, least);
        GateOutcome { is_measured_twice, fails, finds }
    }
}

/// Gates of a program that has not changed, and of one that is slower by as much as they claim to find.
#[test]
fn gates_fail_for_what_got_slower_and_for_nothing_else() {
    println!(
        "{:31} {:>14} {:>12} {:>8} {:>8}",
        "gates", "measured twice", "false alarms", "finds", "found"
    );
    let gates = |noise, recorded_pairs, shift| Gates { noise, recorded_pairs, shift };
    let mut rows: Vec<_> = noises()
        .into_iter()
        .map(|(name, noise)| (name, gates(noise, RECORDED_PAIRS, 0.0)))
        .collect();
    let shifted = |pairs| gates(Noise::Normal(0.01), pairs, 0.015);
    rows.push(("normal, 1 %, shifted by 1.5 %", shifted(RECORDED_PAIRS)));
    rows.push(("the same, 200 recorded pairs", shifted(200)));
    for (name, gates) in rows {
        let mut random = Random(0x0123_4567_89ab_cdef);
        let count = comparisons();
        let outcomes: Vec<_> = (0..count).map(|_| gates.gate(FIGURES, 1.0, &mut random)).collect();
        let twice = outcomes.iter().filter(|gate| gate.is_measured_twice).count() as u32;
        let alarms = outcomes.iter().filter(|gate| gate.fails).count() as u32;
        let mut smallest: Vec<f64> = outcomes.iter().map(|gate| gate.finds).collect();
        smallest.sort_by(f64::total_cmp);
        let middle = smallest[smallest.len() / 2];
        let slower = 1.0 / (1.0 + middle);
        let found = (0..count).filter(|_| gates.gate(1, slower, &mut random).fails).count() as u32;
        let share = |part: u32| f64::from(part) / f64::from(count);
        println!(
            "{name:31} {:12.2} % {:10.2} % {:6.1} % {:6.1} %",
            share(twice) * 100.0,
            share(alarms) * 100.0,
            middle * 100.0,
            share(found) * 100.0
        );
        // A shifted recording is the same to both measurements: docs/lab.md says how many gates fail by it.
        if gates.shift == 0.0 {
            assert!(
                share(twice) <= FALSE_ALARMS + slack(FALSE_ALARMS),
                "{name}: {twice} of {count}"
            );
            assert!(share(alarms) <= FALSE_ALARMS / 2.0, "{name}: {alarms} of {count}");
            assert!(share(found) >= 0.93 - slack(0.07), "{name}: {found} of {count}");
        }
    }
}

/// xorshift64* (Vigna, 2016).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 1
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 10) as f64 / (1u64 << 53) as f64
    }

    /// A number from the standard normal distribution (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().max(1e-300).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }
}
