//! Paths in a volume: the root by all of its spellings, wildcards with escapes, several sources.

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
        assert_eq!(run_ok(folder, ["stat", root]), run_ok(folder, ["stat", "v:/"]));
        refused(folder, ["cat", root], "it is a directory");
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
fn a_backslash_makes_a_wildcard_literal() {
    let folder = volume();
    let folder = folder.path();
    for name in ["a*b", "a-b", "[x]", "x", r"dev\x2d1", r"dev\x2d2"] {
        write(folder, name, name);
        run_ok(folder, ["put", name, "v:/"]);
    }
    assert_eq!(run_ok(folder, ["ls", r"v:/a\*?"]), "/a*b\n");
    assert_eq!(run_ok(folder, ["ls", r"v:/\[?\]"]), "/[x]\n");
    assert_eq!(run_ok(folder, ["ls", r"v:/dev\\x2d*"]), "/dev\\x2d1\n/dev\\x2d2\n");
    // A name without wildcards is itself.
    assert_eq!(run_ok(folder, ["cat", r"v:/dev\x2d1"]), r"dev\x2d1");
    run_ok(folder, ["rm", r"v:/a\*b"]);
    assert_eq!(run_ok(folder, ["ls", "v:/a*"]), "/a-b\n");
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
    run_ok(folder, ["mv", "v:/e/*", "v:/to"]);
    assert_eq!(run_ok(folder, ["ls", "v:/to"]), "a\nb\nsame\n");
}
