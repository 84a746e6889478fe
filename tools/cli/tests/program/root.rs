//! What only root may do: to make, mount and open block devices.

use std::process::Command;

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a tool of the system, and gives what it says.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
