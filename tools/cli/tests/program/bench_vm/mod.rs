//! `uringfs bench vm` as a user meets it, without a guest: what is refused, what cannot be had, and
//! that no child outlives it. Programs that stand in for apt-get and QEMU are shell scripts.

mod cache;
mod stand_ins;

use super::running::Running;
use nix::sys::signal::Signal;
use stand_ins::{StandIns, static_program};
use std::path::Path;

/// Exit code and what stands on standard error, which is one line.
#[track_caller]
fn fails(stand_ins: &StandIns, arguments: &[&str], code: i32, part: &str) {
    let output = Running::start(&mut stand_ins.bench_vm(arguments)).end();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {line}");
    assert!(line.contains(part), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(output.stdout, b"");
}

#[test]
fn what_cannot_be_used_is_one_line_and_makes_no_cache() {
    let stand_ins = StandIns::new();
    let path = |name: &str| stand_ins.folder().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("own.fio"), "[a]\nfilename=/dev/sda\nio_size=1m\n").unwrap();
    std::fs::write(path("large.fio"), "[a]\nsize=1g\n").unwrap();
    std::fs::write(path("bad.fio"), "[a]\nrw=sideways\n").unwrap();
    for (arguments, part) in [
        (&["--device", "floppy"][..], "unknown device `floppy`"),
        (&["--device", "flop\npy\u{1b}[2J"], r"flop\npy\u{1b}[2J"),
        (&["experiment"], "give the name of one"),
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
        fails(&stand_ins, arguments, 2, part);
    }
    assert!(!stand_ins.cache().exists());
}

#[test]
fn a_machine_without_apt_is_told_what_is_needed() {
    let stand_ins = StandIns::new();
    fails(&stand_ins, &[], 1, "busybox-static");
    assert_eq!(names(&stand_ins.cache()), ["lock"]);
}

#[test]
fn the_mirror_is_found_on_a_machine_whose_apt_has_no_lists_yet() {
    let stand_ins = StandIns::new();
    stand_ins.add(
        "apt-get",
        "case $* in
            *--print-uris*) echo \"'http://m.example/debian/dists/stable/InRelease' release 0 \";;
            *) printf 'Origin: Debian\\nLabel: Debian\\n' >../lists/release;;
        esac",
    );
    stand_ins.add("apt-cache", "read line <../sources.list; echo \"E: $line\" >&2; exit 100");
    fails(&stand_ins, &[], 1, "http://m.example/debian bookworm main;");
}

#[test]
fn a_machine_whose_apt_has_no_sources_is_told_so() {
    let stand_ins = StandIns::new();
    stand_ins.add("apt-get", "");
    fails(
        &stand_ins,
        &[],
        1,
        "none of the sources of this machine's apt is a reachable Debian mirror;",
    );
}

#[test]
fn ctrl_c_while_packages_are_fetched_leaves_nothing() {
    let stand_ins = StandIns::new();
    let mut apt = stand_ins.waiting("apt-get");
    let run = Running::start(&mut stand_ins.bench_vm(&[]));
    apt.started();
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().status.code(), Some(130));
    apt.ended();
    assert_eq!(names(&stand_ins.cache()), ["lock"]);
}

#[test]
fn a_machine_does_not_outlive_a_program_that_is_killed() {
    let stand_ins = StandIns::with_cache();
    let mut qemu = stand_ins.waiting("qemu-system-x86_64");
    let run = Running::start(&mut stand_ins.bench_vm(&[]));
    qemu.started();
    run.signal(Signal::SIGKILL);
    run.end();
    qemu.ended();
}

#[test]
fn a_guest_that_hangs_is_ended_when_its_time_is_over() {
    let stand_ins = StandIns::with_cache();
    let qemu = stand_ins.waiting("qemu-system-x86_64");
    fails(&stand_ins, &["--timeout", "1"], 1, "it exceeded its time limit (--timeout)");
    // It need not have been there: a machine that stalls may be so late.
    qemu.ended();
}

#[test]
fn a_guest_that_ends_early_is_told_by_the_last_lines_of_its_console() {
    let stand_ins = StandIns::with_cache();
    stand_ins.add(
        "qemu-system-x86_64",
        "for word; do case $word in file,id=console,path=*)
            printf 'Kernel panic \\033[2J- not syncing\\n' >${word##*path=};; esac; done",
    );
    let part = r"ended early; its console: Kernel panic \u{1b}[2J- not";
    fails(&stand_ins, &["--device", "null_blk"], 1, part);
}

#[test]
fn a_step_that_fails_says_what_the_guest_said() {
    let stand_ins = StandIns::with_cache();
    stand_ins.add("qemu-system-x86_64", "printf '::begin 0\\nuringfs: no luck\\n::end 0 1\\n'");
    fails(&stand_ins, &["experiment", "simple-read"], 1, "in the guest, simple-read: no luck");
}

#[test]
fn a_machine_that_does_not_start_says_why() {
    let stand_ins = StandIns::with_cache();
    stand_ins.add("qemu-system-x86_64", "echo 'qemu: cannot allocate memory' >&2; exit 1");
    fails(&stand_ins, &[], 1, "QEMU failed: qemu: cannot allocate memory");
}

#[test]
fn a_kernel_that_is_not_there_names_those_that_are() {
    let stand_ins = StandIns::with_cache();
    stand_ins.add("qemu-system-x86_64", "exit 1");
    fails(&stand_ins, &["--kernel", "9."], 2, "no kernel 9. (there are 6.1.0-1-cloud-amd64");
}

#[test]
fn tests_must_be_static_programs() {
    let stand_ins = StandIns::with_cache();
    stand_ins.add("qemu-system-x86_64", "exit 1");
    fails(&stand_ins, &["--test", "/bin/sh"], 2, "/bin/sh: not a static program");
    let program = static_program(stand_ins.folder());
    let program = program.to_str().unwrap();
    fails(&stand_ins, &["--test", program], 1, "QEMU failed");
    fails(&stand_ins, &["--test", program, program], 2, "two programs have the name `static`");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
