//! `mount` and `umount`.

use super::{command, refused, run, run_ok, volume};
use crate::bench_run::devices::LoopDisk;
use crate::root::{SmallTmpfs, as_root, is_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid as ProcessId, PidfdFlags, pidfd_open};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A folder with a mounted volume. It is unmounted at the end, even if the test panics.
pub struct Mounted(TempDir);

impl Mounted {
    pub fn new(options: &[&str]) -> Mounted {
        Mounted::of(volume(), options)
    }

    /// Mounts the volume `v` of a folder on `m` in it.
    pub fn of(folder: TempDir, options: &[&str]) -> Mounted {
        Mounted::of_target("v", folder, options)
    }

    pub fn of_target(target: &str, folder: TempDir, options: &[&str]) -> Mounted {
        fs::create_dir(folder.path().join("m")).unwrap();
        run_ok(folder.path(), [&["mount", target, "m"], options].concat());
        Mounted(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes the control socket, so that no command can ask the server.
    fn remove_socket(&self) {
        self.remove_socket_of("v");
    }

    fn remove_socket_of(&self, target: &str) {
        let user = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
        let server = self.server_of(target).to_string();
        for place in [Path::new("/run"), Path::new(&user)] {
            let _ = fs::remove_dir_all(place.join("uringfs").join(&server));
        }
    }

    /// The process that serves the mount, as the error of a command in its way names it.
    pub fn server(&self) -> Pid {
        self.server_of("v")
    }

    fn server_of(&self, target: &str) -> Pid {
        let refused = run(self.path(), ["check", target]);
        assert_eq!(refused.status.code(), Some(6));
        let message = String::from_utf8(refused.stderr).unwrap();
        let (_, behind) = message.split_once("process ").expect("it names the process");
        let digits = behind.split(|character: char| !character.is_ascii_digit()).next();
        Pid::from_raw(digits.unwrap().parse().unwrap())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = command(self.path(), ["umount", "-l", "m"]).output();
    }
}

/// Ends the threads of a test, also if it panics.
pub struct EndThreads<'f>(pub &'f AtomicBool);

impl Drop for EndThreads<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Unmounts. A child of another test has this one's files open between its fork and its exec, and the mount namespace of
/// another test its mounts.
pub fn umount(folder: &Path, mounted: &str) {
    loop {
        let output = run(folder, ["umount", mounted]);
        match output.status.code() {
            Some(0) => return,
            code => assert_eq!(code, Some(6), "{output:?}"),
        }
        let message = String::from_utf8(output.stderr).unwrap();
        if let Some((_, behind)) = message.split_once("unmounted, but process ") {
            let user: i32 = behind.split_once(' ').unwrap().0.parse().unwrap();
            // None: it has ended already.
            if let Ok(user) = pidfd_open(ProcessId::from_raw(user).unwrap(), PidfdFlags::empty()) {
                poll(&mut [PollFd::new(&user, PollFlags::IN)], None).unwrap();
            }
            return;
        }
    }
}

#[test]
fn a_mount_is_used_and_unmounted() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    mounted.server();
    let twice = run(folder, ["mount", "v", "m"]);
    assert_eq!(twice.status.code(), Some(6));
    umount(folder, "m");
    // The volume is closed when umount returns.
    assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
    assert_eq!(run(folder, ["umount", "m"]).status.code(), Some(3));
}

#[test]
fn umount_refuses_while_a_program_uses_the_mount() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let open = fs::File::create(folder.join("m/file")).unwrap();
    let busy = run(folder, ["umount", "m"]);
    assert_eq!(busy.status.code(), Some(6), "{busy:?}");
    drop(open);
    umount(folder, "m");
}

#[test]
fn a_signal_unmounts_and_loses_nothing() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    kill(mounted.server(), Signal::SIGTERM).unwrap();
    let volume = fs::File::open(folder.join("v")).unwrap();
    // The lock of the process that serves the volume.
    volume.lock().unwrap();
    drop(volume);
    assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
}

