//! Jobs on files in a volume: names, layout, verification, counters; and refusals of unsupported
//! volumes and engines.

use super::{ChildProcess, bench, folder, json_of, refused};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with a volume in the file `v`.
fn volume() -> TempDir {
    let folder = folder();
    uringfs(folder.path(), &["mkfs", "v", "--size", "32M"]);
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    ChildProcess::start(command.args(arguments).current_dir(folder)).end()
}

/// The output of a command that must succeed.
fn uringfs(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The report of a run with keys that are separated by spaces.
fn report(folder: &Path, keys: &str) -> Value {
    let keys: Vec<&str> = keys.split(' ').chain(["--output-format=json"]).collect();
    json_of(&bench(folder, &keys))
}

fn counter(job: &Value, name: &str) -> u64 {
    job["uringfs"]["counters"][name].as_u64().unwrap_or(0)
}

#[test]
fn files_in_a_volume_are_named_as_elsewhere() {
    let folder = volume();
    let folder = folder.path();
    uringfs(folder, &["mkdir", "v:/d"]);
    for (keys, names) in [
        ("--volume=v", "/x.0.0"),
        ("--volume=v --nrfiles=2 --numjobs=2 --directory=d", "/d/x.0.0 /d/x.0.1 /d/x.1.0 /d/x.1.1"),
        ("--volume=v --filename_format=$filenum.$jobname --nrfiles=2", "/0.x /1.x"),
        ("--volume=v --filename=a:/d/b", "/a /d/b"),
        ("--filename=v:/a --unlink=1", "/a"),
    ] {
        let keys = format!("--name=x --rw=write --size=64k {keys}");
        let report = report(folder, &keys);
        let made: Vec<String> = names.split(' ').map(|name| format!("v:{name}")).collect();
        let unlinked = keys.contains("unlink");
        let listed = if unlinked { Vec::new() } else { made.clone() };
        assert_eq!(report["jobs"][0]["uringfs"]["files_made"], Value::from(listed), "{keys}");
        let notes = report["jobs"][0]["uringfs"]["notes"].as_array().unwrap();
        let of_queue = notes.iter().filter(|note| note.as_str().unwrap().starts_with("file v: "));
        assert_eq!(of_queue.count(), 1, "{notes:?}");
        for file in &made {
            assert_eq!(run(folder, &["stat", file]).status.success(), !unlinked, "{file}");
            if !unlinked {
                uringfs(folder, &["rm", file]);
            }
        }
    }
    assert_eq!(uringfs(folder, &["ls", "-R", "v:/"]), "/:\nd\n\n/d:\n");
}

#[test]
fn threads_on_one_volume_verify_their_writes() {
    let folder = volume();
    let keys = "--name=x --volume=v --rw=randrw --bsrange=512-16k --size=2m --iodepth=8 --numjobs=3 \
                --loops=2 --verify=crc32c --fsync=50 --end_fsync=1";
    let keys: Vec<&str> = keys.split_whitespace().collect();
    let report = report(folder.path(), &keys.join(" "));
    let jobs = report["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        // The mix is read, and everything that it wrote is read again.
        assert_eq!(job["read"]["io_bytes"], 4 << 20);
        assert!(job["sync"]["total_ios"].as_u64().unwrap() > 2, "{job}");
    }
    // A job that only reads finds a wrong block.
    let broken = folder.path().join("broken");
    uringfs(folder.path(), &["get", "v:/x.1.0", "broken"]);
    let mut bytes = std::fs::read(&broken).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(&broken, bytes).unwrap();
    uringfs(folder.path(), &["put", "broken", "v:/x.1.0"]);
    let keys = ["--name=x", "--filename=v:/x.1.0", "--rw=read", "--bs=512", "--verify=crc32c"];
    let output = bench(folder.path(), &keys);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("job `x`: v:/x.1.0: wrong block at offset "), "{text}");
}

#[test]
fn reads_take_the_fast_path_and_refusals_are_counted_by_reason() {
    let folder = volume();
    let job = "[global]\nvolume=v\nfilename_format=f\nsize=1m\nrw=randread\niodepth=4\n\
               [simple]\n[long]\nstonewall\nbs=8k\n[off]\nstonewall\ndirect.simple_read=off\n\
               [mixed]\nstonewall\nrw=randrw\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    // The first job that uses a file lays it out.
    let report = report(folder.path(), "job.fio");
    let jobs = report["jobs"].as_array().unwrap();
    for (job, reason) in jobs[1..3].iter().zip(["length", "switched_off"]) {
        let refused = format!("direct.fast_path.refused.{reason}");
        assert_eq!(counter(job, &refused), job["read"]["total_ios"].as_u64().unwrap());
        assert_eq!(counter(job, "direct.fast_path.taken"), 0);
    }
    for job in [&jobs[0], &jobs[3]] {
        assert_eq!(
            counter(job, "direct.fast_path.taken"),
            job["read"]["total_ios"].as_u64().unwrap()
        );
    }
    // Overwrites in place do not exclude each other.
    assert_eq!(counter(&jobs[3], "direct.write.unlocked"), jobs[3]["write"]["total_ios"]);
}

#[test]
fn every_kind_of_sync_keeps_the_written_size() {
    let folder = volume();
    for (name, keys) in [
        ("fsync", "--fsync=1"),
        ("fdatasync", "--fdatasync=3"),
        ("dsync", "--sync=dsync"),
        ("sync", "--sync=sync --iodepth=4"),
        ("end", "--end_fsync=1 --fallocate=none"),
    ] {
        let keys = format!("--name={name} --volume=v --rw=write --size=100k --bs=1k {keys}");
        let report = report(folder.path(), &keys);
        assert_eq!(report["jobs"][0]["write"]["io_bytes"], 100 << 10, "{keys}");
        let file = format!("v:/{name}.0.0");
        let stat: Value =
            serde_json::from_str(&uringfs(folder.path(), &["stat", "--json", &file])).unwrap();
        assert_eq!(stat["files"][0]["size"], 100 << 10, "{keys}");
    }
}

