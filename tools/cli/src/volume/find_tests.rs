//! The tests of `find`.

use super::entries::Entries;
use super::files::Files;
use super::open_volume::lookup;
use super::owners::{group_id, user_id};
use super::times::parse_date;
use super::volume_path::{VolumePath, last_name, with_path};
use super::wildcards::matches;
use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uringfs::volume::{FileType, Inode, InodeNumber, Time};
use uringfs_lab::Error;

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 3600;

/// A test of one attribute.
pub enum Test {
    Name(Vec<u8>),
    NameOfAnyCase(Vec<u8>),
    Path(Vec<u8>),
    PathOfAnyCase(Vec<u8>),
    Kinds(Vec<u8>),
    Empty,
    NewerThan(Time),
    /// Newer than the file with this index among those of `-newer`.
    NewerThanFile(usize),
    Permissions(Matched, u16),
    Number(Attribute, Comparison, u64),
}

/// A number of a file.
pub enum Attribute {
    /// The size in units of so many bytes, rounded up.
    Size(u64),
    /// The age in units of so many seconds, rounded down.
    Age {
        of: fn(&Inode) -> Time,
        unit_seconds: i64,
        now: Time,
    },
    User,
    Group,
    Links,
    Inode,
}

pub enum Comparison {
    Less,
    Equal,
    More,
}

pub enum Matched {
    Exactly,
    All,
    Any,
}

/// A file to test.
pub struct Candidate<'c> {
    pub volume: &'c Files,
    pub path: &'c VolumePath,
    pub kind: FileType,
    /// The times of the files of `-newer`.
    pub reference_times: &'c [Time],
    /// Number and inode, read at the first test that needs them.
    read: OnceCell<(InodeNumber, Inode)>,
}

impl<'c> Candidate<'c> {
    pub fn new(
        volume: &'c Files,
        path: &'c VolumePath,
        kind: FileType,
        reference_times: &'c [Time],
    ) -> Self {
        Self { volume, path, kind, reference_times, read: OnceCell::new() }
    }

    /// The number and the inode of the file.
    pub fn inode(&self) -> Result<&(InodeNumber, Inode), Error> {
        if let Some(read) = self.read.get() {
            return Ok(read);
        }
        let found = lookup(self.volume, &self.path.bytes);
        let found = found.map_err(|error| with_path(self.path, error))?;
        Ok(self.read.get_or_init(|| found))
    }
}

impl Test {
    /// A test that takes a value. None for an unknown test.
    pub fn with_value<'v>(
        name: &str,
        value: &mut impl FnMut() -> Result<&'v OsStr, Error>,
    ) -> Option<Result<Self, Error>> {
        let mut pattern = || Ok(value()?.as_bytes().to_vec());
        Some(match name {
            "-name" => pattern().map(Test::Name),
            "-iname" => pattern().map(|it: Vec<u8>| Test::NameOfAnyCase(it.to_ascii_lowercase())),
            "-path" | "-wholename" => pattern().map(Test::Path),
            "-ipath" | "-iwholename" => {
                pattern().map(|it: Vec<u8>| Test::PathOfAnyCase(it.to_ascii_lowercase()))
            }
            "-type" => pattern().and_then(kinds),
            "-perm" => value().and_then(permissions),
            "-size" => value().and_then(size),
            "-mtime" => value().and_then(|value| age(name, value, |its| its.modified, DAY)),
            "-mmin" => value().and_then(|value| age(name, value, |its| its.modified, MINUTE)),
            "-atime" => value().and_then(|value| age(name, value, |its| its.accessed, DAY)),
            "-amin" => value().and_then(|value| age(name, value, |its| its.accessed, MINUTE)),
            "-ctime" => value().and_then(|value| age(name, value, |its| its.changed, DAY)),
            "-cmin" => value().and_then(|value| age(name, value, |its| its.changed, MINUTE)),
            "-newermt" => value().and_then(|value| {
                let time = parse_date(&value.to_string_lossy());
                time.map(Test::NewerThan)
                    .map_err(|why| Error::input(format!("find: {name}: {why}")))
            }),
            "-user" => value().and_then(|value| owner(name, value, Attribute::User, user_id)),
            "-group" => value().and_then(|value| owner(name, value, Attribute::Group, group_id)),
            "-uid" => value().and_then(|value| compared(name, value, Attribute::User)),
            "-gid" => value().and_then(|value| compared(name, value, Attribute::Group)),
            "-links" => value().and_then(|value| compared(name, value, Attribute::Links)),
            "-inum" => value().and_then(|value| compared(name, value, Attribute::Inode)),
            _ => return None,
        })
    }

    /// Whether the test accepts a file.
    pub fn accepts(&self, file: &Candidate<'_>) -> Result<bool, Error> {
        let name = || last_name(&file.path.bytes).unwrap_or(b"/");
        Ok(match self {
            Test::Name(pattern) => matches(pattern, name()),
            Test::NameOfAnyCase(pattern) => matches(pattern, &name().to_ascii_lowercase()),
            Test::Path(pattern) => matches(pattern, &file.path.bytes),
            Test::PathOfAnyCase(pattern) => matches(pattern, &file.path.bytes.to_ascii_lowercase()),
            Test::Kinds(letters) => letters.contains(&letter(file.kind)),
            Test::Empty if file.kind == FileType::Directory => {
                let first = Entries::new(file.volume, &file.path.bytes).next().transpose();
                first.map_err(|error| with_path(file.path, error))?.is_none()
            }
            Test::Empty => file.kind == FileType::File && file.inode()?.1.size == 0,
            Test::NewerThan(time) => file.inode()?.1.modified > *time,
            Test::NewerThanFile(index) => file.inode()?.1.modified > file.reference_times[*index],
            Test::Permissions(matched, bits) => {
                let permissions = file.inode()?.1.permissions;
                match matched {
                    Matched::Exactly => permissions == *bits,
                    Matched::All => permissions & bits == *bits,
                    Matched::Any => *bits == 0 || permissions & bits != 0,
                }
            }
            Test::Number(attribute, comparison, wanted) => {
                let (number, inode) = file.inode()?;
                let value = attribute.value(number.0, inode);
                match comparison {
                    Comparison::Less => value < i128::from(*wanted),
                    Comparison::Equal => value == i128::from(*wanted),
                    Comparison::More => value > i128::from(*wanted),
                }
            }
        })
    }
}