/// The kernel's own unmount, as busybox and containers use it, waits for no server. The server is stopped before, so that it has
/// everything left to save.
#[test]
fn as_root_commands_wait_for_a_server_that_saves_after_an_unmount() {
    if !is_root() {
        return;
    }
    for arguments in [&["cat", "v:/file"][..], &["check", "v"], &["mount", "v", "m"]] {
        let mounted = Mounted::new(&[]);
        let folder = mounted.path();
        fs::write(folder.join("m/file"), "content").unwrap();
        let server = mounted.server();
        kill(server, Signal::SIGSTOP).unwrap();
        // A child of another test has this one's files open between its fork and its exec.
        while let Err(errno) = rustix::mount::unmount(folder.join("m"), UnmountFlags::empty()) {
            assert_eq!(errno, rustix::io::Errno::BUSY);
        }
        kill(server, Signal::SIGTERM).unwrap();
        let mut waiting = command(folder, arguments);
        let waiting = waiting.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut waiting = waiting.unwrap();
        let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains(&format!("waiting until process {server} has saved it")), "{line}");
        kill(server, Signal::SIGCONT).unwrap();
        assert!(waiting.wait().unwrap().success(), "{arguments:?}");
        if arguments[0] == "mount" {
            assert_eq!(fs::read(folder.join("m/file")).unwrap(), b"content");
            umount(folder, "m");
        }
        assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
    }
}

#[test]
fn commands_wait_until_the_kernel_has_ended_a_killed_server() {
    // The memory of a cache takes the kernel a moment, during which the volume is open.
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    umount(folder, "m");
    run_ok(folder, ["resize", "-q", "v", "1G"]);
    run_ok(folder, ["mount", "v", "m", "-o", "cache=volume"]);
    for round in 0..4 {
        fs::write(folder.join("m/file"), vec![round; 256 << 20]).unwrap();
        kill(mounted.server(), Signal::SIGKILL).unwrap();
        run_ok(folder, ["umount", "-l", "m"]);
        run_ok(folder, ["check", "-q", "v"]);
        run_ok(folder, ["mount", "v", "m", "-o", "cache=volume"]);
    }
    umount(folder, "m");
}

#[test]
fn where_permitted_no_thread_of_a_server_waits_for_its_own_write_back() {
    // The kernel permits a server what it permits this thread.
    if rustix::process::configure_io_flusher_behavior(true).is_err() {
        println!("not exercised: PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE");
        return;
    }
    // PF_MEMALLOC_NOIO in the ninth field of `stat`, of which the second is a name in parentheses.
    const NO_IO: u64 = 0x8_0000;
    let mounted = Mounted::new(&[]);
    fs::write(mounted.path().join("m/file"), "content").unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", mounted.server())).unwrap();
    for thread in threads {
        let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        let flags = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(6).unwrap();
        assert_ne!(flags.parse::<u64>().unwrap() & NO_IO, 0, "{stat}");
    }
}

