//! How long many names take: empty files are made, synced, looked up, listed and removed, on a volume
//! or, where TARGET is a directory, through its file system's calls.
//!
//!     cargo run --release --example many_files -- TARGET [FILES [DIRECTORIES]]
//!     cargo run --release --example many_files -- TARGET open
//!
//! TARGET is a volume, a file that is not there (one of 4 GiB is made), `memory:4g`, or a directory.
//! `open` opens a volume, looks up all that is in it, and says how long that took and what memory it
//! held. With `FILES DIRECTORIES kill` the program makes the files, syncs, makes some more and ends as if
//! it had been killed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use uringfs::Target;
use uringfs::{Access, FileKind, Follow, FormatOptions, Inode, Volume};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (target, files, directories, end) = match words[..] {
        [target, "open"] => return open(target),
        [target] => (target, "100000", "100", None),
        [target, files] => (target, files, "100", None),
        [target, files, directories] => (target, files, directories, None),
        [target, files, directories, "kill"] => (target, files, directories, Some(())),
        _ => {
            return Err(
                "usage: many_files TARGET [FILES [DIRECTORIES [kill]]] | TARGET open".into()
            );
        }
    };
    let work = Work { files: files.parse()?, directories: directories.parse()? };
    if Path::new(target).is_dir() {
        return work.run(&Kernel { root: Path::new(target).join("many_files") }, end);
    }
    let target: Target = target.parse()?;
    let is_new = match &target {
        Target::Path(path) if path.exists() => false,
        Target::Path(path) => uringfs::create_image(path, 4 << 30).map(|()| true)?,
        _ => true,
    };
    let device = target.open(Access::ReadWrite)?;
    if is_new {
        Volume::format(&device, &FormatOptions::default())?;
    }
    work.run(&Volume::open_on(device)?, end)
}

fn open(target: &str) -> Outcome<()> {
    let target: Target = target.parse()?;
    let begin = Instant::now();
    let volume = Volume::open_on(target.open(Access::ReadWrite)?)?;
    volume.entries("/", b"")?;
    told("open", begin);
    let begin = Instant::now();
    let found = look_up_all(&volume)?;
    told("look-up-all", begin);
    let status = fs::read_to_string("/proc/self/status")?;
    let memory =
        status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    memory.for_each(|line| println!("{line}"));
    println!("{found} names");
    volume.flaws().iter().for_each(|flaw| println!("{flaw}"));
    Ok(())
}

/// Every name, and how many there are.
fn look_up_all(volume: &Volume) -> Outcome<usize> {
    let (mut found, mut directories) = (0, vec![String::new()]);
    while let Some(path) = directories.pop() {
        let mut after = Vec::new();
        loop {
            let entries = volume.entries(format!("{path}/"), &after)?;
            let Some(last) = entries.last() else { break };
            after.clone_from(&last.name);
            for entry in entries {
                let path = format!("{path}/{}", String::from_utf8(entry.name)?);
                volume.inode(&path, Follow::No)?;
                found += 1;
                if entry.kind == FileKind::Directory {
                    directories.push(path);
                }
            }
        }
    }
    Ok(found)
}

struct Work {
    files: usize,
    directories: usize,
}

/// What is measured, of a volume or a file system.
trait Names {
    fn make_directory(&self, path: &str) -> Outcome<()>;
    fn make(&self, path: &str) -> Outcome<()>;
    fn look_up(&self, path: &str) -> Outcome<()>;
    fn count(&self, path: &str) -> Outcome<usize>;
    fn remove(&self, path: &str) -> Outcome<()>;
    fn sync(&self) -> Outcome<()>;
}

impl Work {
    fn run(&self, names: &impl Names, end: Option<()>) -> Outcome<()> {
        let directories = self.directories.max(1);
        let directory = |number: usize| format!("/d{number}");
        let path = |file: usize| format!("/d{}/file-{file:07}", file % directories);
        for number in 0..directories {
            names.make_directory(&directory(number))?;
        }
        let begin = Instant::now();
        (0..self.files).try_for_each(|file| names.make(&path(file)))?;
        told("create", begin);
        names.sync()?;
        told("create-and-sync", begin);
        if end.is_some() {
            (0..1000).try_for_each(|file| names.make(&format!("/d0/late-{file}")))?;
            std::process::abort();
        }
        let begin = Instant::now();
        // Each once, in an order that jumps about.
        (0..self.files).try_for_each(|n| names.look_up(&path(n * 7919 % self.files)))?;
        told("look-up", begin);
        let begin = Instant::now();
        let mut found = 0;
        for number in 0..directories {
            found += names.count(&directory(number))?;
        }
        told("list", begin);
        if found != self.files {
            return Err(format!("{found} of {} files are listed", self.files).into());
        }
        let begin = Instant::now();
        (0..self.files).try_for_each(|file| names.remove(&path(file)))?;
        names.sync()?;
        told("remove-and-sync", begin);
        Ok(())
    }
}

fn told(what: &str, begin: Instant) {
    println!("{what} {:.3} s", begin.elapsed().as_secs_f64());
}

impl Names for Volume {
    fn make_directory(&self, path: &str) -> Outcome<()> {
        Ok(Volume::make_directory(self, path, 0o755)?)
    }

    fn make(&self, path: &str) -> Outcome<()> {
        Volume::make(self, path, Inode::new(FileKind::File, 0o644))?;
        Ok(())
    }

    fn look_up(&self, path: &str) -> Outcome<()> {
        self.inode(path, Follow::No)?;
        Ok(())
    }

    fn count(&self, path: &str) -> Outcome<usize> {
        let (mut count, mut after) = (0, Vec::new());
        loop {
            let mut entries = self.entries(path, &after)?;
            count += entries.len();
            let Some(last) = entries.pop() else { return Ok(count) };
            after = last.name;
        }
    }

    fn remove(&self, path: &str) -> Outcome<()> {
        Ok(Volume::remove(self, path)?)
    }

    fn sync(&self) -> Outcome<()> {
        Ok(Volume::sync(self)?)
    }
}

/// A directory of a mounted file system.
struct Kernel {
    root: PathBuf,
}

impl Kernel {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(&path[1..])
    }
}

impl Names for Kernel {
    fn make_directory(&self, path: &str) -> Outcome<()> {
        Ok(fs::create_dir_all(self.path(path))?)
    }

    fn make(&self, path: &str) -> Outcome<()> {
        fs::File::create_new(self.path(path))?;
        Ok(())
    }

    fn look_up(&self, path: &str) -> Outcome<()> {
        fs::symlink_metadata(self.path(path))?;
        Ok(())
    }

    fn count(&self, path: &str) -> Outcome<usize> {
        Ok(fs::read_dir(self.path(path))?.count())
    }

    fn remove(&self, path: &str) -> Outcome<()> {
        Ok(fs::remove_file(self.path(path))?)
    }

    /// The whole file system, as `syncfs`.
    fn sync(&self) -> Outcome<()> {
        rustix::fs::syncfs(fs::File::open(&self.root)?)?;
        Ok(())
    }
}
