//! `chmod` and `mkdir -m` take the modes of coreutils.

use super::mirror::Mirror;
use super::run;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn chmod_changes_modes_as_coreutils_does() {
    let mirror = Mirror::new();
    let tree = mirror.tree();
    std::fs::create_dir_all(tree.join("d/e/f")).unwrap();
    for name in ["a", "d/b", "d/e/c", "d/e/f/g"] {
        std::fs::write(tree.join(name), name).unwrap();
        std::fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o640)).unwrap();
    }
    symlink("e", tree.join("d/link")).unwrap();
    symlink("d/e", tree.join("to-e")).unwrap();
    mirror.put();
    for arguments in [
        &["chmod", "-v", "u+x,g-r", "@a"][..],
        &["chmod", "-v", "u+x", "@a"],
        &["chmod", "-c", "u+x", "@a", "@d/b"],
        &["chmod", "-x", "@a"],
        &["chmod", "-R", "a=rX", "@d"],
        &["chmod", "-R", "-w", "@d/e"],
        &["chmod", "u+w,g=u", "@d/e", "@d/b"],
        &["chmod", "g+s,+t", "@d"],
        &["chmod", "755", "@d"],
        &["chmod", "00755", "@d"],
        &["chmod", "=", "@d/b"],
        &["chmod", "4755", "@d/b"],
        &["chmod", "7", "@a"],
        &["chmod", "u=rwx", "@to-e"],
        &["chmod", "--recursive", "u+rwX", "@to-e", "@a"],
        &["chmod", "--changes", "644", "@a", "@none", "@d/b"],
        &["chmod", "u+y", "@a"],
    ] {
        mirror.run(arguments);
    }
}

#[test]
fn mkdir_sets_the_mode_of_the_new_directory_only() {
    let mirror = Mirror::new();
    for arguments in [
        &["mkdir", "-m", "700", "@a"][..],
        &["mkdir", "-m", "u=rwx,go=", "@b"],
        &["mkdir", "-p", "-m", "1777", "@c/d/e"],
        &["mkdir", "--mode=g-w,o=", "--verbose", "@f", "@f/g"],
        &["mkdir", "-m", "-x", "@h"],
        &["chmod", "2755", "@f"],
        &["mkdir", "@f/plain"],
        &["mkdir", "-m", "700", "@f/set"],
        &["mkdir", "-p", "@a/x", "@a/x"],
    ] {
        mirror.run(arguments);
    }
    let output = run(mirror.folder(), ["mkdir", "-m", "u+y", "v:/z"]);
    assert_eq!(output.status.code(), Some(2));
}
