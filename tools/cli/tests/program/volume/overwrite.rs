//! The rule of `put`, `get` and `mv` for existing names: a file is replaced completely or kept. The volume's own
//! image and files that the same command has created are never replaced.

use super::{command, incomplete, refused, run, run_ok, volume, write};
use crate::process::tool;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;

fn make_directories(folder: &Path, names: &[&str]) {
    for name in names {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
}

/// No temporary file is left.
fn assert_tidy(folder: &Path) {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> =
        names.filter(|name| name.to_string_lossy().starts_with(".uringfs")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn get_does_not_replace_the_image_it_reads() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["t"]);
    write(folder, "t/v", "");
    write(folder, "t/z", "of z");
    run_ok(folder, ["put", "t", "v:/"]);
    std::fs::hard_link(folder.join("v"), folder.join("hard")).unwrap();
    symlink("v", folder.join("soft")).unwrap();
    for target in ["v", "hard", "soft"] {
        for image in ["v", "hard", "soft"] {
            let what = format!("{target}: cannot be created: it is the image");
            refused(folder, ["get", &format!("{image}:/t/v"), target], &what);
        }
    }
    // The same for a file in a tree.
    let (_, stderr) = incomplete(folder, ["get", "--glob", "v:/t/*", "."]);
    assert!(stderr.contains("v: cannot be created: it is the image"), "{stderr}");
    assert_eq!(std::fs::read(folder.join("z")).unwrap(), b"of z");
    assert!(folder.join("soft").is_symlink());
    assert_eq!(run_ok(folder, ["ls", "v:/t"]), "v\nz\n");
    assert_tidy(folder);
}

/// A loop device. Detached on drop.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        tool("losetup", &["--detach", &self.0]);
    }
}

#[test]
fn the_backing_file_of_a_loop_device_is_the_image() {
    if !crate::root::as_root() {
        return;
    }
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/v"]);
    let image = folder.join("v");
    let device =
        LoopDevice(tool("losetup", &["--find", "--show", image.to_str().unwrap()]).trim().into());
    let in_device = |path: &str| format!("{}:{path}", device.0);
    let what = "v: cannot be created: it is the image";
    refused(folder, ["get", &in_device("/v"), "v"], what);
    refused(folder, ["put", "v", &in_device("/w")], "v: is the volume's own image");
    drop(device);
    assert_eq!(run_ok(folder, ["cat", "v:/v"]), "of a");
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "v\n");
}

#[test]
fn put_does_not_copy_the_image_into_itself() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    write(folder, "z", "of z");
    std::fs::hard_link(folder.join("v"), folder.join("hard")).unwrap();
    let (_, stderr) = incomplete(folder, ["put", ".", "v:/all"]);
    for line in ["./hard: is the volume's own image", "./v: is the volume's own image"] {
        assert!(stderr.contains(line), "{stderr}");
    }
    assert_eq!(run_ok(folder, ["ls", "v:/all"]), "a\nz\n");
    refused(folder, ["put", "v", "v:/"], "v: is the volume's own image");
    let mut put = command(folder, ["put", "-", "v:/in"]);
    let output = put.stdin(File::open(folder.join("hard")).unwrap()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("is the volume's own image"), "{stderr}");
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "all\n");
}

#[test]
fn cat_and_get_do_not_print_into_the_image() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    let was = std::fs::read(folder.join("v")).unwrap();
    for arguments in [&["cat", "v:/a"][..], &["get", "v:/a", "-"]] {
        let image = File::options().append(true).open(folder.join("v")).unwrap();
        let output = command(folder, arguments).stdout(image).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && stderr.contains("is the image that is being read"),
            "{stderr}"
        );
    }
    assert!(std::fs::read(folder.join("v")).unwrap() == was);
}

