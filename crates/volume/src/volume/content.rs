//! Calls that move the bytes of whole files: `read`, `write` and `copy`. They go through the page cache.

use std::path::Path;

use uringfs_buffer::Buffer;
use uringfs_device::Errno;
use uringfs_file::File;

use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, OfPath};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations::set_attributes;
use crate::namespace::path::{Follow, InodeAt, bytes};
use crate::records::inode::Inode;
use crate::volume::open::created;
use crate::volume::volume::Volume;

/// Bytes that one request moves.
const CHUNK: usize = 1 << 20;

impl Volume {
    /// The content of a file. Blocks as [`FileOp::wait`](uringfs_file::FileOp::wait) says.
    ///
    /// # Errors
    /// As [`Self::open_with`]; ENOMEM if memory has no room for the file; errors of reads.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        run_blocking(self.read_in_mode(WaitMode::Blocking, bytes(&path)))
    }

    /// Writes `content` to a file: creates it with permissions 0o644, or truncates it. The bytes are durable after a
    /// later [`File::sync_all`], [`Self::sync`] or [`Self::close`]. Until then a kill of this process loses them, too, unlike with
    /// std; a crash may leave a part of them. Blocks as [`FileOp::wait`](uringfs_file::FileOp::wait) says.
    ///
    /// # Errors
    /// As [`Self::open_with`]; ENOSPC; errors of writes.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), Error> {
        run_blocking(self.write_in_mode(WaitMode::Blocking, bytes(&path), content.as_ref()))
    }

    /// Copies the content and the permissions of a file, and returns the size. Holes stay holes. Creates or truncates
    /// the target. Durable and blocking as [`Self::write`].
    ///
    /// # Errors
    /// EINVAL if both paths lead to one file; as [`Self::open_with`]; ENOSPC; errors of reads and writes.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        run_blocking(self.copy_in_mode(WaitMode::Blocking, bytes(&from), bytes(&to)))
    }

    pub(crate) async fn read_in_mode(&self, mode: WaitMode, path: &[u8]) -> Result<Vec<u8>, Error> {
        let file = self.open_in_mode(mode, path, OpenOptions::new().read(true)).await?;
        let mut content = Vec::new();
        let reserve = |content: &mut Vec<u8>, more: u64| {
            let more = usize::try_from(more).map_err(|_| reading(path, Errno::NOMEM))?;
            content.try_reserve(more).map_err(|_| reading(path, Errno::NOMEM))
        };
        reserve(&mut content, file.len())?;
        let mut buffer = Buffer::zeroed(CHUNK.min(file.len().max(1) as usize));
        loop {
            let (read, back) = mode.run(file.read_at(buffer, content.len() as u64)).await;
            let read = read.map_err(|errno| reading(path, errno))?;
            if read == 0 {
                return Ok(content);
            }
            reserve(&mut content, read as u64)?;
            content.extend_from_slice(&back[..read]);
            buffer = back;
        }
    }

    pub(crate) async fn write_in_mode(
        &self,
        mode: WaitMode,
        path: &[u8],
        content: &[u8],
    ) -> Result<(), Error> {
        let file = self.open_in_mode(mode, path, created()).await?;
        for (n, chunk) in (0..).zip(content.chunks(CHUNK)) {
            let buffer = Buffer::copy_of(chunk);
            self.write_chunk(mode, &file, buffer, n * CHUNK as u64).await.of_path(path)?;
        }
        Ok(())
    }

    pub(crate) async fn copy_in_mode(
        &self,
        mode: WaitMode,
        from: &[u8],
        to: &[u8],
    ) -> Result<u64, Error> {
        let source = self.open_in_mode(mode, from, OpenOptions::new().read(true)).await?;
        let metadata = self.metadata_in_mode(mode, from, Follow::Yes).await?;
        match self.metadata_in_mode(mode, to, Follow::Yes).await {
            Ok(target) if target.ino() == metadata.ino() => {
                let error = Error::refused(Errno::INVAL, "both paths lead to one file");
                return Err(error.of_path(to));
            }
            _ => {}
        }
        let permissions = metadata.inode().permissions;
        let target = self.open_in_mode(mode, to, created().mode(permissions.into())).await?;
        let size = source.len();
        let mut at = 0;
        while let Some(begin) = source.seek_data(at).ok().filter(|begin| *begin < size) {
            let end = source.seek_hole(begin).map_or(size, |end| end.min(size));
            at = begin;
            while at < end {
                let length = (end - at).min(CHUNK as u64) as usize;
                let (read, mut buffer) = mode.run(source.read_at(Buffer::zeroed(length), at)).await;
                let read = read.map_err(|errno| reading(from, errno))?;
                if read == 0 {
                    // The source was truncated meanwhile.
                    return Ok(at);
                }
                drop(buffer.split_off(read));
                self.write_chunk(mode, &target, buffer, at).await.of_path(to)?;
                at += read as u64;
            }
        }
        let set = mode.run(target.set_len(size)).await;
        set.map_err(|errno| self.writing(errno)).of_path(to)?;
        // Those of a target that existed are others.
        let set = |inode: &mut Inode| inode.permissions = permissions;
        let set = set_attributes(InodeAt::Path(to, Follow::Yes), set);
        self.change(mode, set).await.of_path(to)?;
        Ok(size)
    }

    async fn write_chunk(
        &self,
        mode: WaitMode,
        file: &File,
        mut buffer: Buffer,
        mut offset: u64,
    ) -> Result<(), Error> {
        while !buffer.is_empty() {
            let (written, mut back) = mode.run(file.write_at(buffer, offset)).await;
            let written = written.map_err(|errno| self.writing(errno))?;
            offset += written as u64;
            buffer = back.split_off(written);
        }
        Ok(())
    }

    fn writing(&self, errno: Errno) -> Error {
        match errno {
            Errno::NOSPC => self.shortage(),
            errno => Error::io("writing a file", errno),
        }
    }
}

fn reading(path: &[u8], errno: Errno) -> Error {
    let error = match errno {
        Errno::NOMEM => Error::refused(errno, "the file does not fit into memory"),
        errno => Error::io("reading a file", errno),
    };
    error.of_path(path)
}
