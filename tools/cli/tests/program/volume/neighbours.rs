//! Command lines as users of coreutils, e2fsprogs and util-linux type them work, or the error says what to use instead.

use super::mirror::Mirror;
use super::{refused, run, run_ok, volume, write};
use crate::process::tool;
use std::os::unix::fs::MetadataExt;

/// The errors of a command line that cannot be used.
fn usage_error(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    stderr
}

#[test]
fn names_of_other_programs_suggest_a_command() {
    for (name, command) in [
        ("create", "mkfs"),
        ("format", "mkfs"),
        ("fsck", "check"),
        ("unmount", "umount"),
        ("destroy", "wipe"),
        ("wipefs", "wipe"),
    ] {
        let stderr = usage_error(&[name, "v"]);
        assert!(
            stderr.contains(&format!("tip: a similar subcommand exists: '{command}'")),
            "{stderr}"
        );
    }
}

#[test]
fn options_of_other_programs_say_what_to_use() {
    for (arguments, tip) in [
        (["ls", "-C", "v"], "column"),
        (["ls", "-v", "v"], "sort -V"),
        (["ls", "-L", "v"], "uringfs stat -L"),
        (["df", "-i", "v"], "no fixed number of inodes"),
        (["tree", "-h", "v"], "du -h"),
    ] {
        let stderr = usage_error(&arguments);
        let option = format!("unexpected argument '{}'", arguments[1]);
        assert!(stderr.contains(&option) && stderr.contains(tip), "{stderr}");
    }
}

#[test]
fn the_argument_that_is_missing_is_named() {
    let stderr = usage_error(&["put", "f2m.bin"]);
    assert!(stderr.contains("not provided:\n  <TARGET:/path>\n"), "{stderr}");
    let stderr = usage_error(&["get", "w.img:/x"]);
    assert!(stderr.contains("not provided:\n  <DEST>\n"), "{stderr}");
    let stderr = usage_error(&["put"]);
    assert!(stderr.contains("  <SRC>...\n  <TARGET:/path>\n"), "{stderr}");
    let stderr = usage_error(&["chmod", "600"]);
    assert!(stderr.contains("  <TARGET:/path>...\n"), "{stderr}");
}

#[test]
fn touch_h_changes_a_link_and_creates_nothing() {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    write(&tree, "a", "");
    std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
    mirror.put();
    for command in [
        &["touch", "-h", "-d", "2001-02-03", "@link"][..],
        &["touch", "-h", "@none"],
        &["touch", "-hc", "@none"],
    ] {
        mirror.run(command);
    }
    let modified = |path: &str| run_ok(mirror.folder(), ["stat", "-c", "%Y", path]);
    let seconds = tree.join("link").symlink_metadata().unwrap().mtime();
    assert_eq!(modified("v:/link"), format!("{seconds}\n"));
    assert_ne!(modified("v:/a"), format!("{seconds}\n"));
}

#[test]
fn du_counts_sizes_and_has_units_as_in_coreutils() {
    let mirror = Mirror::new();
    write(&mirror.tree(), "large", vec![1; 3_000_001]);
    write(&mirror.tree(), "small", "of small");
    std::fs::File::create(mirror.tree().join("sparse")).unwrap().set_len(5 << 20).unwrap();
    mirror.put();
    for options in [
        "-b",
        "--apparent-size",
        "-k",
        "-m",
        "-mk",
        "-km",
        "-h",
        "--si",
        "-bm",
        "-bh",
        "--apparent-size -m",
        "--apparent-size --si",
        "-b -c",
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        mirror.run_in_order(&[&["du"], &options[..], &["@large", "@small", "@sparse"]].concat());
    }
}

#[test]
fn df_has_units_and_a_type() {
    let folder = volume();
    let rows = |options: &[&str]| {
        let text = run_ok(folder.path(), [&["df"], options, &["v"]].concat());
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        text.lines().map(words).collect::<Vec<_>>()
    };
    assert_eq!(rows(&["-m"])[0][1], "1M-blocks");
    assert_eq!(rows(&["-m"])[1][1], "32");
    assert_eq!(rows(&["-k"]), rows(&[]));
    assert_eq!(rows(&["-T"])[0][..3], ["Filesystem", "Type", "1K-blocks"]);
    assert_eq!(rows(&["-T"])[1][..3], ["v", "uringfs", "32768"]);
    assert_eq!(rows(&["-H"])[1][1], "34M");
    assert_eq!(rows(&["--si"]), rows(&["-H"]));
    assert_eq!(rows(&["-Th"])[1][..3], ["v", "uringfs", "32M"]);
}

