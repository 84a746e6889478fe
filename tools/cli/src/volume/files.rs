//! [`Files`]: the files of a volume, wherever they are: in a volume that this process has open, or in one that a
//! server has open, which is asked. The calls are those of [`Volume`].

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::volume::{FileType, Follow, Inode, InodeNumber, Metadata, Rename, SetXattr};
use uringfs::{Errno, Error, File, OpenOptions, Reactor, Volume};
use uringfs_fuse::control::{Opening, RemoteFile, RemoteFiles};

/// The files of a volume.
pub enum Files {
    /// This process has the volume open.
    Volume(Volume),
    /// A server has.
    Served(RemoteFiles),
}

/// An open regular file.
pub enum OpenFile {
    Volume(File),
    Served(RemoteFile),
}

impl Files {
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        match self {
            Self::Volume(volume) => volume.metadata(path),
            Self::Served(files) => files.metadata(bytes(&path), Follow::Yes),
        }
    }

    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        match self {
            Self::Volume(volume) => volume.symlink_metadata(path),
            Self::Served(files) => files.metadata(bytes(&path), Follow::No),
        }
    }

    /// Opens a file for direct I/O.
    pub fn open(&self, path: impl AsRef<Path>, opening: Opening) -> Result<OpenFile, Error> {
        let volume = match self {
            Self::Volume(volume) => volume,
            Self::Served(files) => {
                return files.open(bytes(&path), opening).map(OpenFile::Served);
            }
        };
        let options = OpenOptions::new().read(true).direct(true);
        let options = match opening {
            Opening::Read => options,
            Opening::Write => options.write(true),
            Opening::Create(mode) => options.write(true).create(true).mode(mode),
        };
        volume.open_with(path, options).map(OpenFile::Volume)
    }

    pub fn mknod(&self, path: impl AsRef<Path>, inode: &Inode) -> Result<InodeNumber, Error> {
        match self {
            Self::Volume(volume) => volume.mknod(path, inode),
            Self::Served(files) => files.make(bytes(&path), inode),
        }
    }

    pub fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        self.mknod(path, &Inode::new(FileType::Directory, mode as u16)).map(drop)
    }

    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        self.mknod(link, &Inode::symlink(bytes(&original))?).map(drop)
    }

    pub fn hard_link(
        &self,
        original: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.hard_link(original, link),
            Self::Served(files) => files.hard_link(bytes(&original), bytes(&link)),
        }
    }

    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.remove_file(path),
            Self::Served(files) => files.remove_file(bytes(&path)),
        }
    }

    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.remove_dir(path),
            Self::Served(files) => files.remove_dir(bytes(&path)),
        }
    }

    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: Rename,
    ) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.rename_with(from, to, how),
            Self::Served(files) => files.rename(bytes(&from), bytes(&to), how),
        }
    }

    pub fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.set_attributes(path, follow, set),
            Self::Served(files) => files.set_attributes(bytes(&path), follow, set),
        }
    }

    pub fn list_xattrs(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
    ) -> Result<Vec<Vec<u8>>, Error> {
        match self {
            Self::Volume(volume) => volume.list_xattrs(path, follow),
            Self::Served(files) => files.list_xattrs(bytes(&path), follow),
        }
    }

    pub fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, Error> {
        match self {
            Self::Volume(volume) => volume.get_xattr(path, follow, name),
            Self::Served(files) => files.get_xattr(bytes(&path), follow, name.as_ref()),
        }
    }

    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.set_xattr(path, follow, name, value, how),
            Self::Served(files) => files.set_xattr(bytes(&path), follow, name.as_ref(), value, how),
        }
    }

    pub fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.remove_xattr(path, follow, name),
            Self::Served(files) => files.remove_xattr(bytes(&path), follow, name.as_ref()),
        }
    }

    pub fn sync(&self) -> Result<(), Error> {
        match self {
            Self::Volume(volume) => volume.sync(),
            Self::Served(files) => files.sync(),
        }
    }

    /// Why a write has found no space.
    pub fn shortage(&self) -> Error {
        match self {
            Self::Volume(volume) => volume.shortage(),
            Self::Served(files) => files.shortage(),
        }
    }
}

impl OpenFile {
    pub fn len(&self) -> u64 {
        match self {
            Self::Volume(file) => file.len(),
            Self::Served(file) => file.len(),
        }
    }

    /// The first range at or behind an offset that is no hole. None if the rest is one.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, Errno> {
        let file = match self {
            Self::Volume(file) => file,
            Self::Served(file) => return file.next_data(offset),
        };
        match file.seek_data(offset) {
            Err(Errno::NXIO) => Ok(None),
            start => {
                let start = start?;
                Ok(Some(start..file.seek_hole(start)?))
            }
        }
    }

    pub fn set_len(&self, reactor: &Reactor, size: u64) -> Result<(), Errno> {
        match self {
            Self::Volume(file) => reactor.block_on(file.set_len(size)),
            Self::Served(file) => file.set_len(size),
        }
    }
}

fn bytes(path: &impl AsRef<Path>) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}
