//! Makes published job files small enough for a test, for both programs alike: less data, fewer processes, files instead of
//! devices, and no limits of time or rate.

use std::fs::File;
use std::path::Path;

/// The variables of the job files.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    ("FOLDER", "folder"),
    ("MOUNT", "mount"),
    ("HOSTNAME", "host"),
    ("NPROC", "2"),
    ("THREADS", "2"),
];

/// The value of a variable.
pub fn variable(name: &str) -> Option<&'static str> {
    ENVIRONMENT.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// The figures that a job reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Figures {
    /// Those of the published file.
    AsPublished,
    /// All latencies, and none of its own logs.
    All,
}

/// Keys that leave out figures, or write logs of their own.
const FIGURES: [&str; 9] = [
    "gtod_reduce",
    "disable_lat",
    "disable_clat",
    "disable_slat",
    "disable_bw",
    "log_avg_msec",
    "write_bw_log",
    "write_iops_log",
    "write_lat_log",
];

/// The bytes of a job's region, and of a file in place of a device. A sync may take a millisecond; a job with one for each write
/// gets less.
fn most_bytes(name: &str) -> u64 {
    match name {
        "etcd-wal" | "tikv-mixed" | "mysql-fsync" | "ceph-journal" | "zfs-random-readwrite" => {
            1 << 20
        }
        "perfkit-scenarios" | "zfs-sequential-writes" | "vitastor-snapshots" => 2 << 20,
        _ => 4 << 20,
    }
}

/// Whether the file leaves out figures, or has logs of its own.
pub fn leaves_out_figures(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().any(|line| key_and_value(line).is_some_and(|(key, _)| FIGURES.contains(&key)))
}

/// Writes the file as `job.fio` into a folder, with the files that it includes, the folders that it names, and files in place
/// of its devices.
pub fn shrink(path: &Path, folder: &Path, figures: Figures) {
    let most = most_bytes(path.file_stem().unwrap().to_str().unwrap());
    let includes = path.parent().unwrap().join("include");
    std::fs::create_dir(folder.join("include")).unwrap();
    let mut files = vec![(path.to_owned(), folder.join("job.fio"))];
    for entry in std::fs::read_dir(includes).unwrap() {
        let entry = entry.unwrap();
        files.push((entry.path(), folder.join("include").join(entry.file_name())));
    }
    for (from, to) in files {
        let text = std::fs::read_to_string(from).unwrap();
        // fio 3.33 verifies in the first pass only; this program in each, as later ones do.
        let is_verified = text.contains("\nverify=");
        let kept = text.lines().filter(|line| !(is_verified && line.starts_with("loops")));
        let mut lines = String::new();
        for line in kept.filter_map(|line| shrink_line(line, most, figures, folder)) {
            lines += &line;
            lines.push('\n');
        }
        std::fs::write(to, lines).unwrap();
    }
}

/// A line without its comment; `None` if nothing is left.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let line = line.split(['#', ';']).next().unwrap().trim();
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    (!line.is_empty()).then_some((key.trim(), value.trim()))
}

fn shrink_line(line: &str, most: u64, figures: Figures, folder: &Path) -> Option<String> {
    let (key, value) = key_and_value(line)?;
    let set = |value: &str| Some(format!("{key}={value}"));
    let at_most = |most| set(&at_most(value, most));
    match key {
        "runtime" | "timeout" | "time_based" | "ramp_time" | "startdelay" => None,
        // The search for a depth ends by time.
        "latency_target" | "latency_window" | "latency_percentile" | "latency_run" => None,
        // It would end the other jobs at any place.
        "exitall" => None,
        // fio's offsets would differ from run to run.
        "randrepeat" | "allrandrepeat" => None,
        "rate" => set("1g"),
        "rate_iops" => set("100000"),
        "thinktime" => set("10"),
        "cpus_allowed" => set("0"),
        // fio's engine has no disk.
        "ioengine" if value == "null" => Some("ioengine=null\ndisk_util=0".into()),
        "size" | "filesize" | "io_size" => at_most(most),
        "offset" | "offset_increment" => at_most(1 << 20),
        "numjobs" => at_most(4),
        "nrfiles" => at_most(8),
        "loops" => at_most(3),
        "filename" | "directory" => {
            let name = value.rsplit('/').next().unwrap();
            if key == "directory" {
                create_folder(name, folder);
            } else if value.starts_with("/dev/") {
                File::create(folder.join(name)).unwrap().set_len(most).unwrap();
            }
            set(name)
        }
        key if key.starts_with("iodepth") => at_most(32),
        key if FIGURES.contains(&key) && figures == Figures::All => None,
        _ if value.is_empty() => Some(key.to_owned()),
        _ => set(value),
    }
}

fn create_folder(name: &str, folder: &Path) {
    let known = name.strip_prefix("${").and_then(|name| name.strip_suffix('}'));
    let name = known.map_or(name, |name| variable(name).unwrap());
    std::fs::create_dir_all(folder.join(name)).unwrap();
}

/// A number with a suffix, or `most` if that is less. Percentages and variables stay.
fn at_most(value: &str, most: u64) -> String {
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let power = match value[end..].to_ascii_lowercase().as_bytes() {
        [] => 0,
        [letter, ..] => match "kmgt".find(char::from(*letter)) {
            Some(at) => at as u32 + 1,
            None => return value.to_owned(),
        },
    };
    let bytes = value[..end].parse::<u64>().unwrap() << (10 * power);
    if bytes <= most { value.to_owned() } else { most.to_string() }
}