#[test]
fn as_root_umount_names_who_keeps_the_mount_in_another_namespace() {
    if !is_root() {
        return;
    }
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    // It keeps no other test's mounts, prints when it has its own, and ends with its standard input.
    const SCRIPT: &str = r#"
        while read -r _ at kind _; do
            case $kind in fuse.uringfs | fuseblk.uringfs) [ "$at" = "$0" ] || umount -l "$at" ;; esac
        done </proc/mounts
        echo ready
        exec cat
    "#;
    let directory = folder.join("m").canonicalize().unwrap();
    let mut other = Command::new("unshare");
    other.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]).arg(directory);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let refused = run(folder, ["umount", "m"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    let listed = run(folder, ["ls", "v"]);
    drop(other.stdin.take());
    other.wait().unwrap();
    assert_eq!(refused.status.code(), Some(6), "{message}");
    assert!(message.contains("m: unmounted, but process "), "{message}");
    assert!(message.contains("has it mounted in a mount namespace of its own"), "{message}");
    // The server still answers.
    assert_eq!(listed.stdout, b"file\n", "{listed:?}");
    assert_eq!(run_ok(folder, ["cat", "v:/file"]), "content");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mounted = Mounted::new(&["-o", "ro"]);
    let refused = fs::write(mounted.path().join("m/file"), "content").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn what_cannot_be_mounted_is_named() {
    let folder = volume();
    let missing = run(folder.path(), ["mount", "v", "missing"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("missing: No such file"));
    let option = run(folder.path(), ["mount", "v", "missing", "-o", "rwx"]);
    assert_eq!(option.status.code(), Some(2));
    let path = run(folder.path(), ["mount", "v:/inner", "missing"]);
    assert_eq!(path.status.code(), Some(5));
}

/// An ordinary user makes a volume, mounts it, and uses a file in it. `namespace` are words before the user's shell.
fn mount_as_an_ordinary_user(namespace: &[&str]) {
    const SCRIPT: &str = "$U mkfs v --size 32M -q && mkdir m && $U mount v m && echo content > m/file && cat m/file \
                          && $U umount m && $U cat v:/file";
    let folder = tempfile::tempdir().unwrap();
    let user: &[&str] = match is_root() {
        true => {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
            &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        }
        false => &["env"],
    };
    let program = folder.path().join("uringfs");
    fs::copy(env!("CARGO_BIN_EXE_uringfs"), &program).unwrap();
    let words = [&user[1..], namespace, &["sh", "-ec", SCRIPT]].concat();
    let mut shell = Command::new(user[0]);
    let output = shell.args(words).env("U", &program).current_dir(folder.path()).output().unwrap();
    let _ = command(folder.path(), ["umount", "-l", "m"]).output();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "content\ncontent\n", "{output:?}");
}

/// Needs `fusermount3`.
#[test]
fn an_ordinary_user_mounts() {
    mount_as_an_ordinary_user(&[]);
}

#[test]
fn an_ordinary_user_mounts_in_a_user_namespace() {
    mount_as_an_ordinary_user(&["unshare", "--user", "--map-root-user", "--mount"]);
}

#[test]
fn a_target_in_use_names_the_process_and_the_directory() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let directory = folder.join("m").canonicalize().unwrap();
    mounted.remove_socket();
    for command in [&["ls", "v"][..], &["check", "v"], &["mount", "v", "other"]] {
        fs::create_dir_all(folder.join("other")).unwrap();
        let refused = run(folder, command);
        assert_eq!(refused.status.code(), Some(6), "{command:?}");
        let message = String::from_utf8(refused.stderr).unwrap();
        let advice = format!("it is mounted on {}", directory.display());
        assert!(message.contains(&advice), "{command:?}: {message}");
    }
    // A command on a path names the file below the mount point.
    let shown = format!("use {}/logs/today, or", directory.display());
    for command in
        [&["cat", "v:/logs/today"][..], &["put", "v", "v:/logs/today"], &["rm", "v:/logs/today"]]
    {
        let refused = run(folder, command);
        assert_eq!(refused.status.code(), Some(6), "{command:?}");
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(
            message.contains(&shown) && message.contains(", process "),
            "{command:?}: {message}"
        );
    }
    // The volume's own path will do.
    umount(folder, "v");
}

/// Expects that a command names the directory at once, and `umount` finds the mount.
fn is_found_by(folder: &Path, name: &str) {
    let directory = folder.join("m").canonicalize().unwrap();
    refused(folder, ["check", name], &format!("; it is mounted on {}", directory.display()));
    umount(folder, name);
    assert_eq!(run_ok(folder, ["cat", &format!("{name}:/file")]), "content");
}

#[test]
fn a_mounted_volume_is_found_by_each_name_of_its_file() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    fs::hard_link(folder.join("v"), folder.join("other")).unwrap();
    is_found_by(folder, "other");
    run_ok(folder, ["mount", "v", "m"]);
    fs::rename(folder.join("v"), folder.join("new")).unwrap();
    fs::remove_file(folder.join("other")).unwrap();
    is_found_by(folder, "new");
}

#[test]
fn umount_returns_when_a_renamed_volume_is_closed() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    fs::rename(folder.join("v"), folder.join("new")).unwrap();
    run_ok(folder, ["mkfs", "-q", "v", "--size", "32M"]);
    assert_eq!(run_ok(folder, ["ls", "v"]), "");
    umount(folder, "m");
    fs::File::open(folder.join("new")).unwrap().try_lock().unwrap();
}

#[test]
fn as_root_a_volume_on_a_mounted_device_is_found_by_the_file_below() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let disk = LoopDisk::over(&folder.path().join("v"), tempfile::tempdir().unwrap());
    fs::create_dir(folder.path().join("m")).unwrap();
    run_ok(folder.path(), ["mount", &disk.device, "m"]);
    let mounted = Mounted(folder);
    fs::write(mounted.path().join("m/file"), "content").unwrap();
    is_found_by(mounted.path(), "v");
}

#[test]
fn as_root_each_command_names_the_process_and_the_directory_of_a_mounted_device() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let disk = LoopDisk::over(&folder.path().join("v"), tempfile::tempdir().unwrap());
    let device = disk.device.as_str();
    for directory in ["m", "other"] {
        fs::create_dir(folder.path().join(directory)).unwrap();
    }
    run_ok(folder.path(), ["mount", device, "m"]);
    let mounted = Mounted(folder);
    let folder = mounted.path();
    fs::write(folder.join("host"), "").unwrap();
    mounted.remove_socket_of(device);
    let advice =
        format!("; it is mounted on {}", folder.join("m").canonicalize().unwrap().display());
    let path = format!("{device}:/file");
    for arguments in [
        &["ls", device][..],
        &["put", "host", &path],
        &["rm", &path],
        &["label", device, "new"],
        &["check", "-y", device],
        &["mount", device, "other"],
        &["mount", "-r", device, "other"],
        &["mkfs", "-f", device],
        &["wipe", device],
    ] {
        refused(folder, arguments, &advice);
        refused(folder, arguments, ", process ");
    }
    umount(folder, device);
}

