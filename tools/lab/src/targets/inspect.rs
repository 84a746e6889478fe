//! Inspects a target before a run: its kind, its size, and whether I/O on it could do harm. Opens and
//! reads; writes nothing.

use super::nvme_namespace::Namespace;
use super::signature;
use super::target::{Access, Target};
use super::target_info::TargetInfo;
use super::volume_file::VolumeFile;
use super::volumes::Volumes;
use crate::Error;
use crate::job::SyncWrites;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::path::Path;
use uringfs::Volume;
use uringfs::device::Target as DeviceTarget;
use uringfs::device::backend::in_use;
use uringfs::device::backend::nvme::{block_device_of, is_namespace};

/// Inspects a target. The volume of a file in a volume is opened for reading and stays in `volumes`.
///
/// # Errors
/// The target cannot be used; or the job writes, and the target is in use: a mounted device, the backing
/// file of one, an open volume.
pub fn inspect(target: &Target, writes: bool, volumes: &mut Volumes) -> Result<TargetInfo, Error> {
    match target {
        Target::Virtual(name) => inspect_virtual(name, writes),
        Target::InVolume(file) => inspect_in_volume(file, writes, volumes),
        Target::Path(path) => {
            let found = inspect_path(target, path, writes)?;
            if writes {
                let twin = block_device_of(path);
                Volume::require_closed(twin.as_deref().unwrap_or(path)).map_err(
                    |error| match error.errno() {
                        uringfs::Errno::BUSY => Error::in_use(target.to_string()).because(error),
                        _ => Error::input(target.to_string()).because(error),
                    },
                )?;
            }
            Ok(found)
        }
    }
}

/// The same for an engine that reads and writes files: a namespace's character device has neither call.
///
/// # Errors
/// Those of [`inspect`], and such a device.
pub fn inspect_files(
    target: &Target,
    writes: bool,
    volumes: &mut Volumes,
) -> Result<TargetInfo, Error> {
    match target {
        Target::Path(path) if is_namespace(path) => {
            let what = "takes NVMe commands only; use --engine uringfs or nvme-passthru, or fio with ioengine=io_uring_cmd";
            Err(Error::input(format!("{target}: {what}")))
        }
        _ => inspect(target, writes, volumes),
    }
}

fn inspect_in_volume(
    file: &VolumeFile,
    writes: bool,
    volumes: &mut Volumes,
) -> Result<TargetInfo, Error> {
    let volume = Target::Path(file.volume.clone());
    let is_missing = || Ok(inspect_path(&volume, &file.volume, writes)? == TargetInfo::Missing);
    if !file.is_remote() && is_missing()? {
        return Err(Error::input(format!("{volume} does not exist; create it with uringfs mkfs")));
    }
    volumes.open(&file.volume, uringfs::device::Access::Read)?;
    volumes.inspect(file)
}

fn inspect_path(target: &Target, path: &Path, writes: bool) -> Result<TargetInfo, Error> {
    let bad = |text: &str| Error::input(format!("{target}: {text}"));
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let status = match rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), wanted) {
        Ok(status) => status,
        Err(Errno::NOENT) => return inspect_missing(target, path),
        Err(errno) => return Err(Error::input(target.to_string()).because(errno)),
    };
    let kind = FileType::from_raw_mode(status.stx_mode.into());
    if kind == FileType::CharacterDevice && is_namespace(path) {
        return inspect_namespace(target, path, writes);
    }
    match kind {
        FileType::RegularFile | FileType::BlockDevice => {}
        FileType::Directory => {
            return Err(bad("is a directory; name a file or a block device (or use directory=)"));
        }
        FileType::Socket => {
            return Err(bad(
                "is a socket; --engine vhost-user reaches the disk that a server has there",
            ));
        }
        _ => return Err(bad("is neither a file nor a block device")),
    }
    if writes {
        require_unused(target, path, kind)?;
    }
    let access = Access { writes, direct: false, sync: SyncWrites::No };
    let mut file = target.open(access)?;
    if kind == FileType::BlockDevice {
        let alignment = rustix::fs::ioctl_blksszget(&file).map_or(512, u64::from);
        let unreadable = |error| Error::input(target.to_string()).because(error);
        let size = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
        let content = signature::probe(&file).map_err(unreadable)?;
        return Ok(TargetInfo::Device { size, alignment, content });
    }
    Ok(TargetInfo::File { size: status.stx_size, alignment: direct_alignment(&status) })
}