impl Attribute {
    fn value(&self, number: u64, inode: &Inode) -> i128 {
        match self {
            Attribute::Size(unit) => inode.size.div_ceil(*unit).into(),
            Attribute::Age { of, unit_seconds, now } => {
                let nanoseconds = |time: Time| {
                    i128::from(time.seconds()) * 1_000_000_000 + i128::from(time.nanoseconds())
                };
                let age = nanoseconds(*now) - nanoseconds(of(inode));
                // Rounded towards zero, as find does.
                age / (i128::from(*unit_seconds) * 1_000_000_000)
            }
            Attribute::User => inode.user.into(),
            Attribute::Group => inode.group.into(),
            Attribute::Links => inode.links.into(),
            Attribute::Inode => number.into(),
        }
    }
}

fn letter(kind: FileType) -> u8 {
    match kind {
        FileType::File => b'f',
        FileType::Directory => b'd',
        FileType::Symlink => b'l',
        FileType::BlockDevice(_) => b'b',
        FileType::CharacterDevice(_) => b'c',
        FileType::Fifo => b'p',
        FileType::Socket => b's',
    }
}

fn kinds(letters: Vec<u8>) -> Result<Test, Error> {
    let letters: Vec<&[u8]> = letters.split(|byte| *byte == b',').collect();
    let is_known = |letter: &&[u8]| letter.len() == 1 && b"fdlbcps".contains(&letter[0]);
    match letters.iter().all(is_known) {
        true => Ok(Test::Kinds(letters.concat())),
        false => Err(Error::input("find: -type: expected letters of f,d,l,b,c,p,s")),
    }
}

fn permissions(value: &OsStr) -> Result<Test, Error> {
    let text = value.to_string_lossy();
    let (matched, digits) = match text.split_at_checked(1) {
        Some(("-", digits)) => (Matched::All, digits),
        Some(("/", digits)) => (Matched::Any, digits),
        _ => (Matched::Exactly, &*text),
    };
    match u16::from_str_radix(digits, 8) {
        Ok(bits @ 0..=0o7777) => Ok(Test::Permissions(matched, bits)),
        _ => Err(Error::input(format!("find: -perm {text}: expected octal digits, as in 644"))),
    }
}

fn size(value: &OsStr) -> Result<Test, Error> {
    let text = value.to_string_lossy();
    let unit = match text.bytes().last() {
        Some(b'c') => 1,
        Some(b'w') => 2,
        Some(b'k') => 1 << 10,
        Some(b'M') => 1 << 20,
        Some(b'G') => 1 << 30,
        _ => 512,
    };
    let digits = text.trim_end_matches(|last: char| "cwbkMG".contains(last));
    compared("-size", OsStr::new(digits), Attribute::Size(unit))
}

fn age(
    name: &str,
    value: &OsStr,
    of: fn(&Inode) -> Time,
    unit_seconds: i64,
) -> Result<Test, Error> {
    compared(name, value, Attribute::Age { of, unit_seconds, now: Time::now() })
}

fn owner(
    name: &str,
    value: &OsStr,
    attribute: Attribute,
    find: fn(&str) -> Result<u32, String>,
) -> Result<Test, Error> {
    let number = find(&value.to_string_lossy());
    let number = number.map_err(|why| Error::input(format!("find: {name}: {why}")))?;
    Ok(Test::Number(attribute, Comparison::Equal, number.into()))
}

/// `N`, `+N` or `-N`.
fn compared(name: &str, value: &OsStr, attribute: Attribute) -> Result<Test, Error> {
    let text = value.to_string_lossy();
    let (comparison, digits) = match text.split_at_checked(1) {
        Some(("+", digits)) => (Comparison::More, digits),
        Some(("-", digits)) => (Comparison::Less, digits),
        _ => (Comparison::Equal, &*text),
    };
    Ok(Test::Number(attribute, comparison, number(name, OsStr::new(digits))?))
}

/// A number without a sign.
pub fn number(name: &str, value: &OsStr) -> Result<u64, Error> {
    let text = value.to_string_lossy();
    let is_digits = text.bytes().all(|digit| digit.is_ascii_digit());
    let invalid = || Error::input(format!("find: {name} {text}: expected a number"));
    text.parse().ok().filter(|_| is_digits).ok_or_else(invalid)
}