#[test]
fn as_root_a_device_that_is_mounted_for_reading_is_not_mounted_again() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let disk = LoopDisk::over(&folder.path().join("v"), tempfile::tempdir().unwrap());
    for directory in ["m", "other"] {
        fs::create_dir(folder.path().join(directory)).unwrap();
    }
    run_ok(folder.path(), ["mount", "-r", &disk.device, "m"]);
    let mounted = Mounted(folder);
    let folder = mounted.path();
    let directory = folder.join("m").canonicalize().unwrap();
    for arguments in
        [&["mount", "-r", &disk.device, "other"][..], &["mount", &disk.device, "other"]]
    {
        refused(folder, arguments, ", process ");
        refused(folder, arguments, &format!("; it is mounted on {}", directory.display()));
    }
    // Reading is for all.
    run_ok(folder, ["ls", &disk.device]);
    umount(folder, "m");
}

#[test]
fn as_root_what_sync_has_saved_on_a_device_survives_a_kill() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let disk = LoopDisk::over(&folder.path().join("v"), tempfile::tempdir().unwrap());
    fs::create_dir(folder.path().join("m")).unwrap();
    run_ok(folder.path(), ["mount", &disk.device, "m", "-o", "commit=3600"]);
    let mounted = Mounted(folder);
    let folder = mounted.path();
    let server = mounted.server();
    fs::write(folder.join("m/file"), "content").unwrap();
    let synced = Command::new("sync").arg("-f").arg(folder.join("m")).status().unwrap();
    assert!(synced.success());
    kill(server, Signal::SIGKILL).unwrap();
    while fs::metadata(folder.join("m")).is_ok() {}
    // The mount keeps the device until it is unmounted.
    refused(folder, ["label", &disk.device, "new"], "is mounted at");
    run_ok(folder, ["umount", "-l", "m"]);
    let content = run(folder, ["cat", &format!("{}:/file", disk.device)]);
    let content = String::from_utf8(content.stdout).unwrap();
    // Linux forwards it from version 6.18 on.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    match (numbers.next(), numbers.next()) >= (Some(6), Some(18)) {
        true => assert_eq!(content, "content"),
        false => println!("not exercised: this kernel does not forward syncfs"),
    }
}

#[test]
fn as_root_the_systems_umount_closes_a_mounted_device() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let disk = LoopDisk::over(&folder.path().join("v"), tempfile::tempdir().unwrap());
    fs::create_dir(folder.path().join("m")).unwrap();
    let mounted = Mounted(folder);
    let folder = mounted.path();
    for number in 0..4 {
        run_ok(folder, ["mount", &disk.device, "m", "-o", "commit=3600"]);
        fs::write(folder.join("m/file"), number.to_string()).unwrap();
        // A child of another test has this one's files open between its fork and its exec.
        while !Command::new("umount").arg(folder.join("m")).status().unwrap().success() {}
        // Another test may have this mount in a namespace of its own for a moment.
        fs::File::open(folder.join("v")).unwrap().lock().unwrap();
        let read = run_ok(folder, ["cat", &format!("{}:/file", disk.device)]);
        assert_eq!(read, number.to_string());
    }
}

#[test]
fn a_directory_that_is_taken_is_refused() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    run_ok(folder, ["mkfs", "second", "--size", "32M", "-q"]);
    let refused = run(folder, ["mount", "second", "m"]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    let root = run(folder, ["mount", "second", "/"]);
    assert_eq!(root.status.code(), Some(5), "{root:?}");
}

