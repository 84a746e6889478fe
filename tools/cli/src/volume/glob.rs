//! The option `--glob`. Without it a path is one file, whatever characters its name has: a name that another command
//! has printed never leads to a different file, even if its file is gone.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::exit_codes::not_found;
use super::files::Files;
use super::volume_path::{VolumePath, as_path, join, with_path};
use super::wildcards::{has_wildcards, matches_visible};
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind};
use uringfs_lab::Error;

/// Whether paths are patterns.
#[derive(clap::Args, Clone, Copy)]
pub struct GlobOptions {
    /// Expand the wildcards *, ?, [a-z] and [!a-z] in paths in the volume; \* is a literal star
    #[arg(long)]
    glob: bool,
}

/// The meaning of a path that does not exist, or of a pattern without a match.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// It is an error.
    Refused,
    /// The command creates the file; a pattern without a match is an error.
    Created,
    /// It is ignored.
    Ignored,
}

impl GlobOptions {
    /// As for the option `--glob` at the end of a command line.
    pub fn or(self, glob: bool) -> Self {
        Self { glob: self.glob || glob }
    }

    /// The files that the paths stand for: with `--glob` the matches of each, sorted, else the paths themselves.
    /// Reports those that stand for none to `errors`.
    pub(super) fn expand_each(
        self,
        volume: &Files,
        paths: &[VolumePath],
        missing: Missing,
        errors: &ErrorSink,
    ) -> Vec<VolumePath> {
        let mut found = Vec::new();
        for path in paths {
            match self.expand(volume, path, missing) {
                Ok(files) => found.extend(files),
                Err(error) => _ = errors.record::<()>(Err(error)),
            }
        }
        found
    }

    /// The same; an error if one of the paths does not exist.
    pub fn expand_all(
        self,
        volume: &Files,
        paths: &[VolumePath],
    ) -> Result<Vec<VolumePath>, Error> {
        let found = paths.iter().map(|path| self.expand(volume, path, Missing::Refused));
        Ok(found.collect::<Result<Vec<_>, Error>>()?.concat())
    }

    fn expand(
        self,
        volume: &Files,
        path: &VolumePath,
        missing: Missing,
    ) -> Result<Vec<VolumePath>, Error> {
        if self.glob {
            let found = matches_of(volume, path)?;
            return match found.is_empty() && missing != Missing::Ignored {
                true => Err(not_found(format!("{path}: no name matches this pattern"))),
                false => Ok(found),
            };
        }
        let is_pattern = missing == Missing::Refused && has_wildcards(&path.bytes);
        match is_pattern && !exists(volume, &path.bytes) {
            true => Err(not_found(format!("{path}: no such file; --glob expands wildcards"))),
            false => Ok(vec![path.clone()]),
        }
    }
}

/// The paths that match a pattern, sorted; the path itself if it has no special characters.
fn matches_of(volume: &Files, path: &VolumePath) -> Result<Vec<VolumePath>, Error> {
    let is_special = |text: &[u8]| has_wildcards(text) || text.contains(&b'\\');
    if !is_special(&path.bytes) {
        return Ok(vec![path.clone()]);
    }
    let mut found = vec![b"/".to_vec()];
    for name in path.bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let mut next = Vec::new();
        for directory in &found {
            if !is_special(name) {
                next.push(join(directory, name));
                continue;
            }
            match volume.metadata(as_path(directory)) {
                Ok(metadata) if !metadata.is_dir() => continue,
                Err(error) if is_not_found(&error) => continue,
                // The directory cannot be read: return the pattern, so that the caller gets the error when it uses it.
                Err(_) => {
                    next.push(join(directory, name));
                    continue;
                }
                Ok(_) => {}
            }
            for entry in Entries::new(volume, directory) {
                let found = match entry {
                    Ok(entry) => entry.name,
                    Err(error) => match error.damaged_name() {
                        Some(name) => name.to_vec(),
                        None => {
                            return Err(with_path(path.in_same_volume(directory.clone()), error));
                        }
                    },
                };
                if matches_visible(name, &found) {
                    next.push(join(directory, &found));
                }
            }
        }
        found = next;
    }
    if path.bytes.ends_with(b"/") {
        found.iter_mut().for_each(|path| path.push(b'/'));
    }
    found.retain(|path| exists(volume, path));
    Ok(found.into_iter().map(|found| path.in_same_volume(found)).collect())
}

fn exists(volume: &Files, path: &[u8]) -> bool {
    match volume.symlink_metadata(as_path(path)) {
        Ok(_) => true,
        // A damaged file exists: the caller gets its path, and the error when it uses the path.
        Err(error) => !is_not_found(&error),
    }
}

/// Whether the error means that the path does not exist, and not that it cannot be read.
fn is_not_found(error: &VolumeError) -> bool {
    matches!(error.kind(), VolumeErrorKind::Refused(_))
}
