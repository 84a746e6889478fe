//! [`Targets`]: the volumes and the whole files that a process has open, each once, however many disks are in it.

use super::super::exit_codes::{refused, with_io_code};
use super::super::open_volume::{open, with_holder};
use super::super::quoting::for_message;
use super::super::target::is_uri;
use super::super::volume_path::{is_same_target, with_path};
use super::metrics::{Observed, Page, Registry};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use uringfs::device::{Access, Target};
use uringfs::file::FileOptions;
use uringfs::volume::WholeLock;
use uringfs::{File, Volume};
use uringfs_fuse::control::{ControlVolumes, ControlledVolume};
use uringfs_lab::Error;

/// The open targets.
#[derive(Default)]
pub(super) struct Targets {
    open: Vec<Arc<OpenTarget>>,
    /// Shows the volumes, and what is in them.
    pub(super) registry: Registry,
    /// The volumes that other commands reach, mounted ones among them.
    pub(super) control: ControlVolumes,
}

/// A target that is open for as long as a disk holds it.
pub(super) struct OpenTarget {
    name: OsString,
    access: Access,
    content: Content,
}

enum Content {
    Volume {
        volume: Volume,
        controlled: ControlledVolume,
    },
    Whole {
        file: File,
        /// Keeps out other programs, which open a volume there or serve it.
        _lock: WholeLock,
    },
}

impl Targets {
    /// The volume of a target.
    pub(super) fn volume(
        &mut self,
        target: &OsStr,
        access: Access,
    ) -> Result<(Arc<OpenTarget>, Volume), Error> {
        if let Some(known) = self.find(target, access)? {
            return match &known.content {
                Content::Volume { volume, .. } => Ok((known.clone(), volume.clone())),
                Content::Whole { .. } => Err(served_otherwise(target, "as a whole")),
            };
        }
        let volume = open(target, access)?;
        let controlled = self.control.insert(&volume);
        let content = Content::Volume { volume: volume.clone(), controlled };
        Ok((self.insert(target, access, content), volume))
    }

    /// A target as one file. One in memory is no target that others could have open: each is another one.
    pub(super) fn whole(
        &mut self,
        target: &OsStr,
        access: Access,
    ) -> Result<(Option<Arc<OpenTarget>>, File), Error> {
        if let Some(known) = self.find(target, access)? {
            return match &known.content {
                Content::Whole { file, .. } => Ok((Some(known.clone()), file.clone())),
                Content::Volume { .. } => Err(served_otherwise(target, "as a volume")),
            };
        }
        let parsed = target.to_str().and_then(|text| text.parse::<Target>().ok());
        let path = Path::new(target);
        if is_uri(path) && access == Access::ReadWrite {
            // Before it is opened: a server with room for one client would not answer.
            Volume::require_closed(path).map_err(|error| with_path(for_message(target), error))?;
        }
        let opened = match &parsed {
            Some(parsed) if parsed.virtual_size().is_some() => {
                parsed.open(access).map(|device| File::from_device(device, FileOptions::new()))
            }
            _ => File::open(path, access),
        };
        let file = opened.map_err(|error| {
            with_holder(path, with_io_code(Error::input(error.to_string()), &error))
        })?;
        if parsed.is_some_and(|parsed| parsed.virtual_size().is_some()) {
            return Ok((None, file));
        }
        let lock = WholeLock::acquire(file.device(), access);
        let lock = lock.map_err(|error| with_path(for_message(target), error))?;
        let content = Content::Whole { file: file.clone(), _lock: lock };
        Ok((Some(self.insert(target, access, content)), file))
    }

    /// Closes the targets that no disk holds any more: all that was written there is durable then.
    ///
    /// # Errors
    /// The first of those of the volumes. All are closed.
    pub(super) fn close_unused(&mut self) -> Result<(), Error> {
        let paused = self.registry.pause();
        let (used, unused): (Vec<_>, Vec<_>) =
            self.open.drain(..).partition(|target| Arc::strong_count(target) > 1);
        self.open = used;
        let unused: Vec<_> = unused.into_iter().filter_map(Arc::into_inner).collect();
        drop(paused);
        let closed = unused.into_iter().map(|target| {
            let OpenTarget { name, content, .. } = target;
            match content {
                Content::Volume { volume, controlled } => {
                    drop(controlled);
                    volume.close().map_err(|error| with_path(for_message(&name), error))
                }
                Content::Whole { .. } => Ok(()),
            }
        });
        let closed: Vec<_> = closed.collect();
        closed.into_iter().collect()
    }

    /// A target that is open already.
    fn find(&self, target: &OsStr, access: Access) -> Result<Option<&Arc<OpenTarget>>, Error> {
        let known = self.open.iter().find(|known| is_same_target(&known.name, target));
        if known.is_some_and(|known| known.access == Access::Read) && access != Access::Read {
            let what = "this server has it open for reading only; let it go first, or serve it with --read-only";
            return Err(refused(format!("{}: {what}", for_message(target))));
        }
        Ok(known)
    }

    fn insert(&mut self, target: &OsStr, access: Access, content: Content) -> Arc<OpenTarget> {
        let open = Arc::new(OpenTarget { name: target.to_owned(), access, content });
        self.registry.insert(&open);
        self.open.push(open.clone());
        open
    }
}

impl Observed for OpenTarget {
    fn observe(&self, page: &mut Page) {
        if let Content::Volume { volume, .. } = &self.content {
            page.add_volume(&self.name.to_string_lossy(), &volume.statistics());
        }
    }
}

fn served_otherwise(target: &OsStr, how: &str) -> Error {
    Error::in_use(format!("{}: this server has it open {how}", for_message(target)))
}
