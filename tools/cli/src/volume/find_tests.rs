//! The tests of `find`: all of them must accept a file.

use super::entries::Entries;
use super::open_volume::lookup;
use super::volume_path::{VolumePath, last_name, with_path};
use super::wildcards::matches;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uringfs::Volume;
use uringfs::volume::{FileType, Inode, Time};
use uringfs_lab::Error;

/// The help about the tests.
pub const HELP: &str = "\
Tests; all must accept a file, and ! before a test negates it:
  -name GLOB, -iname GLOB  the name matches; -iname ignores the case of ASCII letters
  -path GLOB               the path in the volume matches; * also matches slashes
  -type LETTERS            f file, d directory, l link, b and c device, p FIFO, s socket; as in f,l
  -size [+-]N[cwbkMG]      the size, rounded up to the unit: c bytes, w 2 bytes, b 512 bytes (the default), k, M, G;
                           + more than, - less than
  -mtime [+-]DAYS          modified so many days ago; -mmin the same in minutes
  -newer TARGET:/path      modified after this file
  -empty                   a file of size 0, or a directory without entries
  -perm MODE               exactly this octal mode; -MODE all of these bits, /MODE any of them
  -uid N, -gid N, -inum N, -links N   with [+-]
Options:
  -maxdepth N, -mindepth N levels of directories below the path
  -json                    print JSON, with the attributes of each file
  -print0                  end each path with a zero byte, as xargs -0 reads them";

/// The tests and options of a command line.
pub struct FindTests {
    tests: Vec<(IsNegated, Test)>,
    pub min_depth: u64,
    pub max_depth: u64,
    pub ends_in_zero: bool,
    pub prints_json: bool,
    pub expands_globs: bool,
}

type IsNegated = bool;

enum Test {
    Name(Vec<u8>),
    NameOfAnyCase(Vec<u8>),
    Path(Vec<u8>),
    Kinds(Vec<u8>),
    Empty,
    NewerThan(Time),
    Permissions(Matched, u16),
    Number(Attribute, Comparison, u64),
}

/// A number of a file.
enum Attribute {
    /// The size in units of so many bytes, rounded up.
    Size(u64),
    /// The age in units of so many seconds, rounded down.
    Age {
        unit_seconds: i64,
        now: Time,
    },
    User,
    Group,
    Links,
    Inode,
}

enum Comparison {
    Less,
    Equal,
    More,
}

enum Matched {
    Exactly,
    All,
    Any,
}

/// A file to test.
pub struct Candidate<'c> {
    pub volume: &'c Volume,
    pub path: &'c VolumePath,
    pub kind: FileType,
}

impl FindTests {
    /// Parses the arguments after the paths.
    pub fn parse(arguments: &[OsString], volume: &Volume, top: &VolumePath) -> Result<Self, Error> {
        let mut found = Self {
            tests: Vec::new(),
            min_depth: 0,
            max_depth: u64::MAX,
            ends_in_zero: false,
            prints_json: false,
            expands_globs: false,
        };
        let mut left = arguments.iter();
        let mut is_negated = false;
        while let Some(name) = left.next() {
            let name = name.to_string_lossy();
            let mut value = || {
                let missing = || Error::input(format!("find: {name}: the value is missing"));
                left.next().map(OsString::as_os_str).ok_or_else(missing)
            };
            match &*name {
                "!" | "-not" => {
                    is_negated = !is_negated;
                    continue;
                }
                "-print0" => found.ends_in_zero = true,
                "-json" | "--json" => found.prints_json = true,
                "--glob" => found.expands_globs = true,
                "-print" | "-a" | "-and" => {}
                "-maxdepth" => found.max_depth = number(&name, value()?)?,
                "-mindepth" => found.min_depth = number(&name, value()?)?,
                "-empty" => found.tests.push((is_negated, Test::Empty)),
                "-newer" => {
                    let path = VolumePath::parse(value()?)?;
                    path.require_volume_of(top, "name paths of one volume")?;
                    let inode = lookup(volume, &path.bytes);
                    let (_, inode) = inode.map_err(|error| with_path(&path, error))?;
                    found.tests.push((is_negated, Test::NewerThan(inode.modified)));
                }
                _ => {
                    let unknown = || {
                        let known = "see uringfs find --help for the known ones";
                        Error::input(format!("find: {name}: unknown test; {known}"))
                    };
                    let test = Test::with_value(&name, &mut value).ok_or_else(unknown)??;
                    found.tests.push((is_negated, test));
                }
            }
            is_negated = false;
        }
        Ok(found)
    }

