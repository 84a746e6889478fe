//! The state of a copy into a volume, and the errors of its files.

use crate::volume::copy_progress::{CopyProgress, Xattr};
use crate::volume::exclude::ExcludeOptions;
use crate::volume::exit_codes::{of_volume_error, refused};
use crate::volume::files::{Files, OpenFile};
use crate::volume::hard_links::HardLinks;
use crate::volume::host::FileId;
use crate::volume::image::ImageFiles;
use crate::volume::overwrite::{NameAction, OverwriteOptions};
use crate::volume::pipeline::Pipeline;
use crate::volume::quoting::for_message;
use crate::volume::verbose::VerboseOptions;
use crate::volume::volume_path::{VolumePath, with_path};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use uringfs::volume::{Inode, InodeNumber};
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind};
use uringfs_lab::Error;

/// The errors of files that could not be copied.
#[derive(Default)]
pub(super) struct PutErrors {
    /// The first error, as long as it is the only one.
    first: Option<Error>,
    are_several: bool,
}

impl PutErrors {
    pub(super) fn report(&mut self, error: Error) {
        if self.first.is_none() && !self.are_several {
            self.first = Some(error);
            return;
        }
        self.are_several = true;
        for error in self.first.take().into_iter().chain([error]) {
            crate::output::print_error(&error.to_string());
        }
    }

    /// The exit code: 1 if there are errors. Returns the error itself if it is the only one and nothing was copied.
    pub(super) fn finish(self, is_nothing_done: bool) -> Result<u8, Error> {
        match self.first {
            Some(error) if is_nothing_done => return Err(error),
            Some(error) => crate::output::print_error(&error.to_string()),
            None => return Ok(self.are_several.into()),
        }
        Ok(1)
    }
}

/// A copy into a volume that runs.
pub(super) struct PutJob<'v> {
    pub(super) volume: &'v Files,
    pub(super) destination: &'v VolumePath,
    pub(super) image: ImageFiles,
    pub(super) overwrite: OverwriteOptions,
    pub(super) exclude: ExcludeOptions,
    pub(super) verbose: VerboseOptions,
    /// The directory for files until they are complete.
    pub(super) staging: Vec<u8>,
    pub(super) pipeline: Pipeline<Chunk>,
    pub(super) progress: CopyProgress,
    /// Files that have chunks in flight or still to be read.
    pub(super) files: HashMap<u64, PartialFile>,
    pub(super) next: u64,
    /// Files that this command has created, except directories. They are never replaced.
    pub(super) created: HashSet<InodeNumber>,
    pub(super) links: HardLinks<FileId, NewName>,
    /// Directories get their attributes last: new names in them change their times.
    pub(super) directories: Vec<(Vec<u8>, Inode)>,
    pub(super) errors: PutErrors,
}

/// A part of a file, in bytes.
pub(super) struct Chunk {
    pub(super) file: u64,
    pub(super) length: u64,
}

/// The path of a new file in the volume, and what to do about an existing file there.
#[derive(Clone)]
pub(super) struct NewName {
    pub(super) target: Vec<u8>,
    pub(super) action: NameAction,
}

/// A source directory whose names are copied one after the other.
pub(super) struct OpenDirectory {
    pub(super) below: PathBuf,
    pub(super) target: Vec<u8>,
    /// Created by this command: names in it cannot exist yet.
    pub(super) is_new: bool,
    /// The names that are left, in reverse order.
    pub(super) names: Vec<OsString>,
}

/// A file that is being copied.
pub(super) struct PartialFile {
    pub(super) file: OpenFile,
    pub(super) number: InodeNumber,
    /// The source file; None for standard input.
    pub(super) source: Option<FileId>,
    pub(super) staged: Vec<u8>,
    pub(super) name: NewName,
    pub(super) inode: Inode,
    /// The minimum size at the end, for a file that ends with a hole.
    pub(super) size: u64,
    /// Set after all writes: a write removes capabilities.
    pub(super) xattrs: Vec<Xattr>,
    pub(super) chunks: usize,
    pub(super) is_fully_read: bool,
    pub(super) has_failed: bool,
}

impl PutJob<'_> {
    pub(super) fn with_path<T>(
        &self,
        path: &[u8],
        result: Result<T, VolumeError>,
    ) -> Result<T, Error> {
        result.map_err(|error| {
            let path = self.destination.in_same_volume(path.to_vec());
            match error.kind() {
                // Only this file is affected; others can still be copied.
                VolumeErrorKind::Damaged => {
                    let code = of_volume_error(&error);
                    Error::input(path.to_string()).because(error.message()).exiting_with(code)
                }
                _ => with_path(&path, error),
            }
        })
    }

    pub(super) fn write_error(&self, error: io::Error) -> Error {
        Error::run(format!("{}: cannot be written", for_message(&self.destination.target)))
            .because(error)
    }
}

pub(super) fn refuse_image(source: &str) -> Error {
    refused(format!("{source}: is the volume's own image, and cannot be copied into it"))
}
