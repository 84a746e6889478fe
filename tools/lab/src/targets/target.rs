//! A target of a job, and the file or device that holds its bytes.

use super::volume_file::{VolumeFile, is_volume};
use crate::Error;
use crate::job::{Options, split_names};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use uringfs::device::backend::RemoteTarget;

/// A target of I/O.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A file or a block device.
    Path(PathBuf),
    /// A file in a volume.
    InVolume(VolumeFile),
    /// `null:SIZE`, `memory:SIZE` or `sim:...`, which exist only in the engine, or the URI of an NBD server's export.
    Virtual(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::InVolume(file) => file.fmt(f),
            Self::Virtual(name) => f.write_str(name),
        }
    }
}

/// How the targets of a job are opened.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Whether the job writes.
    pub writes: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_SYNC, O_DSYNC or neither.
    pub sync: crate::job::SyncWrites,
}

impl Target {
    /// Parses one name. `TARGET:/path` is a file in a volume if TARGET is a volume, or a URI.
    pub fn parse(name: &str) -> Self {
        if let Some(length) = RemoteTarget::uri_length(name.as_bytes())
            && length < name.len()
        {
            return Self::InVolume(VolumeFile::new(&name[..length], &name[length + 1..]));
        }
        if is_virtual(name) {
            return Self::Virtual(name.to_owned());
        }
        let in_volume = name.match_indices(":/").find_map(|(at, _)| {
            let volume = Path::new(&name[..at]);
            is_volume(volume).then(|| VolumeFile::new(volume, &name[at + 1..]))
        });
        in_volume.map_or_else(|| Self::Path(name.into()), Self::InVolume)
    }

    /// The targets of one thread of a job: those of its trace, or those of `filename`, in the first directory; otherwise files named
    /// by `filename_format`, with the directories assigned to the threads round robin.
    pub fn from_job(name: &str, options: &Options, thread: u32) -> Vec<Self> {
        if let Some(log) = options.replay_of(thread) {
            let target = |name: &String| match &options.volume {
                Some(volume) => Self::InVolume(VolumeFile::new(volume, name)),
                None => Self::parse(name),
            };
            return log.files.iter().map(target).collect();
        }
        let folders = options.directory.as_deref().map_or(Vec::new(), split_names);
        let turn = if options.filename.is_some() { 0 } else { thread as usize };
        let folder = folders.get(turn % folders.len().max(1)).map(Path::new);
        let within = |name: String| match folder {
            Some(folder) => folder.join(name),
            None => PathBuf::from(name),
        };
        match (&options.filename, &options.volume) {
            (Some(names), None) if is_virtual(names) => vec![Self::parse(names)],
            (Some(names), None) => in_volumes(split_names(names).into_iter().map(within)),
            (Some(names), Some(volume)) => {
                let file = |name| Self::InVolume(VolumeFile::new(volume, within(name)));
                split_names(names).into_iter().map(file).collect()
            }
            (None, volume) => (0..options.files)
                .map(|file| within(file_name(name, options, thread, file)))
                .map(|path| match volume {
                    Some(volume) => Self::InVolume(VolumeFile::new(volume, path)),
                    None => Self::Path(path),
                })
                .collect(),
        }
    }

