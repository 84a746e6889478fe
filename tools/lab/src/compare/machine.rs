//! The state of the machine that a comparison depends on: other load, frequencies, the clock.

use crate::run::clock::exact_ns;
use std::fs::read_to_string;

/// The machine during a comparison.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The model of the processors, as the kernel names it; empty if it has no name.
    pub model: String,
    /// Processors that are online.
    pub processors: usize,
    /// The frequency governors of the processors; empty if the kernel does not set frequencies.
    pub governors: Vec<String>,
    /// The kernel's clock source.
    pub clock_source: String,
    /// Nanoseconds of a reading of the clock. A run that measures latencies reads it twice an I/O.
    pub clock_ns: u64,
    /// The load average of the minute before.
    pub load_before: f64,
    /// The share of time that the hypervisor gave to others while the processors of this guest were to run; from 0 to 1.
    pub stolen: f64,
    times_before: Option<ProcessorTimes>,
}

/// Ticks of all processors since boot.
#[derive(Debug, Clone, Copy)]
struct ProcessorTimes {
    all: u64,
    stolen: u64,
}

impl Machine {
    /// The machine before the first run.
    pub fn before() -> Self {
        let line = |path: &str| read_to_string(path).unwrap_or_default().trim().to_owned();
        let load = line("/proc/loadavg");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            model: model_of(&line("/proc/cpuinfo")),
            processors,
            governors: governors(processors),
            clock_source: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            clock_ns: clock_ns(),
            load_before: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            stolen: 0.0,
            times_before: times(),
        }
    }

    /// Reads what happened since then.
    pub fn finish(&mut self) {
        if let (Some(before), Some(now)) = (self.times_before, times()) {
            let all = now.all.saturating_sub(before.all);
            self.stolen = now.stolen.saturating_sub(before.stolen) as f64 / all.max(1) as f64;
        }
    }

    /// Conditions that make a comparison worse, one line each.
    pub fn warnings(&self) -> Vec<String> {
        const MAX_LOAD: f64 = 0.5;
        const MAX_STOLEN: f64 = 0.01;
        const MAX_CLOCK_NS: u64 = 200;
        let mut lines = Vec::new();
        if self.load_before > MAX_LOAD {
            lines.push(format!(
                "other programs were running: the load average before was {}",
                self.load_before
            ));
        }
        if let Some(governor) = self.governors.iter().find(|governor| *governor != "performance") {
            lines.push(format!(
                "the frequency governor is {governor}; cpupower frequency-set -g performance makes it steady"
            ));
        }
        if self.clock_ns > MAX_CLOCK_NS {
            lines.push(format!(
                "reading the clock takes {} ns (clock source {}); gtod_reduce=1 leaves most readings out",
                self.clock_ns, self.clock_source
            ));
        }
        if self.stolen > MAX_STOLEN {
            lines.push(format!(
                "the hypervisor took {:.1} % of the processors' time for others",
                self.stolen * 100.0
            ));
        }
        lines
    }
}

/// The first model in /proc/cpuinfo.
fn model_of(info: &str) -> String {
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    model.and_then(|line| line.split_once(": ")).map_or(String::new(), |(_, name)| name.into())
}

/// The governors in use, each once.
fn governors(processors: usize) -> Vec<String> {
    let of = |cpu| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        read_to_string(path).ok().map(|name| name.trim().to_owned())
    };
    let mut names: Vec<String> = (0..processors).filter_map(of).collect();
    names.sort();
    names.dedup();
    names
}

/// The median of short series of readings, so that an interruption does not count.
fn clock_ns() -> u64 {
    const SERIES: usize = 15;
    const READINGS: u64 = 100;
    let mut series = [0; SERIES];
    for ns in &mut series {
        let begin = exact_ns();
        for _ in 0..READINGS {
            std::hint::black_box(exact_ns());
        }
        *ns = (exact_ns() - begin) / READINGS;
    }
    series.sort_unstable();
    series[SERIES / 2]
}

fn times() -> Option<ProcessorTimes> {
    times_of(&read_to_string("/proc/stat").ok()?)
}

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
fn times_of(stat: &str) -> Option<ProcessorTimes> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    Some(ProcessorTimes { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let times = times_of("cpu  10 20 30 40 0 0 0 25 7 7\ncpu0 1\n").unwrap();
        assert_eq!((times.all, times.stolen), (125, 25));
        assert!(times_of("cpu 1 2").is_none() && times_of("").is_none());
        let mut machine = Machine::before();
        machine.finish();
        assert!((0.0..=1.0).contains(&machine.stolen) && machine.clock_ns < 1_000_000);
    }

    #[test]
    fn the_model_is_the_first() {
        let info = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: A B @ 2 GHz\nmodel name\t: C\n";
        assert_eq!((model_of(info).as_str(), model_of("cpu: 1").as_str()), ("A B @ 2 GHz", ""));
    }

    #[test]
    fn each_bad_condition_has_a_line() {
        let good = Machine {
            model: "a processor".into(),
            processors: 2,
            governors: vec!["performance".into()],
            clock_source: "tsc".into(),
            clock_ns: 30,
            load_before: 0.1,
            stolen: 0.0,
            times_before: None,
        };
        assert!(good.warnings().is_empty());
        let bad = Machine {
            governors: vec!["powersave".into()],
            clock_source: "hpet".into(),
            clock_ns: 900,
            load_before: 1.5,
            stolen: 0.1,
            ..good
        };
        let lines = bad.warnings();
        assert_eq!(lines.len(), 4);
        for (line, part) in lines.iter().zip(["load average", "powersave", "hpet", "10.0 %"]) {
            assert!(line.contains(part), "{line}");
        }
    }
}
