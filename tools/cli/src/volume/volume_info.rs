//! What `uringfs info` tells of the volume that a target holds.

use super::df::SpaceUsage;
use super::format;
use super::open_volume::open;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File as HostFile;
use uringfs::Access;
use uringfs_lab::targets::probe;

/// What a volume says of itself, opened for reading.
pub struct VolumeInfo {
    label: String,
    uuid: String,
    space: SpaceUsage,
    flaws: Vec<String>,
    errors: Vec<String>,
}

impl VolumeInfo {
    /// The volume of a file or a block device: none, if it holds none; or why it cannot be read.
    pub fn read(target: &OsStr) -> Option<Result<VolumeInfo, String>> {
        let file = HostFile::open(target).ok()?;
        if probe(&file).ok()? != Some("a uringfs volume") {
            return None;
        }
        let about = |volume: uringfs::Volume| VolumeInfo {
            label: volume.label().to_owned(),
            uuid: format::uuid(volume.uuid()),
            space: SpaceUsage::new(&volume),
            flaws: volume.flaws(),
            errors: volume.recent_errors().iter().map(ToString::to_string).collect(),
        };
        Some(open(target, Access::Read).map(about).map_err(|error| error.to_string()))
    }

    /// A line a property, as of the target: name, value, reason.
    pub fn lines(&self) -> Vec<(&'static str, String, String)> {
        let exact = |bytes: u64| (format::size(bytes), format!("{bytes} bytes"));
        let ((size, size_exact), (free, free_exact)) =
            (exact(self.space.size), exact(self.space.free));
        let mut lines = vec![
            ("label", self.label.clone(), String::new()),
            ("uuid", self.uuid.clone(), String::new()),
            ("size", size, size_exact),
            ("free", free, free_exact),
        ];
        lines.extend(self.flaws.iter().map(|flaw| ("flaw", flaw.clone(), String::new())));
        lines.extend(self.errors.iter().map(|error| ("error", error.clone(), String::new())));
        lines
    }

    pub fn json(&self) -> Value {
        json!({
            "label": self.label,
            "uuid": self.uuid,
            "size": self.space.size,
            "free": self.space.free,
            "flaws": self.flaws,
            "errors": self.errors,
        })
    }
}
