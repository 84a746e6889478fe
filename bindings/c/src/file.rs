//! Files: opening and closing, and the calls that block.

use std::ffi::{c_char, c_void};

use uringfs::buffer::ForeignMemory;
use uringfs::device::{Access, Target};
use uringfs::file::FileOptions;
use uringfs::{BufResult, Buffer, Errno, File, FileOp, OpenOptions};
use zerocopy::FromZeros;

use crate::error::Failure;
use crate::handle::{Handle, HandleState, call, call_free, store, store_from, take};
use crate::pointers;
use crate::sized::{self, Growing};
use crate::switches;
use crate::volume::VolumeHandle;

/// A file that is open. Any thread may use it, also several at once. Close it once, when no other call with it runs.
#[derive(Debug)]
pub struct FileHandle {
    state: HandleState,
    file: File,
}

impl Handle for FileHandle {
    #[inline(always)]
    fn state(&self) -> &HandleState {
        &self.state
    }
}

impl FileHandle {
    #[inline(always)]
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// A flag of uringfs_open_options: allows reads.
pub const URINGFS_OPEN_READ: u32 = 1;
/// A flag of uringfs_open_options: allows writes and all other changes.
pub const URINGFS_OPEN_WRITE: u32 = 2;
/// A flag of uringfs_open_options: creates the file if it does not exist. Needs URINGFS_OPEN_WRITE.
pub const URINGFS_OPEN_CREATE: u32 = 4;
/// A flag of uringfs_open_options: creates the file, and fails with -EEXIST if it exists. Needs URINGFS_OPEN_WRITE.
pub const URINGFS_OPEN_CREATE_NEW: u32 = 8;
/// A flag of uringfs_open_options: truncates the file to zero. Needs URINGFS_OPEN_WRITE.
pub const URINGFS_OPEN_TRUNCATE: u32 = 16;
/// A flag of uringfs_open_options: bypasses the page cache. Any offset, length and memory work; those aligned to 4096
/// are moved without a copy.
pub const URINGFS_OPEN_DIRECT: u32 = 32;

/// How a file is opened.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct COpenOptions {
    /// sizeof this struct. All fields that are not set are 0.
    pub size: u32,
    /// URINGFS_OPEN_ flags; at least one of URINGFS_OPEN_READ and URINGFS_OPEN_WRITE.
    pub flags: u32,
    /// The permissions of a new file, to which no umask applies. 0: 0644.
    pub mode: u32,
    /// Reserved. 0.
    pub reserved: u32,
    /// Switches of files, name=value, with commas between them: direct.simple_read=off. NULL: their defaults, which are
    /// the fastest. They are for measurements.
    pub switches: *const c_char,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for COpenOptions {
    const FIRST_SIZE: usize = 12;
}

/// A flag of writes and appends: durable when it completes, as after uringfs_file_flush.
pub const URINGFS_WRITE_DURABLE: u32 = 1;
/// A flag of writes: whole blocks of 4096 bytes, at most 1 MiB, of which a crash leaves all or nothing. Durable, too.
pub const URINGFS_WRITE_ATOMIC: u32 = 2;

/// A flag of flushes: only the data and the size (fdatasync), not times and other attributes.
pub const URINGFS_FLUSH_DATA: u32 = 1;

/// Opens a file of a volume. `options` may be NULL: for reading.
///
/// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -EINVAL, -EROFS, -ENOSPC.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_open(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    options: *const COpenOptions,
    file: Option<&mut *mut FileHandle>,
) -> i32 {
    store_from(volume, file, |volume| {
        let path = pointers::path(path)?;
        let options = match options.is_null() {
            true => COpenOptions { flags: URINGFS_OPEN_READ, ..COpenOptions::new_zeroed() },
            false => sized::read(options)?,
        };
        let known = 2 * URINGFS_OPEN_DIRECT - 1;
        sized::check_flags(options.flags, known, c"a flag of uringfs_open_options is unknown")?;
        sized::check_flags(options.reserved, 0, c"uringfs_open_options.reserved is not 0")?;
        let is_set = |flag| options.flags & flag != 0;
        let mut open = OpenOptions::new()
            .read(is_set(URINGFS_OPEN_READ))
            .write(is_set(URINGFS_OPEN_WRITE))
            .create(is_set(URINGFS_OPEN_CREATE))
            .create_new(is_set(URINGFS_OPEN_CREATE_NEW))
            .truncate(is_set(URINGFS_OPEN_TRUNCATE))
            .direct(is_set(URINGFS_OPEN_DIRECT));
        if options.mode != 0 {
            open = open.mode(options.mode);
        }
        let mut switches = FileOptions::new();
        switches::apply(options.switches, FileOptions::SWITCHES, |name, value| {
            switches.set(name, value)
        })?;
        let file = open.switches(switches).open(volume.volume(), path)?;
        Ok(FileHandle { state: HandleState::default(), file })
    })
}

