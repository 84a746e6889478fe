//! The vertical axis of a plot: its range, whether it is logarithmic, and its ticks.

use crate::compare::Unit;

/// Values that are not drawn lie beyond this.
const MAX_VALUE: f64 = 1e18;

/// An axis is logarithmic if its values span as many times the least.
const LOGARITHMIC_SPAN: f64 = 10.0;

/// No axis has more ticks by far.
const MAX_TICKS: f64 = 6.0;

/// Whether a value has a place on an axis.
pub(super) fn is_drawable(value: f64) -> bool {
    value.is_finite() && value.abs() < MAX_VALUE
}

/// The range of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    kind: ScaleKind,
}

/// How distances on an axis grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleKind {
    /// By the difference of values.
    Linear,
    /// By their ratio.
    Logarithmic,
}

impl Scale {
    /// The axis of these values; `None` if none can be drawn.
    pub fn new(values: impl Iterator<Item = f64>) -> Option<Self> {
        const LEAST_LOGARITHMIC: f64 = 1e-9;
        let mut values: Vec<f64> = values.filter(|value| is_drawable(*value)).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        if low > LEAST_LOGARITHMIC && high / low >= LOGARITHMIC_SPAN {
            let more = (high / low).powf(0.05);
            return Some(Self { low: low / more, high: high * more, kind: ScaleKind::Logarithmic });
        }
        let span = high - low;
        let more = match () {
            () if span > (high.abs() * 1e-6).max(1e-12) => span * 0.06,
            // All values are equal.
            () if high.abs() > 1e-12 => high.abs() * 0.05,
            () => 1.0,
        };
        // Values that go down to half of the greatest are seen beside 0.
        let from_zero = low >= 0.0 && (low < high / 2.0 || low < more);
        let low = if from_zero { 0.0 } else { low - more };
        Some(Self { low, high: high + more, kind: ScaleKind::Linear })
    }

    /// Whether it is logarithmic.
    pub fn kind(&self) -> ScaleKind {
        self.kind
    }

    /// Whether it begins at 0, or below.
    pub fn has_zero(&self) -> bool {
        self.low <= 0.0
    }

    /// The place of a value, from 0 to 1 in the range.
    pub fn place(&self, value: f64) -> f64 {
        match self.kind {
            ScaleKind::Linear => (value - self.low) / (self.high - self.low),
            ScaleKind::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// The ticks and their labels. `unit` is `None` for ratios.
    pub fn ticks(&self, unit: Option<Unit>) -> Vec<(f64, String)> {
        match self.kind {
            ScaleKind::Linear => {
                let step = round_step((self.high - self.low) / MAX_TICKS);
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                let greatest = self.high.max(-self.low);
                let tick = |n: i64| n as f64 * step;
                (first..=last).map(|n| (tick(n), label(unit, tick(n), greatest, step))).collect()
            }
            ScaleKind::Logarithmic => {
                let decades = (self.high / self.low).log10();
                let factors: &[f64] = if decades < 2.2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let every = (decades / MAX_TICKS).ceil() as usize;
                let (first, last) = (self.low.log10().floor(), self.high.log10().ceil());
                let powers = (first as i32..=last as i32).step_by(every);
                let ticks = powers.flat_map(|power| {
                    let decade = 10_f64.powi(power);
                    factors.iter().map(move |factor| (factor * decade, decade))
                });
                let inside = ticks.filter(|(tick, _)| (self.low..=self.high).contains(tick));
                inside.map(|(tick, decade)| (tick, label(unit, tick, tick, decade))).collect()
            }
        }
    }
}

/// The next of 1, 2 and 5 and their decimal multiples.
pub(super) fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0];
    decade * factors.into_iter().find(|factor| factor * decade >= least * 0.999).unwrap_or(10.0)
}

/// A tick's label, in the unit that suits `greatest`, with the digits that `step` needs.
fn label(unit: Option<Unit>, tick: f64, greatest: f64, step: f64) -> String {
    let units: &[(f64, &str)] = match unit {
        Some(Unit::PerSecond) => &[(1e6, " M/s"), (1e3, " k/s"), (1.0, " /s")],
        Some(Unit::Nanoseconds) => &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")],
        Some(Unit::PerIo) | None => &[(1.0, "")],
    };
    let fits = |(size, _): &&(f64, &str)| greatest >= *size;
    let (size, name) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1.0, ""));
    let digits = (-((step / size).log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize;
    format!("{:.digits$}{name}", tick / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], unit: Option<Unit>) -> Vec<String> {
        let scale = Scale::new(values.iter().copied()).unwrap();
        scale.ticks(unit).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn near_values_have_a_linear_axis_that_need_not_begin_at_0() {
        let scale = Scale::new([200_000.0, 200_900.0].into_iter()).unwrap();
        assert!(scale.kind() == ScaleKind::Linear && !scale.has_zero());
        assert!(scale.place(200_000.0) > 0.0 && scale.place(200_900.0) < 1.0);
        assert_eq!(
            labels(&[200_000.0, 200_900.0], Some(Unit::PerSecond)),
            ["200.0 k/s", "200.2 k/s", "200.4 k/s", "200.6 k/s", "200.8 k/s"]
        );
        assert!(Scale::new([40.0, 100.0].into_iter()).unwrap().has_zero());
    }

    #[test]
    fn values_of_several_decades_have_a_logarithmic_axis() {
        let unit = Some(Unit::Nanoseconds);
        assert_eq!(labels(&[1_500.0, 40_000.0], unit), ["2 us", "5 us", "10 us", "20 us"]);
        assert_eq!(
            labels(&[900.0, 40_000_000.0], unit),
            ["1 us", "10 us", "100 us", "1 ms", "10 ms"]
        );
        let scale = Scale::new([900.0, 90_000.0].into_iter()).unwrap();
        assert_eq!(scale.kind(), ScaleKind::Logarithmic);
        assert!((scale.place(9_000.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn equal_values_and_zeros_have_an_axis_around_them() {
        assert_eq!(labels(&[1.0; 3], None), ["0.96", "0.98", "1.00", "1.02", "1.04"]);
        assert_eq!(
            labels(&[0.0, 0.0], Some(Unit::PerIo)),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
    }

    #[test]
    fn values_that_are_no_numbers_or_out_of_any_range_are_left_out() {
        for values in [&[][..], &[f64::NAN], &[f64::INFINITY, f64::MAX, f64::NEG_INFINITY]] {
            assert_eq!(Scale::new(values.iter().copied()), None);
        }
        for values in [
            [f64::NAN, 3.0],
            [f64::MIN_POSITIVE, 1e17],
            [-1e17, 1e17],
            [1e-300, 2e-300],
            [1e17, 1e17 + 64.0],
            [1e-8, 1e17],
        ] {
            let scale = Scale::new(values.into_iter()).unwrap();
            let ticks = scale.ticks(None);
            assert!((1..=9).contains(&ticks.len()), "{values:?}: {ticks:?}");
            for (tick, _) in ticks {
                assert!((-0.01..=1.01).contains(&scale.place(tick)), "{values:?}: {tick}");
            }
        }
    }
}