#[test]
fn what_a_killed_server_leaves_is_unmounted_by_the_next_mount() {
    let mounted = Mounted::new(&[]);
    let folder = mounted.path();
    let mut file = fs::File::create(folder.join("m/file")).unwrap();
    file.write_all(b"content").unwrap();
    file.sync_all().unwrap();
    drop(file);
    kill(mounted.server(), Signal::SIGKILL).unwrap();
    // Until its last thread has ended, it may still answer.
    while fs::metadata(folder.join("m")).is_ok() {}
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    let directory = folder.join("m").to_str().unwrap().to_owned();
    assert_eq!(mounts().matches(&directory).count(), 1);
    let again = run(folder, ["mount", "v", "m"]);
    assert!(again.status.success(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("killed server"), "{again:?}");
    assert_eq!(mounts().matches(&directory).count(), 1);
    assert_eq!(fs::read(folder.join("m/file")).unwrap(), b"content");
}

#[test]
fn each_kind_of_cache_keeps_what_is_written() {
    for options in ["cache=kernel", "writeback", "cache=volume", "cache=none,noatime,commit=60"] {
        let mounted = Mounted::new(&["-o", options]);
        let file = mounted.path().join("m/file");
        fs::write(&file, vec![7; 100_000]).unwrap();
        let mut open = fs::File::options().append(true).open(&file).unwrap();
        open.write_all(b"end").unwrap();
        drop(open);
        umount(mounted.path(), "m");
        run_ok(mounted.path(), ["get", "v:/file", "copy"]);
        assert_eq!(
            fs::read(mounted.path().join("copy")).unwrap(),
            [&[7; 100_000][..], b"end"].concat()
        );
    }
}

#[test]
fn a_change_is_durable_without_fsync_after_the_commit_interval() {
    let mounted = Mounted::new(&["-o", "commit=1"]);
    let folder = mounted.path();
    fs::write(folder.join("m/file"), "content").unwrap();
    // A copy of the volume's file is what a crash would leave.
    loop {
        fs::copy(folder.join("v"), folder.join("crashed")).unwrap();
        let read = run(folder, ["cat", "crashed:/file"]);
        if read.stdout == b"content" {
            break;
        }
    }
}

#[test]
fn a_write_clears_set_id_bits() {
    let mounted = Mounted::new(&["-o", "allow_other"]);
    let file = mounted.path().join("m/file");
    fs::write(&file, "content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
    if is_root() {
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let write = format!("echo more >> {}", file.display());
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &write]);
        assert!(other.status().unwrap().success());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o777);
    }
}

#[test]
fn mount_and_umount_of_the_system_find_the_program_by_its_names() {
    let folder = volume();
    let directory = folder.path().join("m");
    fs::create_dir(&directory).unwrap();
    let program = |name: &str| {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_uringfs"), &link).unwrap();
        let mut program = Command::new(link);
        program.current_dir(folder.path());
        program
    };
    let mut mount = program("mount.uringfs");
    mount.args(["v", "m", "-o", "rw,noatime,x-systemd.automount,_netdev", "-t", "uringfs"]);
    assert_eq!(mount.status().unwrap().code(), Some(0));
    fs::write(directory.join("file"), "content").unwrap();
    assert_eq!(mount.output().unwrap().status.code(), Some(32), "it is mounted already");
    let mut umount = program("umount.fuse.uringfs");
    umount.args(["m", "-t", "fuse.uringfs"]);
    while umount.output().unwrap().status.code() != Some(0) {}
    assert_eq!(run_ok(folder.path(), ["cat", "v:/file"]), "content");
}

#[test]
fn a_service_manager_is_told_when_the_mount_is_ready_and_when_it_stops() {
    let folder = volume();
    fs::create_dir(folder.path().join("m")).unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let mut server = command(folder.path(), ["mount", "-f", "v", "m"]);
    let mut server = server.env("NOTIFY_SOCKET", folder.path().join("notify")).spawn().unwrap();
    let word = || {
        let mut bytes = [0; 64];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    assert_eq!(word().trim_end(), "READY=1");
    fs::write(folder.path().join("m/file"), "content").unwrap();
    kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(word().trim_end(), "STOPPING=1");
    assert!(server.wait().unwrap().success());
    assert_eq!(run_ok(folder.path(), ["cat", "v:/file"]), "content");
}

#[test]
fn as_root_a_second_stop_signal_leaves_another_mount_alone() {
    if !as_root() {
        return;
    }
    let folder = volume();
    let directory = folder.path().join("m");
    fs::create_dir(&directory).unwrap();
    let arguments = ["mount", "-f", "--log-format", "json", "v", "m"];
    let mut server = command(folder.path(), arguments);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let stop = Pid::from_raw(server.id() as i32);
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    log.next().expect("it serves");
    // A program still uses the volume when another file system is mounted in its place.
    let file = fs::File::create(directory.join("file")).unwrap();
    kill(stop, Signal::SIGTERM).unwrap();
    while directory.join("file").exists() {}
    fs::remove_dir(&directory).unwrap();
    let other = SmallTmpfs::new(&directory, "1m");
    fs::write(directory.join("other"), "").unwrap();
    kill(stop, Signal::SIGTERM).unwrap();
    assert!(log.any(|line| line.contains("m: the volume is unmounted already")));
    assert!(directory.join("other").exists());
    drop(file);
    assert!(server.wait().unwrap().success());
    drop(other);
}
