//! Options that users of coreutils expect do what they do there.

use super::mirror::Mirror;
use super::{command, run, run_ok, volume, write};
use crate::process::ChildProcess;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

fn mirror() -> Mirror {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    std::fs::create_dir_all(tree.join("d/e/f")).unwrap();
    for (name, size) in
        [("a.c", 5000), ("b.h", 1), ("run", 9000), ("d/x", 4096), ("d/e/y", 100), ("d/e/f/z", 1)]
    {
        std::fs::write(tree.join(name), vec![1; size]).unwrap();
    }
    std::fs::set_permissions(tree.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("d", tree.join("to-d")).unwrap();
    symlink("none", tree.join("broken")).unwrap();
    symlink("run", tree.join("to-run")).unwrap();
    std::fs::hard_link(tree.join("d/x"), tree.join("d/e/same")).unwrap();
    mirror.put();
    mirror
}

#[test]
fn ls_marks_sorts_and_shows_space() {
    let mirror = mirror();
    for arguments in [
        &["ls", "-1F", "@"][..],
        &["ls", "-F", "@a.c", "@run"],
        &["ls", "-lF", "@to-d", "@run", "@broken", "@to-run"],
        &["ls", "-1s", "@a.c", "@run", "@b.h", "@d/x"],
        &["ls", "-1sh", "@a.c", "@run"],
        &["ls", "-1", "--sort=size", "@a.c", "@run", "@b.h"],
        &["ls", "-1", "--sort=extension", "@a.c", "@run", "@b.h", "@broken"],
        &["ls", "-1Sr", "@a.c", "@run", "@b.h"],
        &["ls", "-1", "-S", "--sort=none", "@a.c"],
        &["ls", "-1", "--sort=extension", "-S", "@a.c", "@run", "@b.h"],
        &["ls", "-1", "-S", "--sort=extension", "@a.c", "@run", "@b.h"],
    ] {
        let arguments: Vec<&str> =
            arguments.iter().map(|it| if *it == "@" { "@." } else { it }).collect();
        mirror.run_in_order(&arguments);
    }
    assert!(run_ok(mirror.folder(), ["ls", "-s", "v:/d/e"]).starts_with("total "));
}

#[test]
fn du_shows_files_levels_and_a_total() {
    let mirror = mirror();
    mirror.run(&["du", "-ac", "@a.c", "@b.h", "@run", "@d/x", "@d/e/same"]);
    mirror.run(&["du", "-hc", "@a.c", "@run"]);
    let folder = mirror.folder();
    assert_eq!(run_ok(folder, ["du", "-d", "1", "v:/d"]), "12\t/d/e\n12\t/d\n");
    assert_eq!(run_ok(folder, ["du", "-d1", "-a", "v:/d"]), "12\t/d/e\n12\t/d\n");
    assert_eq!(
        run_ok(folder, ["du", "--max-depth=0", "-c", "v:/d", "v:/b.h"]),
        "12\t/d\n4\t/b.h\n16\ttotal\n"
    );
    let all = run_ok(folder, ["du", "-a", "v:/d/e"]);
    assert_eq!(all, "4\t/d/e/f/z\n4\t/d/e/f\n4\t/d/e/same\n4\t/d/e/y\n12\t/d/e\n");
    assert_eq!(run(folder, ["du", "-sa", "v:/d"]).status.code(), Some(2));
}

#[test]
fn cp_and_mv_update_and_ask() {
    let mirror = mirror();
    let tree = mirror.tree();
    let old = std::fs::File::options().write(true).open(tree.join("b.h")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    mirror.put();
    for arguments in [
        &["cp", "-u", "-v", "@b.h", "@a.c"][..],
        &["cp", "-uv", "@a.c", "@b.h"],
        &["cp", "-u", "@a.c", "@new"],
        &["cp", "-i", "@run", "@a.c"],
        &["cp", "-i", "-n", "@run", "@a.c"],
        &["mv", "-i", "@run", "@a.c"],
        &["mv", "-f", "-i", "@run", "@a.c"],
        &["cp", "-i", "-f", "@run", "@a.c"],
        &["mv", "-v", "-i", "-f", "@run", "@a.c"],
        &["cp", "-p", "@a.c", "@run"],
        &["mv", "-uv", "@new", "@run"],
    ] {
        mirror.run(arguments);
    }
    let folder = mirror.folder();
    for (answer, is_replaced) in [("n\n", false), ("\n", false), ("yes\n", true)] {
        write(folder, "answer", answer);
        let mut cp = command(folder, ["cp", "-i", "v:/d/e/y", "v:/a.c"]);
        cp.stdin(Stdio::from(std::fs::File::open(folder.join("answer")).unwrap()));
        let output = cp.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "uringfs: overwrite v:/a.c? ");
        let size = run_ok(folder, ["stat", "-c", "%s", "v:/a.c"]);
        assert_eq!(size == "100\n", is_replaced, "{answer:?}");
    }
}

#[test]
fn ln_is_relative_and_replaces_links_to_directories() {
    let mirror = mirror();
    for arguments in [
        &["ln", "-srv", "@a.c", "@d/e/up"][..],
        &["ln", "-sr", "@d/x", "@d/e/f/z", "@d/e"],
        &["ln", "-sr", "@none", "@d/none"],
        &["ln", "-snf", "elsewhere", "@to-d"],
        &["ln", "-sf", "elsewhere", "@d"],
        &["ln", "-sn", "elsewhere", "@to-run"],
        &["ln", "-r", "@a.c", "@hard"],
    ] {
        // Without -s, ln of coreutils ignores -r or refuses it, by its version.
        if arguments[1] != "-r" {
            mirror.run(arguments);
        }
    }
    assert_eq!(run(mirror.folder(), ["ln", "-r", "v:/a.c", "v:/b"]).status.code(), Some(2));
    // A name of the volume itself is no path in it.
    let whole = run(mirror.folder(), ["ln", "-s", "v:/a.c", "v:/b"]);
    assert_eq!(whole.status.code(), Some(2));
    assert!(String::from_utf8(whole.stderr).unwrap().contains("give '/a.c', or use -r"));
}

#[test]
fn owners_change_with_the_lines_of_coreutils() {
    let mirror = mirror();
    if !nix::unistd::geteuid().is_root() {
        return assert_eq!(run_ok(mirror.folder(), ["chgrp", "-R", "7", "v:/d"]), "");
    }
    for arguments in [
        &["chown", "-v", "7:8", "@a.c"][..],
        &["chown", "-v", "7:8", "@a.c"],
        &["chown", "-v", "54321", "@a.c", "@b.h"],
        &["chown", "-v", ":9", "@a.c"],
        &["chgrp", "8", "@a.c", "@none"],
        &["chgrp", "-v", "8", "@a.c"],
        &["chgrp", "-Rv", "54321", "@d"],
        &["chgrp", "-h", "7", "@to-d"],
        &["chgrp", "root", "@to-d"],
    ] {
        mirror.run(arguments);
    }
    assert_eq!(run(mirror.folder(), ["chgrp", "no such group", "v:/d"]).status.code(), Some(2));
}

#[test]
fn touch_takes_stamps() {
    let mirror = mirror();
    for arguments in [
        &["touch", "-t", "202611220841.05", "@a.c"][..],
        &["touch", "-m", "-t", "7001010000", "@b.h"],
        &["touch", "-t", "12312359", "@new"],
        &["touch", "-c", "-a", "-r", "@a.c", "@d/x", "@none"],
    ] {
        mirror.run(arguments);
        mirror.run_in_order(&["stat", "-c", "%Y", "@a.c", "@b.h", "@d/x"]);
    }
    for bad in ["1", "13010000", "2026112208411"] {
        assert_eq!(run(mirror.folder(), ["touch", "-t", bad, "v:/a.c"]).status.code(), Some(2));
    }
}

#[test]
fn verbose_commands_print_their_changes() {
    let folder = volume();
    let folder = folder.path();
    let line = |arguments: &[&str]| run_ok(folder, arguments);
    assert_eq!(line(&["touch", "-v", "v:/a"]), "created 'v:/a'\n");
    assert_eq!(line(&["touch", "-v", "v:/a"]), "changed times of 'v:/a'\n");
    assert_eq!(line(&["touch", "-cv", "v:/b"]), "");
    assert_eq!(line(&["truncate", "-v", "-s", "1K", "v:/a"]), "changed size of 'v:/a' to 1024\n");
    assert_eq!(line(&["xattr", "set", "-v", "user.x", "y", "v:/a"]), "set user.x of 'v:/a'\n");
    assert_eq!(line(&["xattr", "remove", "-v", "user.x", "v:/a"]), "removed user.x of 'v:/a'\n");
}

#[test]
fn df_takes_paths() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "v:/d"]);
    let whole = run_ok(folder, ["df", "v"]);
    assert_eq!(run_ok(folder, ["df", "v", "--path", "/d"]), whole);
    for path in ["v:/d", "v:/", "v:"] {
        assert_eq!(run_ok(folder, ["df", path]), whole);
    }
    assert_eq!(run(folder, ["df", "v:/none"]).status.code(), Some(3));
}

#[test]
fn put_and_get_accept_what_they_always_do() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("t/d")).unwrap();
    write(folder, "t/d/a", "of a");
    run_ok(folder, ["put", "-r", "t", "v:/"]);
    run_ok(folder, ["put", "-a", "--preserve", "t", "v:/"]);
    run_ok(folder, ["get", "-rp", "v:/t", "out"]);
    assert_eq!(std::fs::read(folder.join("out/d/a")).unwrap(), b"of a");
    let help = ChildProcess::start(&mut command(folder, ["put", "--help"])).end().stdout;
    assert!(String::from_utf8(help).unwrap().contains("Copy directories recursively, as always"));
}
