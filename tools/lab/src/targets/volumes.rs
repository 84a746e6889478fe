//! Files in volumes: which there are, those a run makes, and the volumes themselves, opened once a run
//! for all its threads, since whoever writes to a volume has it for itself.

use super::initial_content::InitialContent;
use super::target_info::Found;
use super::volume_file::VolumeFile;
use crate::Error;
use crate::random::Random;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use uringfs::{
    Access, AccessTime, Buffer, Device, Errno, File, FileKind, FileOptions, Follow, OpenOptions,
    Reactor, ReactorOptions, Size, Volume, VolumeErrorKind,
};

/// Volumes that are open.
#[derive(Default)]
pub struct Volumes(BTreeMap<PathBuf, Volume>);

impl Volumes {
    /// Opens a volume, unless it is open already, by whatever name.
    ///
    /// # Errors
    /// What is there is none, or somebody else has it open.
    pub fn open(&mut self, path: &Path, access: Access) -> Result<&Volume, Error> {
        let key = canonical(path);
        if !self.0.contains_key(&key) {
            let device =
                Device::open(path, access).map_err(|error| Error::input(error.to_string()))?;
            let volume = Volume::open_on(device).map_err(|error| {
                let hint = match error.kind() {
                    VolumeErrorKind::NotAVolume => "; see uringfs mkfs",
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
    /// It was not opened.
    fn volume_of(&self, file: &VolumeFile) -> &Volume {
        self.0.get(&canonical(&file.volume)).expect("a run opens the volumes of its files")
    }

    /// What is there: a file, or nothing in a directory that is.
    ///
    /// # Errors
    /// What is there holds no bytes, or the way to it is none.
    pub fn inspect(&self, file: &VolumeFile) -> Result<Found, Error> {
        let volume = self.volume_of(file);
        match volume.inode(file.path_bytes(), Follow::Yes) {
            Ok((_, inode)) if inode.kind == FileKind::File => {
                Ok(Found::File { size: inode.size, alignment: 1 })
            }
            Ok((_, inode)) if inode.kind == FileKind::Directory => Err(Error::input(format!(
                "{file}: is a directory; name a file (or use directory=)"
            ))),
            Ok(_) => Err(Error::input(format!("{file}: is not a file"))),
            Err(error) if error.errno() == Errno::NOENT => self.inspect_parent(file),
            Err(error) => Err(file.to_error(error)),
        }
    }

    /// A missing file can be made if its directory is there.
    fn inspect_parent(&self, file: &VolumeFile) -> Result<Found, Error> {
        let directory = file.path.parent().unwrap_or(Path::new("/"));
        let shown = VolumeFile::new(&file.volume, directory);
        let found = self.volume_of(file).inode(directory.as_os_str().as_bytes(), Follow::Yes);
        match found {
            Ok((_, inode)) if inode.kind == FileKind::Directory => Ok(Found::Nothing),
            Ok(_) => Err(Error::input(format!("{file}: {shown} is not a directory"))),
            Err(error) if error.errno() == Errno::NOENT => Err(Error::input(format!(
                "{file}: the directory {shown} does not exist; uringfs mkdir makes it"
            ))),
            Err(error) => Err(file.to_error(error)),
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// What the volume says.
    pub fn file(&self, file: &VolumeFile, options: FileOptions) -> Result<File, Error> {
        // As fio, which opens with O_NOATIME.
        let access_time = AccessTime::Kept;
        let options = OpenOptions { file: options, access_time, ..OpenOptions::direct() };
        self.volume_of(file).open(file.path_bytes(), options).map_err(|error| file.to_error(error))
    }

    /// Makes a file and what it holds at first; one that exists is an error. `on_created` hears when there is
    /// something to remove should the rest fail.
    ///
    /// # Errors
    /// ENOSPC and its like.
    pub fn create(
        &self,
        file: &VolumeFile,
        size: u64,
        content: InitialContent,
        stop: &AtomicBool,
        on_created: impl FnOnce(),
    ) -> Result<(), Error> {
        let options = OpenOptions { create: Some(0o644), exclusive: true, ..OpenOptions::direct() };
        let made = self
            .volume_of(file)
            .open(file.path_bytes(), options)
            .map_err(|error| file.to_error(error))?;
        on_created();
        let failed = |error: std::io::Error| {
            Error::run(format!("cannot lay out {file} of {size} bytes")).because(error)
        };
        let reactor = Reactor::new(ReactorOptions::default()).map_err(failed)?;
        let laid_out = reactor.block_on(lay_out(&made, size, content, stop));
        laid_out.map_err(|errno| failed(errno.into()))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// What the volume says.
    pub fn remove(&self, file: &VolumeFile) -> Result<(), Error> {
        self.volume_of(file).remove(file.path_bytes()).map_err(|error| file.to_error(error))
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
        InitialContent::Hole => file.set_size(size).await,
        InitialContent::Reserved => file.allocate(0, size, Size::Keep).await,
        InitialContent::Allocated | InitialContent::AllocatedIfPossible => {
            file.allocate(0, size, Size::Extend).await
        }
        InitialContent::Zeros | InitialContent::Random => fill(file, size, content, stop).await,
    }
}

/// Writes all of a file, and makes it durable.
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
        at += file.write(chunk, at).await.1? as u64;
    }
    file.sync().await
}

/// A path as the system sees it, by which a volume is known.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
