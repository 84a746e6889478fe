//! Extents: offsets of a file to addresses of the device.

pub(crate) mod change_gate;
pub(crate) mod file_map;
pub(crate) mod hot_extent;
pub(crate) mod mapping;
pub(crate) mod refusal;
