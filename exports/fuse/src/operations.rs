//! The operations of the protocol on the volume: each takes its arguments from the request, and returns what the reply
//! carries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use uringfs::volume::{FileType, Inode, InodeRef, Metadata, Rename, Time};
use uringfs::{Buffer, Errno};
use zerocopy::IntoBytes;

use crate::abi::{
    self, CopyFileRangeOut, CreateIn, InHeader, MkdirIn, MknodIn, OpenOut, ReadIn, SetattrIn,
    StatfsOut, WriteIn, WriteOut, XattrOut,
};
use crate::reply::{Listing, attributes_reply, decode_device, entry, no_entry};
use crate::request::{Labels, Operation};
use crate::session::{MAX_TRANSFER, Session, Task, errno};
use crate::tables::{DirectoryReader, ListingCache};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
/// An open that creates a file fails if there is one.
const O_EXCL: u32 = 0o200;
/// The list that new files of a directory inherit.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The bits of a mode without the kind.
const PERMISSION_BITS: u32 = 0o7777;

impl Task {
    /// Does an operation and replies.
    pub(crate) async fn answer(&self, operation: Operation<'_>, labels: &Labels<'_>) {
        let (session, node) = (&*self.session, self.header.node);
        match operation {
            Operation::Lookup(name) => self.send_entry(session.lookup(node, name).await),
            Operation::Getattr => self.send(session.getattr(node).await),
            Operation::Setattr(new) => self.send(session.setattr(node, &new).await),
            Operation::Readlink => match session.readlink(node).await {
                Ok(target) => self.reply(Ok(&target)),
                Err(errno) => self.reply(Err(errno)),
            },
            Operation::Symlink { name, target } => {
                let inode = Inode::symlink(target).map_err(|error| error.errno());
                self.send_entry(self.create_node((name, labels), inode, 0).await);
            }
            Operation::Mknod(node, name) => {
                self.send_entry(self.create_node((name, labels), mknod(&node), node.umask).await);
            }
            Operation::Mkdir(MkdirIn { mode, umask }, name) => {
                let inode = Inode::new(FileType::Directory, permissions(mode));
                self.send_entry(self.create_node((name, labels), Ok(inode), umask).await);
            }
            Operation::Unlink(name) => self.done(session.unlink(node, name).await),
            Operation::Rmdir(name) => self.done(session.rmdir(node, name).await),
            Operation::Rename { new_directory, flags, name, new_name } => {
                let (from, to) = ((node, name), (new_directory, new_name));
                self.done(session.rename(from, to, flags).await);
            }
            Operation::Link(link, name) => {
                self.send_entry(session.link(link.old_node, (node, name)).await);
            }
            Operation::Open(open) => self.send(session.open(node, open).await),
            Operation::Create(create, name) => self.create(&create, Some(name), labels).await,
            Operation::Tmpfile(create) => self.create(&create, None, labels).await,
            Operation::Statfs => self.send(session.statfs()),
            Operation::Release(release) => {
                session.handles.release_file(release.handle);
                self.done(Ok(()));
            }
            Operation::Fsync(fsync) => self.done(session.fsync(&fsync).await),
            Operation::Fsyncdir | Operation::Syncfs => self.done(session.sync().await),
            Operation::Setxattr { set, name, value } => {
                self.done(session.setxattr(node, set, name, value).await);
            }
            Operation::Getxattr { size, name } => {
                self.send_xattr(size, session.getxattr(node, name).await);
            }
            Operation::Listxattr { size } => {
                self.send_xattr(size, session.listxattr(node).await);
            }
            Operation::Removexattr(name) => self.done(session.removexattr(node, name).await),
            Operation::Opendir => self.send(session.opendir(node).await),
            Operation::Readdir(read) => self.list(&read, false).await,
            Operation::Readdirplus(read) => self.list(&read, true).await,
            Operation::Releasedir(release) => {
                if let Some(directory) = session.handles.release_directory(release.handle) {
                    session.nodes.close_directory(directory);
                }
                self.done(Ok(()));
            }
            Operation::Fallocate(fallocate) => {
                self.done(session.fallocate(&fallocate, self.ends_set_id()).await);
            }
            Operation::Lseek(lseek) => self.send(session.lseek(&lseek).await),
            Operation::CopyFileRange { copy, is_64 } => {
                let copied = session.copy_file_range(&copy, self.ends_set_id()).await;
                match is_64 {
                    true => self.send(copied.map(|copied| CopyFileRangeOut { copied })),
                    false => {
                        self.send(
                            copied.map(|copied| WriteOut { size: copied as u32, padding: 0 }),
                        );
                    }
                }
            }
            // The kernel sends it at the end of a mount of a block device, and waits for the reply.
            Operation::Destroy => {
                session.commits.stop();
                session.closed.wait().await;
                self.done(Ok(()));
            }
            // Without FLUSH a close asks for nothing: fsync is what makes data durable.
            Operation::Flush | Operation::Unknown => self.reply(Err(Errno::NOSYS)),
            Operation::Init(_)
            | Operation::Read(_)
            | Operation::Write(..)
            | Operation::Forget(_)
            | Operation::BatchForget(_)
            // The session answers these itself.
            | Operation::Interrupt => self.reply(Err(Errno::NOSYS)),
        }
    }

