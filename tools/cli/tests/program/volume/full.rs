//! Which one is full: the volume, or the file system that its image lies in.

use super::{done, run, write};
use crate::bench_run::folder;
use crate::root::as_root;
use crate::running::tool;
use std::path::PathBuf;

/// A file system of memory; none any more when this goes.
struct Tiny(PathBuf);

impl Drop for Tiny {
    fn drop(&mut self) {
        tool("umount", &[self.0.to_str().unwrap()]);
    }
}

#[test]
fn as_root_a_full_file_system_below_is_not_said_to_be_a_full_volume() {
    if !as_root() {
        return;
    }
    let folder = folder();
    let here = folder.path();
    let tiny = Tiny(here.join("tiny"));
    std::fs::create_dir(&tiny.0).unwrap();
    tool("mount", &["-t", "tmpfs", "-o", "size=8m", "tmpfs", tiny.0.to_str().unwrap()]);
    std::fs::File::create(tiny.0.join("v")).unwrap().set_len(128 << 20).unwrap();
    done(here, ["mkfs", "tiny/v"]);
    write(here, "large", vec![1; 20 << 20]);
    for command in [&["put", "large", "tiny/v:/"][..], &["mkdir", "tiny/v:/d"]] {
        let output = run(here, command);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let full = "what the volume lies in is full, not the volume";
        assert!(told.contains(full) && !told.contains("the volume is full"), "{told}");
    }
}
