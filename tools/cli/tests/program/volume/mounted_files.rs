//! Commands on the files of a mounted volume, which its server does.

use super::mount::{EndThreads, Mounted, umount};
use super::{command, run, run_ok, write};
use crate::root::as_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The options of each kind of mount.
const KINDS: [&str; 4] = ["noatime", "noatime,writeback", "cache=volume", "cache=none"];

/// Puts a text into the volume of a folder.
fn put(folder: &Path, text: &str, path: &str) {
    write(folder, "source", text);
    run_ok(folder, ["put", "-q", "source", path]);
}

fn content(folder: &Path, path: &str) -> String {
    fs::read_to_string(folder.join(path)).unwrap()
}

#[test]
fn as_root_commands_print_of_a_mounted_volume_what_they_print_of_a_closed_one() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&["-o", "noatime"]);
    let folder = mounted.path();
    fs::create_dir_all(folder.join("tree/d/e")).unwrap();
    fs::write(folder.join("tree/d/large"), vec![7; 3 << 20]).unwrap();
    let sparse = fs::File::create(folder.join("tree/sparse")).unwrap();
    sparse.write_all_at(b"data", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    fs::hard_link(folder.join("tree/sparse"), folder.join("tree/d/same")).unwrap();
    std::os::unix::fs::symlink("d/large", folder.join("tree/link")).unwrap();
    // Than the volume.
    write(folder, "larger", vec![7; 40 << 20]);
    run_ok(folder, ["put", "-q", "tree", "v:/"]);
    run_ok(folder, ["xattr", "set", "user.a", "value", "v:/tree/sparse"]);
    for number in 0..300 {
        fs::write(folder.join(format!("m/tree/d/e/{number}")), "").unwrap();
    }
    run_ok(folder, ["rm", "v:/tree/d/e/7"]);
    let commands = [
        &["ls", "-lai", "v:/", "v:/tree/d"][..],
        &["ls", "-R", "--json", "v:/"],
        &["tree", "v:/"],
        &["find", "v:/", "-type", "f", "-size", "+1M"],
        &["du", "-a", "v:/tree"],
        &["stat", "--json", "v:/tree/sparse", "v:/tree/link"],
        &["xattr", "list", "v:/tree/sparse"],
        &["xattr", "get", "user.a", "v:/tree/sparse"],
        &["cat", "--glob", "v:/tree/s*"],
        &["df", "v:/tree"],
        &["cat", "v:/missing"],
        &["ls", "v:/missing", "v:/tree/link/"],
        &["rm", "v:/tree"],
        &["rmdir", "v:/tree"],
        &["mkdir", "v:/tree/d"],
        &["mv", "v:/tree", "v:/tree/d/x"],
        &["get", "v:/tree/link/x", "to"],
        &["put", "missing", "v:/"],
        &["put", "larger", "v:/d"],
    ];
    let of_all = || {
        commands.map(|arguments| {
            let output = run(folder, arguments);
            (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
        })
    };
    let of_mounted = of_all();
    run_ok(folder, ["get", "-q", "v:/tree", "of mounted"]);
    umount(folder, "m");
    for ((mounted, closed), command) in of_mounted.iter().zip(of_all()).zip(commands) {
        assert_eq!(lines_of_only_one(mounted, &closed), [""; 0], "{command:?}");
        assert!(*mounted == closed, "{command:?}");
    }
    run_ok(folder, ["get", "-q", "v:/tree", "of closed"]);
    let mut same = Command::new("diff");
    same.args(["-r", "of mounted", "of closed"]).current_dir(folder);
    assert!(same.status().unwrap().success());
    let (one, other) = ("of mounted/sparse", "of closed/sparse");
    let [one, other] = [one, other].map(|path| fs::metadata(folder.join(path)).unwrap());
    assert_eq!(
        (one.mtime(), one.nlink(), one.blocks()),
        (other.mtime(), other.nlink(), other.blocks())
    );
    run_ok(folder, ["check", "-q", "v"]);
}

type Printed = (Option<i32>, Vec<u8>, String);

/// For the message of a failed test. The outputs are long.
fn lines_of_only_one(one: &Printed, other: &Printed) -> Vec<String> {
    let lines = |(code, output, errors): &Printed| {
        let text = format!("{code:?}\n{errors}{}", String::from_utf8_lossy(output));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let pairs = lines(one).into_iter().zip(lines(other));
    pairs
        .filter(|(one, other)| one != other)
        .flat_map(|(one, other)| [one, other])
        .take(6)
        .collect()
}

#[test]
fn as_root_programs_see_at_once_what_a_command_has_changed() {
    if !as_root() {
        return;
    }
    for options in KINDS {
        let mounted = Mounted::new(&["-o", options]);
        let folder = mounted.path();
        let seen = |path: &str| content(folder, path);
        // A file with its name, its attributes and its content in the kernel.
        fs::write(folder.join("m/f"), "of the program").unwrap();
        assert_eq!(seen("m/f"), "of the program");
        put(folder, "of the command", "v:/f");
        assert_eq!(seen("m/f"), "of the command", "{options}");
        assert_eq!(fs::metadata(folder.join("m/f")).unwrap().len(), 14);
        // A name that the kernel knows as missing.
        assert!(!folder.join("m/new").exists());
        // A listing that the kernel has, without the name.
        let count = || fs::read_dir(folder.join("m")).unwrap().count();
        assert_eq!((count(), count()), (1, 1));
        put(folder, "new", "v:/new");
        assert_eq!((count(), seen("m/new").as_str()), (2, "new"), "{options}");
        put(folder, "", "v:/unseen");
        assert_eq!((count(), count()), (3, 3), "{options}");
        run_ok(folder, ["rm", "v:/new", "v:/unseen"]);
        assert_eq!((count(), folder.join("m/new").exists()), (1, false), "{options}");
        run_ok(folder, ["chmod", "604", "v:/f"]);
        let mode = || fs::metadata(folder.join("m/f")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o604, "{options}");
        run_ok(folder, ["truncate", "-s", "2", "v:/f"]);
        assert_eq!(seen("m/f"), "of", "{options}");
        run_ok(folder, ["truncate", "-s", "4", "v:/f"]);
        assert_eq!(seen("m/f"), "of\0\0", "{options}");
        run_ok(folder, ["mkdir", "-p", "v:/d/e"]);
        run_ok(folder, ["mv", "v:/f", "v:/d/e"]);
        assert_eq!(seen("m/d/e/f"), "of\0\0", "{options}");
        assert!(!folder.join("m/f").exists());
        run_ok(folder, ["mv", "v:/d/e", "v:/g"]);
        assert!(folder.join("m/g/f").exists() && !folder.join("m/d/e").exists(), "{options}");
        run_ok(folder, ["cp", "v:/g/f", "v:/g/copy"]);
        run_ok(folder, ["ln", "v:/g/f", "v:/g/link"]);
        assert_eq!((seen("m/g/copy"), seen("m/g/link")), (seen("m/g/f"), seen("m/g/f")));
        assert_eq!(fs::metadata(folder.join("m/g/f")).unwrap().nlink(), 2, "{options}");
        let names = fs::read_dir(folder.join("m/g")).unwrap().count();
        assert_eq!(names, 3, "{options}");
        run_ok(folder, ["rm", "-r", "v:/g"]);
        assert!(!folder.join("m/g").exists(), "{options}");
        run_ok(folder, ["touch", "v:/d/t"]);
        assert!(folder.join("m/d/t").exists());
        std::os::unix::fs::symlink("d/behind", folder.join("m/s")).unwrap();
        assert!(!folder.join("m/d/behind").exists());
        run_ok(folder, ["touch", "v:/s"]);
        assert!(folder.join("m/d/behind").exists(), "{options}");
        umount(folder, "m");
        run_ok(folder, ["check", "-q", "v"]);
        assert_eq!(run_ok(folder, ["ls", "-A", "v:/", "v:/d"]), "/:\nd\ns\n\n/d:\nbehind\nt\n");
    }
}

#[test]
fn as_root_programs_and_commands_change_one_directory_at_once() {
    if !as_root() {
        return;
    }
    for options in KINDS {
        let mounted = Mounted::new(&["-o", options]);
        let folder = mounted.path();
        fs::create_dir(folder.join("m/d")).unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let program = |name: &'static str| {
                let (is_done, directory) = (&is_done, folder.join("m/d"));
                move || {
                    while !is_done.load(Ordering::Relaxed) {
                        fs::write(directory.join(name), name.repeat(10_000)).unwrap();
                        fs::rename(directory.join(name), directory.join("moved")).unwrap();
                        // Another program, or a command, may have moved or removed it.
                        let _ = fs::read(directory.join("moved"));
                        fs::read_dir(&directory).unwrap().for_each(drop);
                    }
                }
            };
            let _end = EndThreads(&is_done);
            scope.spawn(program("one"));
            scope.spawn(program("other"));
            for number in 0..10 {
                put(folder, "of the command", "v:/d/put");
                assert_eq!(content(folder, "m/d/put"), "of the command", "{options} {number}");
                run_ok(folder, ["rm", "-f", "v:/d/moved"]);
                run_ok(folder, ["mv", "v:/d/put", "v:/d/moved"]);
                assert!(!folder.join("m/d/put").exists(), "{options} {number}");
            }
        });
        umount(folder, "m");
        run_ok(folder, ["check", "-q", "v"]);
    }
}

