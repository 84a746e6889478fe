//! Unusual sources: files of size 0 that have data, missing files, truncated images, holes.

use super::{command, incomplete, run, run_ok, volume, write};
use crate::process::{ChildProcess, wait_until};
use nix::sys::signal::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

#[test]
fn put_reads_to_the_end_whatever_size_a_file_reports() {
    let folder = volume();
    let folder = folder.path();
    run_ok(folder, ["put", "/proc/version", "/proc/self/status", "v:/"]);
    let version = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(run_ok(folder, ["cat", "v:/version"]), version);
    assert!(run_ok(folder, ["cat", "v:/status"]).contains("uringfs"));
    // A file that reports the size of a page and has less data.
    let sysfs = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Ok(bytes) = std::fs::read_to_string(sysfs) {
        run_ok(folder, ["put", sysfs.to_str().unwrap(), "v:/"]);
        assert_eq!(run_ok(folder, ["cat", "v:/enabled"]), bytes);
    }
}

#[test]
fn a_closed_standard_input_is_no_empty_file() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    run_ok(folder, ["put", "a", "v:/"]);
    let put = |input: &str| {
        let mut shell = Command::new("sh");
        let script = format!("exec \"$0\" put - v:/a {input}");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_uringfs")]).current_dir(folder);
        ChildProcess::start(&mut shell).end()
    };
    let closed = put("<&-");
    let stderr = String::from_utf8(closed.stderr).unwrap();
    assert!(closed.status.code() == Some(1) && stderr.contains("Bad file descriptor"), "{stderr}");
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "of a");
    assert!(put("</dev/null").status.success());
    assert_eq!(run_ok(folder, ["cat", "v:/a"]), "");
}

#[test]
fn a_missing_source_does_not_stop_the_others() {
    let folder = volume();
    let folder = folder.path();
    write(folder, "a", "of a");
    write(folder, "b", "of b");
    let (_, stderr) = incomplete(folder, ["put", "a", "none", "b", "v:/"]);
    assert!(stderr.starts_with("uringfs: none: cannot be read"), "{stderr}");
    assert_eq!(run_ok(folder, ["cat", "v:/a", "v:/b"]), "of aof b");
}

/// A volume with a file of many chunks. Each byte is 7.
fn with_a_large_file() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    run_ok(folder.path(), ["mkfs", "v", "--size", "256M"]);
    write(folder.path(), "a", vec![7; 160 << 20]);
    run_ok(folder.path(), ["put", "a", "v:/"]);
    folder
}

/// Truncates the image after the first chunks of its file.
fn cut(folder: &Path) {
    let image = File::options().write(true).open(folder.join("v")).unwrap();
    image.set_len(40 << 20).unwrap();
}

#[test]
fn an_image_truncated_during_get_is_an_error() {
    let folder = with_a_large_file();
    let folder = folder.path();
    let kept = folder.join("kept");
    std::fs::copy(folder.join("v"), &kept).unwrap();
    std::fs::create_dir(folder.join("out")).unwrap();
    // The command may end before the test looks.
    loop {
        std::fs::copy(&kept, folder.join("v")).unwrap();
        let mut get = ChildProcess::start(&mut command(folder, ["get", "v:/a", "out"]));
        let is_begun = || folder.join("out").read_dir().unwrap().next().is_some();
        wait_until("a file half-made", || is_begun() || get.has_ended());
        if get.has_ended() {
            continue;
        }
        get.signal(Signal::SIGSTOP);
        let is_whole = folder.join("out/a").exists();
        cut(folder);
        get.signal(Signal::SIGCONT);
        let output = get.end();
        if is_whole {
            std::fs::remove_file(folder.join("out/a")).unwrap();
            continue;
        }
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("v:/a: cannot be read"), "{stderr}");
        assert_eq!(folder.join("out").read_dir().unwrap().count(), 0);
        break;
    }
}

#[test]
fn put_keeps_a_hole_at_the_end() {
    let folder = volume();
    let folder = folder.path();
    let holes = File::create(folder.join("holes")).unwrap();
    holes.write_all_at(&[1; 5000], 0).unwrap();
    holes.set_len(3 << 20).unwrap();
    run_ok(folder, ["put", "holes", "v:/"]);
    let bytes = run(folder, ["cat", "v:/holes"]).stdout;
    assert!(bytes.len() == 3 << 20 && bytes[5000..].iter().all(|byte| *byte == 0));
}
