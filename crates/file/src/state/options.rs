//! The switches of direct and of buffered I/O.

use uringfs_reactor::on_off;

use crate::state::readahead::DEFAULT_MAX_FOLIOS;

/// Folios: 16 MiB.
const MAX_READAHEAD: u32 = 4096;

/// How a file moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// `direct.simple_read`: small reads inside one extent go out as one
    /// request, without a task.
    pub simple_read: bool,
    /// `direct.write_lock`.
    pub write_lock: WriteLocking,
    /// `buffered.wait`.
    pub buffered_wait: BufferedWait,
    /// `buffered.readahead`: folios of 4 KiB that are read ahead of a sequential reader at once, at most. 0: none.
    pub readahead: u32,
}

/// How a buffered read waits for bytes that are not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferedWait {
    /// `callback`: it leaves one on the folio, and its reactor goes on.
    Callback,
    /// `thread`: a thread of a pool does the read and sleeps until it is done, as the kernel has a worker do that.
    Thread,
}

/// What writers of whole blocks do about other writers of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteLocking {
    /// `shared`: nothing, while nobody excludes them.
    Shared,
    /// `exclusive`: each takes a lock of the file while the kernel is given the write, as file
    /// systems that do not tell overwrites from other writes take an inode's.
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
    /// Sets a switch by its dotted name. `Ok(false)` when the name is not one of these.
    ///
    /// # Errors
    /// Which values the switch takes.
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

    /// The names that [`Self::set`] knows, with their values.
    pub const SWITCHES: &'static [(&'static str, &'static str)] = &[
        ("direct.simple_read", "on or off"),
        ("direct.write_lock", "shared or exclusive"),
        ("buffered.wait", "callback or thread"),
        ("buffered.readahead", "a number of folios"),
    ];
}
