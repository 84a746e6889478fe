//! Invalid input is refused with one line and exit code 2, with file and line number if there are any,
//! and nothing is written.

use super::{bench, command, folder, refused, refused_command};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

#[test]
fn a_bad_job_file_is_refused_with_file_and_line() {
    let folder = folder();
    let long = format!("[j]\nrw={}\n", "x".repeat(1 << 20));
    let cases: &[(&[u8], &str)] = &[
        (b"[j\nrw=read\n", "x.fio:1: section without a closing `]`"),
        (b"[j]\n[ ]\n", "x.fio:2: section without a name"),
        (b"bs=4k\n[j]\n", "x.fio:1: `bs` is before the first [section]"),
        (
            b"[j]\nrw=randread\niodpeth=4\n",
            "x.fio:3: unknown key `iodpeth`; the nearest is `iodepth`",
        ),
        (b"# words\n\n[j]\nrw=fly\n", "x.fio:4: rw: "),
        (b"[j]\nbs=0\n", "x.fio:2: bs: "),
        (b"[j]\nbs=4q\n", "x.fio:2: bs: "),
        (b"[j]\nbs=\n", "x.fio:2: bs: "),
        (b"[j]\niodepth=0\n", "x.fio:2: iodepth: "),
        (b"[j]\niodepth=-1\n", "x.fio:2: iodepth: "),
        (b"[j]\nsize=99999999999999999999\n", "x.fio:2: size: "),
        (b"[j]\nsize=1e400\n", "x.fio:2: size: "),
        (b"[j]\nrwmixread=101\n", "x.fio:2: rwmixread: "),
        (b"[j]\nruntime=soon\n", "x.fio:2: runtime: "),
        (b"[j]\npercentile_list=50:101\n", "x.fio:2: percentile_list: "),
        (b"[j]\ncpus_allowed=9-1\n", "x.fio:2: cpus_allowed: "),
        (b"[global]\ntime_based\n[j]\nrw=read\n", "x.fio:3: job `j`: time_based needs a runtime"),
        (b"[j]\nname=\xff\xfe\n", "x.fio:2: not UTF-8 from byte 6 on"),
        (b"[j]\nfilename=:\nsize=1m\n", "x.fio:2: filename: `:` has no name in it"),
        (b"[j]\ndirectory=::\nsize=1m\n", "x.fio:2: directory: `::` has no name in it"),
        (
            b"[j]\nfilename=null:18446744073709551104\noffset=100%\nbs=1g\n",
            "reaches beyond what a file can hold",
        ),
        (b"[j]\n\0\n", "x.fio:2: line has a NUL byte"),
        (b"[j]\nrw=read\0\n", "x.fio:2: line has a NUL byte"),
        (b"[j]\ndescription=\x1b[2J\n", "x.fio:2: line has the control character"),
        (long.as_bytes(), "x.fio:2: line of 1048579 bytes; at most 65536"),
        (b"", "no job"),
        (b"[global]\nbs=4k\n", "no job"),
    ];
    for (text, part) in cases {
        std::fs::write(folder.path().join("x.fio"), text).unwrap();
        refused(folder.path(), &["x.fio"], part);
    }
}