#[test]
fn sources_of_one_name_do_not_replace_each_other() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["a/d", "b/d", "out"]);
    for name in ["a/x", "b/x", "a/d/both", "b/d/both", "a/d/one", "b/d/other"] {
        write(folder, name, name);
    }
    let (_, stderr) = incomplete(folder, ["put", "a/x", "b/x", "v:/"]);
    assert_eq!(stderr, "uringfs: v:/x: was already written by this command\n");
    assert_eq!(run_ok(folder, ["cat", "v:/x"]), "a/x");
    // Directories are merged, except files that are in both.
    let (_, stderr) = incomplete(folder, ["put", "a/d", "b/d", "v:/"]);
    assert_eq!(stderr, "uringfs: v:/d/both: was already written by this command\n");
    assert_eq!(run_ok(folder, ["ls", "v:/d"]), "both\none\nother\n");
    assert_eq!(run_ok(folder, ["cat", "v:/d/both"]), "a/d/both");
    // A directory is not merged into the target of a link that this command has created.
    make_directories(folder, &["l", "m/x"]);
    symlink("/d", folder.join("l/x")).unwrap();
    write(folder, "m/x/new", "");
    let (_, stderr) = incomplete(folder, ["put", "l/x", "m/x", "v:/"]);
    assert!(stderr.contains("v:/x: was already written by this command"), "{stderr}");
    assert_eq!(run_ok(folder, ["ls", "v:/d"]), "both\none\nother\n");

    run_ok(folder, ["rm", "-r", "v:/x", "v:/d"]);
    run_ok(folder, ["put", "a", "b", "v:/"]);
    let (_, stderr) = incomplete(folder, ["get", "--glob", "v:/a/*", "v:/b/*", "out"]);
    let mut lines: Vec<&str> = stderr.lines().collect();
    lines.sort_unstable();
    let why = "cannot be created: it was already created by this command";
    assert_eq!(
        lines,
        [format!("uringfs: out/d/both: {why}"), format!("uringfs: out/x: {why}")],
        "{stderr}"
    );
    assert_eq!(std::fs::read(folder.join("out/x")).unwrap(), b"a/x");
    assert_eq!(std::fs::read(folder.join("out/d/both")).unwrap(), b"a/d/both");
    assert!(folder.join("out/d/one").exists() && folder.join("out/d/other").exists());
    assert_tidy(&folder.join("out"));
}

#[test]
fn hard_links_lead_to_their_own_file() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["p", "q", "r", "out"]);
    write(folder, "p/f", "of p");
    write(folder, "q/f", "of q");
    std::fs::hard_link(folder.join("p/f"), folder.join("r/g")).unwrap();
    let (_, stderr) = incomplete(folder, ["put", "p/f", "q/f", "r/g", "v:/"]);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(run_ok(folder, ["cat", "v:/f", "v:/g"]), "of pof p");
    run_ok(folder, ["put", "p", "q", "r", "v:/"]);
    let (_, stderr) = incomplete(folder, ["get", "v:/p/f", "v:/q/f", "v:/r/g", "out"]);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for name in ["out/f", "out/g"] {
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), b"of p");
    }
    // If the first name exists and is kept, the copy gets the next name.
    write(folder, "old", "as it was");
    run_ok(folder, ["rm", "v:/g"]);
    run_ok(folder, ["put", "old", "v:/f"]);
    run_ok(folder, ["put", "-n", "p/f", "r/g", "v:/"]);
    assert_eq!(run_ok(folder, ["cat", "v:/f", "v:/g"]), "as it wasof p");
    std::fs::remove_file(folder.join("out/g")).unwrap();
    write(folder, "out/f", "as it was");
    run_ok(folder, ["get", "--no-clobber", "v:/p/f", "v:/r/g", "out"]);
    assert_eq!(std::fs::read(folder.join("out/f")).unwrap(), b"as it was");
    assert_eq!(std::fs::read(folder.join("out/g")).unwrap(), b"of p");
}

#[test]
fn existing_files_are_replaced_by_the_rule() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["tree/d", "out/tree/f"]);
    for name in ["tree/a", "tree/d/b", "tree/f", "tree/s"] {
        write(folder, name, "new");
    }
    run_ok(folder, ["put", "tree", "v:/"]);
    let out = folder.join("out/tree");
    write(&out, "a", "old");
    write(&out, "d", "old");
    write(folder, "elsewhere", "old");
    symlink("../../elsewhere", out.join("s")).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let stderr = incomplete(folder, ["get", "-n", "v:/tree", "out"]).1;
    assert_eq!((read("out/tree/a"), read("elsewhere")), ("old".into(), "old".into()));
    assert!(out.join("s").is_symlink());
    for stderr in [stderr, incomplete(folder, ["get", "v:/tree", "out"]).1] {
        let lines: Vec<&str> = stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{stderr}");
        assert_eq!(
            lines[0],
            "uringfs: out/tree/d: cannot be created: the existing file is not a directory"
        );
        assert_eq!(
            lines[1],
            "uringfs: out/tree/f: cannot be created: the existing file is a directory"
        );
    }
    assert_eq!((read("out/tree/a"), read("out/tree/d")), ("new".into(), "old".into()));
    // The link is replaced; its target is not changed.
    assert_eq!((read("out/tree/s"), read("elsewhere")), ("new".into(), "old".into()));
    assert!(!out.join("s").is_symlink());

    run_ok(folder, ["mkdir", "v:/tree/x"]);
    make_directories(folder, &["more/x"]);
    write(folder, "more/a", "more");
    run_ok(folder, ["put", "-n", "more/a", "v:/tree"]);
    assert_eq!(run_ok(folder, ["cat", "v:/tree/a"]), "new");
    run_ok(folder, ["put", "-n", "-f", "more/a", "v:/tree"]);
    assert_eq!(run_ok(folder, ["cat", "v:/tree/a"]), "more");
    write(folder, "x", "");
    refused(folder, ["put", "x", "v:/tree"], "v:/tree/x: the existing file is a directory");
    refused(
        folder,
        ["put", "more/x", "v:/tree/a"],
        "v:/tree/a: the existing file is not a directory",
    );
    assert_eq!(run_ok(folder, ["cat", "v:/tree/a"]), "more");
}

