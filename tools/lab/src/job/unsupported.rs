//! fio's keys that the lab does not have, each with the reason or the way to do the same. The message
//! about an unknown key names them.

use super::keys::KEYS;
use super::nearest::nearest;

const ZONES: &str = "zones of devices are not supported; give offset= and size=";
const BLOCK_TRACES: &str = "merge the traces before; read_iolog replays one for each thread";
const VERIFY_STATE: &str = "verify_only reads back what an earlier run has written";
const LAYOUT: &str = "missing files are always laid out before the run";
const HISTOGRAM_LOGS: &str = "--output-format=json+ has the histogram of the run";
const LOGS: &str = "logs are text, with times since the beginning of the job";
const TRIMS: &str = "rw=trimwrite trims each block before it is written";
const DEDUPE: &str = "refill_buffers gives every block other bytes";
const CGROUPS: &str = "run the program in a control group: systemd-run --scope";
const FLOWS: &str = "give each job a rate";
const IONICE: &str = "prio and prioclass are those of all I/O of a job";
const NUMA: &str = "run the program with numactl";

/// The keys, each with what to do instead.
#[rustfmt::skip]
pub static UNSUPPORTED: &[(&str, &str)] = &[
    ("wait_for", "stonewall waits for all earlier jobs"),
    ("lockfile", "files are not locked against other jobs"),
    ("unique_filename", "give filename or filename_format"),
    ("opendir", "name the files with filename"),
    ("bs_unaligned", "block sizes are multiples of the smallest"),
    ("blocksize_unaligned", "block sizes are multiples of the smallest"),
    ("bs_is_seq_rand", "give two jobs, one random and one sequential"),
    ("ignore_error", "a job ends with its first error"),
    ("continue_on_error", "a job ends with its first error"),
    ("error_dump", "errors are always printed"),
    ("exitall_on_error", "exitall ends a group with its first job"),
    ("exit_what", "exitall ends the jobs of the group"),
    ("rw_sequencer", "percentage_random mixes random and sequential I/O"),
    ("serialize_overlap", "without norandommap no two I/Os of a pass overlap"),
    ("io_submit_mode", "the thread of a job submits its I/O"),
    ("fill_device", "give size="),
    ("write_barrier", "fsync and sync order writes"),
    ("atomic", "the target decides which writes are atomic"),
    ("verify_interval", "each block of the smallest size has a header"),
    ("verify_offset", "headers begin a block"),
    ("verify_async_cpus", "the thread of a job verifies its reads"),
    ("verify_backlog_batch", "verify_backlog reads back all writes"),
    ("experimental_verify", "a pass is always read back by repeating its order"),
    ("verify_state_load", VERIFY_STATE),
    ("verify_state_save", VERIFY_STATE),
    ("trim_percentage", TRIMS),
    ("trim_verify_zero", TRIMS),
    ("trim_backlog", TRIMS),
    ("trim_backlog_batch", TRIMS),
    ("read_iolog_chunked", "a trace is read before the run"),
    ("merge_blktrace_file", BLOCK_TRACES),
    ("merge_blktrace_scalars", BLOCK_TRACES),
    ("merge_blktrace_iters", BLOCK_TRACES),
    ("exec_prerun", "run the command before this program"),
    ("exec_postrun", "run the command after this program"),
    ("ioscheduler", "write to /sys/block/NAME/queue/scheduler"),
    ("zonemode", ZONES),
    ("zonesize", ZONES),
    ("zonecapacity", ZONES),
    ("zonerange", ZONES),
    ("zoneskip", ZONES),
    ("read_beyond_wp", ZONES),
    ("max_open_zones", ZONES),
    ("job_max_open_zones", ZONES),
    ("ignore_zone_limits", ZONES),
    ("zone_reset_threshold", ZONES),
    ("zone_reset_frequency", ZONES),
    ("lockmem", "limit the memory of a control group: systemd-run --scope -p MemoryMax="),
    ("nice", "run the program with nice"),
    ("cmdprio", IONICE),
    ("cmdprio_class", IONICE),
    ("cmdprio_percentage", "all I/O of a job has one priority"),
    ("cmdprio_bssplit", "all I/O of a job has one priority"),
    ("rate_min", "compare the rates of the report"),
    ("rate_iops_min", "compare the rates of the report"),
    ("rate_cycle", "a rate holds over the whole run"),
    ("rate_ignore_thinktime", "a rate catches up after a thinktime"),
    ("write_hint", "no hints are given to the device"),
    ("create_only", LAYOUT),
    ("allow_file_create", LAYOUT),
    ("allow_mounted_write", "a device in use is never overwritten"),
    ("cpumask", "give cpus_allowed"),
    ("numa_cpu_nodes", NUMA),
    ("numa_mem_policy", NUMA),
    ("unlink_each_loop", "unlink removes the files at the end"),
    ("write_hist_log", HISTOGRAM_LOGS),
    ("per_job_logs", "each thread has logs of its own"),
    ("log_entries", LOGS),
    ("log_hist_msec", HISTOGRAM_LOGS),
    ("log_hist_coarseness", HISTOGRAM_LOGS),
    ("log_prio", LOGS),
    ("log_compression", LOGS),
    ("log_compression_cpus", LOGS),
    ("log_store_compressed", LOGS),
    ("log_unix_epoch", LOGS),
    ("log_alternate_epoch", LOGS),
    ("log_alternate_epoch_clock_id", LOGS),
    ("bwavgtime", "samples are half a second long"),
    ("iopsavgtime", "samples are half a second long"),
    ("block_error_percentiles", "a job ends with its first error"),
    ("stats", "every job is in the report"),
    ("significant_figures", "the JSON has all digits"),
    ("dedupe_percentage", DEDUPE),
    ("dedupe_mode", DEDUPE),
    ("dedupe_working_set_percentage", DEDUPE),
    ("dedupe_global", DEDUPE),
    ("gtod_cpu", "gtod_reduce saves the readings of the clock"),
    ("profile", "give a job file"),
    ("cgroup", CGROUPS),
    ("cgroup_nodelete", CGROUPS),
    ("cgroup_weight", CGROUPS),
    ("uid", "run the program as that user"),
    ("gid", "run the program as that group"),
    ("kb_base", "k is 1024, as by fio's default"),
    ("unit_base", "rates are in bytes"),
    ("hugepage-size", "buffers are not in huge pages"),
    ("flow_id", FLOWS),
    ("flow", FLOWS),
    ("flow_sleep", FLOWS),
];