/// An error if writing to a file or block device would destroy what uses it.
fn require_unused(target: &Target, path: &Path, kind: FileType) -> Result<(), Error> {
    if let Some(user) = in_use::find_user(path) {
        let what = format!("{user}; end that use first, or choose another target");
        return Err(Error::in_use(format!("{target}: {what}")));
    }
    if kind == FileType::BlockDevice && is_held_exclusively(path) {
        let what = "is in use, or a partition of it is (see lsblk, swapon --show)";
        return Err(Error::in_use(format!("{target}: {what}")));
    }
    Ok(())
}

/// An NVMe namespace by its character device. Other users of the namespace use its block device.
fn inspect_namespace(target: &Target, path: &Path, writes: bool) -> Result<TargetInfo, Error> {
    if writes && let Some(twin) = block_device_of(path) {
        require_unused(target, &twin, FileType::BlockDevice)?;
    }
    let namespace = Namespace::open(path, writes)?;
    let content = signature::probe_namespace(&namespace)
        .map_err(|error| Error::input(target.to_string()).because(error))?;
    let (size, alignment) = (namespace.size(), namespace.format.block_bytes.into());
    Ok(TargetInfo::Device { size, alignment, content })
}

/// A missing file can be created if its directory exists. A missing device cannot: its mistyped name would become a file in
/// memory.
fn inspect_missing(target: &Target, path: &Path) -> Result<TargetInfo, Error> {
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(Error::input(format!("{target}: there is no such device")));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match folder.metadata() {
        Ok(found) if found.is_dir() => Ok(TargetInfo::Missing),
        Ok(_) => Err(Error::input(format!("{target}: {} is not a directory", folder.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::input(format!(
            "{target}: the directory {} does not exist; create it first",
            folder.display()
        ))),
        Err(error) => Err(Error::input(target.to_string()).because(error)),
    }
}

/// The alignment that the file system reports (Linux 6.1 and later), else a sector.
fn direct_alignment(status: &Statx) -> u64 {
    let is_reported = StatxFlags::from_bits_retain(status.stx_mask).contains(StatxFlags::DIOALIGN);
    match status.stx_dio_offset_align {
        align if is_reported && align != 0 => align.into(),
        _ => 512,
    }
}

fn inspect_virtual(name: &str, writes: bool) -> Result<TargetInfo, Error> {
    use uringfs::device::Access;
    let input_error = |error: std::io::Error| Error::input(error.to_string());
    let target = name.parse::<DeviceTarget>().map_err(input_error)?;
    if let DeviceTarget::Remote(_) = target {
        let access = if writes { Access::ReadWrite } else { Access::Read };
        let device = target.open(access).map_err(input_error)?;
        let geometry = device.geometry();
        return Ok(TargetInfo::Device {
            size: geometry.size,
            alignment: geometry.block_size.into(),
            content: signature::probe_device(&device).map_err(input_error)?,
        });
    }
    match target.virtual_size() {
        Some(size) if size > 0 => Ok(TargetInfo::Virtual { size }),
        _ => Err(Error::input(format!("{name}: expected a size, as in null:1G"))),
    }
}

/// Whether the kernel or a program holds the device, or a partition of it, exclusively: mounted in another
/// namespace, as swap, as part of an array. Other errors are reported when the target is opened.
fn is_held_exclusively(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).err() == Some(Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(name: &str) -> Result<TargetInfo, Error> {
        inspect(&Target::parse(name), false, &mut Volumes::default())
    }

    #[test]
    fn virtual_targets_have_a_size() {
        let size = |name: &str| look(name).map(|found| found.size());
        assert_eq!(size("null:1g").unwrap(), 1 << 30);
        assert_eq!(size("sim:4M,seed=3").unwrap(), 4 << 20);
        assert_eq!(size("null:512kB").unwrap(), 512_000);
        assert!(size("memory:").is_err() && size("null:0").is_err() && size("sim:1m,x=1").is_err());
    }

    #[test]
    fn directories_and_special_files_are_refused() {
        for (path, part) in [("/tmp", "is a directory"), ("/dev/null", "neither a file")] {
            let error = look(path).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = look("/no/such/place").unwrap_err().to_string();
        assert!(error.contains("directory /no/such does not exist"), "{error}");
    }
}
