//! `uringfs serve ublk`: makes a block device of this machine of a disk.

use super::super::exit_codes::with_io_code;
use super::super::service::{at_stop_signal, notify};
use super::super::target::canonical;
use super::super::volume_path::VolumePath;
use super::disks::{DiskOptions, Disks, close_all};
use super::service::{Context, log_started};
use crate::output::{print, print_error};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use sd_notify::NotifyState;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use uringfs::File;
use uringfs_lab::Error;
use uringfs_ublk::{Disk, UblkServer};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The disk: TARGET:/path is a file in a volume; TARGET alone is a whole file, a block device or memory:SIZE
    #[arg(required_unless_present = "remove", value_name = "TARGET[:/path]")]
    target: Option<OsString>,

    /// Queues of the device, each with a thread. The kernel makes at most one a processor
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,

    /// Refuse every change
    #[arg(short, long)]
    read_only: bool,

    /// Make the device of a user who is not root, and has been given /dev/ublk-control. It does not survive its server
    #[arg(long)]
    unprivileged: bool,

    /// Remove a device whose server was killed, instead of serving it again. Its requests fail
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["target", "queues", "read_only", "unprivileged"])]
    remove: Option<PathBuf>,
}

/// Returns the exit code.
pub(super) fn run(arguments: &Arguments, mut context: Context) -> Result<u8, Error> {
    if let Some(device) = &arguments.remove {
        return uringfs_ublk::remove(device).map(|()| 0).map_err(failed);
    }
    let target = arguments.target.as_deref().expect("required without --remove");
    let options = DiskOptions {
        protocol: "ublk",
        read_only: arguments.read_only,
        is_cached: false,
        directory_advice: "a disk is one file in it",
    };
    let mut disks = Disks::new(options, &mut context.targets);
    let added = disks.add(target, Some("disk"));
    let disks = disks.into_vec();
    let served = added.and_then(|()| serve(arguments, target, disks[0].file().clone()));
    let closed = close_all(disks);
    let closed = closed.and(context.targets.close_unused());
    served.and(closed).map(|()| 0)
}

fn serve(arguments: &Arguments, target: &OsStr, file: File) -> Result<(), Error> {
    let mut disk = Disk::new(file)
        .queues(arguments.queues.into())
        .read_only(arguments.read_only)
        .unprivileged(arguments.unprivileged);
    if let Some(name) = lasting_name(target)? {
        disk = disk.name(name);
    }
    let server = UblkServer::start(disk).map_err(failed)?;
    let (handle, path) = (server.handle(), server.path().to_owned());
    at_stop_signal(move || {
        notify(&[NotifyState::Stopping]);
        if is_in_use(&path) {
            let path = path.display();
            print_error(&format!(
                "{path} is in use; unmount it, or stop the server again to remove it all the same"
            ));
        }
        handle.stop();
    })?;
    if server.is_recovered() {
        let path = server.path().display();
        tracing::info!(event = "ublk_recovered", "goes on with {path}, whose server was killed");
    }
    print(&log_started("ublk", format!("{}\n", server.path().display())))?;
    notify(&[NotifyState::Ready]);
    server.wait().map_err(failed)
}

fn failed(error: io::Error) -> Error {
    let line = error.to_string();
    match error.kind() {
        io::ErrorKind::InvalidInput => Error::input(line),
        _ => with_io_code(Error::run(line), &error),
    }
}

/// What the disk is called wherever the command is run, by which the next server finds its device. None for memory,
/// which ends with the server.
fn lasting_name(target: &OsStr) -> Result<Option<String>, Error> {
    let path = VolumePath::split(target)?;
    let whole = Path::new(target);
    if path.target == target || whole.exists() {
        return Ok(canonical(whole).map(|whole| whole.to_string_lossy().into_owned()));
    }
    let inside = String::from_utf8_lossy(&path.bytes);
    Ok(canonical(Path::new(&path.target)).map(|store| format!("{}:{inside}", store.display())))
}

fn is_in_use(device: &Path) -> bool {
    let opened = open(device, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL, Mode::empty());
    matches!(opened, Err(Errno::BUSY))
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