#[test]
fn a_special_file_is_replaced_by_its_type_or_with_force() {
    let folder = volume();
    let folder = folder.path();
    let fifo = |name: &str| {
        mknodat(CWD, folder.join(name), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    };
    let is_fifo = |name: &str| folder.join(name).symlink_metadata().unwrap().file_type().is_fifo();
    fifo("pipe");
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "pipe", "v:/"]);
    let why = "the existing file is a device, FIFO or socket; use -f to replace it";
    run_ok(folder, ["get", "v:/pipe", "pipe"]);
    assert!(is_fifo("pipe"));
    make_directories(folder, &["out"]);
    fifo("out/a");
    let (_, stderr) = incomplete(folder, ["get", "v:/a", "out"]);
    assert_eq!(stderr, format!("uringfs: out/a: cannot be created: {why}\n"));
    run_ok(folder, ["get", "-f", "v:/a", "out"]);
    assert_eq!(std::fs::read(folder.join("out/a")).unwrap(), b"of a");
    refused(folder, ["put", "a", "v:/pipe"], &format!("v:/pipe: {why}"));
    run_ok(folder, ["put", "--force", "a", "v:/pipe"]);
    assert_eq!(run_ok(folder, ["cat", "v:/pipe"]), "of a");
}

#[test]
fn get_writes_into_a_special_file_that_is_named_and_never_replaces_it() {
    let folder = volume();
    let folder = folder.path();
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    symlink("pipe", folder.join("link")).unwrap();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    for arguments in
        [&["get", "v:/a", "pipe"][..], &["get", "v:/a", "link"], &["get", "-f", "v:/a", "pipe"]]
    {
        let path = folder.join("pipe");
        let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
        assert_eq!(run_ok(folder, arguments), "");
        assert_eq!(reader.join().unwrap(), b"of a");
        assert!(folder.join("pipe").symlink_metadata().unwrap().file_type().is_fifo());
    }
    assert_eq!(run_ok(folder, ["get", "-f", "v:/a", "/dev/null"]), "");
    assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
    assert_eq!(run_ok(folder, ["get", "-f", "v:/a", "/dev/stdout"]), "of a");
    assert!(Path::new("/dev/stdout").is_symlink());
    run_ok(folder, ["get", "-n", "v:/a", "pipe"]);
    // With standard output in a file the contents go where the next bytes would.
    let shell = format!("echo 1; {} get v:/a /dev/stdout; echo 2", env!("CARGO_BIN_EXE_uringfs"));
    let script = format!("({shell}) > out");
    assert!(
        std::process::Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(std::fs::read(folder.join("out")).unwrap(), b"1\nof a2\n");
}

#[test]
fn get_follows_a_link_that_is_named_as_the_destination() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["d"]);
    write(folder, "a", "new");
    run_ok(folder, ["put", "a", "v:/"]);
    write(folder, "d/file", "old");
    for (link, target) in [("one", "d/file"), ("two", "one"), ("none", "d/missing"), ("image", "v")]
    {
        symlink(target, folder.join(link)).unwrap();
    }
    run_ok(folder, ["get", "-n", "v:/a", "two"]);
    assert_eq!(std::fs::read(folder.join("d/file")).unwrap(), b"old");
    run_ok(folder, ["get", "v:/a", "two"]);
    assert_eq!(std::fs::read(folder.join("d/file")).unwrap(), b"new");
    assert!(folder.join("one").is_symlink() && folder.join("two").is_symlink());
    refused(
        folder,
        ["get", "v:/a", "none"],
        "none: is a symbolic link to a file that does not exist",
    );
    assert!(folder.join("none").is_symlink() && !folder.join("d/missing").exists());
    refused(folder, ["get", "v:/a", "image"], "it is the image that is being read");
    // A link in the volume replaces a link, as before.
    symlink("elsewhere", folder.join("l")).unwrap();
    run_ok(folder, ["put", "l", "v:/"]);
    run_ok(folder, ["get", "v:/l", "one"]);
    assert_eq!(std::fs::read_link(folder.join("one")).unwrap(), Path::new("elsewhere"));
    assert_eq!(std::fs::read(folder.join("d/file")).unwrap(), b"new");
}

