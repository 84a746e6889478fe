//! Messages name each thing once, and say what to do.

use super::{refused, run, run_ok, volume, write};

#[test]
fn a_message_names_its_file_once() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["put", "a", "v:/"]);
    for (arguments, line) in [
        (&["cat", "v:/d"][..], "v:/d: is a directory"),
        (&["truncate", "-s", "5", "v:/d"], "v:/d: is a directory"),
        (&["mkdir", "v:/d"], "v:/d: already exists"),
        (&["cat", "v:/none"], "v:/none: does not exist"),
        (&["cat", "v:/n/o"], "v:/n/o: 'n' does not exist"),
        (&["rm", "v:/a/"], "v:/a/: is not a directory, but a slash follows it"),
        (&["rmdir", "v:/a"], "v:/a: is not a directory"),
        (&["rmdir", "v:/"], "v:/: cannot be removed"),
        (&["mv", "v:/none", "v:/x"], "v:/none to v:/x: 'none' does not exist"),
    ] {
        let output = run(folder, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, format!("uringfs: {line}\n"), "{arguments:?}");
    }
}

#[test]
fn a_path_of_the_host_names_put_and_get() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    std::fs::create_dir(folder.join("d")).unwrap();
    run_ok(folder, ["put", "a", "v:/"]);
    for arguments in [
        &["ls", "d"][..],
        &["ls", "a"],
        &["cp", "a", "v:/"],
        &["cp", "v:/a", "."],
        &["cp", "v:/a", "d/new"],
        &["mv", "a", "v:/b"],
        &["mv", "v:/a", "d"],
        &["ln", "a", "v:/b"],
        &["touch", "-r", "a", "v:/a"],
        &["find", "v", "-newer", "a"],
    ] {
        refused(folder, arguments, "uringfs put copies into a volume, and uringfs get out of it");
    }
    refused(folder, ["cp", "v:/a", "d/new"], "d/new: does not exist; a path in a volume is ");
    refused(
        folder,
        ["ls", "a"],
        "a: is a file without a volume; a path in a volume is written TARGET:/path",
    );
    refused(folder, ["ls", "d"], "d: is a directory of this machine; ");
    refused(folder, ["ls", "v:etc/x"], "v:etc/x: does not exist; did you mean v:/etc/x?");
    // A name on the host may begin with a hyphen.
    let stderr = run(folder, ["put", "--draft", "v:/"]).stderr;
    assert!(String::from_utf8(stderr).unwrap().contains("use '-- --draft'"));
    refused(folder, ["get", "v:a:b", "."], "v:a:b: does not exist; a path in a volume is ");
    refused(folder, ["ls", "a:etc"], "a:etc: does not exist; a path in a volume is ");
}

#[test]
fn paths_of_two_volumes_are_told_apart() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkfs", "-q", "w", "--size", "16M"]);
    run_ok(folder, ["touch", "v:/a"]);
    let by_cp =
        "w:/b is in another volume than v:/a; copy with uringfs cp -a, and remove the original";
    refused(folder, ["mv", "v:/a", "w:/b"], by_cp);
    refused(
        folder,
        ["ln", "v:/a", "w:/b"],
        "w:/b is in another volume than v:/a; a link cannot lead there",
    );
    let one = "w:/ is in another volume than v:/a; name paths of one volume";
    refused(folder, ["ls", "v:/a", "w:/"], one);
}

