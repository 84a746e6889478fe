//! A volume as its users see it.

// A new volume on a device, and one opened.
pub(crate) mod format;

// Extended attributes.
pub(crate) mod xattr;

// A volume becomes larger.
pub(crate) mod resize;

// A file is opened by its path.
mod open;

// The same for tasks.
pub(crate) mod async_volume;

// A file of the volume as the file crate asks it.
pub(crate) mod file_map;

// The volume.
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
pub(crate) mod volume;