/// Opens an image, a block device, an NBD export, memory:SIZE or null:SIZE (which stores nothing, for measurements) as
/// one file, without a volume. It is direct, and its size is fixed. `flags` are URINGFS_OPEN_READ and
/// URINGFS_OPEN_WRITE.
///
/// Returns 0, or a negative errno, as uringfs_volume_open.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_open_target(
    target: *const c_char,
    flags: u32,
    file: Option<&mut *mut FileHandle>,
) -> i32 {
    store(file, || {
        let path = pointers::path(target)?;
        let access = match flags {
            URINGFS_OPEN_READ => Access::Read,
            flags if flags == URINGFS_OPEN_READ | URINGFS_OPEN_WRITE => Access::ReadWrite,
            _ => {
                let text = c"the flags of a target are URINGFS_OPEN_READ, with or without URINGFS_OPEN_WRITE";
                return Err(Failure::argument(text));
            }
        };
        let file = match path.to_str().map(str::parse).transpose()? {
            Some(Target::Path(_)) | None => File::open(path, access)?,
            Some(target) => File::from_device(Target::open(&target, access)?, FileOptions::new()),
        };
        Ok(FileHandle { state: HandleState::default(), file })
    })
}

/// Closes a file. Operations in flight go on, and keep it open until they end. Buffered writes are written back, and
/// are durable after uringfs_file_flush before this, or uringfs_volume_sync after it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_close(file: *mut FileHandle) -> i32 {
    call_free(|| {
        drop(take(file)?);
        Ok(0)
    })
}

/// The size of a file in bytes, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_size(file: Option<&FileHandle>) -> i64 {
    call(file, |handle| Ok(handle.file.len().cast_signed()))
}

/// Reads at `offset`, and blocks until it is done. Returns the number of bytes, fewer than `length` at the end of the
/// file only, or a negative errno: -EBADF without URINGFS_OPEN_READ, -EINVAL for over 1 GiB, -EIO.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_read(
    file: Option<&FileHandle>,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
) -> i64 {
    call(file, |handle| {
        let buffer = foreign(buffer.cast(), length)?;
        count(handle.file.read_at(buffer, offset).wait().0, "cannot read")
    })
}

/// Writes at `offset`, and blocks until it is done. `flags` are URINGFS_WRITE_ flags.
///
/// Returns the number of bytes, 0 for a `length` of 0 only, or a negative errno: -EBADF without URINGFS_OPEN_WRITE,
/// -EINVAL for over 1 GiB, -ENOSPC, -EFBIG, -EIO.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_write(
    file: Option<&FileHandle>,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    flags: u32,
) -> i64 {
    call(file, |handle| {
        let kind = WriteKind::from_flags(flags)?;
        let buffer = constant(buffer.cast(), length)?;
        count(kind.write(&handle.file, buffer, offset).wait().0, "cannot write")
    })
}

/// Appends to a file of a volume, and blocks until it is done. `flags` are 0 or URINGFS_WRITE_DURABLE. Appends never
/// overlap, whichever threads do them.
///
/// Returns the offset at which the bytes are, or a negative errno: as uringfs_file_write; -EOPNOTSUPP for a target.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_append(
    file: Option<&FileHandle>,
    buffer: *const c_void,
    length: usize,
    flags: u32,
) -> i64 {
    call(file, |handle| {
        let buffer = constant(buffer.cast(), length)?;
        match append(&handle.file, buffer, flags)?.wait().0 {
            Ok(offset) => Ok(offset.cast_signed()),
            Err(errno) => Err(Failure::of_file("cannot append", errno)),
        }
    })
}

