//! `stat` prints what `stat` of coreutils prints.

use super::mirror::Mirror;
use super::{run_ok, volume};
use crate::root::is_root;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

#[test]
fn formats_are_those_of_coreutils() {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    std::fs::write(tree.join("a"), vec![1; 5000]).unwrap();
    std::fs::write(tree.join("empty"), "").unwrap();
    std::fs::write(tree.join("a b"), "x").unwrap();
    std::fs::set_permissions(tree.join("a"), PermissionsExt::from_mode(0o4751)).unwrap();
    symlink("a b", tree.join("link")).unwrap();
    std::fs::create_dir(tree.join("d")).unwrap();
    if is_root() {
        let status = Command::new("mknod").arg(tree.join("null")).args(["c", "1", "3"]).status();
        assert!(status.unwrap().success());
    }
    mirror.put();
    let files = ["@a", "@empty", "@a b", "@link"];
    let sequences = "%n %s %b %B %o %h %a %A %f %F %u %U %g %G %t %T %Hr %Lr %y %Y %%";
    mirror.run_in_order(&[&["stat", "-c", sequences][..], &files].concat());
    let widths =
        "[%10s] [%-10s] [%010s] [%#a] [%#f] [%.3F] [%5.2A] [%04a] [%.3Y] [%.Y] [%8U] [%-8U]";
    mirror.run_in_order(&[&["stat", "--format", widths][..], &files].concat());
    mirror.run_in_order(&[&["stat", "--printf", r"%s\t%a\101\n\\"][..], &files].concat());
    mirror.run_in_order(&["stat", "-L", "-c", "%s %F", "@link"]);
    mirror.run_in_order(&["stat", "-c", "%F %a %A %u", "@d"]);
    mirror.run(&["stat", "-c", "%s", "@a", "@none", "@empty"]);
    if is_root() {
        mirror.run_in_order(&["stat", "-c", "%F %t %T %Hr %Lr %A", "@null"]);
        let text = run_ok(mirror.folder(), ["stat", "v:/null"]);
        assert!(text.contains("Links: 1     Device type: 1,3\n"), "{text}");
    }
    // A path stands in quotes with its target.
    let quoted = run_ok(mirror.folder(), ["stat", "-c", "%N", "v:/a", "v:/link"]);
    assert_eq!(quoted, "'v:/a'\n'v:/link' -> 'a b'\n");
}

#[test]
fn the_default_format_is_that_of_coreutils_without_the_device() {
    let mirror = Mirror::new();
    std::fs::write(mirror.tree().join("a"), vec![1; 5000]).unwrap();
    mirror.put();
    let theirs = crate::process::tool("stat", &[mirror.tree().join("a").to_str().unwrap()]);
    let theirs: Vec<&str> = theirs.lines().collect();
    let ours = run_ok(mirror.folder(), ["stat", "v:/a"]);
    let ours: Vec<&str> = ours.lines().collect();
    assert_eq!((ours[0], ours.len()), ("  File: v:/a", theirs.len()));
    // Size, owner, and the modification time. A copy reads its source, which changes the access time.
    for line in [1, 3, 5] {
        assert_eq!(ours[line], theirs[line]);
    }
    assert!(ours[2].starts_with("Inode: ") && ours[2].contains("Links: 1"), "{ours:?}");
    assert!(ours[6].starts_with("Change: ") && ours[7].starts_with(" Birth: "), "{ours:?}");
}

#[test]
fn users_without_a_name_are_unknown() {
    let folder = volume();
    run_ok(folder.path(), ["touch", "v:/a"]);
    run_ok(folder.path(), ["chown", "54321:54322", "v:/a"]);
    let owner = run_ok(folder.path(), ["stat", "-c", "%U %u %G %g", "v:/a"]);
    assert_eq!(owner, "UNKNOWN 54321 UNKNOWN 54322\n");
}