#[test]
fn find_takes_options_before_its_path() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
    let behind = run_ok(folder, ["find", "v:/", "--json"]);
    for option in ["--json", "-json"] {
        assert_eq!(run_ok(folder, ["find", option, "v:/"]), behind);
        let found = run_ok(folder, ["find", option, "v:/", "-name", "e"]);
        assert!(found.contains("/d/e") && found.len() < behind.len(), "{found}");
    }
    assert_eq!(run_ok(folder, ["find", "-depth", "v:/d"]), "v:/d/e\nv:/d\n");
    refused(folder, ["find", "--json"], "find: the path is missing");
}

#[test]
fn a_missing_volume_names_mkfs() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["nope.img", "nope.img:/", "nope.img:/x"] {
        refused(folder.path(), ["ls", path], "uringfs mkfs creates");
    }
    let few = "cannot make a volume of 10 bytes: ";
    refused(folder.path(), ["mkfs", "--size", "10", "t.img"], few);
}

#[test]
fn the_root_directory_is_not_removed_and_names_the_way() {
    let folder = volume();
    for arguments in [&["rm", "v"][..], &["rm", "-r", "v"], &["rm", "-rf", "v:/"]] {
        let what = "v:/: is the root directory, and cannot be removed; name its entries instead; ";
        refused(folder.path(), arguments, what);
    }
}

#[test]
fn an_odd_name_is_printed_once_in_one_notation() {
    let folder = volume();
    let folder = folder.path();
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(b"v:/\xfe");
    for arguments in [["cat".as_ref(), path, path], ["stat".as_ref(), path, "v:/n'o".as_ref()]] {
        let stderr = String::from_utf8(run(folder, arguments).stderr).unwrap();
        assert_eq!(stderr.lines().next(), Some(r"uringfs: 'v:/'$'\376': does not exist"));
        assert!(!stderr.contains("xfe"), "{stderr}");
    }
    let below = std::ffi::OsStr::from_bytes(b"v:/\xfe/a");
    let stderr = String::from_utf8(run(folder, ["cat".as_ref(), below]).stderr).unwrap();
    assert_eq!(stderr, "uringfs: 'v:/'$'\\376''/a': ''$'\\376' does not exist\n");
}

#[test]
fn kept_files_are_counted_and_named() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    for arguments in [&["put", "-n", "a", "v:/"][..], &["get", "-n", "v:/a", "a"]] {
        let text = run_ok(folder, arguments);
        assert!(text.starts_with("0 files, 0 bytes, 1 existing file kept in "), "{text}");
    }
    let text = run_ok(folder, ["put", "-nv", "a", "v:/"]);
    assert!(text.starts_with("skipped 'v:/a'\n0 files"), "{text}");
    let text = run_ok(folder, ["put", "-n", "--json", "a", "v:/"]);
    assert!(text.contains("\"skipped\": 1"), "{text}");
}

#[test]
fn as_root_a_missing_permission_has_its_exit_code_and_a_hint() {
    if !crate::root::as_root() {
        return;
    }
    let folder = volume();
    let folder = folder.path();
    let image = folder.join("v");
    let image = image.to_str().unwrap();
    let secret = folder.join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::os::unix::fs::chown(&secret, Some(0), Some(0)).unwrap();
    tool("chmod", &["700", secret.to_str().unwrap()]);
    tool("chmod", &["755", folder.to_str().unwrap()]);
    tool("chmod", &["644", image]);
    let as_nobody = |arguments: &[&str]| {
        let mut setpriv = std::process::Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        setpriv.arg(env!("CARGO_BIN_EXE_uringfs")).args(arguments).current_dir("/");
        crate::process::ChildProcess::start(&mut setpriv).end()
    };
    let below = secret.join("x").display().to_string();
    for arguments in [
        &["mkfs", "-f", image][..],
        &["mkfs", "--size", "64M", &below],
        &["get", &format!("{image}:/"), &below],
        &["put", "/etc/passwd", &format!("{image}:/")],
        &["wipe", image],
    ] {
        let output = as_nobody(arguments);
        assert_eq!(output.status.code(), Some(5), "{arguments:?}: {output:?}");
    }
    let closed = folder.join("new").display().to_string();
    let output = as_nobody(&["mkfs", "--size", "64M", &closed]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    let says =
        format!("new: no permission to create files in the directory {}; ", folder.display());
    assert!(output.status.code() == Some(5) && stderr.contains(&says), "{stderr}");
    // Not every file system has immutable files.
    let mut chattr = std::process::Command::new("chattr");
    if !chattr.args(["+i", image]).status().is_ok_and(|status| status.success()) {
        return;
    }
    let output = run(folder, ["mkdir", "v:/d"]);
    tool("chattr", &["-i", image]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("immutable") && !stderr.contains("change its mode"), "{stderr}");
}