    pub(crate) async fn read(self, read: ReadIn, buffer: Buffer) {
        let (length, data) = self.session.read(&read, buffer).await;
        self.reply(length.map(|length| &data[..length]));
    }

    pub(crate) async fn write(self, write: WriteIn, data: Buffer) {
        let (written, _) = self.session.write(&write, data).await;
        self.send(written);
    }

    fn send<T: IntoBytes + zerocopy::Immutable>(&self, result: Result<T, Errno>) {
        match result {
            Ok(value) => self.reply(Ok(value.as_bytes())),
            Err(errno) => self.reply(Err(errno)),
        }
    }

    /// Replies with a node, whose look-up counts only if the kernel takes the reply.
    fn send_entry(&self, result: Result<abi::EntryOut, Errno>) {
        match result {
            Ok(entry) => {
                if !self.try_reply(Ok(entry.as_bytes())) {
                    self.session.nodes.forget(entry.node, 1);
                }
            }
            Err(errno) => self.reply(Err(errno)),
        }
    }

    /// Whether a change of a file by the sender ends its set-ID bits. The kernel says so of writes and truncations itself. A
    /// sender that it does not name ([`abi::NO_ID`]) counts as an ordinary user.
    fn ends_set_id(&self) -> bool {
        self.header.uid != 0
    }

    fn done(&self, result: Result<(), Errno>) {
        self.reply(result.map(|()| &[][..]));
    }

    /// Replies with the value of an attribute, or, for size 0, with its length.
    fn send_xattr(&self, size: u32, value: Result<Vec<u8>, Errno>) {
        match value {
            Ok(value) if size == 0 => {
                self.send(Ok(XattrOut { size: value.len() as u32, padding: 0 }));
            }
            Ok(value) if value.len() > size as usize => self.reply(Err(Errno::RANGE)),
            Ok(value) => self.reply(Ok(&value)),
            Err(errno) => self.reply(Err(errno)),
        }
    }

