//! Open volumes and files in them. A volume is opened once per run, for all threads, because a writer has
//! a volume exclusively.

use super::initial_content::InitialContent;
use super::target_info::TargetInfo;
use super::volume_file::VolumeFile;
use crate::Error;
use crate::random::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use uringfs::device::{Access, Device};
use uringfs::file::{FallocateSize, FileOptions};
use uringfs::volume::AtimePolicy;
use uringfs::{
    Buffer, Errno, ErrorKind as VolumeErrorKind, File, OpenOptions, Reactor, ReactorOptions, Volume,
};

/// The open volumes, by canonical path.
#[derive(Debug, Default)]
pub struct Volumes(BTreeMap<PathBuf, Volume>);

impl Volumes {
    /// Opens a volume, unless it is open already, under any name.
    ///
    /// # Errors
    /// It is not a volume, or another process has it open.
    pub fn open(&mut self, path: &Path, access: Access) -> Result<&Volume, Error> {
        let key = canonical(path);
        if !self.0.contains_key(&key) {
            let device =
                Device::open(path, access).map_err(|error| Error::input(error.to_string()))?;
            let volume = Volume::open_on(device).map_err(|error| {
                let hint = match error.kind() {
                    VolumeErrorKind::NotAVolume => "; check the path",
                    _ => "",
                };
                Error::input(path.display().to_string()).because(format!("{error}{hint}"))
            })?;
            self.0.insert(key.clone(), volume);
        }
        Ok(&self.0[&key])
    }

    /// The volume of a file.
    ///
    /// # Panics
    /// The volume is not open.
    fn volume_of(&self, file: &VolumeFile) -> &Volume {
        self.0.get(&canonical(&file.volume)).expect("a run opens the volumes of its files")
    }

    /// The kind and size of a file; it may be missing if its directory exists.
    ///
    /// # Errors
    /// It is not a regular file, or its directory does not exist.
    pub fn inspect(&self, file: &VolumeFile) -> Result<TargetInfo, Error> {
        let volume = self.volume_of(file);
        match volume.metadata(&file.path) {
            Ok(metadata) if metadata.is_file() => {
                Ok(TargetInfo::File { size: metadata.len(), alignment: 1 })
            }
            Ok(metadata) if metadata.is_dir() => Err(Error::input(format!(
                "{file}: is a directory; name a file (or use directory=)"
            ))),
            Ok(_) => Err(Error::input(format!("{file}: is not a file"))),
            Err(error) if error.errno() == Errno::NOENT => self.inspect_parent(file),
            Err(error) => Err(file.to_error(error)),
        }
    }

    /// A missing file can be created if its directory exists.
    fn inspect_parent(&self, file: &VolumeFile) -> Result<TargetInfo, Error> {
        let directory = file.path.parent().unwrap_or(Path::new("/"));
        let shown = VolumeFile::new(&file.volume, directory);
        let found = self.volume_of(file).metadata(directory);
        match found {
            Ok(metadata) if metadata.is_dir() => Ok(TargetInfo::Missing),
            Ok(_) => Err(Error::input(format!("{file}: {shown} is not a directory"))),
            Err(error) if error.errno() == Errno::NOENT => Err(Error::input(format!(
                "{file}: the directory {shown} does not exist; create it with uringfs mkdir"
            ))),
            Err(error) => Err(file.to_error(error)),
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn file(&self, file: &VolumeFile, options: FileOptions) -> Result<File, Error> {
        // As with fio, which opens with O_NOATIME.
        let access_time = AtimePolicy::Never;
        let volume = self.volume_of(file);
        let options = OpenOptions::new()
            .read(true)
            .write(!volume.is_read_only())
            .switches(options)
            .access_time(access_time)
            .direct(true);
        volume.open_with(&file.path, options).map_err(|error| file.to_error(error))
    }

    /// Creates a file with its initial content. Calls `on_created` as soon as there is a file to remove, should
    /// the rest fail.
    ///
    /// # Errors
    /// The file exists, or its content cannot be written, with ENOSPC for example.
    pub fn create(
        &self,
        file: &VolumeFile,
        size: u64,
        content: InitialContent,
        stop: &AtomicBool,
        on_created: impl FnOnce(),
    ) -> Result<(), Error> {
        let options =
            OpenOptions::new().read(true).write(true).create(true).create_new(true).direct(true);
        let created = self
            .volume_of(file)
            .open_with(&file.path, options)
            .map_err(|error| file.to_error(error))?;
        on_created();
        let failed = |error: std::io::Error| {
            Error::run(format!("cannot lay out {file} of {size} bytes")).because(error)
        };
        let reactor = Reactor::new(ReactorOptions::default()).map_err(failed)?;
        let laid_out = reactor.block_on(lay_out(&created, size, content, stop));
        laid_out.map_err(|errno| failed(errno.into()))
    }

    /// Closes all volumes, with what is still in page caches. They can be opened again after that.
    ///
    /// # Errors
    /// Something is not durable, or a volume is still in use. All others are closed nevertheless.
    pub fn close(self) -> Result<(), Error> {
        let close = |(path, volume): (PathBuf, Volume)| {
            let failed = |error| Error::run(format!("closing {}", path.display())).because(error);
            volume.close().map_err(failed)
        };
        self.0.into_iter().map(close).fold(Ok(()), Result::and)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn remove(&self, file: &VolumeFile) -> Result<(), Error> {
        self.volume_of(file).remove_file(&file.path).map_err(|error| file.to_error(error))
    }
}

async fn lay_out(
    file: &File,
    size: u64,
    content: InitialContent,
    stop: &AtomicBool,
) -> Result<(), Errno> {
    match content {
        InitialContent::Empty => Ok(()),
        InitialContent::Hole => file.set_len(size).await,
        InitialContent::Reserved => file.allocate(0, size, FallocateSize::Keep).await,
        InitialContent::Allocated | InitialContent::AllocatedIfPossible => {
            file.allocate(0, size, FallocateSize::Extend).await
        }
        InitialContent::Zeros | InitialContent::Random => fill(file, size, content, stop).await,
    }
}

/// Writes the whole file and makes it durable.
async fn fill(
    file: &File,
    size: u64,
    content: InitialContent,
    stop: &AtomicBool,
) -> Result<(), Errno> {
    const CHUNK: u64 = 1 << 20;
    let mut random = Random::new(size);
    let mut at = 0;
    while at < size && !stop.load(Ordering::Relaxed) {
        let mut chunk = Buffer::zeroed((size - at).min(CHUNK) as usize);
        if content == InitialContent::Random {
            random.fill(&mut chunk);
        }
        at += file.write_at(chunk, at).await.0? as u64;
    }
    file.sync_all().await
}

/// The canonical path, which identifies a volume.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
