//! The files a run makes: created only where nothing is, filled, remembered, and removed when the
//! run comes to nothing.

use super::Target;
use crate::Error;
use crate::random::Random;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a new file holds before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing, not even its length: the job's writes make it longer.
    Empty,
    /// The same, with blocks allocated beyond its end.
    Reserved,
    /// A hole: the job writes it.
    Hole,
    /// Allocated blocks: the job writes them.
    Allocated,
    /// Allocated blocks, or a hole where the file system has no way to allocate.
    AllocatedIfPossible,
    /// Zeros, written.
    Zeros,
    /// Random bytes, written.
    Random,
}

/// The files a run made.
#[derive(Debug, Default)]
pub struct Made(Vec<PathBuf>);

impl Made {
    /// Creates a file of `size` bytes; one that exists is an error. What cannot be finished is
    /// removed again.
    pub fn make(
        &mut self,
        path: &Path,
        size: u64,
        content: Content,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let failed = |error: std::io::Error| {
            let full = error.kind() == std::io::ErrorKind::StorageFull;
            let hint = if full { " (the file system is full)" } else { "" };
            Error::run(format!("cannot lay out {} of {size} bytes{hint}", path.display()))
                .because(error)
        };
        let mut file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
        self.0.push(path.to_owned());
        fill(&mut file, size, content, stop).map_err(failed)?;
        if stop.load(Ordering::Relaxed) { Err(Error::interrupted()) } else { Ok(()) }
    }

    /// The files made so far.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Removes all of them.
    pub fn remove(&mut self) {
        for path in self.0.drain(..) {
            // It may be gone already, and then there is nothing left to do.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes one of them, if it is one.
    pub fn remove_target(&mut self, target: &Target) {
        let same = |made: &PathBuf| matches!(target, Target::Path(path) if path == made);
        if let Some(at) = self.0.iter().position(same) {
            // As above.
            let _ = std::fs::remove_file(self.0.swap_remove(at));
        }
    }
}

fn fill(file: &mut File, size: u64, content: Content, stop: &AtomicBool) -> std::io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    match content {
        Content::Empty => return Ok(()),
        Content::Hole => return file.set_len(size),
        Content::Reserved => {
            return Ok(rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size)?);
        }
        Content::Allocated | Content::AllocatedIfPossible => {
            file.set_len(size)?;
            return match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Err(rustix::io::Errno::OPNOTSUPP) if content == Content::AllocatedIfPossible => {
                    Ok(())
                }
                other => Ok(other?),
            };
        }
        Content::Zeros | Content::Random => {}
    }
    let mut random = Random::new(size);
    let mut chunk = vec![0; CHUNK.min(size) as usize];
    let mut left = size;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        if content == Content::Random {
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

    #[test]
    fn a_file_that_exists_is_not_made_again_and_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, "mine").unwrap();
        let mut made = Made::default();
        let stop = AtomicBool::new(false);
        assert!(made.make(&old, 100, Content::Zeros, &stop).is_err());
        made.make(&new, (1 << 20) + 5, Content::Random, &stop).unwrap();
        assert_eq!(new.metadata().unwrap().len(), (1 << 20) + 5);
        made.remove();
        assert!(old.exists() && !new.exists());
    }

    #[test]
    fn a_stop_ends_the_layout() {
        let folder = tempfile::tempdir().unwrap();
        let mut made = Made::default();
        let error =
            made.make(&folder.path().join("x"), 1 << 40, Content::Zeros, &AtomicBool::new(true));
        assert_eq!(error.unwrap_err().exit_code(), 130);
    }

    #[test]
    fn a_file_has_the_length_and_the_space_it_is_made_with() {
        use std::os::unix::fs::MetadataExt;
        const SIZE: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        for (content, length, allocated) in [
            (Content::Empty, 0, false),
            (Content::Reserved, 0, true),
            (Content::Hole, SIZE, false),
            (Content::Allocated, SIZE, true),
            (Content::AllocatedIfPossible, SIZE, true),
        ] {
            let path = folder.path().join(format!("{content:?}"));
            Made::default().make(&path, SIZE, content, &AtomicBool::new(false)).unwrap();
            let found = path.metadata().unwrap();
            assert_eq!(
                (found.len(), found.blocks() * 512 >= SIZE),
                (length, allocated),
                "{content:?}"
            );
        }
    }
}
