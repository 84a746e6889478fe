//! Pools of buffers, which reactors register with the kernel.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use uringfs::buffer::RawPool;
use uringfs::{Buffer, BufferPool, Errno};

use crate::error::Failure;
use crate::handle::{Handle, HandleState, call, call_free, store, take};

/// A pool of buffers of one length, aligned to 4096. Each reactor registers them with the kernel when it first uses
/// one. Any thread may use a pool, also several at once.
#[derive(Debug)]
pub struct PoolHandle {
    state: HandleState,
    pool: RawPool,
    count: usize,
}

impl Handle for PoolHandle {
    #[inline(always)]
    fn state(&self) -> &HandleState {
        &self.state
    }
}

impl PoolHandle {
    /// The buffer that C has at this address, or its first bytes. Its new owner gives it back to C by
    /// [`Buffer::into_raw`].
    #[inline(always)]
    pub(crate) fn take(&self, address: *mut c_void, length: usize) -> Result<Buffer, Failure> {
        if length > self.pool.buffer_length() {
            return Err(Failure::argument(c"the length is over that of the pool's buffers"));
        }
        let buffer = NonNull::new(address.cast()).and_then(|address| {
            // SAFETY: `uringfs_pool_get` gave the buffer up. The caller has it, as the header says, so it is neither in
            // flight nor returned.
            unsafe { self.pool.buffer(address, length) }
        });
        match buffer {
            Some(buffer) => Ok(buffer),
            None => Err(Failure::argument(
                c"the memory is no buffer of the pool: pass what uringfs_pool_get returned",
            )),
        }
    }
}

/// Makes a pool of `count` buffers, each with `length` bytes, at most 1 GiB.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_pool_create(
    length: usize,
    count: usize,
    pool: Option<&mut *mut PoolHandle>,
) -> i32 {
    store(pool, || {
        let pool = RawPool::new(BufferPool::new(length, count)?);
        Ok(PoolHandle { state: HandleState::default(), pool, count })
    })
}

/// Takes a free buffer out of a pool. It has the bytes of its last user. Returns NULL if all buffers are in use, and
/// for a pool that is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_pool_get(pool: Option<&PoolHandle>) -> *mut c_void {
    let mut buffer = ptr::null_mut();
    call(pool, |handle| {
        if let Some(free) = handle.pool.pool().get() {
            buffer = free.into_raw().as_ptr().cast();
        }
        Ok(0)
    });
    buffer
}

/// Puts a buffer of uringfs_pool_get back into its pool, when no operation uses it. Returns 0, or -EINVAL if the
/// address is no buffer of the pool. A buffer is put back once, as memory is freed once.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_pool_put(pool: Option<&PoolHandle>, buffer: *mut c_void) -> i32 {
    call(pool, |handle| {
        drop(handle.take(buffer, 0)?);
        Ok(0)
    })
}

/// Closes a pool. Put all its buffers back before: else the result is -EBUSY, and the pool stays open. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_pool_close(pool: *mut PoolHandle) -> i32 {
    call_free(|| {
        let Some(handle) = take(pool)? else { return Ok(0) };
        if handle.pool.pool().available() < handle.count {
            // It stays C's.
            let _ = Box::into_raw(handle);
            return Err(Failure::fixed(
                Errno::BUSY,
                c"buffers of the pool are in use: return them first",
            ));
        }
        Ok(0)
    })
}
