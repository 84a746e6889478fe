//! How names, modes, times and sizes are printed.

use std::io::IsTerminal;
use uringfs::{FileKind, Inode, Time};

/// A name as it goes to standard output: its bytes, except that a terminal is sent no control
/// characters.
pub fn shown(name: &[u8]) -> Vec<u8> {
    if !std::io::stdout().is_terminal() {
        return name.to_vec();
    }
    let mut text = String::new();
    for character in String::from_utf8_lossy(name).chars() {
        match character.is_control() {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
    text.into_bytes()
}

/// `drwxr-xr-x`.
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

fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice(_) => 'b',
        FileKind::CharacterDevice(_) => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// A kind of file in words.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::BlockDevice(_) => "block device",
        FileKind::CharacterDevice(_) => "character device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// A time in UTC, to the second: `2026-11-22 07:40:00`.
pub fn time(time: Time) -> String {
    let seconds = time.0.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

/// Year, month and day, so many days after 1970 began (Gregorian).
fn date(days: i64) -> (i64, u32, i64) {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    // Years of 365 days, less the leap days before them: at most one too many.
    let first_day = |year: i64| {
        let before = year - 1;
        365 * (year - 1970) + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400)
            - 477
    };
    let mut year = 1970 + days.div_euclid(365);
    while first_day(year) > days {
        year -= 1;
    }
    let mut day = days - first_day(year);
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, length) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if day < length {
            return (year, month, day + 1);
        }
        day -= length;
    }
    unreachable!("a year has twelve months")
}

/// A size for people: `1.5 GiB`.
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

/// `8-4-4-4-12`.
pub fn uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_of_the_calendar() {
        let shown = |seconds: i64| time(Time(seconds * 1_000_000_000));
        assert_eq!(shown(0), "1970-01-01 00:00:00");
        assert_eq!(shown(-1), "1969-12-31 23:59:59");
        assert_eq!(shown(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(shown(1_795_333_265), "2026-11-22 07:41:05");
        assert_eq!(shown(4_102_444_799), "2099-12-31 23:59:59");
        assert_eq!(time(Time(i64::MIN)), "1677-09-21 00:12:43");
    }

    #[test]
    fn modes_are_as_in_ls() {
        let shown = |kind, permissions| mode(&Inode::new(kind, permissions));
        assert_eq!(shown(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(shown(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(shown(FileKind::Fifo, 0o6750), "prwsr-s---");
        assert_eq!(shown(FileKind::File, 0o4600), "-rwS------");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(5 << 40), "5.0 TiB");
    }
}
