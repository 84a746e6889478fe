//! The state that all threads of a run share: the open devices, and the page cache.

use crate::Error;
use crate::targets::Target;
use ::uringfs::Options;
use ::uringfs::cache::Cache;
use ::uringfs::device::{Access, Device, Target as DeviceTarget};
use ::uringfs::file::FileState;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A device that all threads of a run share. So they write to the same memory, a block device is opened
/// once, and its queue is chosen once.
pub struct SharedDevice {
    pub device: Device,
    pub lock: Arc<FileState>,
}

/// The page cache that all threads of a run share, with its size.
static CACHE: Mutex<(Option<u64>, Weak<Cache>)> = Mutex::new((None, Weak::new()));

pub fn shared_cache(options: &Options) -> Arc<Cache> {
    let (bytes, shared) = &mut *CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cache) = shared.upgrade().filter(|_| *bytes == options.cache_bytes) {
        return cache;
    }
    let cache = Arc::new(options.cache());
    (*bytes, *shared) = (options.cache_bytes, Arc::downgrade(&cache));
    cache
}

/// Open devices, by name and by whether they are written.
static OPEN_DEVICES: Mutex<Vec<(String, bool, Weak<SharedDevice>)>> = Mutex::new(Vec::new());

pub fn open(
    target: &Target,
    parsed: io::Result<DeviceTarget>,
    writes: bool,
) -> Result<Arc<SharedDevice>, Error> {
    let name = target.to_string();
    let mut open = OPEN_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, _, opened)| opened.strong_count() > 0);
    let known =
        open.iter().find(|(other, other_writes, _)| *other == name && *other_writes == writes);
    if let Some(opened) = known.and_then(|(_, _, opened)| opened.upgrade()) {
        return Ok(opened);
    }
    let access = if writes { Access::ReadWrite } else { Access::Read };
    let device = parsed
        .and_then(|target| target.open(access))
        .map_err(|error| Error::input(name.clone()).because(error))?;
    let opened = Arc::new(SharedDevice { device, lock: Arc::default() });
    open.push((name, writes, Arc::downgrade(&opened)));
    Ok(opened)
}
