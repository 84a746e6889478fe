//! `find` finds what `find` of findutils finds.

use super::mirror::Mirror;
use super::{refused, run_ok};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

fn mirror() -> Mirror {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    for directory in ["d/e/f", "d/.hidden", "empty"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for (name, size) in [
        ("a.log", 0),
        ("b.LOG", 1),
        ("d/c.log", 512),
        ("d/e/.x.log", 513),
        ("d/e/f/big", 2 << 20),
        ("d/.hidden/y", 1024),
    ] {
        std::fs::write(tree.join(name), vec![b'x'; size]).unwrap();
        std::fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(tree.join("a.log"), PermissionsExt::from_mode(0o4750)).unwrap();
    let old = std::fs::File::options().write(true).open(tree.join("d/c.log")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(3 * 86_400 + 100)).unwrap();
    symlink("e", tree.join("d/link")).unwrap();
    std::fs::hard_link(tree.join("b.LOG"), tree.join("d/same")).unwrap();
    mirror.put();
    mirror
}

#[test]
fn tests_accept_what_find_accepts() {
    let mirror = mirror();
    for tests in [
        &[][..],
        &["-name", "*.log"],
        &["-iname", "*.log"],
        &["-name", "?.log"],
        &["-path", "*d/*"],
        &["-type", "f"],
        &["-type", "d,l"],
        &["!", "-type", "d"],
        &["-not", "-name", "*.log", "-type", "f"],
        &["-maxdepth", "1"],
        &["-mindepth", "2"],
        &["-mindepth", "1", "-maxdepth", "2", "-name", "*e*"],
        &["-maxdepth", "0"],
        &["-size", "1", "-type", "f"],
        &["-size", "+1", "-type", "f"],
        &["-size", "-2k", "-type", "f"],
        &["-size", "512c"],
        &["-size", "+1M", "-type", "f"],
        &["-size", "2M", "-type", "f"],
        &["-size", "0", "-type", "f"],
        &["-empty"],
        &["-newer", "@d/c.log", "-type", "f"],
        &["-mtime", "+1"],
        &["-mtime", "3"],
        &["-mtime", "0", "-type", "f"],
        &["-mmin", "-60", "-type", "f"],
        &["-perm", "644"],
        &["-perm", "-4000"],
        &["-perm", "/4001", "-type", "f"],
        &["-links", "2", "-type", "f"],
        &["-uid", "0", "-print"],
        &["-uid", "-1", "-maxdepth", "0", "-print0"],
        &["-type", "f", "-maxdepth", "0", "-print0"],
    ] {
        mirror.run(&[&["find", "@d", "@a.log", "@b.LOG"], tests].concat());
    }
    mirror.run(&["find", "@none", "@empty"]);
    mirror.run(&["find", "@d/link", "@d/link/"]);
}

#[test]
fn a_wrong_test_is_refused() {
    let mirror = mirror();
    let folder = mirror.folder();
    for (arguments, part) in [
        (&["find", "-name", "x"][..], "the path is missing"),
        (&["find", "v", "-nam", "x"], "-nam: unknown test"),
        (&["find", "v", "-name"], "-name: the value is missing"),
        (&["find", "v", "-size", "x"], "-size x: expected a number"),
        (&["find", "v", "-type", "x"], "-type: expected letters of"),
        (&["find", "v", "-perm", "u+x"], "expected octal digits"),
        (&["find", "v", "-newer", "v:/none"], "v:/none: "),
    ] {
        refused(folder, arguments, part);
    }
    assert!(run_ok(folder, ["find", "--help"]).contains("-maxdepth N"));
    assert_eq!(run_ok(folder, ["find", "--glob", "v:/*.log"]), "v:/a.log\n");
}