    async fn create_node(
        &self,
        (name, labels): (&[u8], &Labels<'_>),
        inode: Result<Inode, Errno>,
        umask: u32,
    ) -> Result<abi::EntryOut, Errno> {
        let session = &self.session;
        let directory = session.nodes.get(self.header.node)?;
        let inode = masked(owned(inode?, &self.header)?, umask, &directory).await?;
        let (made, metadata) =
            directory.create_with(OsStr::from_bytes(name), &inode, labels).await.map_err(errno)?;
        session.nodes.remember(made);
        Ok(entry(&metadata))
    }

    /// Creates a file and opens it.
    async fn create(&self, create: &CreateIn, name: Option<&[u8]>, labels: &Labels<'_>) {
        match self.create_and_open(create, name, labels).await {
            Ok((entry, open)) => {
                if !self.try_reply(Ok(&[entry.as_bytes(), open.as_bytes()].concat())) {
                    self.session.nodes.forget(entry.node, 1);
                    self.session.handles.release_file(open.handle);
                }
            }
            Err(errno) => self.reply(Err(errno)),
        }
    }

    async fn create_and_open(
        &self,
        create: &CreateIn,
        name: Option<&[u8]>,
        labels: &Labels<'_>,
    ) -> Result<(abi::EntryOut, OpenOut), Errno> {
        let session = &self.session;
        let directory = session.nodes.get(self.header.node)?;
        let new = Inode::new(FileType::File, permissions(create.mode));
        let inode = masked(owned(new, &self.header)?, create.umask, &directory).await?;
        let (made, metadata) = match name {
            Some(name) => directory.create_with(OsStr::from_bytes(name), &inode, labels).await,
            None => directory.create_unnamed_with(&inode, labels).await,
        }
        .map_err(|error| match error.errno() {
            // A client of the control socket has created it since the kernel's look-up. After ESTALE the kernel
            // looks it up again and opens it, with the checks that it leaves out for a new file.
            Errno::EXIST if create.flags & O_EXCL == 0 => Errno::STALE,
            errno => errno,
        })?;
        let opened = session.open_inode(&made, create.flags, true).await;
        let open = opened.inspect_err(|_| session.nodes.listing_changed(self.header.node))?;
        session.nodes.remember(made);
        Ok((entry(&metadata), open))
    }

    /// Replies with entries of a directory.
    async fn list(&self, read: &ReadIn, plus: bool) {
        let listed = match self.session.handles.directory(read.handle) {
            Ok(directory) => {
                let taken = directory.lock().take();
                match taken {
                    Some(mut taken) => {
                        let listed = self.session.list(&mut taken, read, plus).await;
                        *directory.lock() = Some(taken);
                        listed
                    }
                    // The kernel sends one listing of a handle at a time.
                    None => Err(Errno::BUSY),
                }
            }
            Err(errno) => Err(errno),
        };
        self.reply(listed.as_ref().map(Listing::as_bytes).map_err(|errno| *errno));
    }
}

impl Session {
    async fn lookup(&self, node: u64, name: &[u8]) -> Result<abi::EntryOut, Errno> {
        let directory = self.nodes.get(node)?;
        match directory.lookup(OsStr::from_bytes(name)).await.map_err(errno) {
            Ok((found, metadata)) => {
                self.nodes.remember(found);
                Ok(entry(&metadata))
            }
            Err(Errno::NOENT) => Ok(no_entry()),
            Err(errno) => Err(errno),
        }
    }

    async fn getattr(&self, node: u64) -> Result<abi::AttrOut, Errno> {
        let metadata = self.nodes.get(node)?.metadata().await.map_err(errno)?;
        Ok(attributes_reply(&metadata))
    }

    async fn setattr(&self, node: u64, new: &SetattrIn) -> Result<abi::AttrOut, Errno> {
        let inode = self.nodes.get(node)?;
        const ENDS_PRIVILEGES: u32 = abi::setattr::SIZE | abi::setattr::UID | abi::setattr::GID;
        let ends_set_id = new.valid & abi::setattr::KILL_SUIDGID != 0;
        if ends_set_id || new.valid & ENDS_PRIVILEGES != 0 {
            self.end_privileges(&inode, ends_set_id).await?;
        }
        if new.valid & abi::setattr::SIZE != 0 {
            self.set_length(&inode, new).await?;
        }
        let now = Time::now();
        let time = |set, set_now, seconds: u64, nanoseconds| {
            let given = || Time::new(seconds as i64, nanoseconds).ok_or(Errno::INVAL);
            match (new.valid & set != 0, new.valid & set_now != 0) {
                (false, _) => Ok(None),
                (true, true) => Ok(Some(now)),
                (true, false) => given().map(Some),
            }
        };
        let accessed =
            time(abi::setattr::ATIME, abi::setattr::ATIME_NOW, new.atime, new.atime_nsec)?;
        let modified =
            time(abi::setattr::MTIME, abi::setattr::MTIME_NOW, new.mtime, new.mtime_nsec)?;
        let given = |flag, value: u32| (new.valid & flag != 0).then_some(value);
        let (user, group) = (given(abi::setattr::UID, new.uid), given(abi::setattr::GID, new.gid));
        let mode = given(abi::setattr::MODE, new.mode).map(permissions);
        if accessed.is_some()
            || modified.is_some()
            || mode.is_some()
            || user.is_some()
            || group.is_some()
        {
            let set = |inode: &mut Inode| {
                if user.is_some() || group.is_some() {
                    inode.set_owner(user, group);
                }
                inode.permissions = mode.unwrap_or(inode.permissions);
                inode.accessed = accessed.unwrap_or(inode.accessed);
                inode.modified = modified.unwrap_or(inode.modified);
            };
            inode.set_attributes(set).await.map_err(errno)?;
        }
        Ok(attributes_reply(&inode.metadata().await.map_err(errno)?))
    }

