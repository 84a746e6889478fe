//! Operations on open files: reads, writes, and what belongs to them.

use std::sync::atomic::Ordering;

use uringfs::file::FallocateSize;
use uringfs::volume::{AtimePolicy, Inode, InodeRef, SetXattr};
use uringfs::{Buffer, Errno, File, OpenOptions};

use crate::abi::{
    self, CopyFileRangeIn, FallocateIn, FsyncIn, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn,
    SetattrIn, SetxattrIn, WriteIn, WriteOut,
};
use crate::changes::{SyncMarks, SyncScope};
use crate::session::{MAX_TRANSFER, MountCache, Session, errno};
use crate::tables::OpenFile;

const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;
/// Writes are durable, as after `fdatasync`.
const O_DSYNC: u32 = 0o10000;
/// Writes are durable with all attributes, as after `fsync`. Comes with [`O_DSYNC`].
const O_SYNC_ALL: u32 = 0o4_000_000;
#[cfg(not(target_arch = "aarch64"))]
const O_DIRECT: u32 = 0o40000;
#[cfg(target_arch = "aarch64")]
const O_DIRECT: u32 = 0o200_000;

/// Reads leave the access time alone.
const O_NOATIME: u32 = 0o1_000_000;

const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// The capabilities of a program. As set-ID bits, they end with the first write.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// The list that says who may access a file, beside its mode.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID_BITS: u32 = 0o6000;
const SET_GROUP_ID_BIT: u16 = 0o2000;
/// The most that one request copies: the rest is asked for again, so that an interrupt acts soon.
const MAX_COPY: u64 = 16 << 20;

impl Session {
    pub(crate) async fn open(&self, node: u64, open: OpenIn) -> Result<OpenOut, Errno> {
        let inode = self.nodes.get(node)?;
        self.open_inode(&inode, open.flags, false).await
    }

    /// Opens a file with the flags of `open(2)`. A file that `is_new` has no capabilities.
    pub(crate) async fn open_inode(
        &self,
        inode: &InodeRef,
        asked: u32,
        is_new: bool,
    ) -> Result<OpenOut, Errno> {
        let access = asked & O_ACCMODE;
        let options = OpenOptions::new()
            // The kernel reads the rest of a page that a program writes in part.
            .read(true)
            .write(access != O_RDONLY)
            .access_time(if asked & O_NOATIME == 0 {
                self.access_time
            } else {
                AtimePolicy::Never
            });
        let file = inode.open(options).await.map_err(errno)?;
        const UNCACHED: u32 = abi::open::DIRECT_IO | abi::open::PARALLEL_DIRECT_WRITES;
        let (direct, is_direct) = (file.direct(), asked & O_DIRECT != 0);
        let (reads, writes, flags) = match self.cache {
            // The direct I/O of a cached file writes and drops the pages of its range, on each kernel.
            MountCache::Kernel if is_direct && !self.uncached_opens_are_coherent() => {
                (direct.clone(), direct, abi::open::KEEP_CACHE)
            }
            _ if is_direct => (direct.clone(), direct, UNCACHED),
            // The kernel has the pages already. Its own write-back sends whole runs of them; single writes are gathered in the
            // cache of the volume.
            MountCache::Kernel if self.kernel_writes_back() => {
                (direct.clone(), direct, abi::open::KEEP_CACHE)
            }
            MountCache::Kernel => (direct, file.clone(), abi::open::KEEP_CACHE),
            MountCache::Volume => (file.clone(), file.clone(), UNCACHED),
            MountCache::None => (direct.clone(), direct, UNCACHED),
        };
        let checked = if is_new { self.capabilities_set.load(Ordering::Relaxed) } else { 0 };
        let checked = checked.into();
        let sync_flags = asked & (O_DSYNC | O_SYNC_ALL);
        let (marks, may_be_mapped) = (SyncMarks::default(), access == O_RDWR);
        let inode = inode.clone();
        let open =
            OpenFile { inode, file, reads, writes, sync_flags, marks, may_be_mapped, checked };
        let handle = self.handles.insert_file(open);
        Ok(OpenOut { handle, flags, backing_id: 0 })
    }

    /// Reads into a buffer of the size that is asked for. Fewer bytes are the end of the file.
    pub(crate) async fn read(
        &self,
        read: &ReadIn,
        buffer: Buffer,
    ) -> (Result<usize, Errno>, Buffer) {
        match self.handles.file(read.handle) {
            Ok(file) => read_fully(&file.reads, read.offset, buffer).await,
            Err(errno) => (Err(errno), buffer),
        }
    }

