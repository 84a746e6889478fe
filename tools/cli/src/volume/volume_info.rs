//! The volume part of `uringfs info`.

use super::df::SpaceUsage;
use super::format;
use super::open_volume::open_quietly;
use super::server::ask;
use serde_json::{Value, json};
use std::ffi::OsStr;
use uringfs::device::{Access, Device};
use uringfs_fuse::control::Request;
use uringfs_lab::Error;
use uringfs_lab::targets::{VOLUME, probe_device};

/// The properties of a volume.
pub struct VolumeInfo {
    label: String,
    uuid: String,
    space: SpaceUsage,
    warnings: Vec<String>,
    errors: Vec<String>,
    mount: Option<Mount>,
}

/// How the volume is mounted.
struct Mount {
    directory: String,
    options: String,
    process: u64,
    threads: u64,
}

/// Whether an open target holds a volume, by its first bytes.
pub fn holds_volume(device: &Device) -> bool {
    probe_device(device).is_ok_and(|content| content == Some(VOLUME))
}

impl VolumeInfo {
    /// Reads the volume of a target that holds one. An error says why it cannot be read.
    pub fn read(target: &OsStr) -> Result<VolumeInfo, String> {
        let text = |error: Error| error.to_string();
        if let Some(reply) = ask(target, Request::Info).map_err(text)? {
            return Ok(VolumeInfo::from_reply(&reply));
        }
        let info = |volume: uringfs::Volume| VolumeInfo {
            label: volume.label().to_owned(),
            uuid: format::uuid(volume.uuid()),
            space: SpaceUsage::new(&volume),
            warnings: volume.warnings(),
            errors: volume.recent_errors().iter().map(ToString::to_string).collect(),
            mount: None,
        };
        open_quietly(target, Access::Read).map(info).map_err(text)
    }

    /// Of a volume that a server has open.
    fn from_reply(reply: &Value) -> VolumeInfo {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let mount = &reply["mount"];
        VolumeInfo {
            label: text(&reply["label"]),
            uuid: format::uuid(serde_json::from_value(reply["uuid"].clone()).unwrap_or_default()),
            space: SpaceUsage::from_reply(&reply["space"]),
            warnings: texts(&reply["warnings"]),
            errors: texts(&reply["errors"]),
            mount: mount.is_object().then(|| Mount {
                directory: text(&mount["directory"]),
                options: text(&mount["options"]),
                process: number(&mount["process"]),
                threads: number(&mount["threads"]),
            }),
        }
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
        if let Some(mount) = &self.mount {
            let server = format!("process {}, {} threads", mount.process, mount.threads);
            lines.push(("mounted on", mount.directory.clone(), String::new()));
            lines.push(("mount options", mount.options.clone(), String::new()));
            lines.push(("served by", server, String::new()));
        }
        lines.extend(self.warnings.iter().map(|flaw| ("error", flaw.clone(), String::new())));
        lines.extend(self.errors.iter().map(|error| ("error", error.clone(), String::new())));
        lines
    }

    pub fn json(&self) -> Value {
        json!({
            "label": self.label,
            "uuid": self.uuid,
            "size": self.space.size,
            "free": self.space.free,
            "warnings": self.warnings,
            "errors": self.errors,
            "mount": self.mount.as_ref().map(|mount| json!({
                "directory": mount.directory,
                "options": mount.options,
                "process": mount.process,
                "threads": mount.threads,
            })),
        })
    }
}
