//! A volume as its users see it.

/// The same for tasks.
pub(crate) mod async_volume;
/// A file of the volume as the file crate asks it.
pub(crate) mod file_map;
/// A new volume on a device, and one opened.
pub(crate) mod format;
/// A file is opened by its path.
mod open;
/// A volume becomes larger.
pub(crate) mod resize;
/// The volume.
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
pub(crate) mod volume;
/// Extended attributes.
pub(crate) mod xattr;
