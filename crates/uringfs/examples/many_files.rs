//! Times operations on many names: creates, syncs, looks up, lists and removes empty files, on a volume or, if TARGET
//! is a directory, through the kernel's file system.
//!
//!     cargo run --release --example many_files -- TARGET [FILES [DIRECTORIES]]
//!     cargo run --release --example many_files -- TARGET open
//!
//! TARGET is a volume, a path that does not exist (a file of 4 GiB is created), `memory:4g`, or a directory. `open`
//! opens a volume, looks up every name, and prints the time and the memory used. With `FILES DIRECTORIES kill` the
//! program creates the files, syncs, creates some more, and aborts as if killed.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use uringfs::device::Access;
use uringfs::device::Target;
use uringfs::volume::{FileType, Inode};
use uringfs::{FormatOptions, Volume};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (target, files, directories, kill) = match words[..] {
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
        return work.run(&Kernel { root: Path::new(target).join("many_files") }, kill);
    }
    let volume = match target.parse()? {
        Target::Path(path) if path.exists() => Volume::open(path)?,
        Target::Path(path) => Volume::create(path, &FormatOptions::new().size(4 << 30))?,
        in_memory => Volume::create_on(in_memory.open(Access::ReadWrite)?, &FormatOptions::new())?,
    };
    work.run(&volume, kill)
}

fn open(target: &str) -> Result<()> {
    let target: Target = target.parse()?;
    let begin = Instant::now();
    let volume = Volume::open_on(target.open(Access::ReadWrite)?)?;
    volume.read_dir("/")?.next().transpose()?;
    report("open", begin);
    let begin = Instant::now();
    let found = look_up_all(&volume)?;
    report("look-up-all", begin);
    let status = fs::read_to_string("/proc/self/status")?;
    let memory =
        status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    memory.for_each(|line| println!("{line}"));
    println!("{found} names");
    volume.warnings().iter().for_each(|flaw| println!("{flaw}"));
    Ok(())
}

/// Looks up every name; returns how many there are.
fn look_up_all(volume: &Volume) -> Result<usize> {
    let (mut found, mut directories) = (0, vec![PathBuf::from("/")]);
    while let Some(path) = directories.pop() {
        for entry in volume.read_dir(path)? {
            let entry = entry?;
            volume.symlink_metadata(entry.path())?;
            found += 1;
            if entry.file_type().is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(found)
}

struct Work {
    files: usize,
    directories: usize,
}

/// The measured operations, of a volume or of a file system.
trait Names {
    fn make_directory(&self, path: &str) -> Result<()>;
    fn make(&self, path: &str) -> Result<()>;
    fn look_up(&self, path: &str) -> Result<()>;
    fn count(&self, path: &str) -> Result<usize>;
    fn remove(&self, path: &str) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

impl Work {
    fn run(&self, names: &impl Names, kill: Option<()>) -> Result<()> {
        let directories = self.directories.max(1);
        let directory = |number: usize| format!("/d{number}");
        let path = |file: usize| format!("/d{}/file-{file:07}", file % directories);
        for number in 0..directories {
            names.make_directory(&directory(number))?;
        }
        let begin = Instant::now();
        (0..self.files).try_for_each(|file| names.make(&path(file)))?;
        report("create", begin);
        names.sync()?;
        report("create-and-sync", begin);
        if kill.is_some() {
            (0..1000).try_for_each(|file| names.make(&format!("/d0/late-{file}")))?;
            std::process::abort();
        }
        let begin = Instant::now();
        // Each once, in a scattered order.
        (0..self.files).try_for_each(|n| names.look_up(&path(n * 7919 % self.files)))?;
        report("look-up", begin);
        let begin = Instant::now();
        let mut found = 0;
        for number in 0..directories {
            found += names.count(&directory(number))?;
        }
        report("list", begin);
        if found != self.files {
            return Err(format!("{found} of {} files were listed", self.files).into());
        }
        let begin = Instant::now();
        (0..self.files).try_for_each(|file| names.remove(&path(file)))?;
        names.sync()?;
        report("remove-and-sync", begin);
        Ok(())
    }
}

fn report(name: &str, begin: Instant) {
    println!("{name} {:.3} s", begin.elapsed().as_secs_f64());
}

impl Names for Volume {
    fn make_directory(&self, path: &str) -> Result<()> {
        Ok(self.create_dir(path)?)
    }

    fn make(&self, path: &str) -> Result<()> {
        self.mknod(path, &Inode::new(FileType::File, 0o644))?;
        Ok(())
    }

    fn look_up(&self, path: &str) -> Result<()> {
        self.symlink_metadata(path)?;
        Ok(())
    }

    fn count(&self, path: &str) -> Result<usize> {
        let mut count = 0;
        for entry in self.read_dir(path)? {
            entry?;
            count += 1;
        }
        Ok(count)
    }

    fn remove(&self, path: &str) -> Result<()> {
        Ok(self.remove_file(path)?)
    }

    fn sync(&self) -> Result<()> {
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
    fn make_directory(&self, path: &str) -> Result<()> {
        Ok(fs::create_dir_all(self.path(path))?)
    }

    fn make(&self, path: &str) -> Result<()> {
        fs::File::create_new(self.path(path))?;
        Ok(())
    }

    fn look_up(&self, path: &str) -> Result<()> {
        fs::symlink_metadata(self.path(path))?;
        Ok(())
    }

    fn count(&self, path: &str) -> Result<usize> {
        Ok(fs::read_dir(self.path(path))?.count())
    }

    fn remove(&self, path: &str) -> Result<()> {
        Ok(fs::remove_file(self.path(path))?)
    }

    /// Syncs the whole file system (`syncfs`).
    fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(fs::File::open(&self.root)?)?;
        Ok(())
    }
}
