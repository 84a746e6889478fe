//! An argument without `:/` names a whole volume. If it cannot, a file of this machine was probably meant.

use super::exit_codes::{NO_SOUND_VOLUME, not_found};
use super::quoting::{for_message, quoted_if_needed};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::Volume;
use uringfs::device::{Access, Device};
use uringfs_lab::Error;
use uringfs_lab::targets::probe;

const HINT: &str = "a path in a volume is written TARGET:/path; uringfs put copies into a volume, and uringfs get out \
                    of it";

/// Checks that an argument may name a volume. Any other failure is that of opening it.
///
/// # Errors
/// It does not exist, is a directory, or an ordinary file without a signature of a volume.
pub(super) fn check_names_volume(argument: &OsStr) -> Result<(), Error> {
    let shown = for_message(argument);
    let found = match Path::new(argument).metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(not_found(match meant_path(argument) {
                Some(meant) => format!("{shown}: does not exist; did you mean {meant}?"),
                None => format!("{shown}: does not exist; {HINT}; uringfs mkfs creates one"),
            }));
        }
        Err(_) => return Ok(()),
        Ok(found) => found,
    };
    if found.is_dir() {
        return Err(Error::input(format!("{shown}: is a directory of this machine; {HINT}")));
    }
    match found.is_file() && is_without_volume(argument) {
        true => {
            let what = format!("{shown}: is a file without a volume; {HINT}");
            Err(Error::input(what).exiting_with(NO_SOUND_VOLUME))
        }
        false => Ok(()),
    }
}

/// Checks that a path in a volume is not meant as a file of this machine, in a directory whose name ends with a colon.
///
/// # Errors
/// The volume does not exist, but the file does.
pub(super) fn check_is_no_file(argument: &OsStr, target: &OsStr) -> Result<(), Error> {
    if Path::new(target).exists() || !Path::new(argument).is_file() {
        return Ok(());
    }
    let meant = quoted_if_needed(&[argument.as_bytes(), b":/"].concat());
    let (shown, target) = (for_message(argument), for_message(target));
    let what = "means a path in the volume";
    Err(not_found(format!("{shown}: {what} {target}, which does not exist; did you mean {meant}?")))
}

/// The path in a volume that was probably meant by `TARGET:path`, without the slash.
fn meant_path(argument: &OsStr) -> Option<String> {
    let bytes = argument.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    let (target, path) = (OsStr::from_bytes(&bytes[..colon]), &bytes[colon + 1..]);
    let is_meant = Path::new(target).exists() && check_names_volume(target).is_ok();
    is_meant.then(|| quoted_if_needed(&[target.as_bytes(), b":/", path].concat()))
}

/// Whether a file has no superblock, not even one that another format has left.
fn is_without_volume(path: &OsStr) -> bool {
    let content = File::open(path).and_then(|file| probe(&file));
    content.is_ok_and(|content| !content.is_some_and(|content| content.contains("uringfs"))) && {
        let device = Device::open(path, Access::Read);
        device
            .is_ok_and(|device| Volume::superblock_blocks(&device).is_ok_and(|all| all.is_empty()))
    }
}
