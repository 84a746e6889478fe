//! The I/O of the disks under the targets during a run, by the kernel's counters: fio's "disk stats". For
//! a partition the whole disk counts. Targets that lie on no disk (memory, a network file system, `null:`
//! and the like) have none.

use super::target::Target;
use rustix::fs::{FileType, major, minor, stat};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The I/O of one disk.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskStats {
    /// The kernel's name of the disk.
    pub name: String,
    /// Completed reads and writes.
    pub requests: [u64; 2],
    /// Reads and writes that the kernel merged into other requests.
    pub merges: [u64; 2],
    /// The sum of the latencies of reads and of writes, in milliseconds.
    pub ticks_ms: [u64; 2],
    /// The sum of the latencies of all requests, queued ones included, in milliseconds.
    pub in_queue_ms: u64,
    /// Percentage of the time in which the disk was busy.
    pub busy: f64,
}

/// The disks under some targets, with their counters at the beginning.
#[derive(Debug)]
pub struct DiskMonitor {
    began: Instant,
    disks: Vec<(PathBuf, DiskCounters)>,
}

impl DiskMonitor {
    /// Reads the counters of the disks under these targets, each disk once.
    pub fn new<'a>(targets: impl Iterator<Item = &'a Target>) -> Self {
        let mut disks: Vec<(PathBuf, DiskCounters)> = Vec::new();
        for target in targets {
            let Some(disk) = disk_of(target) else { continue };
            if disks.iter().any(|(known, _)| *known == disk) {
                continue;
            }
            if let Some(counts) = DiskCounters::read(&disk) {
                disks.push((disk, counts));
            }
        }
        Self { began: Instant::now(), disks }
    }

    /// The I/O since the beginning. A disk that has disappeared is left out.
    pub fn stats(&self) -> Vec<DiskStats> {
        let elapsed_ms = self.began.elapsed().as_secs_f64() * 1000.0;
        let used = |(disk, before): &(PathBuf, DiskCounters)| {
            let name = disk.file_name()?.to_string_lossy().into_owned();
            Some(DiskCounters::read(disk)?.since(before, name, elapsed_ms))
        };
        self.disks.iter().filter_map(used).collect()
    }
}

/// The sysfs directory of a target's disk.
fn disk_of(target: &Target) -> Option<PathBuf> {
    let found = stat(target.path()?).ok()?;
    let number = match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => found.st_rdev,
        // The disk of its server is unknown.
        FileType::Socket => return None,
        _ => found.st_dev,
    };
    let node = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let node = Path::new(&node).canonicalize().ok()?;
    if node.join("partition").exists() { node.parent().map(Path::to_owned) } else { Some(node) }
}

/// The kernel's counters (Documentation/block/stat.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DiskCounters([u64; 11]);

impl DiskCounters {
    fn read(disk: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(disk.join("stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut counts = [0; 11];
        let mut words = text.split_whitespace();
        for count in &mut counts {
            *count = words.next()?.parse().ok()?;
        }
        Some(Self(counts))
    }

    fn since(self, before: &Self, name: String, elapsed_ms: f64) -> DiskStats {
        // The counters are unsigned longs in the kernel, and may wrap.
        let delta = |index: usize| self.0[index].saturating_sub(before.0[index]);
        DiskStats {
            name,
            requests: [delta(0), delta(4)],
            merges: [delta(1), delta(5)],
            ticks_ms: [delta(3), delta(7)],
            in_queue_ms: delta(10),
            busy: (delta(9) as f64 * 100.0 / elapsed_ms.max(1.0)).min(100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_those_of_the_kernel() {
        let before = DiskCounters::parse("1 2 3 4 5 6 7 8 9 10 11 0 0 0 0 0 0\n").unwrap();
        let after = DiskCounters::parse("11 22 0 44 55 66 0 88 1 110 121").unwrap();
        let used = after.since(&before, "vda".into(), 400.0);
        assert_eq!((used.requests, used.merges, used.ticks_ms), ([10, 50], [20, 60], [40, 80]));
        assert_eq!((used.in_queue_ms, used.busy), (110, 25.0));
        assert_eq!(after.since(&before, "vda".into(), 50.0).busy, 100.0);
        assert_eq!(DiskCounters::parse("1 2 3"), None);
    }

    #[test]
    fn targets_on_no_disk_have_no_stats() {
        let targets = ["null:1m", "/proc/version", "/no/such/file"].map(Target::parse);
        assert_eq!(DiskMonitor::new(targets.iter()).stats(), []);
    }
}
