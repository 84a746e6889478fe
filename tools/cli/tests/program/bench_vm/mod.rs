//! Tests of `uringfs bench vm` without a guest: refused arguments, missing packages, and the end of
//! child processes. Shell scripts replace apt-get and QEMU.

mod cache;
mod fake_programs;

use super::process::ChildProcess;
use fake_programs::{FakePrograms, static_program};
use nix::sys::signal::Signal;
use std::path::Path;

/// Expects this exit code and one line on standard error that contains `part`.
#[track_caller]
fn fails(fakes: &FakePrograms, arguments: &[&str], code: i32, part: &str) {
    let output = ChildProcess::start(&mut fakes.bench_vm(arguments)).end();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {line}");
    assert!(line.contains(part), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(output.stdout, b"");
}

#[test]
fn invalid_arguments_are_one_line_and_create_no_cache() {
    let fakes = FakePrograms::new();
    let path = |name: &str| fakes.folder().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("own.fio"), "[a]\nfilename=/dev/sda\nio_size=1m\n").unwrap();
    std::fs::write(path("large.fio"), "[a]\nsize=1g\n").unwrap();
    std::fs::write(path("bad.fio"), "[a]\nrw=sideways\n").unwrap();
    for (arguments, part) in [
        (&["--device", "floppy"][..], "unknown device `floppy`"),
        (&["--device", "flop\npy\u{1b}[2J"], r"flop\npy\u{1b}[2J"),
        (&["experiment"], "give the name of one"),
        (&["passthrough", "--device", "nvme"], "its device is nvme"),
        (&["experiment", "nothing"], "no experiment `nothing`"),
        (&["missing.fio"], "missing.fio"),
        (&["-"], "standard input"),
        (&[&path("large.fio")], "128 MiB"),
        (&[&path("own.fio")], "names its own target"),
        (&[&path("bad.fio")], "sideways"),
        (&["--program", "/bin/sh"], "crt-static"),
        (&["--program", "/nowhere"], "/nowhere"),
        (&["--program", "/no\nwhere"], r"/no\nwhere"),
    ] {
        fails(&fakes, arguments, 2, part);
    }
    assert!(!fakes.cache().exists());
}

#[test]
fn without_apt_the_error_names_the_packages() {
    let fakes = FakePrograms::new();
    fails(&fakes, &[], 1, "busybox-static");
    assert_eq!(names(&fakes.cache()), ["lock"]);
}

#[test]
fn the_mirror_is_found_without_apt_lists() {
    let fakes = FakePrograms::new();
    fakes.add(
        "apt-get",
        "case $* in
            *--print-uris*) echo \"'http://m.example/debian/dists/stable/InRelease' release 0 \";;
            *) printf 'Origin: Debian\\nLabel: Debian\\n' >../lists/release;;
        esac",
    );
    fakes.add("apt-cache", "read line <../sources.list; echo \"E: $line\" >&2; exit 100");
    fails(&fakes, &[], 1, "http://m.example/debian bookworm main;");
}

#[test]
fn apt_without_sources_is_an_error() {
    let fakes = FakePrograms::new();
    fakes.add("apt-get", "");
    fails(
        &fakes,
        &[],
        1,
        "none of the sources of this machine's apt is a reachable Debian mirror;",
    );
}

#[test]
fn ctrl_c_during_a_download_leaves_nothing() {
    let fakes = FakePrograms::new();
    let mut apt = fakes.waiting("apt-get");
    let run = ChildProcess::start(&mut fakes.bench_vm(&[]));
    apt.started();
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().status.code(), Some(130));
    apt.ended();
    assert_eq!(names(&fakes.cache()), ["lock"]);
}

#[test]
fn the_guest_ends_when_the_program_is_killed() {
    let fakes = FakePrograms::with_cache();
    let mut qemu = fakes.waiting("qemu-system-x86_64");
    let run = ChildProcess::start(&mut fakes.bench_vm(&[]));
    qemu.started();
    run.signal(Signal::SIGKILL);
    run.end();
    qemu.ended();
}

#[test]
fn a_hanging_guest_is_killed_after_the_timeout() {
    let fakes = FakePrograms::with_cache();
    let qemu = fakes.waiting("qemu-system-x86_64");
    fails(&fakes, &["--timeout", "1"], 1, "it exceeded its time limit (--timeout)");
    // On a machine that stalls, the timeout may end the guest before it has started.
    qemu.ended();
}

#[test]
fn an_early_end_is_reported_with_the_end_of_the_console() {
    let fakes = FakePrograms::with_cache();
    fakes.add(
        "qemu-system-x86_64",
        "for word; do case $word in file,id=console,path=*)
            printf 'Kernel panic \\033[2J- not syncing\\n' >${word##*path=};; esac; done",
    );
    let part = r"ended early; its console: Kernel panic \u{1b}[2J- not";
    fails(&fakes, &["--device", "null_blk"], 1, part);
}

#[test]
fn a_failed_step_reports_the_guests_error() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "printf '::begin 0\\nuringfs: no luck\\n::end 0 1\\n'");
    fails(&fakes, &["experiment", "simple-read"], 1, "in the guest, simple-read: no luck");
}

#[test]
fn a_guest_that_does_not_start_reports_qemus_error() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "echo 'qemu: cannot allocate memory' >&2; exit 1");
    fails(&fakes, &[], 1, "QEMU failed: qemu: cannot allocate memory");
}

#[test]
fn an_unknown_kernel_error_lists_the_known_ones() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "exit 1");
    fails(&fakes, &["--kernel", "9."], 2, "no kernel 9. (known: 6.1.0-1-cloud-amd64");
}

#[test]
fn tests_must_be_static_programs() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "exit 1");
    fails(&fakes, &["--test", "/bin/sh"], 2, "/bin/sh: not a static program");
    let program = static_program(fakes.folder());
    let program = program.to_str().unwrap();
    fails(&fakes, &["--test", program], 1, "QEMU failed");
    fails(&fakes, &["--test", program, program], 2, "two programs have the name `static`");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