#[test]
fn mv_follows_the_same_rule() {
    let folder = volume();
    let folder = folder.path();
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    write(folder, "a", "of a");
    write(folder, "b", "of b");
    run_ok(folder, ["put", "a", "b", "pipe", "v:/"]);
    run_ok(folder, ["mkdir", "-p", "v:/d/a"]);
    run_ok(folder, ["mv", "-n", "v:/a", "v:/b"]);
    assert_eq!(run_ok(folder, ["cat", "v:/a", "v:/b"]), "of aof b");
    refused(folder, ["mv", "v:/a", "v:/d"], "v:/d/a: the existing file is a directory");
    refused(folder, ["mv", "v:/d", "v:/b"], "v:/b: the existing file is not a directory");
    refused(folder, ["mv", "v:/a", "v:/pipe"], "use -f to replace it");
    run_ok(folder, ["mv", "-f", "v:/a", "v:/pipe"]);
    run_ok(folder, ["mv", "v:/b", "v:/pipe"]);
    assert_eq!(run_ok(folder, ["cat", "v:/pipe"]), "of b");
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "d\npipe\n");
}

#[test]
fn no_clobber_leaves_existing_directories_unchanged() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["mkdir", "-p", "v:/d", "v:/to/d", "v:/full/d/x"]);
    let listing = || run_ok(folder, ["ls", "-lR", "v:/"]);
    let was = listing();
    // `mv` without -n replaces the empty directory, and fails for the other.
    for destination in ["v:/to", "v:/full"] {
        run_ok(folder, ["mv", "-n", "v:/d", destination]);
        assert_eq!(listing(), was);
    }
    run_ok(folder, ["mv", "-n", "v:/d", "v:/new"]);
    run_ok(folder, ["mv", "v:/new", "v:/d"]);
    run_ok(folder, ["mv", "v:/d", "v:/to"]);
    assert_eq!(run_ok(folder, ["ls", "v:/"]), "full\nto\n");

    // `put` and `get` merge directories, and keep the mode of the existing one.
    make_directories(folder, &["t/d", "out/t/d"]);
    let set_mode = |name: &str, mode| {
        std::fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
    };
    set_mode("t/d", 0o700);
    run_ok(folder, ["put", "t", "v:/"]);
    set_mode("t/d", 0o755);
    set_mode("out/t/d", 0o755);
    write(folder, "t/d/new", "of new");
    run_ok(folder, ["put", "-n", "t", "v:/"]);
    assert!(run_ok(folder, ["ls", "-ld", "v:/t/d"]).starts_with("drwx------ "));
    run_ok(folder, ["get", "-n", "v:/t", "out"]);
    let mode = folder.join("out/t/d").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert_eq!(std::fs::read(folder.join("out/t/d/new")).unwrap(), b"of new");
}

#[test]
fn get_leaves_no_temporary_file_if_the_rename_fails() {
    let folder = volume();
    let folder = folder.path();
    make_directories(folder, &["t", "out/b", "out/c"]);
    write(folder, "t/a", "of a");
    std::fs::hard_link(folder.join("t/a"), folder.join("t/b")).unwrap();
    symlink("a", folder.join("t/c")).unwrap();
    write(folder, "t/d", "of d");
    run_ok(folder, ["put", "t", "v:/"]);
    let (_, stderr) = incomplete(folder, ["get", "--glob", "v:/t/*", "out"]);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    assert_eq!(std::fs::read(folder.join("out/d")).unwrap(), b"of d");
    assert_tidy(&folder.join("out"));
    let output = run(folder, ["get", "v:/t/d", "none/d"]);
    assert_eq!(output.status.code(), Some(3));
    refused(folder, ["get", "v:/t/d", "new/"], "new/: is not a directory");
    assert!(!folder.join("new").exists());
}
