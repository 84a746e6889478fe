//! Help, completions and man pages.

use crate::process::ChildProcess;
use std::process::Command;

fn uringfs(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    let output = ChildProcess::start(command.args(arguments)).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_help_lists_the_commands_in_groups() {
    let help = uringfs(&["--help"]);
    let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
    assert!(at("\nVolumes:\n  mkfs ") < at("\nFiles in volumes:\n  put "));
    assert!(at("\n  rmdir ") < at("\nDevices and benchmarks:\n  info "));
    assert!(at("Usage: uringfs <COMMAND>") < at("Options:"));
    assert!(!help.contains("  man "), "{help}");
}

#[test]
fn shells_accept_their_completions() {
    let folder = tempfile::tempdir().unwrap();
    let shells = ["bash", "zsh", "fish"];
    let names =
        [("uringfs", "no-clobber"), ("mkfs.uringfs", "block-size"), ("fsck.uringfs", "help")];
    for (shell, (name, option)) in shells.iter().flat_map(|shell| names.map(|name| (shell, name))) {
        let text = uringfs(&["completions", shell, name]);
        assert!(text.contains(name) && text.contains(option), "{shell} {name}");
        let path = folder.path().join(shell);
        std::fs::write(&path, text).unwrap();
        // A shell that is installed also parses them.
        let mut check = Command::new(shell);
        let Ok(output) = check.arg("-n").arg(&path).output() else { continue };
        assert!(output.status.success(), "{shell}: {output:?}");
    }
}

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    uringfs(&["man", folder.path().to_str().unwrap()]);
    for (page, text) in [
        ("uringfs.1", "rmdir"),
        ("uringfs-ls.1", "Exit codes"),
        ("uringfs-xattr-set.1", "VALUE"),
        ("mkfs.uringfs.8", "block device"),
        ("fsck.uringfs.8", "Change nothing"),
    ] {
        let page = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(page.contains(text), "{page}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    let output = ChildProcess::start(command.args(["man", "/no/such/folder"])).end();
    assert_eq!(output.status.code(), Some(2));
}
