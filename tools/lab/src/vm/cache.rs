//! The cache directory of fetched packages. Each part is a directory that is fetched once and appears
//! atomically, with a manifest of its packages. One process fetches at a time. Complete parts are used
//! without a lock, and may be read-only.

use super::apt::{Apt, Package};
use super::process::ProcessLimits;
use crate::Error;
use crate::run::RunProgress;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MANIFEST: &str = "manifest.json";

/// Prefix of directories that are being fetched.
const FETCHING: &str = "fetching-";

/// Fills a part of the cache; returns its packages.
pub type FetchPart<'a> = dyn Fn(&Apt<'_>, &Path) -> Result<Vec<Package>, Error> + 'a;

/// A cache directory.
pub struct Cache<'a> {
    /// Its path; it need not exist yet.
    pub folder: &'a Path,
    /// The limits of each of apt's programs, and of the wait for another process that fetches.
    pub limits: ProcessLimits<'a>,
    /// Receives the current activity.
    pub progress: &'a RunProgress,
}

impl Cache<'_> {
    /// The path of a part.
    pub fn part_path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Fetches the missing ones of these parts.
    ///
    /// # Errors
    /// They cannot be fetched: the message says what is needed. Or Ctrl-C.
    pub fn fetch_missing(&self, parts: &[(&str, &FetchPart<'_>)]) -> Result<(), Error> {
        let is_there = |name: &str| self.part_path(name).join(MANIFEST).exists();
        if parts.iter().all(|(name, _)| is_there(name)) {
            return Ok(());
        }
        std::fs::create_dir_all(self.folder).map_err(|error| self.failed(error))?;
        let _lock = self.lock()?;
        self.remove_partial().map_err(|error| self.failed(error))?;
        for (name, fill) in parts.iter().filter(|(name, _)| !is_there(name)) {
            self.fetch(name, fill)?;
        }
        Ok(())
    }

    /// The packages of a part.
    ///
    /// # Errors
    /// Its manifest cannot be read.
    pub fn packages(&self, name: &str) -> Result<Vec<Package>, Error> {
        let folder = self.part_path(name);
        let manifest = std::fs::read(folder.join(MANIFEST)).map_err(|e| incomplete(&folder, e))?;
        let manifest: Value =
            serde_json::from_slice(&manifest).map_err(|error| incomplete(&folder, error.into()))?;
        let packages = manifest["packages"].as_array().into_iter().flatten().map(|package| {
            let word = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            Package { name: word("name"), version: word("version") }
        });
        Ok(packages.collect())
    }

    /// Waits until no other process fetches, and takes the lock.
    fn lock(&self) -> Result<File, Error> {
        const POLL_INTERVAL: Duration = Duration::from_millis(100);
        let path = self.folder.join("lock");
        let mut options = File::options();
        let opened = options.create(true).truncate(false).write(true).open(&path);
        let mut lock = opened.map_err(|error| self.failed(error))?;
        let started = Instant::now();
        while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK {
                return Err(self.failed(errno.into()));
            }
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder =
                format!("process {}, which fills {}", holder.trim(), self.folder.display());
            if self.limits.stop.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            if started.elapsed() >= self.limits.limit {
                return Err(Error::run(format!("gave up waiting for {holder}")));
            }
            self.progress.set_activity(&format!("Waiting for {holder}"));
            std::thread::sleep(POLL_INTERVAL);
        }
        let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(|error| self.failed(error)).map(|()| lock)
    }

    /// Removes partial directories of killed processes. The lock is held.
    fn remove_partial(&self) -> io::Result<()> {
        for path in sorted_entries(self.folder)? {
            if super::file_name::file_name(&path).starts_with(FETCHING) {
                std::fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Fetches a part and renames it into place, so that an interrupted fetch leaves no incomplete part.
    fn fetch(&self, name: &str, fill: &FetchPart<'_>) -> Result<(), Error> {
        let folder = self.part_path(name);
        let failed = |error| Error::run(format!("cannot make {}", folder.display())).because(error);
        // No access for other users: unpacked programs have set-ID bits at first.
        let mut partial = tempfile::Builder::new();
        let partial = partial.prefix(FETCHING).permissions(Permissions::from_mode(0o700));
        let partial = partial.tempdir_in(self.folder).map_err(failed)?;
        let new = partial.path().join("new");
        std::fs::create_dir(&new).map_err(failed)?;
        let packages = fill(&Apt::new(partial.path(), self.limits, self.progress)?, &new)?;
        clear_set_ids(&new).map_err(failed)?;
        let list: Vec<Value> = packages
            .iter()
            .map(|Package { name, version }| json!({"name": name, "version": version}))
            .collect();
        let manifest = format!("{:#}\n", json!({ "packages": list }));
        std::fs::write(new.join(MANIFEST), manifest).map_err(failed)?;
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(failed)?;
        }
        std::fs::rename(&new, &folder).map_err(failed)
    }

    fn failed(&self, error: io::Error) -> Error {
        let what = format!("cannot fill {} (--cache DIR names another)", self.folder.display());
        Error::run(what).because(error)
    }
}

/// The error for a part with missing or changed files.
pub fn incomplete(folder: &Path, error: io::Error) -> Error {
    let redo = format!("{0} is incomplete; remove {0} to fetch it again", folder.display());
    Error::run(redo).because(error)
}

/// The entries of a directory, sorted by name; none if it does not exist.
pub fn sorted_entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

/// Clears the set-ID bits of all files under a directory.
fn clear_set_ids(folder: &Path) -> io::Result<()> {
    const SET_IDS: u32 = 0o6000;
    for path in sorted_entries(folder)? {
        let metadata = path.symlink_metadata()?;
        let mode = metadata.permissions().mode();
        if metadata.is_dir() {
            clear_set_ids(&path)?;
        } else if metadata.is_file() && mode & SET_IDS != 0 {
            std::fs::set_permissions(&path, Permissions::from_mode(mode & !SET_IDS))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_wait_for_another_fetcher_is_bounded_and_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        std::fs::write(&lock, "1234\n").unwrap();
        let lock = File::open(lock).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let (stop, progress) = (AtomicBool::new(false), RunProgress::default());
        let waits = |limit| {
            let limits = ProcessLimits { stop: &stop, limit };
            let cache = Cache { folder: folder.path(), limits, progress: &progress };
            cache.fetch_missing(&[("part", &|_, _| unreachable!())]).unwrap_err()
        };
        let error = waits(Duration::ZERO).to_string();
        assert!(error.contains("process 1234, which fills"), "{error}");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(waits(Duration::MAX).exit_code(), 130);
    }

    #[test]
    fn programs_lose_their_set_id_bits() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("bin");
        std::fs::create_dir(&inner).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let program = inner.join("su");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
        std::os::unix::fs::symlink("/nowhere", inner.join("link")).unwrap();
        clear_set_ids(folder.path()).unwrap();
        assert_eq!(mode(&program), 0o755);
    }
}