/// A program that maps a file, prints a byte of it for each line that it reads, and at the end that of the file now.
const MAPPER: &str = "
import mmap, sys
with open('m/large', 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 0)
for _ in sys.stdin:
    print(chr(mapped[5 << 20]), chr(open('m/large', 'rb').read()[5 << 20]), flush=True)
";

fn start_mapper(folder: &Path) -> Child {
    let mut mapper = Command::new("python3");
    mapper.args(["-c", MAPPER]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    mapper.spawn().expect("python3 runs; scripts/setup installs it")
}

#[test]
fn as_root_a_mapped_file_stays_and_a_new_opening_finds_what_was_put() {
    if !as_root() {
        return;
    }
    for options in KINDS {
        let mounted = Mounted::new(&["-o", options]);
        let folder = mounted.path();
        fs::write(folder.join("m/large"), vec![b'a'; 6 << 20]).unwrap();
        let mut mapper = start_mapper(folder);
        let mut lines = BufReader::new(mapper.stdout.take().unwrap()).lines();
        let mut input = mapper.stdin.take().unwrap();
        let mut bytes = || {
            input.write_all(b"\n").unwrap();
            lines.next().unwrap().unwrap()
        };
        assert_eq!(bytes(), "a a");
        // Some of its pages are cached, and mapped.
        write(folder, "source", vec![b'b'; 6 << 20]);
        run_ok(folder, ["put", "-q", "source", "v:/large"]);
        assert_eq!(bytes(), "a b", "{options}");
        drop(input);
        assert!(mapper.wait().unwrap().success());
    }
}

#[test]
fn as_root_get_has_what_programs_have_written_and_not_synced() {
    if !as_root() {
        return;
    }
    for options in KINDS {
        let mounted = Mounted::new(&["-o", &format!("{options},commit=3600")]);
        let folder = mounted.path();
        let file = fs::File::create(folder.join("m/f")).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        assert_eq!(run_ok(folder, ["cat", "v:/f"]), "first", "{options}");
        file.write_all_at(&[b'x'; 100_000], 0).unwrap();
        run_ok(folder, ["get", "-q", "v:/f", "copy"]);
        assert_eq!(fs::read(folder.join("copy")).unwrap(), [b'x'; 100_000], "{options}");
        fs::remove_file(folder.join("copy")).unwrap();
        // It is still in use, and its pages are read again.
        file.write_all_at(b"y", 0).unwrap();
        assert!(content(folder, "m/f").starts_with("yx"));
    }
}

#[test]
fn as_root_two_puts_at_once_keep_their_unfinished_files_apart() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    write(folder, "source", "content");
    let mut slow = begin_put(folder, "v:/slow");
    slow.stdin.as_mut().unwrap().write_all(b"one ").unwrap();
    for number in 0..5 {
        run_ok(folder, ["put", "-q", "source", &format!("v:/{number}")]);
    }
    slow.stdin.take().unwrap().write_all(b"two").unwrap();
    let ended = slow.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(content(folder, "m/slow"), "one two");
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "0\n1\n2\n3\n4\nslow\n");
}