    /// Whether all tests accept a file.
    pub fn accept(&self, file: &Candidate<'_>) -> Result<bool, Error> {
        let mut inode = None;
        for (is_negated, test) in &self.tests {
            if test.accepts(file, &mut inode)? == *is_negated {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Test {
    /// A test that takes a value. None for an unknown test.
    fn with_value<'v>(
        name: &str,
        value: &mut impl FnMut() -> Result<&'v OsStr, Error>,
    ) -> Option<Result<Self, Error>> {
        let mut pattern = || Ok(value()?.as_bytes().to_vec());
        Some(match name {
            "-name" => pattern().map(Test::Name),
            "-iname" => pattern().map(|it: Vec<u8>| Test::NameOfAnyCase(it.to_ascii_lowercase())),
            "-path" | "-wholename" => pattern().map(Test::Path),
            "-type" => pattern().and_then(kinds),
            "-perm" => value().and_then(permissions),
            "-size" => value().and_then(size),
            "-mtime" => value().and_then(|value| age(name, value, 24 * 3600)),
            "-mmin" => value().and_then(|value| age(name, value, 60)),
            "-uid" => value().and_then(|value| compared(name, value, Attribute::User)),
            "-gid" => value().and_then(|value| compared(name, value, Attribute::Group)),
            "-links" => value().and_then(|value| compared(name, value, Attribute::Links)),
            "-inum" => value().and_then(|value| compared(name, value, Attribute::Inode)),
            _ => return None,
        })
    }

    /// Whether the test accepts a file. Reads its inode at the first test that needs it.
    fn accepts(
        &self,
        file: &Candidate<'_>,
        read: &mut Option<(u64, Inode)>,
    ) -> Result<bool, Error> {
        let name = || last_name(&file.path.bytes).unwrap_or(b"/");
        match self {
            Test::Name(pattern) => return Ok(matches(pattern, name())),
            Test::NameOfAnyCase(pattern) => {
                return Ok(matches(pattern, &name().to_ascii_lowercase()));
            }
            Test::Path(pattern) => return Ok(matches(pattern, &file.path.bytes)),
            Test::Kinds(letters) => return Ok(letters.contains(&letter(file.kind))),
            Test::Empty if file.kind == FileType::Directory => {
                let first = Entries::new(file.volume, &file.path.bytes).next().transpose();
                let first = first.map_err(|error| with_path(file.path, error))?;
                return Ok(first.is_none());
            }
            _ => {}
        }
        if read.is_none() {
            let found = lookup(file.volume, &file.path.bytes);
            let (number, inode) = found.map_err(|error| with_path(file.path, error))?;
            *read = Some((number.0, inode));
        }
        let (number, inode) = read.as_ref().expect("it was read above");
        Ok(match self {
            Test::Empty => inode.kind == FileType::File && inode.size == 0,
            Test::NewerThan(time) => inode.modified > *time,
            Test::Permissions(Matched::Exactly, bits) => inode.permissions == *bits,
            Test::Permissions(Matched::All, bits) => inode.permissions & bits == *bits,
            Test::Permissions(Matched::Any, bits) => *bits == 0 || inode.permissions & bits != 0,
            Test::Number(attribute, comparison, number_wanted) => {
                let value = attribute.value(*number, inode);
                match comparison {
                    Comparison::Less => value < i128::from(*number_wanted),
                    Comparison::Equal => value == i128::from(*number_wanted),
                    Comparison::More => value > i128::from(*number_wanted),
                }
            }
            _ => unreachable!("these tests returned above"),
        })
    }
}

impl Attribute {
    fn value(&self, number: u64, inode: &Inode) -> i128 {
        match self {
            Attribute::Size(unit) => inode.size.div_ceil(*unit).into(),
            Attribute::Age { unit_seconds, now } => {
                let nanoseconds = |time: Time| {
                    i128::from(time.seconds()) * 1_000_000_000 + i128::from(time.nanoseconds())
                };
                let age = nanoseconds(*now) - nanoseconds(inode.modified);
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

fn age(name: &str, value: &OsStr, unit_seconds: i64) -> Result<Test, Error> {
    compared(name, value, Attribute::Age { unit_seconds, now: Time::now() })
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

fn number(name: &str, value: &OsStr) -> Result<u64, Error> {
    let text = value.to_string_lossy();
    let is_digits = text.bytes().all(|digit| digit.is_ascii_digit());
    let invalid = || Error::input(format!("find: {name} {text}: expected a number"));
    text.parse().ok().filter(|_| is_digits).ok_or_else(invalid)
}