    async fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let target = self.nodes.get(node)?.read_link().await.map_err(errno)?;
        Ok(target.into_os_string().as_bytes().to_vec())
    }

    async fn unlink(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.nodes.get(node)?.remove_file(OsStr::from_bytes(name)).await.map_err(errno)
    }

    async fn rmdir(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.nodes.get(node)?.remove_dir(OsStr::from_bytes(name)).await.map_err(errno)
    }

    async fn rename(
        &self,
        (node, name): (u64, &[u8]),
        (new_node, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        const WHITEOUT_NOREPLACE: u32 = RENAME_WHITEOUT | RENAME_NOREPLACE;
        let how = match flags {
            0 => Rename::Replace,
            RENAME_NOREPLACE => Rename::NoReplace,
            RENAME_EXCHANGE => Rename::Exchange,
            RENAME_WHITEOUT => Rename::Whiteout,
            WHITEOUT_NOREPLACE => Rename::WhiteoutNoReplace,
            _ => return Err(Errno::INVAL),
        };
        let (directory, new_directory) = (self.nodes.get(node)?, self.nodes.get(new_node)?);
        let (name, new_name) = (OsStr::from_bytes(name), OsStr::from_bytes(new_name));
        directory.rename(name, &new_directory, new_name, how).await.map_err(errno)?;
        if node != new_node {
            self.note_moved(&new_directory, new_name).await;
            if how == Rename::Exchange {
                self.note_moved(&directory, name).await;
            }
        }
        Ok(())
    }

    /// Notes that a file has come into another directory. The `..` of a directory is another then.
    async fn note_moved(&self, parent: &InodeRef, name: &OsStr) {
        if let Ok((moved, metadata)) = parent.lookup(name).await
            && metadata.is_dir()
        {
            self.nodes.listing_changed(moved.number().0);
        }
    }

    async fn link(
        &self,
        old_node: u64,
        (node, name): (u64, &[u8]),
    ) -> Result<abi::EntryOut, Errno> {
        let (file, directory) = (self.nodes.get(old_node)?, self.nodes.get(node)?);
        file.link_into(&directory, OsStr::from_bytes(name)).await.map_err(errno)?;
        let metadata = file.metadata().await.map_err(|error| {
            self.nodes.listing_changed(node);
            errno(error)
        })?;
        self.nodes.remember(file);
        Ok(entry(&metadata))
    }

    fn statfs(&self) -> Result<StatfsOut, Errno> {
        let space = self.volume()?.statistics();
        Ok(StatfsOut {
            blocks: space.blocks,
            free_blocks: space.free_blocks + space.pending_blocks,
            available_blocks: space.free_blocks,
            // There is no table of inodes: each free block can be one.
            files: space.blocks,
            free_files: space.free_blocks,
            block_size: 4096,
            max_name: 255,
            fragment_size: 4096,
            ..StatfsOut::default()
        })
    }

    async fn sync(&self) -> Result<(), Errno> {
        self.volume()?.as_async().sync().await.map_err(errno)
    }

    async fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.nodes.get(node)?.get_xattr(name).await.map_err(errno)
    }

    /// The names, each with a zero behind it.
    async fn listxattr(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let names = self.nodes.get(node)?.list_xattrs().await.map_err(errno)?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    async fn removexattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        self.nodes.get(node)?.remove_xattr(name).await.map_err(errno)
    }

    async fn opendir(&self, node: u64) -> Result<OpenOut, Errno> {
        let (directory, positions, cache) = self.nodes.open_directory(node)?;
        let stream = directory.read_dir_with(&positions).await.map_err(|error| {
            self.nodes.listing_changed(node);
            errno(error)
        })?;
        let handle = self.handles.insert_directory(stream, cache != ListingCache::Off);
        let flags = match cache {
            ListingCache::Keep => abi::open::CACHE_DIR | abi::open::KEEP_CACHE,
            ListingCache::Renew => abi::open::CACHE_DIR,
            ListingCache::Off => 0,
        };
        Ok(OpenOut { handle, flags, backing_id: 0 })
    }

