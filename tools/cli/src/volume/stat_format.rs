//! The formats of `stat -c`, as of coreutils. The sequences about the device of a mounted file (`%d`, `%m`) print `?`, as
//! unknown sequences do.

use super::format;
use super::owners::OwnerNames;
use super::quoting::quoted;
use super::times::TimeFormat;
use super::volume_path::VolumePath;
use uringfs::volume::{FileType, Inode, InodeNumber, Time};

/// The format of `stat` if none is given.
pub const DEFAULT: &str = "  File: %n%l\n  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\nInode: %-10i  Links: %-5h%v\n\
    Access: (%04a/%10.10A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\nAccess: %x\nModify: %y\nChange: %z\n Birth: %w\n";

/// The help about the sequences.
pub const HELP: &str = "\
Sequences of a FORMAT: %n path, %N quoted path with the target of a link, %F type, %s size, %b blocks of %B bytes, \
    %i inode, %h links, %a mode in octal, %A mode as in ls -l, %f mode with type in hexadecimal, %u %U user, %g %G group \
    (number and name), %x %y %z %w times of access, modification, change and birth, %X %Y %Z %W the same in seconds since \
    1970, %t %T major and minor device number in hexadecimal, %Hr %Lr in decimal, %o block size, %% a percent sign. Flags, \
    widths and precisions as in printf: %-10s, %04a, %#a, %.3Y.";

/// A file, and how to print parts of it.
pub struct StatFormat {
    times: TimeFormat,
    owners: OwnerNames,
}

/// Flags, width and precision of a sequence.
#[derive(Default)]
struct Spec {
    is_left: bool,
    has_zeros: bool,
    has_prefix: bool,
    width: usize,
    precision: Option<usize>,
}

/// The value of a sequence.
enum Value {
    Text(Vec<u8>),
    Decimal(u64),
    Octal(u64),
    Hexadecimal(u64),
    Seconds(Time),
}

impl StatFormat {
    pub fn new() -> Self {
        Self { times: TimeFormat::new(), owners: OwnerNames::default() }
    }

    /// The text of a file. With `has_escapes`, `\n` and the like are control characters, as with --printf.
    pub fn text(
        &mut self,
        format: &[u8],
        has_escapes: bool,
        path: &VolumePath,
        (number, inode): &(InodeNumber, Inode),
    ) -> Vec<u8> {
        let (mut text, mut rest) = (Vec::new(), format);
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            match first {
                b'%' if rest.first() == Some(&b'%') => {
                    text.push(b'%');
                    rest = &rest[1..];
                }
                b'%' => {
                    let spec = Spec::parse(&mut rest);
                    let sequence = match rest {
                        [first @ (b'H' | b'L'), b'r', ..] => [*first, b'r'],
                        [first, ..] => [*first, 0],
                        [] => [b'%', 0],
                    };
                    let length = if sequence[1] == 0 { 1 } else { 2 };
                    rest = rest.get(length..).unwrap_or_default();
                    let value = self.value(sequence, path, *number, inode);
                    text.extend(spec.apply(value));
                }
                b'\\' if has_escapes => text.push(escaped(&mut rest)),
                first => text.push(*first),
            }
        }
        text
    }

    fn value(
        &mut self,
        sequence: [u8; 2],
        path: &VolumePath,
        number: InodeNumber,
        inode: &Inode,
    ) -> Value {
        let device = match inode.kind {
            FileType::BlockDevice(device) | FileType::CharacterDevice(device) => device,
            _ => 0,
        };
        let [major, minor] = [rustix::fs::major(device), rustix::fs::minor(device)].map(u64::from);
        let is_link = inode.kind == FileType::Symlink;
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let time = |time: Time| Value::Text(self.times.full(time).into_bytes());
        match sequence[0] {
            b'n' => Value::Text(format::printable(&path.argument())),
            b'N' if is_link => {
                text(&format!("{} -> {}", quoted(&path.argument()), quoted(&inode.target)))
            }
            b'N' => text(&quoted(&path.argument())),
            // Parts of the default format.
            b'l' if is_link => {
                Value::Text([b" -> ", &format::printable(&inode.target)[..]].concat())
            }
            b'v' if device != 0 => text(&format!(" Device type: {major},{minor}")),
            b'l' | b'v' => text(""),
            b'F' => text(type_name(inode)),
            b's' => Value::Decimal(inode.size),
            b'b' => Value::Decimal(inode.allocated() / 512),
            b'B' => Value::Decimal(512),
            b'o' => Value::Decimal(4096),
            b'i' => Value::Decimal(number.0),
            b'h' => Value::Decimal(inode.links.into()),
            b'a' => Value::Octal(inode.permissions.into()),
            b'A' => text(&format::mode(inode)),
            b'f' => Value::Hexadecimal(
                u64::from(inode.kind.mode_bits().0) | u64::from(inode.permissions),
            ),
            b'u' => Value::Decimal(inode.user.into()),
            b'g' => Value::Decimal(inode.group.into()),
            b'U' => text(self.owners.user(inode.user).unwrap_or("UNKNOWN")),
            b'G' => text(self.owners.group(inode.group).unwrap_or("UNKNOWN")),
            b'x' => time(inode.accessed),
            b'y' => time(inode.modified),
            b'z' => time(inode.changed),
            b'w' => time(inode.created),
            b'X' => Value::Seconds(inode.accessed),
            b'Y' => Value::Seconds(inode.modified),
            b'Z' => Value::Seconds(inode.changed),
            b'W' => Value::Seconds(inode.created),
            b't' => Value::Hexadecimal(major),
            b'T' => Value::Hexadecimal(minor),
            b'r' => Value::Decimal(device),
            b'R' => Value::Hexadecimal(device),
            b'H' if sequence[1] == b'r' => Value::Decimal(major),
            b'L' if sequence[1] == b'r' => Value::Decimal(minor),
            _ => text("?"),
        }
    }
}

