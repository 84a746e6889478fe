//! `rm`, `mv`, `mkdir` and `ln` take the options of coreutils, and print what coreutils prints.

use super::mirror::Mirror;
use super::{command, incomplete, refused, run_ok, volume, write};

#[test]
fn verbose_commands_print_the_lines_of_coreutils() {
    let mirror = Mirror::new();
    let folder = mirror.folder();
    for arguments in [
        &["mkdir", "-v", "@d", "@e"][..],
        &["mkdir", "-pv", "@d/x/y", "@d/x"],
        &["mkdir", "--parents", "--verbose", "@d/x/z"],
        &["mkdir", "@quiet"],
        &["mv", "-v", "@d/x", "@e"],
        &["mv", "-v", "@d", "@f"],
        &["mv", "--verbose", "--force", "@e", "@f"],
        &["rm", "-rfv", "@f/e/x/y", "@none"],
        &["rm", "-rv", "@f"],
        &["rm", "--recursive", "--verbose", "--force", "@quiet"],
    ] {
        mirror.run(arguments);
    }
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "");
    for name in ["a", "b"] {
        write(folder, name, "");
        run_ok(folder, ["put", name, "v:/"]);
    }
    assert_eq!(run_ok(folder, ["mv", "-nv", "v:/a", "v:/b"]), "", "nothing was moved");
    assert_eq!(run_ok(folder, ["rm", "-v", "v:/a"]), "removed 'v:/a'\n");
}

#[test]
fn a_reader_that_leaves_does_not_stop_a_change() {
    let folder = volume();
    let folder = folder.path();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut mkdir = command(folder, ["mkdir", "-v", "v:/a", "v:/b"]);
    assert!(mkdir.stdout(writer).output().unwrap().status.success());
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\nb\n");
}

#[test]
fn forced_removal_ignores_what_does_not_exist_and_nothing_else() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/a"]);
    run_ok(folder, ["mkdir", "v:/d"]);
    assert_eq!(
        run_ok(folder, ["rm", "-f", "--glob", "v:/none", "v:/no/ne", "v:/a/x", "v:/no*"]),
        ""
    );
    assert_eq!(run_ok(folder, ["rm", "-f"]), "");
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "a\nd\n");
    refused(folder, ["rm", "v:/none"], "v:/none: ");
    refused(folder, ["rm", "-f", "v:/d"], "v:/d: is a directory; use rm -r to remove it");
    refused(folder, ["rm", "-rf", "v:/"], "v:/: is the root directory, and cannot be removed");
    refused(folder, ["rm", "-f", "w:/a"], "w does not exist");
    let (_, stderr) = incomplete(folder, ["rm", "-fv", "v:/none", "v:/d", "v:/a"]);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    run_ok(folder, ["rm", "-Rf", "v:/d", "v:/none"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "");
}
