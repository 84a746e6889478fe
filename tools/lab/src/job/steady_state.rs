//! The criterion by which the rate of a job is steady: fio's `steadystate`.

use std::fmt;

/// The rate to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteadyRate {
    /// I/Os per second.
    Ios,
    /// Bytes per second.
    Bandwidth,
}

/// The measure that must be below the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteadyMeasure {
    /// The greatest distance of a second's rate from the mean.
    Deviation,
    /// The slope of the line through the rates, per second.
    Slope,
}

/// The criterion of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadyState {
    /// The rate to judge.
    pub rate: SteadyRate,
    /// The measure that must be below the limit.
    pub measure: SteadyMeasure,
    /// The limit.
    pub limit: f64,
    /// Whether the limit is a percentage of the mean.
    pub is_percent: bool,
}

impl SteadyState {
    /// fio's name of rate and measure.
    pub fn name(&self) -> &'static str {
        match (self.rate, self.measure) {
            (SteadyRate::Ios, SteadyMeasure::Deviation) => "iops",
            (SteadyRate::Ios, SteadyMeasure::Slope) => "iops_slope",
            (SteadyRate::Bandwidth, SteadyMeasure::Deviation) => "bw",
            (SteadyRate::Bandwidth, SteadyMeasure::Slope) => "bw_slope",
        }
    }

    /// The unit of the limit: a percent sign or nothing.
    pub fn unit(&self) -> &'static str {
        if self.is_percent { "%" } else { "" }
    }
}

impl fmt::Display for SteadyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:.6}{}", self.name(), self.limit, self.unit())
    }
}

/// Parses a criterion such as `iops:0.3%` or `bw_slope:100`.
pub fn steady_state(text: &str) -> Result<SteadyState, String> {
    let bad = || {
        format!("`{text}` is not RATE:LIMIT or RATE:LIMIT%, with iops, iops_slope, bw, bw_slope")
    };
    let (name, limit) = text.split_once(':').ok_or_else(bad)?;
    let (rate, measure) = match name.trim() {
        "iops" => (SteadyRate::Ios, SteadyMeasure::Deviation),
        "iops_slope" => (SteadyRate::Ios, SteadyMeasure::Slope),
        "bw" => (SteadyRate::Bandwidth, SteadyMeasure::Deviation),
        "bw_slope" => (SteadyRate::Bandwidth, SteadyMeasure::Slope),
        _ => return Err(bad()),
    };
    let number = limit.trim().trim_end_matches('%');
    match number.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => {
            Ok(SteadyState { rate, measure, limit: value, is_percent: limit.contains('%') })
        }
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_are_parsed() {
        for (text, shown) in [
            ("iops:0.3%", "iops:0.300000%"),
            ("iops_slope:5", "iops_slope:5.000000"),
            ("bw:2%", "bw:2.000000%"),
            ("bw_slope:0.1%", "bw_slope:0.100000%"),
        ] {
            assert_eq!(steady_state(text).unwrap().to_string(), shown);
        }
        for text in ["", "iops", "iops:", "iops:x", "iops:-1", "iops:inf", "lat:1%"] {
            assert!(steady_state(text).is_err(), "{text}");
        }
    }
}
