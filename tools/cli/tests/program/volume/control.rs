//! Commands that ask the server of a mounted volume: `info`, `counters`, `df`, `resize`, `ctl`.

use super::check::flip;
use super::mount::{EndThreads, Mounted, umount};
use super::{command, run, run_ok, volume};
use crate::root::as_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The directory of the control socket of root's server.
fn socket_directory(server: Pid) -> PathBuf {
    Path::new("/run/uringfs").join(server.to_string())
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&run_ok(folder, arguments)).unwrap()
}

/// Writes files in a mounted volume, and makes each durable, while `what` runs. It gets the number of files so far.
fn while_files_are_written(mounted: &Mounted, what: impl FnOnce(&AtomicU64)) {
    let (written, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let number = written.load(Ordering::Relaxed);
                let path = mounted.path().join(format!("m/{}", number % 100));
                let mut file = fs::File::create(path).unwrap();
                file.write_all(&[7; 10_000]).unwrap();
                file.sync_all().unwrap();
                written.store(number + 1, Ordering::Relaxed);
            }
        });
        let _end = EndThreads(&is_done);
        what(&written);
    });
}

/// Waits until some more files are written.
fn wait_for_files(written: &AtomicU64) {
    let before = written.load(Ordering::Relaxed);
    while written.load(Ordering::Relaxed) < before + 3 {
        thread::yield_now();
    }
}

#[test]
fn as_root_info_counters_and_df_ask_the_server() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&["-o", "noatime"]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), vec![7; 100_000]).unwrap();
    let server = mounted.server();
    let info = json(folder, &["info", "v", "--json"]);
    let mount = &info["volume"]["mount"];
    assert_eq!(mount["process"], server.as_raw());
    assert_eq!(mount["directory"], folder.join("m").canonicalize().unwrap().to_str().unwrap());
    assert!(mount["options"].as_str().unwrap().contains("noatime"));
    assert_eq!(info["volume"]["label"], "of a test");
    let text = run_ok(folder, ["info", "v"]);
    assert!(text.contains(&format!("process {server}, ")), "{text}");
    let counters = json(folder, &["counters", "v", "--json"]);
    assert_eq!(counters["reactors"]["direct.fast_path.taken"], 0);
    assert_eq!(counters["volume"]["blocks"], 8192);
    assert!(run_ok(folder, ["counters", "v"]).contains("\nvolume.blocks"));
    fs::File::open(folder.join("m/file")).unwrap().sync_all().unwrap();
    let df = json(folder, &["df", "v", "--json"]);
    umount(folder, "m");
    assert_eq!(df, json(folder, &["df", "v", "--json"]));
    let closed = run(folder, ["counters", "v"]);
    assert_eq!(closed.status.code(), Some(3), "{closed:?}");
}

#[test]
fn as_root_two_mounts_have_two_sockets() {
    if !as_root() {
        return;
    }
    let (one, other) = (Mounted::new(&[]), Mounted::new(&[]));
    for mounted in [&one, &other] {
        let info = json(mounted.path(), &["info", "v", "--json"]);
        let process = &info["volume"]["mount"]["process"];
        assert_eq!(*process, mounted.server().as_raw());
        let directory = socket_directory(mounted.server());
        assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let server = one.server();
    umount(one.path(), "m");
    assert!(!socket_directory(server).exists());
    assert!(run(other.path(), ["counters", "v"]).status.success());
}

#[test]
fn as_root_a_frozen_volume_can_be_copied_while_programs_wait() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&["-o", "commit=3600"]);
    let folder = mounted.path();
    fs::write(folder.join("m/unsynced"), "content").unwrap();
    while_files_are_written(&mounted, |written| {
        wait_for_files(written);
        run_ok(folder, ["ctl", "freeze", "v", "--timeout", "3600"]);
        let before = written.load(Ordering::Relaxed);
        assert_eq!(run(folder, ["ctl", "freeze", "v"]).status.code(), Some(6));
        fs::copy(folder.join("v"), folder.join("copy")).unwrap();
        assert_eq!(fs::read(folder.join("m/unsynced")).unwrap(), b"content");
        assert!(written.load(Ordering::Relaxed) <= before + 1);
        run_ok(folder, ["ctl", "thaw", "v"]);
        wait_for_files(written);
    });
    assert_eq!(run(folder, ["ctl", "thaw", "v"]).status.code(), Some(5));
    run_ok(folder, ["check", "-q", "copy"]);
    assert_eq!(run_ok(folder, ["cat", "copy:/unsynced"]), "content");
}

#[test]
fn as_root_a_frozen_volume_thaws_by_itself_and_at_its_unmount() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    while_files_are_written(&mounted, |written| {
        // On a busy machine it may take longer to freeze.
        let mut seconds = 1;
        while !run(folder, ["ctl", "freeze", "v", "--timeout", &seconds.to_string()])
            .status
            .success()
        {
            seconds *= 2;
        }
        wait_for_files(written);
    });
    let late = run(folder, ["ctl", "thaw", "v"]);
    assert_eq!(late.status.code(), Some(5), "{late:?}");
    run_ok(folder, ["ctl", "freeze", "v", "--timeout", "3600"]);
    umount(folder, "m");
    run_ok(folder, ["check", "-q", "v"]);
}

