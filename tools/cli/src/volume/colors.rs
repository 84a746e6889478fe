//! The colours of names in `ls`, by the kinds of files. They are the defaults of
//! coreutils 9.

use clap::ValueEnum;
use std::io::IsTerminal;
use uringfs::volume::{FileType, Inode};

/// The option `--color`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

impl ColorWhen {
    /// Whether standard output gets colours.
    pub fn is_on(self) -> bool {
        let is_wanted = || std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match self {
            ColorWhen::Auto => std::io::stdout().is_terminal() && is_wanted(),
            ColorWhen::Always => true,
            ColorWhen::Never => false,
        }
    }
}

/// A name in the colour of its file.
pub fn paint(name: Vec<u8>, inode: &Inode) -> Vec<u8> {
    match code(inode) {
        Some(code) => [b"\x1b[", code.as_bytes(), b"m", &name, b"\x1b[0m"].concat(),
        None => name,
    }
}

/// The attributes of the escape sequence.
fn code(inode: &Inode) -> Option<&'static str> {
    let has = |bits: u16| inode.permissions & bits == bits;
    Some(match inode.kind {
        FileType::File if has(0o4000) => "37;41",
        FileType::File if has(0o2000) => "30;43",
        FileType::File if inode.permissions & 0o111 != 0 => "01;32",
        FileType::File => return None,
        FileType::Directory if has(0o1002) => "30;42",
        FileType::Directory if has(0o0002) => "34;42",
        FileType::Directory if has(0o1000) => "37;44",
        FileType::Directory => "01;34",
        FileType::Symlink => "01;36",
        FileType::Fifo => "33",
        FileType::Socket => "01;35",
        FileType::BlockDevice(_) | FileType::CharacterDevice(_) => "01;33",
    })
}
