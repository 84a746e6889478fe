//! The kernel's FUSE messages: `include/uapi/linux/fuse.h`, ABI 7.45. All numbers are in the byte order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that this server speaks. A kernel that speaks less is answered with less.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 45;
/// The oldest version that is served: Linux 5.12. Its structures have the sizes that are declared here.
pub(crate) const MIN_MINOR: u32 = 33;

/// The node ID of the root directory.
pub(crate) const ROOT_ID: u64 = 1;

/// Operations.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Capabilities of INIT, of both words.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// Requests that create a file have its labels. There is CREATE_SUPP_GROUP beside it, for servers that act as the
    /// sender; here the kernel checks permissions, also whether a new file may have the set-group-ID bit.
    pub(crate) const SECURITY_CTX: u64 = 1 << 32;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Only for a file system on which the kernel checks permissions. Requests that create no file have [`super::NO_ID`] then.
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Operations of commands on `/dev/fuse`.
pub(crate) mod command {
    /// Gives the kernel an entry, and waits for its first request.
    pub(crate) const REGISTER: u32 = 1;
    /// Replies, and waits for the entry's next request.
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Messages of a server to the kernel without a request: the code is in place of the error of a reply to request 0.
pub(crate) mod notification {
    pub(crate) const INVALIDATE_INODE: i32 = 2;
    pub(crate) const INVALIDATE_ENTRY: i32 = 3;
}

/// Flags of an open reply.
pub(crate) mod open {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel may keep the listing of a directory.
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// The fields that SETATTR sets.
pub(crate) mod setattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// The user and group of a request that has none.
pub(crate) const NO_ID: u32 = u32::MAX;
/// The largest type of an extension that holds labels: the type is their number. Others have larger types.
pub(crate) const MAX_LABELS: u32 = 31;
/// `write_flags`: the file's set-ID bits end.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `setxattr_flags`: the file's set-group-ID bit ends, with a new access list.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fsync_flags`: `fdatasync`.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty),* $(,)? } = $bytes:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $($(#[$note])* pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )* };
}

messages! {
    /// The front of each request.
    InHeader {
        length: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        /// In units of 8 bytes.
        extension_length: u16,
        padding: u16,
    } = 40;
    /// The front of each reply.
    OutHeader { length: u32, error: i32, unique: u64 } = 16;
    /// The front of an extension, with the bytes of all of it.
    ExtensionHeader { size: u32, kind: u32 } = 8;
    /// A label, before its attribute's name, a zero, and the attribute's value.
    LabelHeader { size: u32, padding: u32 } = 8;
    /// The part of an entry beside its payload.
    RingHeader {
        /// The request's [`InHeader`], the reply's [`OutHeader`].
        in_out: [u64; 16],
        /// The fixed part of the request's body.
        operation: [u64; 16],
        flags: u64,
        commit_id: u64,
        payload_size: u32,
        padding: u32,
        reserved: u64,
    } = 288;
    /// The argument of a command.
    CommandIn { flags: u64, commit_id: u64, queue: u16, padding: [u16; 3], unused: [u64; 7] } = 80;
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    } = 64;
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_granularity: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    } = 64;
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_nsec: u32,
        mtime_nsec: u32, ctime_nsec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        block_size: u32, flags: u32,
    } = 88;
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    } = 128;
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, padding: u32, attr: Attr } = 104;
    OpenOut { handle: u64, flags: u32, backing_id: i32 } = 16;
    WriteOut { size: u32, padding: u32 } = 8;
    XattrOut { size: u32, padding: u32 } = 8;
    LseekOut { offset: u64 } = 8;
    StatfsOut {
        blocks: u64, free_blocks: u64, available_blocks: u64, files: u64, free_files: u64,
        block_size: u32, max_name: u32, fragment_size: u32, padding: u32, spare: [u32; 6],
    } = 80;
    /// [`notification::INVALIDATE_INODE`]. Pages from the offset on are dropped, up to a length that is not 0; with a
    /// negative offset none.
    InvalidateInodeOut { node: u64, offset: i64, length: i64 } = 24;
    /// [`notification::INVALIDATE_ENTRY`], before the name and a zero byte.
    InvalidateEntryOut { directory: u64, name_length: u32, flags: u32 } = 16;
    /// An entry of a listing, before its name. Entries begin at multiples of 8 bytes.
    Dirent { ino: u64, offset: u64, name_length: u32, kind: u32 } = 24;
    SetattrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    } = 88;
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 } = 16;
    MkdirIn { mode: u32, umask: u32 } = 8;
    RenameIn { new_directory: u64 } = 8;
    Rename2In { new_directory: u64, flags: u32, padding: u32 } = 16;
    LinkIn { old_node: u64 } = 8;
    OpenIn { flags: u32, open_flags: u32 } = 8;
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 } = 16;
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 } = 24;
    ReadIn {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    } = 40;
    WriteIn {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    } = 40;
    FsyncIn { handle: u64, flags: u32, padding: u32 } = 16;
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 } = 16;
    GetxattrIn { size: u32, padding: u32 } = 8;
    ForgetIn { lookups: u64 } = 8;
    BatchForgetIn { count: u32, padding: u32 } = 8;
    ForgetOne { node: u64, lookups: u64 } = 16;
    FallocateIn { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 } = 32;
    CopyFileRangeIn {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, length: u64,
        flags: u64,
    } = 56;
    CopyFileRangeOut { copied: u64 } = 8;
    LseekIn { handle: u64, offset: u64, whence: u32, padding: u32 } = 24;
}
