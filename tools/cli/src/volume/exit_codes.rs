//! The exit codes of the commands on volumes, which tell causes apart, and errors that have them.

use std::io;
use uringfs::{Errno, Error as VolumeError, ErrorKind as VolumeErrorKind};
use uringfs_lab::Error;

/// A target, a file or an attribute does not exist.
const NOT_FOUND: u8 = 3;
/// There is no volume, or it is damaged, or of an unknown version.
pub const NO_SOUND_VOLUME: u8 = 4;
/// The state of a file, or missing permission, forbids the operation.
const REFUSED: u8 = 5;
/// A target is in use, or its volume is open elsewhere.
pub const IN_USE: u8 = 6;
/// There is no space.
pub const NO_SPACE: u8 = 7;
/// The device failed.
const DEVICE_FAILED: u8 = 8;

/// The help about exit codes. `check` has its own.
pub const HELP: &str = "\
Exit codes: 0 success; 1 failed for some of several names, or for another reason; 2 the arguments cannot be used; \
    3 something does not exist; 4 no volume, or a damaged one; 5 the state of a file forbids it, or a permission is missing; \
    6 the target is in use, or the volume is open elsewhere; 7 no space left; 8 the device failed; 130 stopped by Ctrl-C, \
    SIGTERM or SIGHUP (a command without a progress line dies of the signal instead).";

/// An error about something that does not exist.
pub fn not_found(context: impl Into<String>) -> Error {
    Error::input(context).exiting_with(NOT_FOUND)
}

/// An error about a file whose state forbids the operation.
pub fn refused(context: impl Into<String>) -> Error {
    Error::input(context).exiting_with(REFUSED)
}

/// Gives an error the exit code of the system call that has caused it.
pub fn with_cause_code(error: Error) -> Error {
    let source = std::error::Error::source(&error);
    let code = source.and_then(|source| match source.downcast_ref::<io::Error>() {
        Some(cause) => io_code(cause),
        None => io_code(&(*source.downcast_ref::<rustix::io::Errno>()?).into()),
    });
    match code {
        Some(code) => error.exiting_with(code),
        None => error,
    }
}

/// Gives an error the exit code of its cause.
pub fn with_io_code(error: Error, cause: &io::Error) -> Error {
    match io_code(cause) {
        Some(code) => error.exiting_with(code),
        None => error,
    }
}

/// The exit code for an error of a volume.
pub fn of_volume_error(error: &VolumeError) -> u8 {
    match error.kind() {
        VolumeErrorKind::NotAVolume
        | VolumeErrorKind::OtherFormat
        | VolumeErrorKind::Damaged
        | VolumeErrorKind::Unsupported => NO_SOUND_VOLUME,
        VolumeErrorKind::NoSpace | VolumeErrorKind::Io(Errno::NOSPC) => NO_SPACE,
        VolumeErrorKind::Io(_) => DEVICE_FAILED,
        VolumeErrorKind::Refused(Errno::NOENT | Errno::NODATA) => NOT_FOUND,
        VolumeErrorKind::Refused(Errno::BUSY) => IN_USE,
        VolumeErrorKind::Refused(Errno::NOSPC) => NO_SPACE,
        VolumeErrorKind::Refused(_) => REFUSED,
        _ => 2,
    }
}

fn io_code(error: &io::Error) -> Option<u8> {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Some(NOT_FOUND),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Some(REFUSED),
        ErrorKind::ResourceBusy | ErrorKind::AddrInUse => Some(IN_USE),
        ErrorKind::StorageFull => Some(NO_SPACE),
        _ if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Some(DEVICE_FAILED),
        _ => None,
    }
}
