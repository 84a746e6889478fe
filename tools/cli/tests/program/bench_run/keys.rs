//! Keys whose effect is on files, threads or messages of a run.

use super::fio_parity::{assert_same_keys, fio};
use super::{bench, folder, json_of};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The 4 KiB blocks of `file` that hold only `byte`, after a run by fio and one by this program.
fn blocks_with(byte: u8, job: &str) -> [Vec<usize>; 2] {
    let folders = [folder(), folder()];
    folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), job).unwrap());
    let outputs = [
        fio(folders[0].path(), &["job.fio"]),
        bench(folders[1].path(), &["job.fio", "--engine=psync"]),
    ];
    outputs.iter().for_each(|output| assert!(output.status.success(), "{output:?}"));
    folders.map(|folder| {
        let bytes = std::fs::read(folder.path().join("file")).unwrap();
        let blocks = bytes.chunks(4096).enumerate();
        let matching = blocks.filter(|(_, block)| block.iter().all(|found| *found == byte));
        matching.map(|(index, _)| index).collect()
    })
}

#[test]
fn threads_write_at_the_distance_of_offset_increment() {
    let job = "[j]\nfilename=file\nrw=write\nbs=4k\noffset=4k\nsize=16k\nnumjobs=3\n\
        buffer_pattern=0xab\n";
    for (increment, begins) in [("64k", [1, 17, 33]), ("0", [1, 1, 1])] {
        let blocks = begins.iter().flat_map(|begin| *begin..begin + 4);
        let expected: Vec<usize> = blocks.collect::<BTreeSet<_>>().into_iter().collect();
        let found = blocks_with(0xab, &format!("{job}offset_increment={increment}\n"));
        assert_eq!(found, [expected.clone(), expected], "{increment}");
    }
}

#[test]
fn a_buffer_pattern_is_written_as_by_fio() {
    for (keys, pattern) in [("", "0xdeadbe"), ("bsrange=4k-16k\n", "\"some words\"")] {
        let job = format!(
            "[j]\nfilename=file\nrw=write\nsize=64k\nzero_buffers=1\nbuffer_pattern={pattern}\n{keys}"
        );
        let folders = [folder(), folder()];
        folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &job).unwrap());
        assert!(fio(folders[0].path(), &["job.fio"]).status.success());
        assert!(bench(folders[1].path(), &["job.fio", "--engine=psync"]).status.success());
        let first = |folder: &tempfile::TempDir| {
            let mut bytes = std::fs::read(folder.path().join("file")).unwrap();
            // With a range, the sizes of the others are drawn by each program itself.
            bytes.truncate(4096);
            bytes
        };
        let [theirs, ours] = folders.each_ref().map(first);
        assert_eq!(theirs, ours, "{pattern}");
        assert!(ours.iter().any(|byte| *byte != 0));
    }
}

/// Without the key the other job would run for ten minutes.
#[test]
fn exitall_ends_the_group_with_its_first_job() {
    let folder = folder();
    let job = "[global]\nfilename=null:1m\nrw=read\nexitall\n\
        [short]\nio_size=64k\n[long]\ntime_based\nruntime=600\nthinktime=1ms\nnumjobs=2\n\
        [late]\nstartdelay=600\n[next]\nstonewall\nexitall=0\n";
    std::fs::write(folder.path().join("job.fio"), job).unwrap();
    let report: Value = json_of(&bench(folder.path(), &["job.fio", "--output-format=json"]));
    let ios = |at: usize| report["jobs"][at]["read"]["total_ios"].as_u64().unwrap();
    assert_eq!(ios(0), 16);
    assert_eq!(ios(3), 0, "it had not begun");
    assert_eq!(ios(4), 256, "a later group runs to its end");
    for job in report["jobs"].as_array().unwrap() {
        assert_eq!((&job["error"], &job["uringfs"]["incomplete"]), (&0.into(), &false.into()));
    }
}

