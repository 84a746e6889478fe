//! Paths in a volume: the root by all of its spellings, patterns, several sources.

use super::mirror::Mirror;
use super::{refused, run_ok, volume, write};

#[test]
fn a_target_without_a_path_is_its_root_directory() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v"]);
    run_ok(folder, ["put", "a", "v:/b"]);
    for root in ["v", "v:", "v:/", "./v", "./v:"] {
        assert_eq!(run_ok(folder, ["ls", root]), "a\nb\n");
        assert_eq!(run_ok(folder, ["du", "-s", root]), "8\t/\n");
        assert_eq!(run_ok(folder, ["tree", root]), run_ok(folder, ["tree", "v:/"]));
        let [one, other] =
            [root, "v:/"].map(|path| run_ok(folder, ["stat", "-c", "%i %a %y", path]));
        assert_eq!(one, other);
        refused(folder, ["cat", root], "/: is a directory");
        refused(folder, ["rm", "-r", root], "cannot be removed; name its entries instead");
        let out = format!("out{}", root.len());
        run_ok(folder, ["get", root, &out]);
        assert_eq!(folder.join(out).read_dir().unwrap().count(), 2);
    }
    run_ok(folder, ["mkdir", "v:/d"]);
    run_ok(folder, ["mv", "v:/a", "v:/d"]);
    run_ok(folder, ["mv", "./v:/d/a", "v"]);
    assert_eq!(run_ok(folder, ["ls", "v"]), "a\nb\nd\n");
}

#[test]
fn backslashes_of_names_are_escaped_in_patterns() {
    let folder = volume();
    let folder = folder.path();
    for name in ["[x]", "x", r"dev\x2d1", r"dev\x2d2"] {
        write(folder, name, name);
        run_ok(folder, ["put", name, "v:/"]);
    }
    assert_eq!(run_ok(folder, ["ls", "--glob", r"v:/\[?\]"]), "/[x]\n");
    assert_eq!(run_ok(folder, ["ls", "--glob", r"v:/dev\\x2d*"]), "/dev\\x2d1\n/dev\\x2d2\n");
    assert_eq!(run_ok(folder, ["cat", r"v:/dev\x2d1"]), r"dev\x2d1");
}

#[test]
fn mv_and_ln_take_several_sources_as_in_coreutils() {
    let mirror = Mirror::new();
    for directory in ["d", "e", "x", "y"] {
        std::fs::create_dir(mirror.tree().join(directory)).unwrap();
    }
    for name in ["a", "b", "c", "x/same", "y/same"] {
        std::fs::write(mirror.tree().join(name), name).unwrap();
    }
    mirror.put();
    for arguments in [
        &["mv", "-v", "@a", "@b", "@d"][..],
        &["mv", "-v", "@d/a", "@none", "@d/b", "@e"],
        &["mv", "-v", "@e/a", "@e/b", "@c"],
        &["mv", "-v", "-t", "@d", "@e/a", "@e/b"],
        &["mv", "-T", "@d", "@e"],
        &["mv", "-T", "@c", "@e"],
        &["mv", "-v", "@x/same", "@y/same", "@e"],
        &["mv", "@c", "@c"],
        &["mv", "@c"],
        &["ln", "-v", "@c", "@hard"],
        &["ln", "-v", "@c", "@e/a", "@y"],
        &["ln", "-fv", "@c", "@e/a"],
        &["ln", "-fv", "@c", "@hard"],
        &["ln", "-f", "@c", "@c"],
        &["ln", "@c", "@e/a"],
        &["ln", "-f", "@c", "@y"],
        &["ln", "-f", "@c", "@y/new/"],
        &["ln", "-sv", "one", "two", "@x"],
        &["ln", "--symbolic", "--verbose", "--force", "three", "@x/one"],
        &["ln", "-sft", "@x", "elsewhere/two", "four"],
        &["mv", "-v", "@c", "@hard"],
    ] {
        mirror.run(arguments);
    }
    let folder = mirror.folder();
    mirror.run_in_order(&["ls", "@x"]);
    run_ok(folder, ["mkdir", "v:/to"]);
    run_ok(folder, ["mv", "--glob", "v:/e/*", "v:/to"]);
    assert_eq!(run_ok(folder, ["ls", "v:/to"]), "a\nb\nsame\n");
}

#[test]
fn put_and_get_leave_out_what_is_excluded() {
    let folder = volume();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("t/cache")).unwrap();
    for name in ["t/a", "t/a.o", "t/.b.o", "t/cache/x", "t/x"] {
        write(folder, name, name);
    }
    run_ok(folder, ["put", "--exclude", "*.o", "--exclude=cache/x", "t", "v:/"]);
    assert_eq!(run_ok(folder, ["ls", "-AR", "v:/t"]), "/t:\na\ncache\nx\n\n/t/cache:\n");
    run_ok(folder, ["get", "--exclude", "cache", "--exclude", "[y-z]", "v:/t", "out"]);
    let mut names: Vec<_> =
        folder.join("out").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "x"]);
}

#[test]
fn put_and_get_print_the_lines_of_cp() {
    let mirror = Mirror::new();
    let folder = mirror.folder();
    std::fs::create_dir_all(folder.join("from/d")).unwrap();
    std::fs::create_dir_all(folder.join("to")).unwrap();
    for name in ["from/a", "from/d/b"] {
        write(folder, name, name);
    }
    let lines = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.contains("->")).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let to_volume = run_ok(folder, ["put", "-v", "from", "v:/"]).replace("v:/", "");
    let cp = crate::process::tool(
        "cp",
        &["-rv", folder.join("from").to_str().unwrap(), folder.join("t").to_str().unwrap()],
    );
    let cp = cp.replace(&format!("{}/", folder.display()), "").replace("t/", "");
    assert_eq!(lines(&to_volume), lines(&cp));
    let from_volume = run_ok(folder, ["get", "-v", "v:/from", "to"]);
    assert_eq!(
        lines(&from_volume),
        [
            "'v:/from' -> 'to/from'",
            "'v:/from/a' -> 'to/from/a'",
            "'v:/from/d' -> 'to/from/d'",
            "'v:/from/d/b' -> 'to/from/d/b'"
        ]
    );
    assert!(lines(&run_ok(folder, ["get", "-nv", "v:/from", "to"])).is_empty());
}

#[test]
fn tree_shows_levels_hidden_names_and_links() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "-p", "v:/a/b/c", "v:/.h", "v:/x"]);
    run_ok(folder, ["ln", "-s", "b", "v:/a/to-b"]);
    assert_eq!(
        run_ok(folder, ["tree", "-L", "2", "v:/a"]),
        "/a\n|-- b\n|   `-- c\n`-- to-b -> b\n\n2 directories, 1 file\n"
    );
    assert_eq!(
        run_ok(folder, ["tree", "-L1", "-a", "v"]),
        "/\n|-- .h\n|-- a\n`-- x\n\n3 directories, 0 files\n"
    );
    assert_eq!(run_ok(folder, ["tree", "-d", "-L", "1", "v:/a"]), "/a\n`-- b\n\n1 directory\n");
    assert_eq!(
        run_ok(folder, ["tree", "--glob", "v:/[ax]", "-L1"]),
        "/a\n|-- b\n`-- to-b -> b\n/x\n\n1 directory, 1 file\n"
    );
}
