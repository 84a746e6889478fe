//! `uringfs serve ublk`, and the tables `[[ublk]]` of a configuration: make a block device of this machine of a disk.

use super::super::bounded::Bounded;
use super::super::exit_codes::with_io_code;
use super::super::target::canonical;
use super::super::volume_path::VolumePath;
use super::disks::{Disk, DiskOptions, Disks, close_all};
use super::problem::Problem;
use super::service::{Context, Service};
use crate::output::{print_error, print_warning};
use serde::Deserialize;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use uringfs_lab::Error;
use uringfs_ublk::{DeviceUse, Disk as Device, PreparedServer, ServerHandle, UblkServer};

/// The options of the command, and the keys of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The disk: TARGET:/path is a file in a volume; TARGET alone is a whole file, a block device or memory:SIZE
    #[arg(required_unless_present = "remove", value_name = "TARGET[:/path]")]
    pub(super) target: Option<PathBuf>,

    /// Queues of the device, each with a thread. The kernel makes at most one a processor [default: 1]
    #[arg(long, value_name = "NUMBER")]
    queues: Option<Bounded<64>>,

    /// Refuse every change
    #[arg(short, long)]
    pub(super) read_only: bool,

    /// Make the device of a user who is not root, and has been given /dev/ublk-control. It does not survive its server
    #[arg(long)]
    unprivileged: bool,
}

impl Options {
    /// Refuses options that do not go together.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let target = self.target.as_deref().unwrap_or(Path::new(""));
        Problem::first(&[("target", target.as_os_str().is_empty(), "name a disk")])
    }

    /// What the disk is called wherever the command is run, by which the next server finds its device. None for memory,
    /// which ends with the server.
    pub(super) fn name(&self) -> Result<Option<String>, Problem> {
        let target = self.target.as_deref().unwrap_or(Path::new(""));
        lasting_name(target.as_os_str()).map_err(Problem::of("target"))
    }
}

/// A device that is made, or taken over from a server that was killed, and not served yet.
pub(super) struct PreparedDevice {
    options: Options,
    name: Option<String>,
    disks: Vec<Disk>,
    server: PreparedServer,
}

/// A block device that is served.
pub(super) struct BlockDevice {
    pub(super) options: Options,
    /// What the disk is called.
    pub(super) name: Option<String>,
    pub(super) disks: Vec<Disk>,
    handle: ServerHandle,
    path: PathBuf,
}

impl PreparedDevice {
    /// Opens the disk, and prepares its device. Dropping it deletes a new device.
    pub(super) fn prepare(
        options: &Options,
        context: &mut Context,
    ) -> Result<PreparedDevice, Problem> {
        options.check()?;
        let target = options.target.clone().unwrap_or_default();
        let disk_options = DiskOptions {
            protocol: "ublk",
            // Each disk is one device.
            address: None,
            read_only: options.read_only,
            is_cached: false,
            directory_advice: "a disk is one file in it",
        };
        let mut disks = Disks::new(disk_options, &mut context.targets);
        // Programs see no name but that of the device.
        let added = disks.add(target.as_os_str(), Some(&target.to_string_lossy()));
        added.map_err(Problem::of("target"))?;
        let disks = disks.into_vec();
        let mut device = Device::new(disks[0].file().clone())
            .queues(options.queues.map_or(1, Bounded::get))
            .read_only(options.read_only)
            .unprivileged(options.unprivileged);
        let name = options.name()?;
        if let Some(name) = &name {
            device = device.name(name);
        }
        let server = UblkServer::prepare(device).map_err(failed).map_err(Problem::of("target"))?;
        Ok(PreparedDevice { options: options.clone(), name, disks, server })
    }

    /// What the disk is called.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Serves the device, and returns it with its service, which waits for its end.
    pub(super) fn start(self) -> Result<(BlockDevice, Service), Error> {
        let PreparedDevice { options, name, disks, server } = self;
        let server = match server.start() {
            Ok(server) => server,
            Err(error) => {
                if let Err(closed) = close_all(disks) {
                    print_error(&closed.to_string());
                }
                return Err(failed(error));
            }
        };
        let (handle, path) = (server.handle(), server.path().to_owned());
        let shown = handle.clone();
        disks[0].show(move |page, labels| page.add_requests(labels, &shown.counts()));
        if server.is_recovered() {
            let path = path.display();
            tracing::info!(
                event = "ublk_recovered",
                "{path}: its server was killed; this one goes on with it"
            );
        }
        let stop = {
            let (handle, path) = (handle.clone(), path.clone());
            move || {
                stop(&handle, &path);
            }
        };
        let service = Service::new("uringfs-ublk", move || server.wait(), stop);
        Ok((BlockDevice { options, name, disks, handle, path }, service))
    }
}

impl BlockDevice {
    /// Ends its service when it is not in use. Returns whether it is.
    pub(super) fn stop(&self) -> DeviceUse {
        stop(&self.handle, &self.path)
    }

    /// The line for the device.
    pub(super) fn lines(&self) -> String {
        format!("{}\n", self.path.display())
    }
}

fn stop(handle: &ServerHandle, path: &Path) -> DeviceUse {
    let device_use = handle.stop();
    if device_use == DeviceUse::InUse {
        let path = path.display();
        print_warning(&format!(
            "{path} is in use; its server ends when it is unmounted, or at a second signal to stop"
        ));
    }
    device_use
}

/// Removes a device whose server was killed.
pub(super) fn remove(device: &Path) -> Result<(), Error> {
    uringfs_ublk::remove(device).map_err(failed)
}

fn failed(error: io::Error) -> Error {
    let line = error.to_string();
    match error.kind() {
        io::ErrorKind::InvalidInput => Error::input(line),
        _ => with_io_code(Error::run(line), &error),
    }
}

fn lasting_name(target: &OsStr) -> Result<Option<String>, Error> {
    let path = VolumePath::split(target)?;
    let whole = Path::new(target);
    if path.target == target || whole.exists() {
        return Ok(canonical(whole).map(|whole| whole.to_string_lossy().into_owned()));
    }
    let inside = String::from_utf8_lossy(&path.bytes);
    Ok(canonical(Path::new(&path.target)).map(|store| format!("{}:{inside}", store.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_name_does_not_depend_on_the_working_directory() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::write(&image, "").unwrap();
        let canonical = fs::canonicalize(&image).unwrap().display().to_string();
        let name = |text: String| lasting_name(OsStr::new(&text)).unwrap();
        let roundabout = format!("{}/./image", folder.path().display());
        assert_eq!(name(roundabout.clone()), Some(canonical.clone()));
        assert_eq!(name(roundabout + ":/a/b"), Some(canonical + ":/a/b"));
        let uri = name("nbd://host/disk".into()).unwrap();
        assert_eq!(name("nbd://host/disk:/a".into()), Some(uri + ":/a"));
        assert_eq!(name("memory:1M".into()), None);
    }
}