    pub(crate) async fn write(
        &self,
        write: &WriteIn,
        data: Buffer,
    ) -> (Result<WriteOut, Errno>, Buffer) {
        let ends_set_id = write.write_flags & abi::WRITE_KILL_SUIDGID != 0;
        let prepared = async {
            self.check_changeable()?;
            let file = self.handles.file(write.handle)?;
            self.before_write(&file, ends_set_id).await?;
            Ok(file)
        };
        match prepared.await {
            Ok(file) => {
                let (written, data) = self.write_synced(&file, write, data).await;
                (written.map(|bytes| WriteOut { size: bytes as u32, padding: 0 }), data)
            }
            Err(errno) => (Err(errno), data),
        }
    }

    /// Removes capabilities that the file had before this handle's first write, or was given since its last.
    async fn before_write(&self, file: &OpenFile, ends_set_id: bool) -> Result<(), Errno> {
        let set = self.capabilities_set.load(Ordering::Relaxed);
        if ends_set_id || file.checked.load(Ordering::Relaxed) != set {
            self.end_privileges(&file.inode, ends_set_id).await?;
            file.checked.store(set, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes what lets a program run with the rights of the file's owner: its content is about to change.
    pub(crate) async fn end_privileges(&self, inode: &InodeRef, set_id: bool) -> Result<(), Errno> {
        match inode.remove_xattr(CAPABILITY).await.map_err(errno) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
        if set_id && inode.metadata().await.map_err(errno)?.mode() & SET_ID_BITS != 0 {
            let end = |inode: &mut Inode| inode.set_owner(None, None);
            inode.set_attributes(end).await.map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) async fn set_length(&self, inode: &InodeRef, new: &SetattrIn) -> Result<(), Errno> {
        let file = match new.valid & abi::setattr::FH != 0 {
            true => self.handles.file(new.handle)?.file.clone(),
            false => inode.open(OpenOptions::new().write(true)).await.map_err(errno)?,
        };
        file.set_len(new.size).await
    }

    pub(crate) async fn fsync(&self, fsync: &FsyncIn) -> Result<(), Errno> {
        let file = self.handles.file(fsync.handle)?;
        let scope = match fsync.flags & abi::FSYNC_FDATASYNC != 0 {
            true => SyncScope::Data,
            false => SyncScope::Everything,
        };
        self.sync_file(&file, scope).await
    }

    /// Makes changes durable that were noted and not synced by this handle yet. Once the volume has stopped, each sync fails.
    async fn sync_file(&self, open: &OpenFile, scope: SyncScope) -> Result<(), Errno> {
        let count = self.changes.count();
        if open.marks.cover(scope, count) && self.check_changeable().is_ok() {
            return Ok(());
        }
        match scope {
            SyncScope::Data => open.file.sync_data().await,
            SyncScope::Everything => open.file.sync_all().await,
        }?;
        open.marks.note_sync(scope, count);
        Ok(())
    }

    /// Notes a change of a file. Makes it durable as flags of `open(2)` say.
    async fn note_and_sync(&self, open: &OpenFile, flags: u32) -> Result<(), Errno> {
        self.note_change();
        match flags {
            _ if flags & O_SYNC_ALL != 0 => self.sync_file(open, SyncScope::Everything).await,
            _ if flags & O_DSYNC != 0 => self.sync_file(open, SyncScope::Data).await,
            _ => Ok(()),
        }
    }

    /// Writes, and makes the data durable if the flags of the file or of the one call say so. The kernel syncs only what it has
    /// cached.
    async fn write_synced(
        &self,
        open: &OpenFile,
        write: &WriteIn,
        data: Buffer,
    ) -> (Result<usize, Errno>, Buffer) {
        if write.flags & (O_DSYNC | O_SYNC_ALL) == O_DSYNC {
            let before = self.changes.count();
            let (written, data) = open.writes.write_durably(data, write.offset).await;
            if self.note_change() == before && written.is_ok() {
                open.marks.note_durable_write(before);
            }
            return (written, data);
        }
        let (mut written, data) = open.writes.write_at(data, write.offset).await;
        let flags = if written.is_ok() { write.flags } else { 0 };
        if let Err(errno) = self.note_and_sync(open, flags).await {
            written = Err(errno);
        }
        (written, data)
    }

    pub(crate) async fn fallocate(
        &self,
        fallocate: &FallocateIn,
        ends_set_id: bool,
    ) -> Result<(), Errno> {
        let open = self.handles.file(fallocate.handle)?;
        self.before_write(&open, ends_set_id).await?;
        let file = &open.file;
        let FallocateIn { offset, length, mode, .. } = *fallocate;
        let size = match mode & FALLOC_KEEP_SIZE != 0 {
            true => FallocateSize::Keep,
            false => FallocateSize::Extend,
        };
        match mode & !FALLOC_KEEP_SIZE {
            0 => file.allocate(offset, length, size).await?,
            FALLOC_PUNCH_HOLE => file.punch_hole(offset, length).await?,
            FALLOC_ZERO_RANGE => file.zero_range(offset, length, size).await?,
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.note_and_sync(&open, open.sync_flags).await
    }

    pub(crate) async fn lseek(&self, lseek: &LseekIn) -> Result<LseekOut, Errno> {
        // The kernel does not write its pages before it asks. Refused, it takes all bytes for data.
        if self.kernel_writes_back() {
            return Err(Errno::NOSYS);
        }
        let open = self.handles.file(lseek.handle)?;
        if self.handles.may_be_mapped(&open.inode) {
            let size = open.inode.metadata().await.map_err(errno)?.len();
            return all_data(lseek, size).map(|offset| LseekOut { offset });
        }
        let offset = match lseek.whence {
            SEEK_DATA => open.file.seek_data(lseek.offset)?,
            SEEK_HOLE => open.file.seek_hole(lseek.offset)?,
            _ => return Err(Errno::INVAL),
        };
        Ok(LseekOut { offset })
    }

    /// Copies between two open files, without passing the bytes through the kernel. Returns how many were copied: fewer
    /// at the end of the source, and at [`MAX_COPY`]. The kernel has written its own pages of both ranges before.
    pub(crate) async fn copy_file_range(
        &self,
        copy: &CopyFileRangeIn,
        ends_set_id: bool,
    ) -> Result<u64, Errno> {
        if copy.flags != 0 {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.handles.file(copy.handle_in)?, self.handles.file(copy.handle_out)?);
        self.before_write(&to, ends_set_id).await?;
        let length = copy.length.min(MAX_COPY);
        let mut done = 0;
        while done < length {
            let wanted = (length - done).min(MAX_TRANSFER.into()) as usize;
            let copied = async {
                let buffer = Buffer::zeroed(wanted);
                let (length, mut data) =
                    read_fully(&from.reads, copy.offset_in + done, buffer).await;
                data.truncate(length?);
                let (written, _) = to.writes.write_at(data, copy.offset_out + done).await;
                written
            };
            match copied.await {
                Ok(0) => break,
                Ok(bytes) => done += bytes as u64,
                // The bytes that have been copied count.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        self.note_and_sync(&to, to.sync_flags).await?;
        Ok(done)
    }

    /// Sets an attribute. After capabilities, a handle that is open for writing looks for them again.
    pub(crate) async fn setxattr(
        &self,
        node: u64,
        SetxattrIn { flags, setxattr_flags, .. }: SetxattrIn,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Errno> {
        let how = match flags {
            0 => SetXattr::Either,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let inode = self.nodes.get(node)?;
        let set = inode.set_xattr(name, value, how).await.map_err(errno);
        if name == CAPABILITY {
            self.capabilities_set.fetch_add(1, Ordering::Relaxed);
        }
        set?;
        if name == ACCESS_ACL && setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let end = |inode: &mut Inode| inode.permissions &= !SET_GROUP_ID_BIT;
            inode.set_attributes(end).await.map_err(errno)?;
        }
        Ok(())
    }
}

/// Seeks in a file of which each byte may be data.
fn all_data(lseek: &LseekIn, size: u64) -> Result<u64, Errno> {
    match lseek.whence {
        SEEK_DATA | SEEK_HOLE if lseek.offset >= size => Err(Errno::NXIO),
        SEEK_DATA => Ok(lseek.offset),
        SEEK_HOLE => Ok(size),
        _ => Err(Errno::INVAL),
    }
}

/// Reads until the buffer is full. Fewer bytes are the end of the file.
async fn read_fully(file: &File, offset: u64, buffer: Buffer) -> (Result<usize, Errno>, Buffer) {
    let (mut read, mut buffer) = file.read_at(buffer, offset).await;
    while let Ok(done) = read
        && done > 0
        && done < buffer.len()
    {
        let rest = buffer.split_off(done);
        let (more, rest) = file.read_at(rest, offset + done as u64).await;
        buffer.join(rest).expect("the rest is of this buffer");
        match more {
            Ok(0) => break,
            more => read = more.map(|bytes| done + bytes),
        }
    }
    (read, buffer)
}
