//! The command of this process, for reports.

use crate::volume::quoting::quoted_if_needed;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The command of this process, as a shell reads it.
pub fn command_line() -> String {
    std::env::args_os().map(|word| shell_word(&word)).collect::<Vec<_>>().join(" ")
}

/// A word of a command, in quotes if a shell needs them. Unlike in the name of a file, `=` needs none after the first letter.
fn shell_word(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(byte);
    match word.as_bytes() {
        [first, rest @ ..] if *first != b'=' && is_plain(first) && rest.iter().all(is_plain) => {
            word.to_string_lossy().into_owned()
        }
        other => quoted_if_needed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_quoted_if_a_shell_needs_it() {
        for plain in ["--b", "direct.simple_read=off", "./old/uringfs", "--html=page.html"] {
            assert_eq!(shell_word(OsStr::new(plain)), plain);
        }
        assert_eq!(shell_word(OsStr::new("results=old*.json")), "'results=old*.json'");
        assert_eq!(shell_word(OsStr::new("")), "''");
        assert_eq!(shell_word(OsStr::from_bytes(b"\xff")), "''$'\\377'");
    }
}
