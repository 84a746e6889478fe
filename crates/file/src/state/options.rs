//! The switches of direct and of buffered I/O.

use uringfs_reactor::on_off;

use crate::state::readahead::DEFAULT_MAX_FOLIOS;

/// In folios: 16 MiB.
const MAX_READAHEAD: u32 = 4096;

/// Switches of one file handle.
///
/// ```
/// # mod uringfs { pub use uringfs_file as file; }
/// use uringfs::file::{FileOptions, WriteLocking};
///
/// let options = FileOptions::new().readahead(0).write_lock(WriteLocking::Exclusive);
/// assert_eq!(options.readahead, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "each call returns the options, and changes nothing in place"]
pub struct FileOptions {
    /// `direct.simple_read`: small reads inside one extent go out as one request, without a task (the fast
    /// path).
    pub simple_read: bool,
    /// `direct.write_lock`: see [`WriteLocking`].
    pub write_lock: WriteLocking,
    /// `buffered.wait`: see [`BufferedWait`].
    pub buffered_wait: BufferedWait,
    /// `buffered.readahead`: the longest readahead window, in folios of 4 KiB. Only a reader that waits for its windows
    /// has them longer than 32, and in a small cache they are at most a 32nd of it. 0 disables readahead.
    pub readahead: u32,
}

/// Wait of a buffered read for a folio that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferedWait {
    /// `callback`: it registers a callback on the folio, and its reactor continues.
    Callback,
    /// `thread`: a pool thread does the read and blocks until it is done, as a kernel worker does for io_uring.
    Thread,
}

/// Locking of writers of whole blocks against other writers of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteLocking {
    /// `shared`: no lock, as long as no writer excludes overwriters.
    Shared,
    /// `exclusive`: each writer holds a lock of the file while it submits. File systems that treat an overwrite
    /// like any other write do the same with the inode lock.
    Exclusive,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            simple_read: true,
            write_lock: WriteLocking::Shared,
            buffered_wait: BufferedWait::Callback,
            readahead: DEFAULT_MAX_FOLIOS,
        }
    }
}

impl FileOptions {
    /// The defaults: the fast path, shared write locks, callbacks, and readahead.
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Small reads inside one extent go out as one request, without a task (the fast path).
    pub fn simple_read(mut self, simple_read: bool) -> FileOptions {
        self.simple_read = simple_read;
        self
    }

    /// See [`WriteLocking`].
    pub fn write_lock(mut self, write_lock: WriteLocking) -> FileOptions {
        self.write_lock = write_lock;
        self
    }

    /// See [`BufferedWait`].
    pub fn buffered_wait(mut self, buffered_wait: BufferedWait) -> FileOptions {
        self.buffered_wait = buffered_wait;
        self
    }

    /// The longest readahead window, in folios of 4 KiB: see the field. 0 disables readahead.
    pub fn readahead(mut self, readahead: u32) -> FileOptions {
        self.readahead = readahead;
        self
    }

    /// Sets a switch by its dotted name. `Ok(false)` when the name is not in [`Self::SWITCHES`].
    ///
    /// # Errors
    /// The values that the switch takes.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "direct.simple_read" => self.simple_read = on_off(name, value)?,
            "direct.write_lock" => {
                self.write_lock = match value {
                    "shared" => WriteLocking::Shared,
                    "exclusive" => WriteLocking::Exclusive,
                    _ => return Err(format!("{name} is shared or exclusive, not `{value}`")),
                };
            }
            "buffered.wait" => {
                self.buffered_wait = match value {
                    "callback" => BufferedWait::Callback,
                    "thread" => BufferedWait::Thread,
                    _ => return Err(format!("{name} is callback or thread, not `{value}`")),
                };
            }
            "buffered.readahead" => {
                let folios = value.parse().ok().filter(|folios| *folios <= MAX_READAHEAD);
                self.readahead = folios.ok_or_else(|| {
                    format!("{name} is a number of folios up to {MAX_READAHEAD}, not `{value}`")
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Names and values of the switches.
    pub const SWITCHES: &'static [(&'static str, &'static str)] = &[
        ("direct.simple_read", "on or off"),
        ("direct.write_lock", "shared or exclusive"),
        ("buffered.wait", "callback or thread"),
        ("buffered.readahead", "a number of folios"),
    ];
}
