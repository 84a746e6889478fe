// The C interface of uringfs: named files on a block device or in one ordinary file, over io_uring.
//
// Made by cbindgen from bindings/c/src: change it there.
//
// Results. Functions return 0 or a number on success, and a negative errno on failure: uringfs_error_text() has a text.
// -ENOTRECOVERABLE says that the library itself has failed: the program goes on, and the handle can only be closed.
// -EINVAL says that an argument breaks the rules here: a handle that is NULL, an unknown flag, a wrong size.
//
// Handles. A function that opens something stores a handle, or NULL when it fails. After it is closed a handle is gone,
// as freed memory.
//
// Threads. Volumes, files and pools may be used by all threads at once, a directory by one at a time, a reactor by the
// thread that has created it. A handle is closed when no other call with it runs.
//
// Forks. Handles belong to the process that opened them. In the child of a fork, calls with them return -ECHILD, and a
// function that closes one returns 0 at once and frees nothing. Open volumes and create reactors after the fork.
//
// Names. Calls on names are those of the system, with these differences. Paths begin at the root of the volume. No call
// checks permissions, and no umask applies. uringfs_stat is lstat(2), and uringfs_stat_follow is stat(2).
// uringfs_readlink stores a string with a zero byte at its end, as a whole or not at all.
//
// Structs with a field size. The caller sets it to sizeof the struct, and all other fields that it does not use to 0:
// struct uringfs_open_options options = {.size = sizeof options}. Structs grow at their end. An older program passes
// less, and gets defaults. A newer program passes more, and gets -E2BIG if it has set what the library does not know.
//
// Memory. An operation that is queued uses the caller's memory, at any address, until its completion is reaped, also
// after a cancellation: until then do not free it, write to it, or read from it what a read fills. Closing the reactor
// waits for that. Direct files move memory that is aligned to 4096 without a copy. Buffers of a pool are aligned so,
// and the kernel knows them already.


#ifndef URINGFS_H
#define URINGFS_H

#include <stddef.h>
#include <stdint.h>

// A flag of uringfs_format_options: the target may exist. Everything on it is lost.
#define URINGFS_FORMAT_OVERWRITE 1

// A flag of uringfs_volume_options: opens for reading only. Readers share a volume; a writer has it alone.
#define URINGFS_VOLUME_READ_ONLY 1

// A flag of uringfs_volume_options: discards freed blocks on the device.
#define URINGFS_VOLUME_DISCARD 2

// A flag of uringfs_open_options: allows reads.
#define URINGFS_OPEN_READ 1

// A flag of uringfs_open_options: allows writes and all other changes.
#define URINGFS_OPEN_WRITE 2

// A flag of uringfs_open_options: creates the file if it does not exist. Needs URINGFS_OPEN_WRITE.
#define URINGFS_OPEN_CREATE 4

// A flag of uringfs_open_options: creates the file, and fails with -EEXIST if it exists. Needs URINGFS_OPEN_WRITE.
#define URINGFS_OPEN_CREATE_NEW 8

// A flag of uringfs_open_options: truncates the file to zero. Needs URINGFS_OPEN_WRITE.
#define URINGFS_OPEN_TRUNCATE 16

// A flag of uringfs_open_options: bypasses the page cache. Any offset, length and memory work; those aligned to 4096
// are moved without a copy.
#define URINGFS_OPEN_DIRECT 32

// A flag of writes and appends: durable when it completes, as after uringfs_file_flush.
#define URINGFS_WRITE_DURABLE 1

// A flag of writes: whole blocks of 4096 bytes, at most 1 MiB, of which a crash leaves all or nothing. Durable, too.
#define URINGFS_WRITE_ATOMIC 2

// A flag of flushes: only the data and the size (fdatasync), not times and other attributes.
#define URINGFS_FLUSH_DATA 1

// The type of a file: a regular file.
#define URINGFS_TYPE_FILE 1

// The type of a file: a directory.
#define URINGFS_TYPE_DIRECTORY 2

// The type of a file: a symbolic link.
#define URINGFS_TYPE_SYMLINK 3

// The type of a file: a block device.
#define URINGFS_TYPE_BLOCK_DEVICE 4

// The type of a file: a character device.
#define URINGFS_TYPE_CHARACTER_DEVICE 5

// The type of a file: a named pipe.
#define URINGFS_TYPE_FIFO 6

// The type of a file: a socket.
#define URINGFS_TYPE_SOCKET 7