    /// Reads entries from the position that the kernel has reached. Its first two are `.` and `..`.
    async fn list(
        &self,
        DirectoryReader { stream, is_kept, failed }: &mut DirectoryReader,
        read: &ReadIn,
        plus: bool,
    ) -> Result<Listing, Errno> {
        if let Some(errno) = failed.take() {
            return Err(errno);
        }
        const DOTS: [&[u8]; 2] = [b".", b".."];
        let mut listing = Listing::new(read.size.min(MAX_TRANSFER));
        let mut offset = read.offset;
        while let Some(name) = DOTS.get(offset as usize) {
            if !listing.has_room(name, plus) {
                return Ok(listing);
            }
            let (_, metadata) =
                stream.directory().lookup(OsStr::from_bytes(name)).await.map_err(errno)?;
            offset += 1;
            // Node 0: the kernel knows both already, and counts no look-up.
            let entry = plus.then(abi::EntryOut::default);
            listing.push(entry, name, (metadata.ino(), offset), FileType::Directory);
        }
        let dots = DOTS.len() as u64;
        // The kernel may join this part with one that another has listed later.
        if *is_kept {
            stream.refresh();
        }
        stream.seek(offset - dots).map_err(errno)?;
        loop {
            match stream.peek().await {
                Ok(Some(next)) if listing.has_room(&next.name, plus) => {}
                Err(error) => {
                    self.nodes.listing_failed(stream.directory().number().0);
                    // Entries that are counted as looked up must reach the kernel: the next listing fails instead.
                    if listing.as_bytes().is_empty() {
                        return Err(errno(error));
                    }
                    *failed = Some(errno(error));
                    break;
                }
                Ok(_) => break,
            }
            let Some(next) = stream.next_entry().await.map_err(errno)? else { break };
            let position = stream.position() + dots;
            let entry = match plus {
                true => self.entry_of(stream.directory(), &next.name).await,
                false => None,
            };
            listing.push(entry, &next.name, (next.inode.0, position), next.kind);
        }
        Ok(listing)
    }

    /// The attributes of a name in a listing. A name that is gone by now has node 0, which tells the kernel nothing.
    async fn entry_of(&self, directory: &InodeRef, name: &[u8]) -> Option<abi::EntryOut> {
        let found: Option<(InodeRef, Metadata)> =
            directory.lookup(OsStr::from_bytes(name)).await.ok();
        Some(match found {
            Some((inode, metadata)) => {
                self.nodes.remember(inode);
                entry(&metadata)
            }
            None => abi::EntryOut::default(),
        })
    }
}

/// The inode that MKNOD creates.
fn mknod(node: &MknodIn) -> Result<Inode, Errno> {
    let kind = FileType::from_mode(node.mode as u16, decode_device(node.rdev));
    match kind.ok_or(Errno::INVAL)? {
        // Directories and links have requests of their own.
        FileType::Directory | FileType::Symlink => Err(Errno::INVAL),
        kind => Ok(Inode::new(kind, permissions(node.mode))),
    }
}

/// The permissions in a mode, with set-ID and sticky bits.
fn permissions(mode: u32) -> u16 {
    (mode & PERMISSION_BITS) as u16
}

/// An inode that belongs to the sender of a request.
fn owned(mut inode: Inode, header: &InHeader) -> Result<Inode, Errno> {
    (inode.user, inode.group) = (header.uid, header.gid);
    match [header.uid, header.gid].contains(&abi::NO_ID) {
        true => Err(Errno::OVERFLOW),
        false => Ok(inode),
    }
}

/// A new inode without the permissions that its creator's mask takes away. Where the directory has a default list, that
/// decides instead. The kernel has the directory locked, so the list does not change before the inode is created.
async fn masked(mut inode: Inode, umask: u32, directory: &InodeRef) -> Result<Inode, Errno> {
    let masked = inode.permissions & !permissions(umask);
    if masked != inode.permissions {
        match directory.get_xattr(DEFAULT_ACL).await.map_err(errno) {
            Ok(_) => {}
            Err(Errno::NODATA) => inode.permissions = masked,
            Err(errno) => return Err(errno),
        }
    }
    Ok(inode)
}