impl Spec {
    fn parse(rest: &mut &[u8]) -> Self {
        let mut spec = Self::default();
        while let Some((flag @ (b'-' | b'0' | b'#' | b' ' | b'+' | b'\''), behind)) =
            rest.split_first()
        {
            match flag {
                b'-' => spec.is_left = true,
                b'0' => spec.has_zeros = true,
                b'#' => spec.has_prefix = true,
                _ => {}
            }
            *rest = behind;
        }
        spec.width = number(rest).unwrap_or(0);
        if let Some(behind) = rest.strip_prefix(b".") {
            *rest = behind;
            spec.precision = Some(number(rest).unwrap_or(9));
        }
        spec
    }

    fn apply(&self, value: Value) -> Vec<u8> {
        let (text, is_number) = match value {
            Value::Text(text) => {
                let length = self.precision.unwrap_or(text.len()).min(text.len());
                (text[..length].to_vec(), false)
            }
            Value::Decimal(value) => (value.to_string().into_bytes(), true),
            Value::Octal(value) if self.has_prefix => (format!("0{value:o}").into_bytes(), true),
            Value::Octal(value) => (format!("{value:o}").into_bytes(), true),
            Value::Hexadecimal(value) if self.has_prefix => {
                (format!("{value:#x}").into_bytes(), true)
            }
            Value::Hexadecimal(value) => (format!("{value:x}").into_bytes(), true),
            Value::Seconds(time) => (self.seconds(time).into_bytes(), true),
        };
        let padding = self.width.saturating_sub(text.len());
        let fill = if is_number && self.has_zeros && !self.is_left { b'0' } else { b' ' };
        match self.is_left {
            true => [text, vec![b' '; padding]].concat(),
            false => [vec![fill; padding], text].concat(),
        }
    }

    /// Seconds since 1970, with as many decimals as the precision.
    fn seconds(&self, time: Time) -> String {
        let digits = self.precision.unwrap_or(0).min(9);
        let nanoseconds =
            i128::from(time.seconds()) * 1_000_000_000 + i128::from(time.nanoseconds());
        // Rounded down, as coreutils does.
        let unit = 10_i128.pow(9 - digits as u32);
        let scaled = nanoseconds.div_euclid(unit);
        let whole = 10_i128.pow(digits as u32);
        let sign = if scaled < 0 { "-" } else { "" };
        let (seconds, decimals) = (scaled.abs() / whole, scaled.abs() % whole);
        match digits {
            0 => format!("{sign}{seconds}"),
            _ => format!("{sign}{seconds}.{decimals:0digits$}"),
        }
    }
}

/// The digits at the beginning, at most 4.
fn number(rest: &mut &[u8]) -> Option<usize> {
    let digits = rest.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, behind) = rest.split_at(digits);
    *rest = behind;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The character of an escape sequence after its backslash.
fn escaped(rest: &mut &[u8]) -> u8 {
    let Some((first, behind)) = rest.split_first() else { return b'\\' };
    *rest = behind;
    match first {
        b'a' => 7,
        b'b' => 8,
        b'e' => 0x1b,
        b'f' => 0xc,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0xb,
        b'0'..=b'7' => {
            let mut value = u32::from(first - b'0');
            for _ in 0..2 {
                let Some((digit @ b'0'..=b'7', behind)) = rest.split_first() else { break };
                value = value * 8 + u32::from(digit - b'0');
                *rest = behind;
            }
            value as u8
        }
        other => *other,
    }
}

fn type_name(inode: &Inode) -> &'static str {
    match inode.kind {
        FileType::File if inode.size == 0 => "regular empty file",
        FileType::File => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::BlockDevice(_) => "block special file",
        FileType::CharacterDevice(_) => "character special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}
