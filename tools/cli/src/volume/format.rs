//! Formats of names, modes and sizes in output.

use super::quoting::quoted_if_needed;
use std::io::IsTerminal;
use uringfs::volume::{FileType, Inode};

/// A name for standard output: its bytes; on a terminal in quotes if a shell needs them.
pub fn printable(name: &[u8]) -> Vec<u8> {
    match std::io::stdout().is_terminal() {
        true => quoted_if_needed(name).into_bytes(),
        false => name.to_vec(),
    }
}

/// A name without quotes: its bytes; on a terminal with `?` for control characters and what is not UTF-8.
pub fn unquoted(name: &[u8]) -> Vec<u8> {
    match std::io::stdout().is_terminal() {
        true => with_question_marks(name),
        false => name.to_vec(),
    }
}

/// A name with `?` for control characters and what is not UTF-8.
pub fn with_question_marks(name: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.extend(chunk.valid().chars().map(|one| if one.is_control() { '?' } else { one }));
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text.into_bytes()
}

/// The mode as in `ls -l`: `drwxr-xr-x`.
pub fn mode(inode: &Inode) -> String {
    let bit = |mask: u16, letter: char| if inode.permissions & mask != 0 { letter } else { '-' };
    let mut text = String::from(letter(inode.kind));
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        text.push(bit(0o4 << shift, 'r'));
        text.push(bit(0o2 << shift, 'w'));
        let executable = inode.permissions & (0o1 << shift) != 0;
        text.push(match (inode.permissions & special != 0, executable) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::File => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice(_) => 'b',
        FileType::CharacterDevice(_) => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    }
}

/// The name of a file type.
pub fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::BlockDevice(_) => "block device",
        FileType::CharacterDevice(_) => "character device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// A size in binary units: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            let digits = if unit == "bytes" { 0 } else { 1 };
            return format!("{scaled:.digits$} {unit}");
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} TiB")
}

/// A size as `ls -lh` of coreutils prints it, in powers of 1024, rounded up: `1.5K`, `10M`. In powers of 1000 as
/// `ls --si`: `1.5k`, `10M`.
pub fn human_readable(bytes: u64, base: u64) -> String {
    if bytes < base {
        return bytes.to_string();
    }
    let mut unit = base;
    for letter in [if base == 1000 { "k" } else { "K" }, "M", "G", "T", "P"] {
        // Rounded up to the base, a size has the next unit.
        if bytes.div_ceil(unit) < base {
            return with_letter(bytes, unit, letter);
        }
        unit *= base;
    }
    with_letter(bytes, unit, "E")
}

fn with_letter(bytes: u64, unit: u64, letter: &str) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    match tenths {
        0..100 => format!("{}.{}{letter}", tenths / 10, tenths % 10),
        _ => format!("{}{letter}", bytes.div_ceil(unit)),
    }
}

/// A number of things: `1 file`, `2 files`.
pub fn count(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The UUID in the form 8-4-4-4-12.
pub fn uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_printed_as_in_ls() {
        let text = |kind, permissions| mode(&Inode::new(kind, permissions));
        assert_eq!(text(FileType::File, 0o644), "-rw-r--r--");
        assert_eq!(text(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(text(FileType::Fifo, 0o6750), "prwsr-s---");
        assert_eq!(text(FileType::File, 0o4600), "-rwS------");
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(5 << 40), "5.0 TiB");
    }

    #[test]
    fn human_readable_sizes_are_rounded_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024 - 1, "10K"),
            (10 * 1024 + 1, "11K"),
            (1023 * 1024, "1023K"),
            (1023 * 1024 + 1, "1.0M"),
            (3 << 29, "1.5G"),
            (5 << 40, "5.0T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_readable(bytes, 1024), text, "{bytes}");
        }
        for (bytes, text) in [(999, "999"), (1000, "1.0k"), (1024, "1.1k"), (999_001, "1.0M")] {
            assert_eq!(human_readable(bytes, 1000), text, "{bytes}");
        }
    }
}