// A flag of uringfs_rename2: fails with -EEXIST if the new name exists.
#define URINGFS_RENAME_NO_REPLACE 1

// A flag of uringfs_rename2: exchanges the two names, which both exist.
#define URINGFS_RENAME_EXCHANGE 2

// The queue that carries requests to devices: the fastest on each device, found by measuring.
#define URINGFS_QUEUE_AUTO 0

// The queue that carries requests to devices: io_uring.
#define URINGFS_QUEUE_RING 1

// The queue that carries requests to devices: Linux AIO.
#define URINGFS_QUEUE_AIO 2

// The queue that carries requests to devices: calls that block this thread.
#define URINGFS_QUEUE_SYNC 3

// The queue that carries requests to devices: calls that block threads of the queue.
#define URINGFS_QUEUE_THREADS 4

// The effect of an operation that has succeeded: it was carried out.
#define URINGFS_EFFECT_DONE 0

// The effect of an operation that has failed: nothing of it has reached the device.
#define URINGFS_EFFECT_NOT_STARTED 1

// The effect of an operation that has failed: some of it may have reached the device.
#define URINGFS_EFFECT_UNKNOWN 2

// A directory that is being listed. One thread at a time may use it.
struct uringfs_directory;

// A file that is open. Any thread may use it, also several at once. Close it once, when no other call with it runs.
struct uringfs_file;

// A pool of buffers of one length, aligned to 4096. Each reactor registers them with the kernel when it first uses
// one. Any thread may use a pool, also several at once.
struct uringfs_pool;

// A reactor: the event loop of the thread that has created it. Only this thread may use it, and closes it before it
// ends: other threads get -EPERM.
struct uringfs_reactor;

// A volume that is open. Any thread may use it, also several at once. Close it once, when no other call with it runs.
struct uringfs_volume;

// How a volume is created.
struct uringfs_format_options {
  // sizeof this struct. All fields that are not set are 0.
  uint32_t size;
  // URINGFS_FORMAT_ flags.
  uint32_t flags;
  // The size of the volume in bytes, rounded down to blocks of 4096: needed for a new file. 0: the whole target.
  uint64_t bytes;
  // A name for people, at most 64 bytes of UTF-8. NULL: none.
  const char *label;
  // The user that owns the root directory. 0, with 0 as the group: the user and the group of the process.
  uint32_t root_user;
  // The group that owns the root directory.
  uint32_t root_group;
};

// How a volume is opened.
struct uringfs_volume_options {
  // sizeof this struct. All fields that are not set are 0.
  uint32_t size;
  // URINGFS_VOLUME_ flags.
  uint32_t flags;
  // The size in bytes of a page cache of its own. 0: the page cache of the process, which all such volumes share.
  uint64_t page_cache_bytes;
  // Memory in bytes for names and inodes. 0: 64 MiB.
  uint64_t catalog_cache_bytes;
};

// Space and commits of a volume.
struct uringfs_statistics {
  // sizeof this struct, which the caller sets.
  uint32_t size;
  // Bytes of a block: 4096.
  uint32_t block_bytes;
  // Blocks of the volume.
  uint64_t blocks;
  // Free blocks.
  uint64_t free_blocks;
  // Blocks that become free after a commit, when no read of them is in flight.
  uint64_t pending_blocks;
  // Blocks of the catalog, which holds names and inodes.
  uint64_t catalog_blocks;
  // Commits since the volume was opened.
  uint64_t commits;
};

// How a file is opened.
struct uringfs_open_options {
  // sizeof this struct. All fields that are not set are 0.
  uint32_t size;
  // URINGFS_OPEN_ flags; at least one of URINGFS_OPEN_READ and URINGFS_OPEN_WRITE.
  uint32_t flags;
  // The permissions of a new file, to which no umask applies. 0: 0644.
  uint32_t mode;
  // Reserved. 0.
  uint32_t reserved;
  // Switches of files, name=value, with commas between them: direct.simple_read=off. NULL: their defaults, which are
  // the fastest. They are for measurements.
  const char *switches;
};