#[test]
fn as_root_a_mounted_volume_grows_under_load() {
    if !as_root() {
        return;
    }
    let folder = volume();
    // The file is larger than the volume in it.
    fs::File::options()
        .write(true)
        .open(folder.path().join("v"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let mounted = Mounted::of(folder, &[]);
    let folder = mounted.path();
    while_files_are_written(&mounted, |written| {
        wait_for_files(written);
        run_ok(folder, ["resize", "v", "48M"]);
        wait_for_files(written);
        run_ok(folder, ["resize", "v"]);
        wait_for_files(written);
        let large = run(folder, ["resize", "v", "128M"]);
        assert_eq!(large.status.code(), Some(5), "{large:?}");
        let message = String::from_utf8(large.stderr).unwrap();
        assert!(message.contains("v: has only 64.0 MiB (67108864 bytes)"), "{message}");
        // The file may grow while it is mounted.
        let file = fs::File::options().write(true).open(folder.join("v")).unwrap();
        file.set_len(96 << 20).unwrap();
        assert_eq!(run_ok(folder, ["resize", "v"]), "v: resized to 96.0 MiB\n");
        wait_for_files(written);
        assert_eq!(run(folder, ["resize", "v", "32M"]).status.code(), Some(5));
    });
    assert_eq!(json(folder, &["df", "v", "--json"])["volumes"][0]["size"], 96 << 20);
    umount(folder, "m");
    run_ok(folder, ["check", "-q", "v"]);
    assert_eq!(json(folder, &["df", "v", "--json"])["volumes"][0]["size"], 96 << 20);
}

#[test]
fn as_root_what_a_killed_server_leaves_vanishes_with_the_next_mount() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let (folder, server) = (mounted.path(), mounted.server());
    kill(server, Signal::SIGKILL).unwrap();
    while Path::new("/proc").join(server.to_string()).exists() {}
    assert!(socket_directory(server).exists());
    // It reports that it has unmounted what was left there.
    assert!(run(folder, ["mount", "v", "m"]).status.success());
    assert!(!socket_directory(server).exists());
    run_ok(folder, ["counters", "v"]);
}

#[test]
fn as_root_other_users_are_kept_out() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let (folder, server) = (mounted.path(), mounted.server());
    let program = folder.join("uringfs");
    fs::copy(env!("CARGO_BIN_EXE_uringfs"), &program).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = || {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        nobody.args(["ctl", "thaw", "v"]).current_dir(folder).output().unwrap()
    };
    let refused = as_nobody();
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    // Even if the directory lets them in, the server does not.
    let directory = socket_directory(server);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory.join("control"), fs::Permissions::from_mode(0o666)).unwrap();
    let refused = as_nobody();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("only root and the server's user may use this socket"), "{message}");
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
}

#[test]
fn as_root_the_socket_greets_with_its_version() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let stream = UnixStream::connect(socket_directory(mounted.server()).join("control")).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "{\"uringfs\":\"control\",\"version\":1}\n");
}

/// Runs a script as an ordinary user, which needs `fusermount3`.
#[test]
fn an_ordinary_user_asks_their_own_server() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mkdir -m 700 run; export XDG_RUNTIME_DIR=$PWD/run; \
                  $U mkfs v --size 32M -q && mkdir m && $U mount v m && $U ctl freeze v && $U ctl thaw v && \
                  $U mkdir v:/d && echo content | $U put -q - v:/d/f && cat m/d/f && \
                  $U umount m && ls run/uringfs; \
                  unset XDG_RUNTIME_DIR; $U mount v m && ! $U counters v; $U umount m";
    let mut shell = match as_root() {
        true => {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
            setpriv
        }
        false => {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]);
            shell
        }
    };
    let program = folder.path().join("uringfs");
    fs::copy(env!("CARGO_BIN_EXE_uringfs"), &program).unwrap();
    let output = shell.env("U", &program).current_dir(folder.path()).output().unwrap();
    let _ = command(folder.path(), ["umount", "-l", "m"]).output();
    let expected = "v: frozen, for 60 seconds at most\nv: thawed\ncontent\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("it is mounted on"), "{message}");
}

#[test]
fn as_root_a_mounted_volume_is_checked_while_it_is_written_to() {
    if !as_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let in_use = run(folder, ["check", "v"]);
    let message = String::from_utf8(in_use.stderr).unwrap();
    assert!(in_use.status.code() == Some(6) && message.contains("check --online"), "{message}");
    while_files_are_written(&mounted, |written| {
        for deep in [&[][..], &["--deep"]] {
            wait_for_files(written);
            let report = json(folder, &[&["check", "v", "--online", "--json"], deep].concat());
            assert_eq!(report["sound"], true, "{report}");
            assert!(report["files"].as_u64().unwrap() > 0, "{report}");
            assert_eq!(report["verified"]["readable"], !deep.is_empty());
        }
    });
    // The backup superblock.
    flip(folder, (32 << 20) - 4096 + 300);
    let found = run(folder, ["check", "v", "--online"]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.status.code(), Some(4), "{text}");
    assert!(text.contains("block 8191"), "{text}");
    assert!(text.contains("errors found: 1; unmount it, and run with --repair"), "{text}");
    fs::write(folder.join("m/still used"), "content").unwrap();
    umount(folder, "m");
    // A volume that is not mounted is checked as without the option.
    let found = run(folder, ["check", "v", "--online"]);
    let closed = run(folder, ["check", "v"]);
    assert_eq!((found.status, found.stdout), (closed.status, closed.stdout));
}
