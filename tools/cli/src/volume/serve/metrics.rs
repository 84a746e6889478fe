//! [`Registry`]: what a server shows to Prometheus, and the page with its numbers in Prometheus' text format.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use uringfs::reactor::{Counter, RequestCounts, total};
use uringfs::volume::Statistics;

/// The size of a block in bytes.
const BLOCK: u64 = 4096;

/// Something with numbers.
pub(super) trait Observed: Send + Sync {
    /// Adds its numbers.
    fn observe(&self, page: &mut Page);
}

/// What is observed. Clones are the same. It keeps nothing open: see [`Registry::pause`].
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Vec<Weak<dyn Observed>>>>);

/// The numbers of a page, by their metrics.
#[derive(Default)]
pub(super) struct Page(BTreeMap<Cow<'static, str>, Family>);

struct Family {
    kind: Kind,
    help: &'static str,
    /// The lines without the name.
    samples: Vec<String>,
}

/// A metric. The name of a counter ends in `_total`, that of another one in its unit, if it has one.
pub(super) struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

pub(super) const fn metric(name: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric { name, kind, help }
}

impl Registry {
    /// Shows something from now on, for as long as its owner keeps it.
    pub(super) fn insert<T: Observed + 'static>(&self, observed: &Arc<T>) {
        let observed: Weak<T> = Arc::downgrade(observed);
        let mut all = self.pause();
        all.retain(|observed| observed.strong_count() > 0);
        all.push(observed);
    }

    /// While the guard is held, no page is made: what its owners let go is gone then.
    pub(super) fn pause(&self) -> MutexGuard<'_, Vec<Weak<dyn Observed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of now, as text.
    pub(super) fn page(&self) -> String {
        let mut page = Page::default();
        page.add(&BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.add_counters();
        self.pause().iter().filter_map(Weak::upgrade).for_each(|it| it.observe(&mut page));
        page.text()
    }
}

const BUILD: Metric = metric(
    "uringfs_build_info",
    Kind::Gauge,
    "Always 1. The label has the version of the program.",
);

const REQUESTS: Metric = metric(
    "uringfs_disk_requests_total",
    Kind::Counter,
    "Requests of the clients of a disk that have ended, with those that failed.",
);
const BYTES: Metric = metric(
    "uringfs_disk_bytes_total",
    Kind::Counter,
    "Bytes that the clients of a disk have read and written.",
);
const ERRORS: Metric = metric(
    "uringfs_disk_errors_total",
    Kind::Counter,
    "Requests of the clients of a disk that failed.",
);

const VOLUME_SIZE: Metric = metric("uringfs_volume_size_bytes", Kind::Gauge, "Size of the volume.");
const VOLUME_FREE: Metric =
    metric("uringfs_volume_free_bytes", Kind::Gauge, "Space of the volume that is free.");
const VOLUME_PENDING: Metric = metric(
    "uringfs_volume_pending_bytes",
    Kind::Gauge,
    "Space that is freed, and can be used when requests under way have ended and a commit is durable.",
);
const VOLUME_CATALOG: Metric = metric(
    "uringfs_volume_catalog_bytes",
    Kind::Gauge,
    "Space that the metadata of the volume take.",
);
const VOLUME_COMMITS: Metric =
    metric("uringfs_volume_commits_total", Kind::Counter, "Commits of the volume.");
const VOLUME_COMMITS_IN_PLACE: Metric = metric(
    "uringfs_volume_commits_in_place_total",
    Kind::Counter,
    "Commits that a caller made, and not the commit thread.",
);
const VOLUME_CHECKPOINTS: Metric = metric(
    "uringfs_volume_checkpoints_total",
    Kind::Counter,
    "Checkpoints of the volume's redo log.",
);
const VOLUME_OLDEST_REQUEST: Metric = metric(
    "uringfs_volume_oldest_request_seconds",
    Kind::Gauge,
    "For how long the oldest request to the device has been waiting; 0 if there is none, and on other devices than images of RBD.",
);

impl Page {
    pub(super) fn add(&mut self, metric: &Metric, labels: &[(&str, &str)], value: u64) {
        let mut sample = String::new();
        for (number, (name, text)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(sample, "{before}{name}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = write!(sample, "{end} {value}");
        self.push(metric.name.into(), metric.kind, metric.help, sample);
    }

    /// The numbers of a volume, by the name of its target.
    pub(super) fn add_volume(&mut self, target: &str, found: &Statistics) {
        let labels = [("volume", target)];
        self.add(&VOLUME_SIZE, &labels, found.blocks * BLOCK);
        self.add(&VOLUME_FREE, &labels, found.free_blocks * BLOCK);
        self.add(&VOLUME_PENDING, &labels, found.pending_blocks * BLOCK);
        self.add(&VOLUME_CATALOG, &labels, found.catalog_blocks * BLOCK);
        self.add(&VOLUME_COMMITS, &labels, found.commits);
        self.add(&VOLUME_COMMITS_IN_PLACE, &labels, found.commits_in_place);
        self.add(&VOLUME_CHECKPOINTS, &labels, found.checkpoints);
        let oldest_request = found.oldest_request.unwrap_or_default();
        self.add(&VOLUME_OLDEST_REQUEST, &labels, oldest_request.as_secs());
    }

    /// The requests of a disk, by its labels.
    pub(super) fn add_requests(&mut self, labels: &[(&str, &str)], counts: &RequestCounts) {
        let RequestCounts { reads, writes, flushes, others, .. } = *counts;
        let requests = [("read", reads), ("write", writes), ("flush", flushes), ("other", others)];
        for (operation, number) in requests {
            self.add(&REQUESTS, &[labels, &[("operation", operation)]].concat(), number);
        }
        for (operation, number) in [("read", counts.read_bytes), ("write", counts.written_bytes)] {
            self.add(&BYTES, &[labels, &[("operation", operation)]].concat(), number);
        }
        self.add(&ERRORS, labels, counts.errors);
    }

    /// The counters of all reactors of the process.
    fn add_counters(&mut self) {
        for counter in Counter::ALL {
            let name = format!("uringfs_{}_total", counter.name().replace('.', "_"));
            let sample = format!(" {}", total(*counter));
            self.push(name.into(), Kind::Counter, counter.description(), sample);
        }
    }

    fn push(&mut self, name: Cow<'static, str>, kind: Kind, help: &'static str, sample: String) {
        let new = || Family { kind, help, samples: Vec::new() };
        self.0.entry(name).or_insert_with(new).samples.push(sample);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in &self.0 {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for sample in samples {
                let _ = writeln!(text, "{name}{sample}");
            }
        }
        text
    }
}

/// A value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    impl Observed for Two {
        fn observe(&self, page: &mut Page) {
            page.add(&BUILD, &[("a", "x\"\\\n"), ("b", "")], 7);
        }
    }

    #[test]
    fn samples_of_one_metric_stand_together() {
        let registry = Registry::default();
        let two = Arc::new(Two);
        registry.insert(&two);
        let text = registry.page();
        let lines: Vec<_> = text.lines().skip_while(|line| !line.contains("build_info")).collect();
        assert_eq!(lines[1], "# TYPE uringfs_build_info gauge");
        assert_eq!(lines[3], r#"uringfs_build_info{a="x\"\\\n",b=""} 7"#);
        drop(two);
        assert!(!registry.page().contains("b=\"\""));
    }

    #[test]
    fn each_counter_has_a_name_and_a_description() {
        let text = Registry::default().page();
        for counter in Counter::ALL {
            assert!(counter.description().ends_with('.'), "{counter:?}");
        }
        assert!(text.contains("# HELP uringfs_direct_slow_path_total Operations on the slow path"));
        assert!(text.contains("# TYPE uringfs_direct_slow_path_total counter"));
    }
}