#[test]
fn max_latency_ends_a_job_as_fio_does() {
    let folder = folder();
    let keys = ["--name=x", "--filename=sim:1m,latency=50ms", "--rw=read", "--output-format=json"];
    let run = |limit: &str| {
        let output = bench(folder.path(), &[&keys[..], &["--io_size=16k", limit]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report["jobs"][0].clone(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, job, lines) = run("--max_latency=10ms");
    assert_eq!((code, &job["error"]), (Some(1), &(nix::errno::Errno::ETIMEDOUT as i32).into()));
    assert_eq!(job["read"]["total_ios"], 1, "{job}");
    assert!(
        lines.contains("read of 4096 bytes at 0 took ") && lines.contains("max_latency"),
        "{lines}"
    );
    // A limit of writes is none of reads.
    let (code, job, _) = run("--max_latency=0,10ms");
    assert_eq!((code, &job["error"], &job["read"]["total_ios"]), (Some(0), &0.into(), &4.into()));
}

#[test]
fn keys_with_one_value_are_noted() {
    let folder = folder();
    let keys = ["--name=x", "--filename=null:1m", "--rw=read", "--output-format=json"];
    let notes = |more: &[&str]| {
        let report = json_of(&bench(folder.path(), &[&keys[..], more].concat()));
        report["jobs"][0]["uringfs"]["notes"].to_string()
    };
    let noted = notes(&["--clocksource=cpu", "--iomem=shm"]);
    assert!(noted.contains("clocksource has no effect: ") && noted.contains("mem has no effect: "));
    assert!(!notes(&["--clocksource=clock_gettime", "--mem=malloc"]).contains("mem has no effect"));
    assert!(notes(&["--fadvise_hint=random"]).contains("fadvise_hint has no effect: "));
    let verified = notes(&["--filename=memory:1m", "--rw=write", "--verify=sha1"]);
    assert!(verified.contains("verify=sha1: each block has a CRC32C instead"), "{verified}");
}

#[test]
fn overwrite_lays_out_files_that_are_only_written() {
    for (key, expected) in [("", 0), ("overwrite=0\n", 0), ("overwrite=1\n", 240)] {
        let job = format!("[j]\nfilename=file\nrw=write\nsize=1m\nio_size=64k\n{key}");
        let folders = [folder(), folder()];
        folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &job).unwrap());
        assert!(fio(folders[0].path(), &["job.fio"]).status.success());
        assert!(bench(folders[1].path(), &["job.fio", "--engine=psync"]).status.success());
        for folder in &folders {
            let bytes = std::fs::read(folder.path().join("file")).unwrap();
            // Behind what the job has written.
            let rest = bytes.chunks(4096).skip(16);
            let laid_out = rest.filter(|block| block.iter().any(|byte| *byte != 0)).count();
            assert_eq!(laid_out, expected, "{key}");
        }
    }
}

/// The name and the shape of the lines of each log, after a run of fio and one of this program.
#[test]
fn logs_are_those_of_fio() {
    for (keys, lines) in [
        ("write_bw_log=x\nwrite_iops_log\nwrite_lat_log=y\nlog_offset=1\n", 32),
        ("write_lat_log\nlog_avg_msec=100000\n", 4),
        ("write_lat_log=z\ndisable_clat=1\n", 32),
    ] {
        let job = format!(
            "[j]\nrw=randrw\nbs=4k\nsize=64k\nnumjobs=2\nioengine=libaio\ndirect=1\n{keys}"
        );
        let folders = [folder(), folder()];
        folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), &job).unwrap());
        assert!(fio(folders[0].path(), &["job.fio"]).status.success());
        assert!(bench(folders[1].path(), &["job.fio", "--engine=threads"]).status.success());
        let [theirs, ours] = folders.each_ref().map(|folder| logs_in(folder.path()));
        let names = |logs: &[(String, String)]| -> Vec<String> {
            logs.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&theirs), names(&ours), "{keys}");
        for logs in [&theirs, &ours] {
            let count = logs.iter().map(|(_, text)| text.lines().count()).sum::<usize>();
            let kinds = logs.len() / 2;
            assert_eq!(count, kinds * lines, "{keys}: {logs:?}");
        }
        for ((name, theirs), (_, ours)) in theirs.iter().zip(&ours) {
            let fields = |text: &str| text.lines().next().unwrap_or("").matches(", ").count();
            assert_eq!(fields(theirs), fields(ours), "{name}: {theirs}{ours}");
            // Offsets and lengths of all I/Os are known, in any order.
            let blocks = |text: &str| -> BTreeSet<String> {
                let line = |line: &str| line.splitn(4, ", ").nth(3).map(str::to_owned);
                text.lines().filter_map(line).collect()
            };
            assert_eq!(blocks(theirs), blocks(ours), "{name}");
        }
    }
}

/// The names and contents of all logs in a directory.
fn logs_in(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let logs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    let mut logs: Vec<_> = logs.map(read).collect();
    logs.sort();
    logs
}

/// Without the criterion the job would run for ten minutes. Half the rate is near the mean on any machine.
#[test]
fn steadystate_ends_a_job_as_with_fio() {
    let job = "[j]\nrw=read\nsize=1m\ntime_based\nruntime=600\nrate_iops=200\nss_dur=2\nsteadystate=iops:50%\n";
    let folders = [folder(), folder()];
    folders.iter().for_each(|f| std::fs::write(f.path().join("job.fio"), job).unwrap());
    let theirs = json_of(&fio(folders[0].path(), &["--output-format=json", "job.fio"]));
    let run =
        |more: &[&str]| bench(folders[1].path(), &[&["job.fio", "--engine=psync"], more].concat());
    let ours = json_of(&run(&["--output-format=json"]));
    assert_same_keys(&theirs, &ours, "steadystate");
    for report in [&theirs, &ours] {
        let steady = &report["jobs"][0]["steadystate"];
        assert_eq!((&steady["attained"], &steady["ss"]), (&1.into(), &"iops:50.000000%".into()));
        assert_eq!(steady["data"]["iops"].as_array().unwrap().len(), 2, "{report}");
        assert_eq!(steady["duration"], theirs["jobs"][0]["steadystate"]["duration"]);
    }
    let text = String::from_utf8(run(&["--overwrite", "--numjobs=2", "--group_reporting"]).stdout)
        .unwrap();
    assert!(text.contains("  steadystate  : attained=yes, bw="), "{text}");
}