#[test]
fn an_unknown_option_gets_no_tip_to_pass_it_as_a_path() {
    let folder = volume();
    for arguments in [["ls", "-y", "v:/"], ["cp", "--recursve", "v:/"]] {
        let output = run(folder.path(), arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && !stderr.contains("-- -"), "{stderr}");
    }
    let output = run(folder.path(), ["cp", "--recursve", "v:/"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("'--recursive'"), "{stderr}");
}

#[test]
fn a_full_volume_names_resize() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "large", vec![1; 40 << 20]);
    run_ok(folder, ["mkfs", "-q", "w", "--size", "64M"]);
    run_ok(folder, ["put", "-q", "large", "w:/"]);
    for arguments in [["put", "large", "v:/"], ["cp", "w:/large", "v:/"]] {
        let output = run(folder, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        let (full, advice) = ("the volume is full", "remove something; uringfs resize enlarges it");
        assert!(stderr.contains(full) && stderr.contains(advice), "{stderr}");
        // Nothing was copied.
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn sizes_without_a_unit_are_said_to_be_bytes() {
    let folder = volume();
    let folder = folder.path();
    for size in ["10", "8M"] {
        let what = "a volume needs at least 8519680 bytes";
        refused(folder, ["mkfs", "new", "--size", size], what);
        refused(folder, ["mkfs", "-n", "new", "--size", size], what);
    }
    let stderr = String::from_utf8(run(folder, ["mkfs", "new", "--size", "1"]).stderr).unwrap();
    assert!(!stderr.contains("the device has"), "{stderr}");
    let bytes = "a size without a unit is in bytes; write for example 64M or 4G";
    refused(folder, ["mkfs", "new", "--size", "10"], bytes);
    let cannot_shrink = "v: has 32.0 MiB (33554432 bytes), and a volume cannot shrink";
    refused(folder, ["resize", "v", "16M"], cannot_shrink);
    refused(folder, ["resize", "v", "10"], bytes);
    for size in ["-1M", "-8"] {
        let output = run(folder, ["resize", "v", size]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && stderr.contains("a volume cannot shrink"),
            "{stderr}"
        );
    }
    for size in ["+10", "32M"] {
        assert_eq!(run_ok(folder, ["resize", "v", size]), "v: has 32.0 MiB already\n");
    }
}

#[test]
fn a_get_that_copies_nothing_prints_only_its_error() {
    let folder = volume();
    let output = run(folder.path(), ["get", "v:/none", "out"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "uringfs: v:/none: does not exist\n");
}

#[test]
fn names_of_targets_stand_in_quotes_if_a_shell_needs_them() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = volume();
    let folder = folder.path();
    let odd = OsStr::from_bytes(b"n\xff.img");
    for command in ["ls", "check", "label", "umount", "wipe"] {
        let stderr = String::from_utf8(run(folder, [command.as_ref(), odd]).stderr).unwrap();
        assert!(stderr.starts_with(r"uringfs: 'n'$'\377''.img'"), "{command}: {stderr}");
    }
    std::fs::copy(folder.join("v"), folder.join("a b")).unwrap();
    let shrink = run(folder, ["resize", "a b", "16M"]);
    let stderr = String::from_utf8(shrink.stderr).unwrap();
    assert!(stderr.starts_with("uringfs: 'a b': has 32.0 MiB"), "{stderr}");
}

#[test]
fn a_whole_volume_is_asked_for() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    refused(folder, ["wipe", "v:/a"], "v:/a: only a whole volume is wiped; its name is v");
    refused(folder, ["mkfs", "v:/a"], "v:/a: only a whole volume is made; its name is v");
    for command in ["mkfs", "wipe"] {
        let stderr = String::from_utf8(run(folder, [command, "."]).stderr).unwrap();
        assert_eq!(stderr, "uringfs: .: is a directory; name a file or a block device\n");
    }
    refused(folder, ["get", "v:/a", "v:/c"], "uringfs cp copies from volume to volume");
    let own = run(folder, ["get", "v:/a", "v"]);
    assert_eq!(own.status.code(), Some(5), "{own:?}");
    std::fs::create_dir(folder.join("d:")).unwrap();
    std::fs::rename(folder.join("v"), folder.join("d:/v")).unwrap();
    refused(folder, ["ls", "d:/v"], "did you mean d:/v:/?");
    assert_eq!(run_ok(folder, ["ls", "d:/v:/"]), "a\n");
}
