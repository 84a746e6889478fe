//! The work of each request, and its result.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde_json::{Value, json};
use uringfs::reactor::{Counter, total};
use uringfs::{Error, Volume};

use super::protocol::{Request, failure, result};
use crate::notify::Kernel;

/// The size of a block in bytes.
const BLOCK: u64 = 4096;

/// The volume and the mount that a control socket gives access to.
pub(crate) struct Served {
    pub(crate) volume: Volume,
    pub(crate) is_read_only: bool,
    /// `None`: it is not mounted.
    pub(crate) mount: Option<ServedMount>,
}

/// How a volume is mounted.
pub(crate) struct ServedMount {
    pub(crate) kernel: Kernel,
    pub(crate) directory: PathBuf,
    /// The options of the mount, in the words of `-o`.
    pub(crate) options: String,
    pub(crate) threads: usize,
}

impl Served {
    /// One that is not mounted.
    pub(crate) fn of_volume(volume: &Volume) -> Served {
        Served { volume: volume.clone(), is_read_only: volume.is_read_only(), mount: None }
    }

    /// The last line of the reply.
    pub(crate) fn reply(&self, request: Request) -> Value {
        match self.answer(request) {
            Ok(value) => result(value),
            Err(error) => failure(&error.message(), error.raw_os_error()),
        }
    }

    fn answer(&self, request: Request) -> Result<Value, Error> {
        match request {
            Request::Info => Ok(self.info()),
            Request::Counters => Ok(self.counters()),
            Request::Space => Ok(self.space()),
            Request::Resize(bytes) => {
                self.volume.resize(bytes)?;
                Ok(self.space())
            }
            Request::Freeze(time) => {
                self.volume.freeze(time)?;
                Ok(json!({"seconds": time.as_secs()}))
            }
            Request::Thaw => Ok(json!({"was_frozen": self.volume.thaw()})),
            Request::Check { .. } | Request::Files | Request::Reload => {
                unreachable!("they are served elsewhere")
            }
        }
    }

    fn info(&self) -> Value {
        let volume = &self.volume;
        let errors = volume.recent_errors();
        json!({
            "label": volume.label(),
            "uuid": volume.uuid(),
            "space": self.space(),
            "warnings": volume.warnings(),
            "errors": errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "mount": self.mount.as_ref().map(|mount| json!({
                "directory": lossy(mount.directory.as_os_str()),
                "options": mount.options,
                "threads": mount.threads,
                "process": std::process::id(),
            })),
        })
    }

    fn counters(&self) -> Value {
        let reactors = Counter::ALL.iter().map(|counter| (counter.name(), total(*counter)));
        let reactors = reactors.map(|(name, value)| (name.to_owned(), value.into()));
        let found = self.volume.statistics();
        json!({
            "reactors": reactors.collect::<serde_json::Map<_, _>>(),
            "volume": {
                "blocks": found.blocks,
                "free_blocks": found.free_blocks,
                "pending_blocks": found.pending_blocks,
                "catalog_blocks": found.catalog_blocks,
                "commits": found.commits,
                "commits_in_place": found.commits_in_place,
                "checkpoints": found.checkpoints,
                "oldest_request_ms": found.oldest_request.unwrap_or_default().as_millis() as u64,
            },
        })
    }

    fn space(&self) -> Value {
        let found = self.volume.statistics();
        let device = self.volume.device().core().check_size();
        let (size, free) = (found.blocks * BLOCK, found.free_blocks * BLOCK);
        json!({"size": size, "free": free, "device": device})
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}
