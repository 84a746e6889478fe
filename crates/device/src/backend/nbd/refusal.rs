//! Why a device on a server cannot be opened, in words.

use std::io;

/// The most characters of a server's text that a message repeats.
const MAX_TEXT: usize = 200;

/// The reason why a handshake failed, with what to do: the end of a message that begins with the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: io::ErrorKind,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(kind: io::ErrorKind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into() }
    }

    /// The server does not follow the protocol.
    pub(super) fn violation(what: impl AsRef<str>) -> Refusal {
        let text =
            format!("the server breaks the NBD protocol ({}); check the address", what.as_ref());
        Refusal::new(io::ErrorKind::InvalidData, text)
    }
}

/// Text of a server, on one line and not too long.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut shown: String = letters.by_ref().take(MAX_TEXT).collect();
    if letters.next().is_some() {
        shown.push_str("...");
    }
    shown.trim().to_owned()
}
