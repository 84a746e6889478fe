//! The files that a run creates: never over an existing file, filled, recorded, and removed if the run
//! fails.

use super::initial_content::InitialContent;
use super::target::Target;
use super::volumes::Volumes;
use crate::Error;
use crate::random::Random;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The files that a run created, on file systems and in volumes.
#[derive(Debug, Default)]
pub struct CreatedFiles(Vec<Target>);

impl CreatedFiles {
    /// Creates a file of `size` bytes and records it, complete or not.
    ///
    /// # Errors
    /// The file exists, or cannot be written; or `stop` is set.
    pub fn create(
        &mut self,
        target: &Target,
        size: u64,
        content: InitialContent,
        volumes: &Volumes,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        match target {
            Target::Path(path) => self.create_path(path, size, content, stop)?,
            Target::InVolume(file) => {
                let on_created = || self.0.push(target.clone());
                volumes.create(file, size, content, stop, on_created)?;
            }
            Target::Virtual(_) => unreachable!("a virtual target always exists"),
        }
        if stop.load(Ordering::Relaxed) { Err(Error::interrupted()) } else { Ok(()) }
    }

    fn create_path(
        &mut self,
        path: &Path,
        size: u64,
        content: InitialContent,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let failed = |error: std::io::Error| {
            let full = error.kind() == std::io::ErrorKind::StorageFull;
            let hint = if full { " (the file system is full)" } else { "" };
            Error::run(format!("cannot lay out {} of {size} bytes{hint}", path.display()))
                .because(error)
        };
        let mut file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
        self.0.push(Target::Path(path.to_owned()));
        fill(&mut file, size, content, stop).map_err(failed)
    }

    /// The names of the created files.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(Target::to_string).collect()
    }

    /// Removes all created files.
    pub fn remove(&mut self, volumes: &Volumes) {
        self.0.drain(..).for_each(|target| remove(&target, volumes));
    }

    /// Removes `target` if the run created it.
    pub fn remove_one(&mut self, target: &Target, volumes: &Volumes) {
        if let Some(at) = self.0.iter().position(|created| created == target) {
            remove(&self.0.swap_remove(at), volumes);
        }
    }
}

/// Removes a file. It may be removed already, or its volume may have stopped: then there is nothing to do.
fn remove(target: &Target, volumes: &Volumes) {
    match target {
        Target::Path(path) => drop(std::fs::remove_file(path)),
        Target::InVolume(file) => drop(volumes.remove(file)),
        Target::Virtual(_) => {}
    }
}

fn fill(
    file: &mut File,
    size: u64,
    content: InitialContent,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    match content {
        InitialContent::Empty => return Ok(()),
        InitialContent::Hole => return file.set_len(size),
        InitialContent::Reserved => {
            return Ok(rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size)?);
        }
        InitialContent::Allocated | InitialContent::AllocatedIfPossible => {
            file.set_len(size)?;
            return match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Err(rustix::io::Errno::OPNOTSUPP)
                    if content == InitialContent::AllocatedIfPossible =>
                {
                    Ok(())
                }
                other => Ok(other?),
            };
        }
        InitialContent::Zeros | InitialContent::Random => {}
    }
    let mut random = Random::new(size);
    let mut chunk = vec![0; CHUNK.min(size) as usize];
    let mut left = size;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        if content == InitialContent::Random {
            random.fill(&mut chunk);
        }
        let length = left.min(CHUNK);
        file.write_all(&chunk[..length as usize])?;
        left -= length;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(
        created: &mut CreatedFiles,
        path: &Path,
        size: u64,
        content: InitialContent,
    ) -> Result<(), Error> {
        let target = Target::Path(path.to_owned());
        created.create(&target, size, content, &Volumes::default(), &AtomicBool::new(false))
    }

    #[test]
    fn an_existing_file_is_neither_overwritten_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, "mine").unwrap();
        let mut created = CreatedFiles::default();
        assert!(make(&mut created, &old, 100, InitialContent::Zeros).is_err());
        make(&mut created, &new, (1 << 20) + 5, InitialContent::Random).unwrap();
        assert_eq!(new.metadata().unwrap().len(), (1 << 20) + 5);
        created.remove(&Volumes::default());
        assert!(old.exists() && !new.exists());
    }

    #[test]
    fn a_stop_ends_the_layout() {
        let folder = tempfile::tempdir().unwrap();
        let (target, stop) = (Target::Path(folder.path().join("x")), AtomicBool::new(true));
        let volumes = Volumes::default();
        let error = CreatedFiles::default().create(
            &target,
            1 << 40,
            InitialContent::Zeros,
            &volumes,
            &stop,
        );
        assert_eq!(error.unwrap_err().exit_code(), 130);
    }

    #[test]
    fn a_new_file_has_its_length_and_space() {
        use std::os::unix::fs::MetadataExt;
        const SIZE: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        for (content, length, allocated) in [
            (InitialContent::Empty, 0, false),
            (InitialContent::Reserved, 0, true),
            (InitialContent::Hole, SIZE, false),
            (InitialContent::Allocated, SIZE, true),
            (InitialContent::AllocatedIfPossible, SIZE, true),
        ] {
            let path = folder.path().join(format!("{content:?}"));
            make(&mut CreatedFiles::default(), &path, SIZE, content).unwrap();
            let found = path.metadata().unwrap();
            assert_eq!(
                (found.len(), found.blocks() * 512 >= SIZE),
                (length, allocated),
                "{content:?}"
            );
        }
    }
}