/// The message about a word that is no key: why a key of fio is not supported, or the nearest key.
pub fn explain(word: &str) -> String {
    // A line that is not a key may be very long, or hold control characters.
    let shown: String = word.chars().take(80).collect();
    let shown = shown.escape_debug();
    let own =
        KEYS.iter().flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()));
    let near = nearest(word, own.chain(UNSUPPORTED.iter().map(|(name, _)| *name)));
    let instead = |name: &str| UNSUPPORTED.iter().find(|(known, _)| *known == name);
    match near.map(|near| (near, instead(near))) {
        None => format!("unknown key `{shown}`"),
        Some((near, None)) => format!("unknown key `{shown}`; the nearest is `{near}`"),
        Some((near, Some((_, why)))) if near == word => {
            format!("fio's key `{near}` is not supported: {why}")
        }
        Some((near, Some((_, why)))) => {
            format!("unknown key `{shown}`; the nearest is fio's `{near}`, not supported: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::find_key;
    use super::*;

    #[test]
    fn no_supported_key_is_called_unsupported() {
        for (name, why) in UNSUPPORTED {
            assert!(find_key(name).is_none(), "{name}");
            assert!(!why.is_empty() && why.len() < 80, "{name}: {why}");
        }
    }

    #[test]
    fn a_word_is_explained_by_the_nearest_key() {
        for (word, expected) in [
            ("iodpeth", "unknown key `iodpeth`; the nearest is `iodepth`"),
            ("zonemode", "fio's key `zonemode` is not supported: zones of devices"),
            (
                "zone_mode",
                "unknown key `zone_mode`; the nearest is fio's `zonemode`, not supported: ",
            ),
            ("qqqqqqqqqqqqqqqqq", "unknown key `qqqqqqqqqqqqqqqqq`"),
        ] {
            let text = explain(word);
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