#[test]
fn files_are_allocated_as_fallocate_says() {
    let folder = volume();
    let free = || -> u64 {
        let df: Value =
            serde_json::from_str(&uringfs(folder.path(), &["df", "--json", "v"])).unwrap();
        df["volumes"][0]["free"].as_u64().unwrap()
    };
    const SIZE: u64 = 8 << 20;
    for (fallocate, length, allocated) in [
        ("none", 4096, false),
        ("truncate", SIZE, false),
        ("keep", 4096, true),
        ("native", SIZE, true),
        ("posix", SIZE, true),
    ] {
        let before = free();
        let keys = "--name=x --volume=v --filename_format=f --rw=write --size=8m --io_size=4k";
        report(folder.path(), &format!("{keys} --fallocate={fallocate}"));
        let stat = uringfs(folder.path(), &["stat", "--json", "v:/f"]);
        let stat: Value = serde_json::from_str(&stat).unwrap();
        assert_eq!(stat["files"][0]["size"], length, "{fallocate}");
        assert_eq!(before - free() >= SIZE, allocated, "{fallocate}");
        uringfs(folder.path(), &["rm", "v:/f"]);
    }
}

#[test]
fn unsupported_volumes_and_engines_are_refused() {
    let folder = volume();
    let here = folder.path();
    let keys = ["--name=x", "--filename=v:/a", "--rw=write", "--size=64k"];
    assert!(bench(here, &keys).status.success());
    uringfs(here, &["mkdir", "v:/d"]);
    std::fs::write(here.join("text"), vec![b'x'; 1 << 20]).unwrap();
    for engine in ["ring", "psync", "threads", "fio"] {
        for target in ["--filename=v:/a", "--volume=v"] {
            let engine = format!("--engine={engine}");
            let part =
                "only engine uringfs reads and writes files in volumes; use --engine uringfs";
            refused(here, &["--name=x", target, "--rw=read", "--size=64k", &engine], part);
        }
    }
    for (keys, part) in [
        (
            "--filename=v:/a --rw=randwrite",
            "v:/a: exists and the job writes to it; --overwrite allows",
        ),
        ("--filename=v:/none", "v:/none: does not exist; give size="),
        (
            "--filename=v:/no/a --rw=write --size=1m",
            "the directory v:/no does not exist; create it with uringfs mkdir",
        ),
        ("--volume=v --filename=d", "v:/d: is a directory; name a file"),
        ("--filename=v:/a --size=1m", "is 65536 bytes long, but the job needs 1048576"),
        ("--volume=none --size=1m", "none does not exist; create it with uringfs mkfs"),
        ("--volume=. --size=1m", ".: is a directory"),
        ("--volume=text --size=1m", "check the path"),
        ("--volume=v --size=1m --output=v", "--output v: is a target of job `x`"),
        ("--volume=v --size=1m --showcmd", "v:/x.0.0: fio cannot use files in volumes"),
    ] {
        let keys: Vec<&str> = ["--name=x"].into_iter().chain(keys.split(' ')).collect();
        refused(here, &keys, part);
    }
    // A file that does not fit is removed.
    let full = bench(here, &["--name=x", "--volume=v", "--rw=read", "--size=64m"]);
    let line = String::from_utf8(full.stderr).unwrap();
    assert_eq!(full.status.code(), Some(2), "{line}");
    assert!(line.contains("cannot lay out v:/x.0.0 of 67108864 bytes"), "{line}");
    assert_eq!(uringfs(here, &["ls", "v:/"]), "a\nd\n");
}

#[test]
fn direct_0_has_an_effect_with_a_cache_of_the_command_or_of_the_job() {
    let folder = volume();
    std::fs::write(folder.path().join("image"), vec![7; 1 << 20]).unwrap();
    let job = "--name=x --filename=image --rw=randread --direct=0";
    let cache = "buffered.cache_bytes=4194304";
    for (arguments, has_cache) in [
        (job.to_owned(), false),
        (format!("{job} --set {cache}"), true),
        (format!("{job} --{cache}"), true),
        (format!("{job} --{cache} --name=y --filename=image --direct=0"), false),
    ] {
        let words: Vec<&str> = ["bench", "run"].into_iter().chain(arguments.split(' ')).collect();
        let output = run(folder.path(), &words);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        assert_eq!(text.contains("direct=0 had no effect"), !has_cache, "{arguments}: {text}");
    }
}

#[test]
fn jobs_share_the_page_cache() {
    let folder = volume();
    std::fs::write(folder.path().join("image"), vec![7; 1 << 20]).unwrap();
    let job = "--name=x --filename=image --rw=randread --numjobs=2 --direct=0 --invalidate=0";
    let job = format!("{job} --loops=2 --set buffered.cache_bytes=4194304");
    let report = report(folder.path(), &job);
    let jobs = report["jobs"].as_array().unwrap();
    let sum = |name| jobs.iter().map(|job| counter(job, name)).sum::<u64>();
    // Each of 256 folios is filled once, although two jobs read it twice.
    assert_eq!(sum("buffered.filled") + sum("buffered.readahead"), 256);
    assert!(sum("buffered.hit") >= 512, "{jobs:#?}");
}
