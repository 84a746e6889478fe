//! Names in quotes as GNU ls prints them on a terminal: a shell reads the text as the name. No two names have the same
//! text, and no control character reaches the terminal.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// A path or an argument of this machine in a message, in quotes if a shell needs them.
#[derive(Clone, Copy)]
pub struct ForMessage<'a>(pub &'a OsStr);

pub fn for_message<T: AsRef<OsStr> + ?Sized>(name: &T) -> ForMessage<'_> {
    ForMessage(name.as_ref())
}

impl fmt::Display for ForMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted_if_needed(self.0.as_bytes()))
    }
}

/// A name, in quotes if a shell needs them: `a`, `'a b'`, `'a'$'\n''b'`.
pub fn quoted_if_needed(name: &[u8]) -> String {
    let is_special = |at: usize, character: char| match character {
        '#' | '~' => at == 0,
        '{' | '}' => name.len() == 1,
        ' ' | '!' | '"' | '$' | '&' | '\'' | '(' | ')' | '*' | ';' | '<' | '=' | '>' | '?'
        | '[' | '\\' | '^' | '`' | '|' => true,
        character => character.is_control(),
    };
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() => {
            match text.char_indices().any(|(at, character)| is_special(at, character)) {
                true => quoted(name),
                false => text.to_owned(),
            }
        }
        _ => quoted(name),
    }
}

/// A name in quotes.
pub fn quoted(name: &[u8]) -> String {
    let is_plain = |character: char| {
        !character.is_ascii() && !character.is_control()
            || character.is_ascii_alphanumeric()
            || " '%+,-./:@]_".contains(character)
    };
    if let Ok(text) = std::str::from_utf8(name)
        && text.contains('\'')
        && text.chars().all(is_plain)
    {
        return format!("\"{text}\"");
    }
    let mut quoted = Quoted { text: "'".into(), is_escaping: false };
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\'' => quoted.push_quote(),
                character if character.is_control() => {
                    let mut bytes = [0; 4];
                    character.encode_utf8(&mut bytes).bytes().for_each(|byte| quoted.escape(byte));
                }
                character => quoted.push(character),
            }
        }
        chunk.invalid().iter().for_each(|byte| quoted.escape(*byte));
    }
    quoted.text.push('\'');
    quoted.text
}

/// The styles in which GNU ls prints names as in C.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CStyle {
    /// `ls -b`: without quotes, and spaces are escaped.
    Escape,
    /// `ls -Q`: in double quotes.
    Quote,
}

/// A name as `ls -b` or `ls -Q` of coreutils prints it.
pub fn escaped(name: &[u8], style: CStyle) -> Vec<u8> {
    let quote: &[u8] = if style == CStyle::Quote { b"\"" } else { b"" };
    let mut text = quote.to_vec();
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match (character, style) {
                ('\\', _) => text.extend(br"\\"),
                ('"', CStyle::Quote) => text.extend(br#"\""#),
                (' ', CStyle::Escape) => text.extend(br"\ "),
                (character, _) => {
                    let mut bytes = [0; 4];
                    let bytes = character.encode_utf8(&mut bytes).as_bytes();
                    match character.is_control() {
                        true => bytes.iter().for_each(|byte| text.extend(escape(*byte).bytes())),
                        false => text.extend(bytes),
                    }
                }
            }
        }
        chunk.invalid().iter().for_each(|byte| text.extend(escape(*byte).bytes()));
    }
    text.extend(quote);
    text
}

/// A byte as in a string of C.
fn escape(byte: u8) -> String {
    let letter = match byte {
        b'\x07' => r"\a",
        b'\x08' => r"\b",
        b'\t' => r"\t",
        b'\n' => r"\n",
        b'\x0b' => r"\v",
        b'\x0c' => r"\f",
        b'\r' => r"\r",
        byte => return format!(r"\{byte:03o}"),
    };
    letter.to_owned()
}

/// A text that began with a quote.
struct Quoted {
    text: String,
    /// Whether the quotes are those of `$'...'`.
    is_escaping: bool,
}

impl Quoted {
    fn push(&mut self, character: char) {
        if std::mem::take(&mut self.is_escaping) {
            self.text += "''";
        }
        self.text.push(character);
    }

    /// A quote in a name ends the quotes, and begins them again behind it.
    fn push_quote(&mut self) {
        self.is_escaping = false;
        self.text += r"'\''";
    }

    fn escape(&mut self, byte: u8) {
        if !std::mem::replace(&mut self.is_escaping, true) {
            self.text += "'$'";
        }
        self.text += &escape(byte);
    }
}
