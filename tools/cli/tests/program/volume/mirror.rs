//! A tree on the host and the same tree in a volume. A command of the program and its namesake of coreutils run on
//! both, and must print the same and leave the same trees.

use super::{command, run_ok, volume};
use crate::process::ChildProcess;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The folder `t`, and the volume in the file `v`.
pub struct Mirror(TempDir);

impl Mirror {
    pub fn new() -> Self {
        let folder = volume();
        std::fs::create_dir(folder.path().join("t")).unwrap();
        Self(folder)
    }

    /// The folder that both are in.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The tree on the host.
    pub fn tree(&self) -> PathBuf {
        self.folder().join("t")
    }

    /// Copies the tree on the host into the volume.
    pub fn put(&self) {
        run_ok(self.folder(), ["put", "t/.", "v:/"]);
    }

    /// Runs a command on both, with the paths in the place of each `@`. Both succeed or both fail, with the same
    /// number of errors; they print the same lines, in any order, as coreutils walks in the order of the directory.
    pub fn run(&self, arguments: &[&str]) {
        let (theirs, ours) = self.outputs(arguments);
        assert_eq!(sorted(&ours), sorted(&theirs), "{arguments:?}");
        self.assert_same_trees(arguments);
    }

    /// As [`Self::run`]; the lines have the same order, too.
    pub fn run_in_order(&self, arguments: &[&str]) {
        let (theirs, ours) = self.outputs(arguments);
        assert_eq!(ours, theirs, "{arguments:?}");
    }

    fn outputs(&self, arguments: &[&str]) -> (String, String) {
        let place = |lead: &str| -> Vec<String> {
            arguments.iter().map(|argument| argument.replace('@', lead)).collect()
        };
        let theirs = place("");
        let mut command_of_coreutils = Command::new(&theirs[0]);
        let variables = ["LS_COLORS", "TIME_STYLE", "BLOCK_SIZE", "POSIXLY_CORRECT"];
        variables.iter().for_each(|name| _ = command_of_coreutils.env_remove(name));
        command_of_coreutils.args(&theirs[1..]).current_dir(self.tree()).env("LC_ALL", "C.UTF-8");
        let theirs = ChildProcess::start(&mut command_of_coreutils).end();
        let ours = ChildProcess::start(&mut command(self.folder(), place("v:/"))).end();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let failed = |output: &Output| (!output.status.success(), output.stderr.is_empty());
        assert_eq!(
            failed(&ours),
            failed(&theirs),
            "{arguments:?}: ours {:?}, theirs {:?}",
            text(&ours.stderr),
            text(&theirs.stderr)
        );
        (text(&theirs.stdout), relative(&text(&ours.stdout)))
    }

    fn assert_same_trees(&self, arguments: &[&str]) {
        let back = tempfile::tempdir_in(self.folder()).unwrap();
        run_ok(self.folder(), ["get", "v:/.", back.path().to_str().unwrap()]);
        assert_eq!(listing(back.path()), listing(&self.tree()), "{arguments:?}");
    }
}

/// The output with paths relative to the root of the volume.
fn relative(text: &str) -> String {
    let lines = text.replace("v:/", "").replace("\t/", "\t").replace(" /", " ");
    lines
        .split('\n')
        .map(|line| line.strip_prefix('/').unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// One line for each file: name, type, mode, owner and target of a link; except of directories also size and links.
fn listing(folder: &Path) -> Vec<String> {
    let formats = ["-printf", "%P %y %m %U:%G %l", "-type", "d", "-printf", "\n", "-o"];
    let mut find = Command::new("find");
    find.args([".", "-mindepth", "1", "("]).args(formats).args(["-printf", " %s %n\n", ")"]);
    let output = ChildProcess::start(find.current_dir(folder)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}