// The attributes of a file.
struct uringfs_attributes {
  // sizeof this struct, which the caller sets.
  uint32_t size;
  // URINGFS_TYPE_FILE or another type.
  uint32_t file_type;
  // The number of the inode.
  uint64_t inode;
  // The size of the file in bytes.
  uint64_t bytes;
  // Allocated space in bytes.
  uint64_t allocated_bytes;
  // Names that the file has.
  uint64_t links;
  // Permissions, without the type.
  uint32_t mode;
  // The user that owns it.
  uint32_t user;
  // The group that owns it.
  uint32_t group;
  // Nanoseconds of the time of the last read.
  uint32_t accessed_ns;
  // Nanoseconds of the time of the last change of the content.
  uint32_t modified_ns;
  // Nanoseconds of the time of the last change of the attributes.
  uint32_t changed_ns;
  // The time of the last read, in seconds since 1970.
  int64_t accessed_s;
  // The time of the last change of the content, in seconds since 1970.
  int64_t modified_s;
  // The time of the last change of the attributes, in seconds since 1970.
  int64_t changed_s;
};

// An entry of a directory.
struct uringfs_entry {
  // sizeof this struct, which the caller sets.
  uint32_t size;
  // URINGFS_TYPE_FILE or another type.
  uint32_t file_type;
  // The number of the inode.
  uint64_t inode;
  // The name, any bytes but '/' and 0. Valid until the next call with the directory.
  const char *name;
};

// How a reactor is made.
struct uringfs_reactor_options {
  // sizeof this struct. All fields that are not set are 0.
  uint32_t size;
  // The maximum of operations in flight, 1 to 16384. 0: 1024.
  uint32_t depth;
  // URINGFS_QUEUE_AUTO or another queue.
  uint32_t queue;
  // Reserved. 0.
  uint32_t reserved;
  // Switches of reactors, name=value, with commas between them: ring.fixed_buffers=off. They come after the fields
  // above. NULL: their defaults. They are for measurements.
  const char *switches;
};

// The completion of an operation.
struct uringfs_completion {
  // The number that the operation was queued with.
  uint64_t user_data;
  // A negative errno after a failure; otherwise the offset of an append, 0 of a flush, the number of bytes of all
  // others.
  int64_t result;
  // A URINGFS_EFFECT_ constant: whether an operation that failed or was cancelled may have reached the device.
  uint32_t effect;
  // Reserved. 0.
  uint32_t reserved;
};