/// Starts a `put` of its standard input.
fn begin_put(folder: &Path, to: &str) -> Child {
    let mut put = command(folder, ["put", "-q", "-", to]);
    put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let put = put.spawn().unwrap();
    // It has begun once its directory of unfinished files is there.
    while run_ok(folder, ["ls", "-A", "v:/"]).lines().all(|name| !name.starts_with(".uringfs-put"))
    {
    }
    put
}

#[test]
fn as_root_a_killed_put_leaves_nothing() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let mut put = begin_put(folder, "v:/f");
    kill(Pid::from_raw(put.id() as i32), Signal::SIGKILL).unwrap();
    put.wait().unwrap();
    while !run_ok(folder, ["ls", "-A", "v:/"]).is_empty() {}
    assert_eq!(fs::read_dir(folder.join("m")).unwrap().count(), 0);
}

#[test]
fn as_root_an_unmount_ends_a_put() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let mut put = begin_put(folder, "v:/f");
    umount(folder, "m");
    // It may have found out already.
    let _ = put.stdin.take().unwrap().write_all(b"content");
    let ended = put.wait_with_output().unwrap();
    let message = String::from_utf8(ended.stderr).unwrap();
    assert!(message.contains("the server of the mount"), "{message}");
    assert_ne!(ended.status.code(), Some(0));
    run_ok(folder, ["check", "-q", "v"]);
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "");
}

#[test]
fn as_root_a_mount_for_reading_is_not_changed() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&["-o", "ro"]);
    let folder = mounted.path();
    write(folder, "source", "content");
    let refused = run(folder, ["put", "source", "v:/f"]);
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "");
}

#[test]
fn as_root_a_put_waits_while_the_volume_is_frozen() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    write(folder, "source", "content");
    run_ok(folder, ["ctl", "freeze", "v", "--timeout", "3600"]);
    thread::scope(|scope| {
        let put = scope.spawn(|| run_ok(folder, ["put", "-q", "source", "v:/f"]));
        assert_eq!(run_ok(folder, ["ls", "-A", "v:/"]), "");
        assert!(!put.is_finished());
        run_ok(folder, ["ctl", "thaw", "v"]);
    });
    assert_eq!(content(folder, "m/f"), "content");
}

#[test]
fn as_root_what_put_has_reported_is_there_after_the_server_is_killed() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&["-o", "commit=3600"]);
    let folder = mounted.path();
    put(folder, "content", "v:/f");
    kill(mounted.server(), Signal::SIGKILL).unwrap();
    assert_eq!(run_ok(folder, ["cat", "v:/f"]), "content");
}
