//! What a job reads and writes: which targets it names, whether they may be used, and the files
//! the run makes itself. Everything is checked before anything is written.

mod disk;
mod inspect;
mod layout;
mod signature;

pub use disk::{DiskUse, Disks};
pub use inspect::{Found, inspect};
pub use layout::{Content, Made};
pub use signature::probe;

use crate::Error;
use crate::job::Options;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// One thing that can be read and written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A file or a block device.
    Path(PathBuf),
    /// `null:SIZE`, `memory:SIZE` or `sim:...`: the engine's own.
    Virtual(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Virtual(name) => f.write_str(name),
        }
    }
}

/// How the targets of a job are opened.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Whether it writes.
    pub writes: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_SYNC, O_DSYNC or neither.
    pub sync: crate::job::SyncWrites,
}

impl Target {
    /// What a name stands for.
    pub fn parse(name: &str) -> Self {
        let own = ["null:", "memory:", "sim:"].iter().any(|prefix| name.starts_with(prefix));
        if own { Self::Virtual(name.to_owned()) } else { Self::Path(PathBuf::from(name)) }
    }

    /// The targets of a `filename` value: separated by `:`, a literal one written `\:`.
    pub fn parse_list(names: &str) -> Vec<Self> {
        if let own @ Self::Virtual(_) = Self::parse(names) {
            return vec![own];
        }
        split_names(names).into_iter().map(|name| Self::Path(name.into())).collect()
    }

    /// The targets of one thread of a job: those it names, in the first directory; else fio's
    /// `NAME.THREAD.FILE`, the threads taking the directories in turn.
    pub fn of_job(name: &str, options: &Options, thread: u32) -> Vec<Self> {
        let folders = options.directory.as_deref().map_or(Vec::new(), split_names);
        let turn = if options.filename.is_some() { 0 } else { thread as usize };
        let folder = folders.get(turn % folders.len().max(1)).map(Path::new);
        let within = |target: Self| match (target, folder) {
            (Self::Path(path), Some(folder)) => Self::Path(folder.join(path)),
            (target, _) => target,
        };
        match &options.filename {
            Some(names) => Self::parse_list(names).into_iter().map(within).collect(),
            // A name with a slash would point into a folder nobody made.
            None => (0..options.files)
                .map(|file| format!("{}.{thread}.{file}", name.replace('/', "_")))
                .map(|name| within(Self::Path(name.into())))
                .collect(),
        }
    }

    /// Opens a file or block device; a virtual target has nothing to open.
    pub fn open(&self, access: Access) -> Result<File, Error> {
        use crate::job::SyncWrites;
        use rustix::fs::OFlags;
        let Self::Path(path) = self else {
            return Err(Error::input(format!("{self}: only engine uringfs knows such targets")));
        };
        let mut flags = OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, access.direct);
        flags.set(OFlags::SYNC, access.sync == SyncWrites::Sync);
        flags.set(OFlags::DSYNC, access.sync == SyncWrites::Dsync);
        let opened = File::options()
            .read(true)
            .write(access.writes)
            .custom_flags(flags.bits() as i32)
            .open(path);
        opened.map_err(|error| {
            if access.direct
                && error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error())
            {
                let line = format!("{self}: its file system refuses O_DIRECT; use direct=0");
                return Error::input(line);
            }
            Error::input(self.to_string()).because(error)
        })
    }
}

/// Names separated by `:`, a literal one written `\:`.
fn split_names(names: &str) -> Vec<String> {
    let mut list = vec![String::new()];
    let mut letters = names.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = list.len() - 1;
        match letter {
            '\\' if letters.peek() == Some(&':') => list[last].extend(letters.next()),
            ':' => list.push(String::new()),
            _ => list[last].push(letter),
        }
    }
    list.retain(|name| !name.is_empty());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<Target> {
        names.iter().map(|name| Target::Path(name.into())).collect()
    }

    #[test]
    fn a_list_of_names_splits_at_colons() {
        assert_eq!(Target::parse_list("a:b::c"), paths(&["a", "b", "c"]));
        assert_eq!(Target::parse_list(r"pci-0\:1:x"), paths(&["pci-0:1", "x"]));
        assert_eq!(Target::parse_list("memory:1g"), [Target::Virtual("memory:1g".into())]);
    }

    #[test]
    fn names_are_made_as_fio_makes_them() {
        let mut options = Options { files: 2, directory: Some("d".into()), ..Options::default() };
        assert_eq!(Target::of_job("j/x", &options, 3), paths(&["d/j_x.3.0", "d/j_x.3.1"]));
        options.filename = Some("/abs:rel".into());
        assert_eq!(Target::of_job("j", &options, 0), paths(&["/abs", "d/rel"]));
    }

    #[test]
    fn threads_take_the_directories_in_turn() {
        let mut options = Options { directory: Some("a:b".into()), ..Options::default() };
        let first = |options: &Options, thread| Target::of_job("j", options, thread).remove(0);
        let found: Vec<Target> = (0..3).map(|thread| first(&options, thread)).collect();
        assert_eq!(found, paths(&["a/j.0.0", "b/j.1.0", "a/j.2.0"]));
        options.filename = Some("x".into());
        assert_eq!(first(&options, 1), Target::Path("a/x".into()));
    }
}
