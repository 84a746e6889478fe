//! The volume part of `uringfs info`.

use super::df::SpaceUsage;
use super::format;
use super::open_volume::open_quietly;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File as HostFile;
use uringfs::device::Access;
use uringfs_lab::targets::probe;

/// The properties of a volume.
pub struct VolumeInfo {
    label: String,
    uuid: String,
    space: SpaceUsage,
    flaws: Vec<String>,
    errors: Vec<String>,
}

impl VolumeInfo {
    /// Reads the volume in a file or on a block device. None if there is no volume; an error if it cannot be read.
    pub fn read(target: &OsStr) -> Option<Result<VolumeInfo, String>> {
        let file = HostFile::open(target).ok()?;
        if probe(&file).ok()? != Some("a uringfs volume") {
            return None;
        }
        let info = |volume: uringfs::Volume| VolumeInfo {
            label: volume.label().to_owned(),
            uuid: format::uuid(volume.uuid()),
            space: SpaceUsage::new(&volume),
            flaws: volume.flaws(),
            errors: volume.recent_errors().iter().map(ToString::to_string).collect(),
        };
        Some(open_quietly(target, Access::Read).map(info).map_err(|error| error.to_string()))
    }

    /// One line per property: name, value, exact value.
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
        lines.extend(self.flaws.iter().map(|flaw| ("error", flaw.clone(), String::new())));
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