#[test]
fn all_keys_that_cannot_be_used_are_named_at_once() {
    let folder = folder();
    std::fs::write(folder.path().join("a.fio"), "[j]\nzonemode=zbd\niodpeth=4\n").unwrap();
    std::fs::write(folder.path().join("b.fio"), "[k]\nbs=4q\n").unwrap();
    let output = bench(folder.path(), &["a.fio", "b.fio", "--engine=psync"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let lines = String::from_utf8(output.stderr).unwrap();
    let begins = [
        "uringfs: 3 keys of the jobs cannot be used",
        "uringfs: a.fio:2: fio's key `zonemode` is not supported: ",
        "uringfs: a.fio:3: unknown key `iodpeth`; the nearest is `iodepth`",
        "uringfs: b.fio:2: bs: ",
    ];
    assert_eq!(lines.lines().count(), begins.len(), "{lines}");
    for (line, begin) in lines.lines().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
}

#[test]
fn undefined_variables_are_refused_with_file_and_line() {
    let folder = folder();
    for (value, part) in [
        ("${PING}", "x.fio:2: bs: variable ${PING} refers to itself"),
        ("${SELF}", "x.fio:2: bs: variable ${SELF} refers to itself"),
        ("${NOT_THERE}", "x.fio:2: bs: variable ${NOT_THERE} is not set"),
        ("${PING", "x.fio:2: bs: "),
    ] {
        std::fs::write(folder.path().join("x.fio"), format!("[j]\nbs={value}\n")).unwrap();
        let mut command = command(folder.path(), &["x.fio"]);
        command.envs([("PING", "${PONG}"), ("PONG", "${PING}"), ("SELF", "4${SELF}")]);
        command.env_remove("NOT_THERE");
        refused_command(folder.path(), command, part);
    }
}

#[test]
fn bad_includes_are_refused_with_file_and_line() {
    let folder = folder();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("self.fio", "[j]\ninclude self.fio\n");
    file("ping.fio", "[j]\ninclude pong.fio\n");
    file("pong.fio", "rw=read\n\ninclude ./ping.fio\n");
    file("missing.fio", "[j]\ninclude nothing.fio\n");
    file("outer.fio", "[j]\nrw=read\ninclude inner.fio\n");
    file("inner.fio", "[k]\nrw=fly\n");
    symlink("linked.fio", folder.path().join("link.fio")).unwrap();
    file("linked.fio", "[j]\ninclude link.fio\n");
    for (name, part) in [
        ("self.fio", "self.fio:2: self.fio includes itself"),
        ("ping.fio", "pong.fio:3: ./ping.fio includes itself"),
        ("missing.fio", "missing.fio:2: job file nothing.fio: No such file"),
        ("outer.fio", "inner.fio:2: rw: "),
        ("linked.fio", "linked.fio:2: link.fio includes itself"),
        ("gone.fio", "job file gone.fio: No such file"),
        (".", "job file .: Is a directory"),
    ] {
        refused(folder.path(), &[name], part);
    }
}

#[test]
fn a_bad_command_line_is_refused() {
    let folder = folder();
    let foreign = OsStr::from_bytes(b"--name=\xff");
    for (words, part) in
        [([foreign, foreign], "--name: not UTF-8"), (["--bs".as_ref(), foreign], "--bs: not UTF-8")]
    {
        let mut command = command(folder.path(), &[]);
        command.args(words);
        refused_command(folder.path(), command, part);
    }
    for (arguments, part) in [
        (&["--bs=4k"][..], "no job"),
        (&["--name=x", "--zzzzzzz=1"], "command line: unknown key `zzzzzzz`"),
        (&["--name=x", "--bs=4q"], "command line: bs: "),
        (&["--name=x", "--bs"], "--bs needs a value"),
        (&["--name="], "--name needs a value"),
        (&["--name=x", "--engine=psink"], "the nearest is `psync`"),
        (&["--name=x", "--output-format=xml"], "`xml` is not one of normal, json, json+, terse"),
        (&["--cmdhelp=iodpeth"], "unknown key `iodpeth`; the nearest is `iodepth`"),
        (&["--cmdhelp=zonemode"], "fio's key `zonemode` is not supported: "),
        (&["--enghelp=psink"], "unknown engine `psink`; the nearest is `psync`"),
        (&["--name=x", "--section=y"], "--section y: no job file has it"),
        (&["--name=x", "--set", "ab"], "expected SWITCH=VALUE"),
        (&["--name=x", "--size=1m", "--set", "a.b=c"], "a.b"),
    ] {
        refused(folder.path(), arguments, part);
    }
}

#[test]
fn an_unsuitable_target_is_refused() {
    let folder = folder();
    let here = folder.path();
    std::fs::write(here.join("mine"), [7; 65536]).unwrap();
    std::fs::create_dir(here.join("sub")).unwrap();
    let write = "--rw=write";
    for (arguments, part) in [
        (&["--filename=none", "--rw=read"][..], "job `x`: none: does not exist; give size="),
        (&["--filename=none", write], "give size="),
        (&["--filename=/dev/none", write, "--size=1m"], "/dev/none: there is no such device"),
        (&["--filename=no/dir", write, "--size=1m"], "directory no does not exist"),
        (&["--filename=sub"], "sub: is a directory"),
        (&["--filename=mine", "--size=1m"], "is 65536 bytes long, but the job needs 1048576"),
        (&["--filename=mine", "--bs=1m"], "less than one block"),
        (&["--filename=mine", "--direct=1", "--bs=1000"], "multiples of"),
        (&["--filename=null:1m"], "this engine has no virtual targets"),
        (&["--filename=mine", "--set", "a.b=c"], "has no switches"),
        (&["--filename=/dev/null", write], "neither a file nor a block device"),
    ] {
        refused(here, &[&["--name=x", "--engine=psync"], arguments].concat(), part);
    }
}

/// Under each of its names, alone or beside files that may be written.
#[test]
fn an_existing_file_is_not_written_without_overwrite() {
    let folder = folder();
    let here = folder.path();
    std::fs::write(here.join("mine"), [7; 65536]).unwrap();
    std::fs::create_dir(here.join("sub")).unwrap();
    symlink("../mine", here.join("sub/link")).unwrap();
    std::fs::hard_link(here.join("mine"), here.join("other name")).unwrap();
    let absolute = here.join("mine").display().to_string();
    for name in ["mine", "./sub/../mine", "sub/link", "other name", &absolute, "new:mine"] {
        let filename = format!("--filename={name}");
        for rw in ["write", "randwrite", "rw", "randrw"] {
            let rw = format!("--rw={rw}");
            let arguments = ["--name=x", &filename, &rw, "--size=64k"];
            refused(here, &arguments, "exists and the job writes to it; --overwrite allows that");
        }
    }
    // All jobs are checked before the first one begins.
    let job = "[may]\nrw=write\nsize=64k\n[may not]\nstonewall\nrw=write\nfilename=mine\n";
    std::fs::write(here.join("two.fio"), job).unwrap();
    refused(here, &["two.fio"], "two.fio:4: job `may not`: mine: exists");
}

#[test]
fn overwrite_allows_writes_to_an_existing_file() {
    let folder = folder();
    let path = folder.path().join("mine");
    std::fs::write(&path, [7; 65536]).unwrap();
    let keys = ["--name=x", "--filename=mine", "--rw=write", "--overwrite", "--zero_buffers=1"];
    let output = bench(folder.path(), &[&keys[..], &["--engine=psync"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(std::fs::read(&path).unwrap(), [0; 65536]);
}

#[test]
fn later_jobs_write_to_files_that_the_run_created() {
    let folder = folder();
    let job =
        "[global]\nfilename=f\nsize=64k\n[a]\nrw=randwrite\n[b]\nstonewall\nrw=write\nsize=128k\n";
    std::fs::write(folder.path().join("x.fio"), job).unwrap();
    let output = bench(folder.path(), &["x.fio", "--engine=psync"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(folder.path().join("f").metadata().unwrap().len(), 128 << 10);
}

#[test]
fn an_unusable_output_file_is_refused_before_the_run() {
    let folder = folder();
    let here = folder.path();
    std::fs::create_dir(here.join("sub")).unwrap();
    std::fs::write(here.join("a file"), "words").unwrap();
    for (output, part) in [
        ("no/report", "there is no directory no"),
        ("a file/report", "there is no directory a file"),
        ("sub", "is a directory"),
        ("x.0.0", "is a target of job `x`"),
        ("sub/../x.1.0", "is a target of job `x`"),
    ] {
        let output = format!("--output={output}");
        let arguments = ["--name=x", "--rw=write", "--size=64k", "--numjobs=2", &output];
        refused(here, &arguments, part);
    }
    let output = bench(here, &["--name=x", "--rw=write", "--size=64k", "--output=a file"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(std::fs::read_to_string(here.join("a file")).unwrap().contains("IOPS="));
}

#[test]
fn control_characters_in_names_are_escaped() {
    let folder = folder();
    let keys = ["--name=x\ny", "--rw=read", "--filename=/no\nsuch/\u{1b}[2J\u{9b}é"];
    refused(folder.path(), &keys, r"/no\nsuch/\u{1b}[2J\u{9b}é");
    let output = format!("--output={}", "no\r\nplace/report");
    refused(folder.path(), &["--name=x", "--filename=null:1m", &output], r"no\r\nplace");
}

/// A log never replaces what a job reads or writes, and a zone lies in the file.
#[test]
fn logs_and_zones_are_checked_before_anything_is_written() {
    let folder = folder();
    std::fs::write(folder.path().join("a_bw.1.log"), vec![1; 1 << 16]).unwrap();
    std::fs::write(folder.path().join("data"), vec![1; 1 << 16]).unwrap();
    let read = ["--name=x", "--engine=psync", "--rw=randread", "--bs=4k", "--direct=0"];
    for (keys, part) in [
        (["--filename=a_bw.1.log", "--write_bw_log=a"], "a_bw.1.log: is a target"),
        (["--filename=data", "--write_bw_log=no/folder/a"], "its folder does not exist"),
        (["--filename=data", "--random_distribution=zoned_abs:60/32k:40/1m:0/1m"], ""),
        (
            ["--filename=data", "--random_distribution=zoned_abs:60/64k:40/64k"],
            "a zone begins at 65536, beyond the region of 65536 bytes",
        ),
    ] {
        let arguments = [&read[..], &keys].concat();
        if part.is_empty() {
            let output = bench(folder.path(), &[&arguments[..], &["--io_size=64k"]].concat());
            assert!(output.status.success(), "{output:?}");
        } else {
            refused(folder.path(), &arguments, part);
        }
    }
}