/// Makes all completed writes of the file durable, and blocks until they are. `flags` are 0 or URINGFS_FLUSH_DATA.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_flush(file: Option<&FileHandle>, flags: u32) -> i32 {
    call(file, |handle| done(flush(&handle.file, flags)?.wait(), "cannot make the file durable"))
}

thread_local! {
    static MEMORY: ForeignMemory = ForeignMemory::default();
}

/// The caller's memory as a buffer of a call that blocks.
fn foreign(pointer: *mut u8, length: usize) -> Result<Buffer, Failure> {
    let address = pointers::address(pointer, length)?;
    let memory = MEMORY.try_with(ForeignMemory::clone).unwrap_or_default();
    // SAFETY: the caller leaves the memory to the call until it returns, as the header says.
    unsafe { memory.buffer(address, length) }.ok_or_else(too_long)
}

/// The same for memory that is only read.
fn constant(pointer: *const u8, length: usize) -> Result<Buffer, Failure> {
    let address = pointers::address(pointer, length)?;
    let memory = MEMORY.try_with(ForeignMemory::clone).unwrap_or_default();
    // SAFETY: as above.
    unsafe { memory.read_only(address, length) }.ok_or_else(too_long)
}

#[cold]
pub(crate) fn too_long() -> Failure {
    Failure::argument(c"an operation moves at most 1 GiB: do it in parts")
}

/// The write that flags ask for.
#[derive(Clone, Copy)]
pub(crate) enum WriteKind {
    Volatile,
    Durable,
    Atomic,
}

impl WriteKind {
    #[inline(always)]
    pub(crate) fn from_flags(flags: u32) -> Result<WriteKind, Failure> {
        let known = URINGFS_WRITE_DURABLE | URINGFS_WRITE_ATOMIC;
        sized::check_flags(flags, known, c"a flag of the write is unknown")?;
        Ok(if flags & URINGFS_WRITE_ATOMIC != 0 {
            WriteKind::Atomic
        } else if flags & URINGFS_WRITE_DURABLE != 0 {
            WriteKind::Durable
        } else {
            WriteKind::Volatile
        })
    }

    pub(crate) fn write(
        self,
        file: &File,
        buffer: Buffer,
        offset: u64,
    ) -> FileOp<BufResult<usize>> {
        match self {
            WriteKind::Volatile => file.write_at(buffer, offset),
            WriteKind::Durable => file.write_durably(buffer, offset),
            WriteKind::Atomic => file.write_atomic(buffer, offset),
        }
    }
}

/// The append that the flags ask for.
pub(crate) fn append(
    file: &File,
    buffer: Buffer,
    flags: u32,
) -> Result<FileOp<BufResult<u64>>, Failure> {
    sized::check_flags(
        flags,
        URINGFS_WRITE_DURABLE,
        c"the flags of an append are 0 or URINGFS_WRITE_DURABLE",
    )?;
    Ok(match flags {
        0 => file.append(buffer),
        _ => file.append_durably(buffer),
    })
}

/// The flush that the flags ask for.
pub(crate) fn flush(file: &File, flags: u32) -> Result<FileOp<Result<(), Errno>>, Failure> {
    sized::check_flags(
        flags,
        URINGFS_FLUSH_DATA,
        c"the flags of a flush are 0 or URINGFS_FLUSH_DATA",
    )?;
    Ok(match flags {
        0 => file.sync_all(),
        _ => file.sync_data(),
    })
}

fn count(result: Result<usize, Errno>, doing: &str) -> Result<i64, Failure> {
    match result {
        Ok(bytes) => Ok(bytes as i64),
        Err(errno) => Err(Failure::of_file(doing, errno)),
    }
}

pub(crate) fn done(result: Result<(), Errno>, doing: &str) -> Result<i32, Failure> {
    result.map(|()| 0).map_err(|errno| Failure::of_file(doing, errno))
}
