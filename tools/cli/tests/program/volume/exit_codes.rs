//! The exit code tells the cause of a failure.

use super::{command, run, run_ok, volume, write};
use crate::process::ChildProcess;
use uringfs::Volume;
use uringfs::device::{Access, Device};

#[test]
fn causes_have_exit_codes() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    write(folder, "text", vec![b'x'; 16 << 20]);
    write(folder, "big", vec![1; 40 << 20]);
    run_ok(folder, ["put", "a", "v"]);
    run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
    for (code, commands) in [
        (
            2,
            &[&["ls"][..], &["chmod", "u+y", "v:/a"], &["mkfs", "new"], &["ls", "v:/a", "w:/a"]][..],
        ),
        (
            3,
            &[
                &["cat", "v:/none"],
                &["rm", "v:/no*"],
                &["ls", "none:/"],
                &["ls", "v:d"],
                &["check", "none"],
                &["put", "none", "v:/"],
                &["xattr", "get", "user.none", "v:/a"],
            ],
        ),
        (4, &[&["ls", "text:/"]]),
        (
            5,
            &[
                &["mkdir", "v:/d"],
                &["rmdir", "v:/d"],
                &["rm", "v:/d"],
                &["cat", "v:/d"],
                &["mv", "v:/d", "v:/d/e"],
                &["mkfs", "text"],
                &["resize", "v", "16M"],
                &["put", "a", "a", "v:/none"],
                &["cp", "v:/d", "v:/x"],
            ],
        ),
        (1, &[&["cat", "v:/none", "v:/a"]]),
        (7, &[&["put", "big", "v:/"]]),
    ] {
        for arguments in commands {
            let output = run(folder, *arguments);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        }
    }
    let device = Device::open(folder.join("v"), Access::ReadWrite).unwrap();
    let open = Volume::open_on(device).unwrap();
    for arguments in [&["ls", "v"][..], &["mkdir", "v:/x"], &["check", "v"], &["mkfs", "-f", "v"]] {
        let output = run(folder, arguments);
        assert_eq!(output.status.code(), Some(6), "{arguments:?}: {output:?}");
    }
    drop(open);
}

#[test]
fn missing_permission_is_a_refusal() {
    let folder = volume();
    let folder = folder.path();
    let mut permissions = folder.join("v").metadata().unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(folder.join("v"), permissions).unwrap();
    let mut mkdir = command(folder, ["mkdir", "v:/d"]);
    let output = ChildProcess::start(&mut mkdir).end();
    // Root may write anyway.
    let expected = if crate::root::is_root() { 0 } else { 5 };
    assert_eq!(output.status.code(), Some(expected), "{output:?}");
}

#[test]
fn the_help_of_each_command_lists_its_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["put", "get", "ls", "rm", "mkfs", "check", "find", "cp", "resize", "df"] {
        let help = run_ok(folder.path(), [command, "--help"]);
        assert!(help.contains("Exit codes"), "{command}: {help}");
    }
}
