//! Two runs on one target would disturb each other.

use super::{bench, command, folder};
use crate::process::{ChildProcess, wait_until};
use nix::sys::signal::Signal;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn a_second_run_on_a_target_is_refused_until_the_first_has_ended() {
    let folder = folder();
    let file = folder.path().join("data");
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    symlink("data", folder.path().join("link")).unwrap();
    let reads = ["--name=x", "--engine=psync", "--rw=randread", "--bs=4k", "--direct=0"];
    let endless = [&reads[..], &["--filename=data", "--time_based", "--runtime=1h"]].concat();
    let first = ChildProcess::start(&mut command(folder.path(), &endless));
    let inode = format!("/{}", file.metadata().unwrap().ino());
    wait_until("the claim of the first run", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        sockets.lines().any(|line| line.contains("@uringfs-bench/file/") && line.ends_with(&inode))
    });
    let short = [&reads[..], &["--filename=link", "--io_size=64k"]].concat();
    let output = bench(folder.path(), &short);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), line.lines().count()), (Some(6), 1), "{line}");
    let process = format!("link: another run of process {} uses it", first.id());
    assert!(line.contains(&process), "{line}");
    first.signal(Signal::SIGINT);
    assert_eq!(first.end().status.code(), Some(130));
    assert!(bench(folder.path(), &short).status.success());
}
