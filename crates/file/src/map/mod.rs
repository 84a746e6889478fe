//! Extents: offsets of a file to addresses of the device.

pub(crate) mod file_map;
pub(crate) mod hot_extent;
pub(crate) mod mapping;
pub(crate) mod refusal;
pub(crate) mod change_gate;
