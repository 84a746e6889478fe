//! The target of a command that works on a whole volume.

use super::exit_codes::{not_found, refused, with_cause_code};
use super::open_volume::{open_device, with_holder};
use super::quoting::for_message;
use super::target::is_uri;
use super::volume_path::VolumePath;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use uringfs::device::Access;
use uringfs::device::backend::nvme::is_namespace;
use uringfs_lab::Error;
use uringfs_lab::targets::{Target, TargetInfo, Volumes, inspect, probe_device};

/// The target of an argument that may be written as the root directory of its volume. `verb` is what happens to it, such
/// as "is mounted".
///
/// # Errors
/// The argument is another path in a volume.
pub(super) fn whole_volume(argument: &OsStr, verb: &str) -> Result<OsString, Error> {
    let given = || Ok(argument.to_owned());
    if Path::new(argument).exists() {
        return given();
    }
    let exists = |target: &OsStr| is_uri(target) || Path::new(target).exists();
    match VolumePath::split(argument) {
        Ok(path) if path.target == argument || !exists(&path.target) => given(),
        Ok(path) if path.bytes.iter().all(|byte| *byte == b'/') => Ok(path.target),
        Ok(path) => {
            let volume = for_message(&path.target);
            Err(refused(format!("{path}: only a whole volume {verb}; its name is {volume}")))
        }
        Err(_) => given(),
    }
}

/// Inspects a target that is to be overwritten.
///
/// # Errors
/// It is in use, or neither a file nor a block device.
pub(super) fn inspect_for_write(path: &Path) -> Result<TargetInfo, Error> {
    let shown = for_message(path);
    if is_uri(path) || is_namespace(path) {
        let device = open_device(path, Access::ReadWrite)?;
        let geometry = device.geometry();
        let unreadable = |error| Error::run(shown.to_string()).because(error);
        return Ok(TargetInfo::Device {
            size: geometry.size,
            alignment: geometry.block_size.into(),
            content: probe_device(&device).map_err(unreadable)?,
        });
    }
    if path.is_dir() {
        let what = format!("{shown}: is a directory; name a file or a block device");
        return Err(Error::input(what));
    }
    // A directory that cannot be searched is not missing.
    let is_missing = |directory: &&Path| matches!(directory.join(".").try_exists(), Ok(false));
    if let Some(directory) = path.parent().filter(is_missing) {
        let directory = for_message(directory);
        let what = format!("{shown}: the directory {directory} does not exist; create it first");
        return Err(not_found(what));
    }
    let found = inspect(&Target::Path(path.to_owned()), true, &mut Volumes::default());
    found.map_err(|error| with_holder(path, with_cause_code(error)))
}