// One of the reads or writes that uringfs_queue_reads or uringfs_queue_writes queues.
struct uringfs_transfer {
  // Memory of the caller, or, if the call has a pool, one of its buffers.
  void *buffer;
  // Bytes, at most 1 GiB.
  size_t length;
  // The offset in the file.
  uint64_t offset;
  // The number that its completion has, below 2^63.
  uint64_t user_data;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library that the program runs with, such as "0.1.0".
const char *uringfs_version(void);

// The text of the last call of this library that failed in this thread: one line that says what happened, to what, and
// what to do. It is also set by a uringfs_queue_reads or uringfs_queue_writes that queues fewer than it is asked to.
// Other calls that succeed do not change it, and operations that complete with an error do not set it. Valid until the
// next failure in this thread, and until the thread ends. Never NULL.
const char *uringfs_error_text(void);

// Creates a volume and opens it. `target` is the path of a file or a block device, or memory:SIZE (64m, 1g), whose
// content is lost when it is closed. A new file needs options->bytes, and is filled with zeros, which takes as long as
// writing them. `options` may be NULL.
//
// Returns 0, or a negative errno: -EEXIST if the path exists and URINGFS_FORMAT_OVERWRITE is not set, -EINVAL,
// -ENOSPC, -EBUSY if the target is in use, and errors of the file system.
int32_t uringfs_volume_create(const char *target,
                              const struct uringfs_format_options *options,
                              struct uringfs_volume **volume);

// Opens the volume on a target: a file, a block device, or the export of an NBD server (nbd://HOST/NAME,
// nbd+unix:///NAME?socket=PATH). One process has a volume open for writing. `options` may be NULL.
//
// Returns 0, or a negative errno: -ENOENT, -EACCES, -EBUSY if the volume is in use, -EINVAL if there is no volume,
// -EOPNOTSUPP for one of another version, -EIO for a damaged one.
int32_t uringfs_volume_open(const char *target,
                            const struct uringfs_volume_options *options,
                            struct uringfs_volume **volume);

// Makes all changes and writes of all files durable.
//
// Returns 0, or a negative errno: -ENOSPC when the catalog is full, -EIO when the device failed, now or before.
int32_t uringfs_volume_sync(const struct uringfs_volume *volume);

// Stores space and commits of a volume in `statistics`. Set statistics->size before the call.
//
// Returns 0, or a negative errno: -EINVAL for a wrong size.
int32_t uringfs_volume_statistics(const struct uringfs_volume *volume, struct uringfs_statistics *statistics);

// Closes the volume: makes all changes durable, and reports what failed. The handle is gone, whatever the result.
// After success the target is free for other programs. NULL is allowed.
//
// Close files and directories, and reap all operations, before. Else the result is -EBUSY: the changes are durable,
// and the volume stays open until the last file of it is closed.
int32_t uringfs_volume_close(struct uringfs_volume *volume);

// Opens a file of a volume. `options` may be NULL: for reading.
//
// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EISDIR, -ENOTDIR, -EINVAL, -EROFS, -ENOSPC.
int32_t uringfs_file_open(const struct uringfs_volume *volume,
                          const char *path,
                          const struct uringfs_open_options *options,
                          struct uringfs_file **file);

// Opens an image, a block device, an NBD export, memory:SIZE or null:SIZE (which stores nothing, for measurements) as
// one file, without a volume. It is direct, and its size is fixed. `flags` are URINGFS_OPEN_READ and
// URINGFS_OPEN_WRITE.
//
// Returns 0, or a negative errno, as uringfs_volume_open.
int32_t uringfs_file_open_target(const char *target, uint32_t flags, struct uringfs_file **file);

// Closes a file. Operations in flight go on, and keep it open until they end. Buffered writes are written back, and
// are durable after uringfs_file_flush before this, or uringfs_volume_sync after it. NULL is allowed.
int32_t uringfs_file_close(struct uringfs_file *file);

// The size of a file in bytes, or a negative errno.
int64_t uringfs_file_size(const struct uringfs_file *file);

// Reads at `offset`, and blocks until it is done. Returns the number of bytes, fewer than `length` at the end of the
// file only, or a negative errno: -EBADF without URINGFS_OPEN_READ, -EINVAL for over 1 GiB, -EIO.
int64_t uringfs_file_read(const struct uringfs_file *file, void *buffer, size_t length, uint64_t offset);

// Writes at `offset`, and blocks until it is done. `flags` are URINGFS_WRITE_ flags.
//
// Returns the number of bytes, 0 for a `length` of 0 only, or a negative errno: -EBADF without URINGFS_OPEN_WRITE,
// -EINVAL for over 1 GiB, -ENOSPC, -EFBIG, -EIO.
int64_t uringfs_file_write(const struct uringfs_file *file,
                           const void *buffer,
                           size_t length,
                           uint64_t offset,
                           uint32_t flags);

// Appends to a file of a volume, and blocks until it is done. `flags` are 0 or URINGFS_WRITE_DURABLE. Appends never
// overlap, whichever threads do them.
//
// Returns the offset at which the bytes are, or a negative errno: as uringfs_file_write; -EOPNOTSUPP for a target.
int64_t uringfs_file_append(const struct uringfs_file *file, const void *buffer, size_t length, uint32_t flags);

// Makes all completed writes of the file durable, and blocks until they are. `flags` are 0 or URINGFS_FLUSH_DATA.
int32_t uringfs_file_flush(const struct uringfs_file *file, uint32_t flags);

// Discards the content of a range, and blocks until that is done: whole blocks of a volume's file become free, and
// read as zeros. Of a target the content is undefined afterwards, and the error is -EOPNOTSUPP if it has no discard.
int32_t uringfs_file_discard(const struct uringfs_file *file, uint64_t offset, uint64_t length);

// Truncates a volume's file, or extends it by a hole. Durable after uringfs_file_flush.
int32_t uringfs_file_truncate(const struct uringfs_file *file, uint64_t size);

// Allocates space for a range of a volume's file (fallocate), which grows if the range ends beyond its end, and blocks
// until that is done. Bytes that are there stay, new ones are zeros, and writes to the range need no more space.
// Durable after uringfs_file_flush.
//
// Returns 0, or a negative errno: -ENOSPC with nothing allocated, -EINVAL for an empty range, -EFBIG, -EBADF without
// URINGFS_OPEN_WRITE, -EOPNOTSUPP for a target.
int32_t uringfs_file_allocate(const struct uringfs_file *file, uint64_t offset, uint64_t length);

// Finds data at or after `offset` (lseek with SEEK_DATA). Blocks of 4096 bytes that were never written, or were
// discarded, are no data, also if they are allocated. A target is data as a whole.
//
// Returns the offset of the data, or a negative errno: -ENXIO when no data follows.
int64_t uringfs_file_seek_data(const struct uringfs_file *file, uint64_t offset);

// Finds a hole at or after `offset` (lseek with SEEK_HOLE): bytes that uringfs_file_seek_data skips. The end of the
// file is a hole.
//
// Returns the offset of the hole, or a negative errno: -ENXIO for an offset at the end of the file or beyond.
int64_t uringfs_file_seek_hole(const struct uringfs_file *file, uint64_t offset);

// Drops a range from the page cache (posix_fadvise with POSIX_FADV_DONTNEED), so that the next reads of it come from the
// volume: whole pages of 4096 bytes that are clean. Those with writes that are not written back stay: call
// uringfs_file_flush before. No effect on a file with URINGFS_OPEN_DIRECT, and on a target.
//
// `offset` 0 with `length` UINT64_MAX is the whole file. Returns 0, or a negative errno.
int32_t uringfs_file_drop_cache(const struct uringfs_file *file,
                                uint64_t offset,
                                uint64_t length);

// Creates a directory with these permissions, set-ID bits and sticky bit. Unlike for mkdir(2) no umask applies. Its
// parent must exist.
//
// Returns 0, or a negative errno: -EEXIST, -ENOENT, -ENOTDIR, -ENOSPC, -EROFS.
int32_t uringfs_mkdir(const struct uringfs_volume *volume, const char *path, uint32_t mode);

// Removes an empty directory. Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -ENOTEMPTY.
int32_t uringfs_rmdir(const struct uringfs_volume *volume, const char *path);

// Removes the name of a file. Its space is free when it has no other name and is closed. Returns 0, or a negative
// errno: -ENOENT, -EISDIR.
int32_t uringfs_unlink(const struct uringfs_volume *volume, const char *path);

// Renames a file or a directory, and replaces what has the new name, as rename(2). A crash leaves one of both states.
//
// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EISDIR, -ENOTEMPTY, -EINVAL for a directory that would be in
// itself, -ENOSPC, -EROFS.
int32_t uringfs_rename(const struct uringfs_volume *volume, const char *from, const char *to);

// Renames a file or a directory as `flags` say (renameat2): URINGFS_RENAME_NO_REPLACE, URINGFS_RENAME_EXCHANGE, or 0
// as uringfs_rename.
//
// Returns 0, or a negative errno: as uringfs_rename, -EEXIST with URINGFS_RENAME_NO_REPLACE.
int32_t uringfs_rename2(const struct uringfs_volume *volume, const char *from, const char *to, uint32_t flags);

// Sets the permissions of a file or a directory (chmod), with the set-ID bits and the sticky bit. A symbolic link at
// the end of the path is followed.
//
// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EROFS.
int32_t uringfs_chmod(const struct uringfs_volume *volume, const char *path, uint32_t mode);

// Stores the attributes of the file at `path` in `stat`. Set stat->size before the call. Unlike for stat(2) a symbolic
// link at the end of the path is not followed: this is lstat(2). uringfs_stat_follow follows it.
//
// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EINVAL.
int32_t uringfs_stat(const struct uringfs_volume *volume, const char *path, struct uringfs_attributes *stat);

// Stores the attributes of a file in `stat`, as uringfs_stat, and follows a symbolic link at the end of the path.
//
// Returns 0, or a negative errno: -ENOENT, also if the target of a link is missing, -ELOOP, -ENOTDIR, -EINVAL.
int32_t uringfs_stat_follow(const struct uringfs_volume *volume, const char *path, struct uringfs_attributes *stat);

// Stores the attributes of an open file in `stat`, as uringfs_stat.
//
// Returns 0, or a negative errno: -EXDEV if the file is not of this volume, -EINVAL.
int32_t uringfs_stat_file(const struct uringfs_volume *volume,
                          const struct uringfs_file *file,
                          struct uringfs_attributes *stat);

// Opens a directory for its listing. It is no snapshot: names that are created or removed meanwhile may or may
// not be listed.
int32_t uringfs_directory_open(const struct uringfs_volume *volume,
                               const char *path,
                               struct uringfs_directory **directory);

// Stores the next entry in `entry`, in the order of the names' bytes. Set entry->size before the call. There is no "."
// and no "..".
//
// Returns 1, or 0 at the end, or a negative errno; after -EIO for a damaged entry the listing goes on behind it.
int32_t uringfs_directory_next(const struct uringfs_directory *directory, struct uringfs_entry *entry);

// Ends a listing. NULL is allowed.
int32_t uringfs_directory_close(struct uringfs_directory *directory);

// Gives the file at `path` one more name, `link`. A symbolic link at the end of `path` is not followed.
//
// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EPERM for a directory, -EMLINK, -ENOSPC, -EROFS.
int32_t uringfs_link(const struct uringfs_volume *volume, const char *path, const char *link);

// Creates a symbolic link at the path `link`. `target` has 1 to 4095 bytes, and need not exist.
//
// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EINVAL for an empty target, -ENAMETOOLONG, -ENOSPC, -EROFS.
int32_t uringfs_symlink(const struct uringfs_volume *volume, const char *target, const char *link);

// Stores the target of a symbolic link in `buffer`, which has `length` bytes, as a string. Unlike readlink(2) it ends
// with a zero byte, and is never truncated. 4096 bytes hold every target. A `length` of 0 asks for the length alone.
//
// Returns the length of the target without the zero byte, or a negative errno: -ERANGE if the buffer is too small,
// with nothing stored, -EINVAL if `path` is no symbolic link, -ENOENT.
int64_t uringfs_readlink(const struct uringfs_volume *volume, const char *path, char *buffer, size_t length);

// Makes a pool of `count` buffers, each with `length` bytes, at most 1 GiB.
int32_t uringfs_pool_create(size_t length, size_t count, struct uringfs_pool **pool);

// Takes a free buffer out of a pool. It has the bytes of its last user. Returns NULL if all buffers are in use, and
// for a pool that is NULL.
void *uringfs_pool_get(const struct uringfs_pool *pool);

// Puts a buffer of uringfs_pool_get back into its pool, when no operation uses it. Returns 0, or -EINVAL if the
// address is no buffer of the pool. A buffer is put back once, as memory is freed once.
int32_t uringfs_pool_put(const struct uringfs_pool *pool, void *buffer);

// Closes a pool. Put all its buffers back before: else the result is -EBUSY, and the pool stays open. NULL is allowed.
int32_t uringfs_pool_close(struct uringfs_pool *pool);

// Makes a reactor for this thread. `options` may be NULL. If io_uring is missing or forbidden, other queues serve.
// Close the reactor before its thread ends: no other thread can.
//
// Returns 0, or a negative errno: -EINVAL, -EMFILE, -ENFILE, -ENOMEM.
int32_t uringfs_reactor_create(const struct uringfs_reactor_options *options, struct uringfs_reactor **reactor);

// Hands all queued operations to the devices. uringfs_reactor_reap does that, too.
int32_t uringfs_reactor_submit(const struct uringfs_reactor *reactor);

// Submits what is queued, waits until at least `min` operations have completed, or `timeout_ns` have passed (negative:
// without end), and takes at most `max` completions into the array. Waits for no more than are in flight. With a `min`
// of 0 it does not wait.
//
// An operation whose completion it does not return still uses its memory, also after a timeout: reap again, until the
// completion is there. The wait goes on after a signal. No call of another thread ends it: a thread that others wake
// sleeps in epoll instead, with uringfs_reactor_fd and an eventfd.
//
// Returns the number of completions, or a negative errno: -EINVAL, -EPERM in another thread, -ECHILD in the child of a
// fork, or the kernel's reason to take no requests at all.
int32_t uringfs_reactor_reap(const struct uringfs_reactor *reactor,
                             struct uringfs_completion *completions,
                             uint32_t min,
                             uint32_t max,
                             int64_t timeout_ns);

// A descriptor that is readable when there is something to do, for epoll and the like: then call uringfs_reactor_reap
// with a `min` of 0, until it returns fewer than `max`. Do the same after each time operations were queued, before the
// loop sleeps. It belongs to the reactor; do not read or close it.
//
// Returns the descriptor, or a negative errno.
int uringfs_reactor_fd(const struct uringfs_reactor *reactor);

// Requests the cancellation of the operations in flight with this `user_data`. Each still completes, once: with
// -ECANCELED, or as if it was not cancelled. Until that completion is reaped it uses its memory.
int32_t uringfs_reactor_cancel(const struct uringfs_reactor *reactor, uint64_t user_data);

// Closes a reactor, in the thread that has created it, and waits until nothing is in flight: then memory of the caller
// is free to use, and buffers of pools are back in their pools. Completions that were not reaped are lost. NULL is
// allowed.
//
// Returns 0, or -EPERM in another thread, where the reactor stays open.
int32_t uringfs_reactor_close(struct uringfs_reactor *reactor);

// Queues a read at `offset` into memory of the caller. The completion has the number of bytes, fewer than `length` at
// the end of the file only.
//
// Each function that queues an operation returns 0, or a negative errno, with nothing queued: -EAGAIN when as much is
// in flight as the reactor's depth allows, or when the kernel takes no more before something is reaped; -EINVAL for a
// `user_data` of 2^63 or more, and for over 1 GiB; -EPERM in another thread; -ENODEV when the device is gone. All
// other errors are results of completions.
int32_t uringfs_queue_read(const struct uringfs_reactor *reactor,
                           const struct uringfs_file *file,
                           void *buffer,
                           size_t length,
                           uint64_t offset,
                           uint64_t user_data);

// Queues a read into a buffer of a pool, or its first bytes, as uringfs_queue_read.
int32_t uringfs_queue_read_pooled(const struct uringfs_reactor *reactor,
                                  const struct uringfs_file *file,
                                  const struct uringfs_pool *pool,
                                  void *buffer,
                                  size_t length,
                                  uint64_t offset,
                                  uint64_t user_data);

// Queues a write at `offset` from memory of the caller, which must not change before the completion. `flags` are
// URINGFS_WRITE_ flags. The completion has the number of bytes. Returns as uringfs_queue_read.
int32_t uringfs_queue_write(const struct uringfs_reactor *reactor,
                            const struct uringfs_file *file,
                            const void *buffer,
                            size_t length,
                            uint64_t offset,
                            uint32_t flags,
                            uint64_t user_data);

// Queues a write from a buffer of a pool, or its first bytes, as uringfs_queue_write.
int32_t uringfs_queue_write_pooled(const struct uringfs_reactor *reactor,
                                   const struct uringfs_file *file,
                                   const struct uringfs_pool *pool,
                                   void *buffer,
                                   size_t length,
                                   uint64_t offset,
                                   uint32_t flags,
                                   uint64_t user_data);

// Queues an append from memory of the caller to a file of a volume. `flags` are 0 or URINGFS_WRITE_DURABLE. The
// completion has the offset at which the bytes are. Returns as uringfs_queue_read.
int32_t uringfs_queue_append(const struct uringfs_reactor *reactor,
                             const struct uringfs_file *file,
                             const void *buffer,
                             size_t length,
                             uint32_t flags,
                             uint64_t user_data);

// Queues a flush: all writes of the file that have completed before become durable. `flags` are 0 or
// URINGFS_FLUSH_DATA. Returns as uringfs_queue_read.
int32_t uringfs_queue_flush(const struct uringfs_reactor *reactor,
                            const struct uringfs_file *file,
                            uint32_t flags,
                            uint64_t user_data);

// Queues a discard of a range, as uringfs_file_discard. Returns as uringfs_queue_read.
int32_t uringfs_queue_discard(const struct uringfs_reactor *reactor,
                              const struct uringfs_file *file,
                              uint64_t offset,
                              uint64_t length,
                              uint64_t user_data);

// Queues `count` reads of a file at once, with less work for each than one call a read: as uringfs_queue_read, or, if
// `pool` is not NULL, as uringfs_queue_read_pooled.
//
// Returns how many of them, from the first on, are queued. They are fewer than `count` when the next one was refused,
// and uringfs_error_text says why. If that is the first, the result is its negative errno.
int32_t uringfs_queue_reads(const struct uringfs_reactor *reactor,
                            const struct uringfs_file *file,
                            const struct uringfs_pool *pool,
                            const struct uringfs_transfer *transfers,
                            uint32_t count);

// Queues `count` writes to a file at once: as uringfs_queue_write, or, if `pool` is not NULL, as
// uringfs_queue_write_pooled. `flags` are URINGFS_WRITE_ flags for all of them. Returns as uringfs_queue_reads.
int32_t uringfs_queue_writes(const struct uringfs_reactor *reactor,
                             const struct uringfs_file *file,
                             const struct uringfs_pool *pool,
                             const struct uringfs_transfer *transfers,
                             uint32_t count,
                             uint32_t flags);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* URINGFS_H */