    /// The file or block device that holds the bytes; `None` for a virtual target.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::InVolume(file) => Some(&file.volume),
            Self::Virtual(_) => None,
        }
    }

    /// Drops the kernel's clean cached pages of the file or block device that holds the bytes.
    pub fn drop_page_cache(&self) {
        // An error here would be reported by the I/O, too.
        let file = self.path().and_then(|path| File::open(path).ok());
        file.iter().for_each(drop_page_cache);
    }

    /// Opens a file or block device; a virtual target has nothing to open.
    pub fn open(&self, access: Access) -> Result<File, Error> {
        use crate::job::SyncWrites;
        use rustix::fs::OFlags;
        let Self::Path(path) = self else {
            return Err(Error::input(format!(
                "{self}: only engine uringfs has this target; use --engine uringfs"
            )));
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

/// Drops the kernel's clean cached pages of a file.
pub fn drop_page_cache(file: &File) {
    // Advice only: a file system without a cache may refuse it.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

fn is_virtual(name: &str) -> bool {
    ["null:", "memory:", "sim:"].iter().any(|prefix| name.starts_with(prefix)) || is_uri(name)
}

/// Whether a name is the URI of an export or image, or that of a file in the volume on one.
fn is_uri(name: &str) -> bool {
    RemoteTarget::uri_length(name.as_bytes()).is_some()
}

/// The targets of a list of names. A name that begins with a slash and follows the name of a volume is a
/// file in that volume.
fn in_volumes(names: impl Iterator<Item = PathBuf>) -> Vec<Target> {
    let mut names = names.peekable();
    let mut targets = Vec::new();
    while let Some(name) = names.next() {
        let path = names.next_if(|path| path.is_absolute() && is_volume(&name));
        targets.push(match path {
            Some(path) => Target::InVolume(VolumeFile::new(name, path)),
            None => Target::Path(name),
        });
    }
    targets
}

/// The name of a file by `filename_format`. Slashes in the job's name are replaced: they would name a
/// directory that does not exist.
fn file_name(job: &str, options: &Options, thread: u32, file: u32) -> String {
    let format = options.filename_format.as_deref().unwrap_or("$jobname.$jobnum.$filenum");
    format
        .replace("$jobnum", &thread.to_string())
        .replace("$filenum", &file.to_string())
        .replace("$jobname", &job.replace('/', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<Target> {
        names.iter().map(|name| Target::Path(name.into())).collect()
    }

    fn of_filename(names: &str) -> Vec<Target> {
        let options = Options { filename: Some(names.into()), ..Options::default() };
        Target::from_job("j", &options, 0)
    }

    #[test]
    fn a_list_of_names_splits_at_colons() {
        assert_eq!(of_filename("a:b::c"), paths(&["a", "b", "c"]));
        assert_eq!(of_filename(r"pci-0\:1:x"), paths(&["pci-0:1", "x"]));
        assert_eq!(of_filename("memory:1g"), [Target::Virtual("memory:1g".into())]);
    }

    #[test]
    fn a_path_after_a_volume_is_a_file_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(name("v"), b"uringfs\x1a").unwrap();
        std::fs::write(name("f"), b"bytes").unwrap();
        let (v, f) = (name("v"), name("f"));
        let in_volume = Target::InVolume(VolumeFile::new(&v, "/a"));
        assert_eq!(Target::parse(&format!("{v}:/a")), in_volume);
        assert_eq!(of_filename(&format!("{v}:/a")), [in_volume]);
        assert_eq!(of_filename(&format!("{v}:a:{f}:/b:/c")), paths(&[&v, "a", &f, "/b", "/c"]));
        assert_eq!(of_filename(&format!(r"{v}\:/a")), paths(&[&format!("{v}:/a")]));
        assert_eq!(Target::parse(&format!("{f}:/a")), Target::Path(format!("{f}:/a").into()));
    }

    #[test]
    fn a_uri_is_no_list_of_names() {
        let uri = "nbd+unix:///n?socket=/run/s";
        assert_eq!(of_filename(uri), [Target::Virtual(uri.into())]);
        assert_eq!(
            of_filename(&format!("{uri}:/a")),
            [Target::InVolume(VolumeFile::new(uri, "/a"))]
        );
    }

    #[test]
    fn with_volume_all_names_are_in_the_volume() {
        let mut options =
            Options { volume: Some("v".into()), directory: Some("d".into()), ..Options::default() };
        let file = |path: &str| Target::InVolume(VolumeFile::new("v", path));
        assert_eq!(Target::from_job("j", &options, 2), [file("/d/j.2.0")]);
        options.filename_format = Some("$filenum-$jobname.$jobnum".into());
        assert_eq!(Target::from_job("j/x", &options, 2), [file("/d/0-j_x.2")]);
        options.filename = Some("a:/b".into());
        assert_eq!(Target::from_job("j", &options, 0), [file("/d/a"), file("/b")]);
        assert_eq!(file("/d/a").to_string(), "v:/d/a");
    }

    #[test]
    fn file_names_are_those_of_fio() {
        let mut options = Options { files: 2, directory: Some("d".into()), ..Options::default() };
        assert_eq!(Target::from_job("j/x", &options, 3), paths(&["d/j_x.3.0", "d/j_x.3.1"]));
        options.filename = Some("/abs:rel".into());
        assert_eq!(Target::from_job("j", &options, 0), paths(&["/abs", "d/rel"]));
    }

    #[test]
    fn threads_take_the_directories_in_turn() {
        let mut options = Options { directory: Some("a:b".into()), ..Options::default() };
        let first = |options: &Options, thread| Target::from_job("j", options, thread).remove(0);
        let found: Vec<Target> = (0..3).map(|thread| first(&options, thread)).collect();
        assert_eq!(found, paths(&["a/j.0.0", "b/j.1.0", "a/j.2.0"]));
        options.filename = Some("x".into());
        assert_eq!(first(&options, 1), Target::Path("a/x".into()));
    }
}
