//! Help, completions and man pages.

use crate::process::{ChildProcess, Deadline};
use crate::volume::terminal::on_terminal;
use std::io::{Read, Write};
use std::path::Path;
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

/// The commands that the program's help lists.
fn commands() -> Vec<String> {
    let help = uringfs(&["--help"]);
    let rows = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  -"));
    let names = rows.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help").collect()
}

#[test]
fn the_help_of_each_command_fits_a_terminal_and_is_plain_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let commands = commands();
    assert!(commands.len() > 30 && commands.contains(&"wipe".to_owned()), "{commands:?}");
    let inner = [
        "bench run",
        "bench compare",
        "bench record",
        "bench gate",
        "bench sweep",
        "bench experiment",
        "bench vm",
        "xattr list",
        "xattr get",
        "xattr set",
        "serve vhost-user-blk",
    ];
    for command in commands.iter().map(String::as_str).chain(inner) {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let colored = on_terminal(folder.path(), &arguments, None);
        let plain = on_terminal(folder.path(), &arguments, Some("1"));
        assert!(colored.contains("\x1b[") && !plain.contains('\x1b'), "{command}: {plain}");
        let wide = plain.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{command}");
        assert!(plain.contains("Usage: ") && !uringfs(&arguments).contains('\x1b'), "{command}");
    }
}

/// An interactive bash on a terminal, with completions, gets a line with a tab. Returns what it shows until `until`.
fn complete(folder: &Path, line: &str, until: &str) -> String {
    let size = nix::pty::Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = nix::pty::openpty(&size, None).unwrap();
    let slave = || terminal.slave.try_clone().unwrap();
    // The terminal controls bash's session, or bash stops when it reads.
    let mut bash = Command::new("setsid");
    bash.args(["--ctty", "--wait", "bash", "--noprofile", "--norc", "-i"]).current_dir(folder);
    bash.env("TERM", "dumb").env("INPUTRC", "/dev/null").env("PS1", "ready> ");
    bash.stdin(slave()).stdout(slave()).stderr(slave());
    let mut child = bash.spawn().unwrap();
    drop(bash);
    drop(terminal.slave);
    let mut screen = std::fs::File::from(terminal.master);
    let mut shown = String::new();
    let mut read_until = |screen: &mut std::fs::File, until: &str| {
        let mut some = [0; 4096];
        let end = loop {
            if let Some(at) = shown.find(until) {
                break at + until.len();
            }
            assert!(Deadline::new().readable(&*screen), "waited for {until:?}: {shown:?}");
            let length = screen.read(&mut some).unwrap_or(0);
            assert!(length > 0, "bash has ended: {shown:?}");
            shown += &String::from_utf8_lossy(&some[..length]);
        };
        let rest = shown.split_off(end);
        std::mem::replace(&mut shown, rest)
    };
    read_until(&mut screen, "ready> ");
    screen.write_all(b"source ./completions; echo lo''aded\n").unwrap();
    read_until(&mut screen, "loaded\r\n");
    read_until(&mut screen, "ready> ");
    screen.write_all(line.as_bytes()).unwrap();
    let completed = read_until(&mut screen, until);
    // Ctrl-U removes the line.
    screen.write_all(b"\x15exit\n").unwrap();
    child.wait().unwrap();
    completed
}

#[test]
fn bash_completes_commands_options_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("completions"), uringfs(&["completions", "bash"])).unwrap();
    std::fs::write(folder.join("unusual.img"), "").unwrap();
    for (line, completed) in [
        ("uringfs wi\t", "uringfs wipe "),
        ("uringfs umo\t", "uringfs umount "),
        ("uringfs ls --group-d\t", "uringfs ls --group-directories-first "),
        ("uringfs wipe unus\t", "uringfs wipe unusual.img "),
        ("uringfs bench ex\t", "uringfs bench experiment "),
        ("uringfs bench experiment simple\t", "uringfs bench experiment simple-read "),
        ("uringfs mount -o noex\t", "uringfs mount -o noexec "),
    ] {
        complete(folder, line, completed);
    }
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
        ("mkfs.uringfs.8", "[\\-\\-size SIZE]"),
        ("mount.uringfs.8", "[\\-o OPTION,...]"),
        ("mount.uringfs.8", "Mount a volume for mount(8)"),
        ("uringfs-mount.1", "[\\-\\-threads NUMBER]"),
        ("uringfs-serve-nbd.1", "[\\-\\-group GROUP]"),
        ("uringfs-serve-vhost-user-blk.1", "[\\-\\-queues NUMBER]"),
    ] {
        let page = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(page.contains(text), "{page}");
    }
    for page in std::fs::read_dir(folder.path()).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("help"), "{name}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
    let output = ChildProcess::start(command.args(["man", "/no/such/folder"])).end();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    for arguments in [&["help"][..], &["--version"], &["ls", "--help"], &["--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command.args(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("cannot write to standard output"), "{stderr}");
    }
}
