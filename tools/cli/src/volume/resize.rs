//! `uringfs resize`: enlarges a volume. If the volume is in a file, the file grows first, and its blocks are
//! reserved as in `mkfs`. An image of Ceph's RBD grows first, too.

use super::byte_progress::ByteProgress;
use super::exit_codes::{refused, with_io_code};
use super::format;
use super::mounts;
use super::open_volume::{open, open_quietly};
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::server::ask;
use super::size_change::{BLOCK, SizeChange, unit_hint};
use super::target::{cluster_error, rbd_admin};
use super::volume_path::with_path;
use crate::json::document;
use crate::output::print;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use uringfs::device::Access;
use uringfs_fuse::control::Request;
use uringfs_lab::Error;
use uringfs_lab::run::stop_on_interrupt;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume that no program has open, or that is mounted or served
    target: OsString,

    /// New size, as in 8G, or +SIZE to grow by, or max for all of the device or file; rounded down to blocks of 4096
    /// bytes. Not smaller than the volume, and not larger than the device; a file that no program has open and an image of
    /// Ceph's RBD are enlarged. K and KiB are 1024 bytes, KB is 1000; M, G
    /// and T likewise
    #[arg(value_parser = NewSize::parse, default_value = "max", allow_hyphen_values = true)]
    size: NewSize,

    #[command(flatten)]
    quiet: QuietOptions,

    /// Print JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// The largest volume.
const MAX_BYTES: u64 = 64 << 40;

/// The size to grow to.
#[derive(Clone, Copy)]
enum NewSize {
    /// That of the device or file.
    Max,
    Changed(SizeChange),
}

impl NewSize {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            _ => SizeChange::parse_larger(text).map(Self::Changed),
        }
    }
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = for_message(path);
    let closed =
        || Error::in_use(format!("{shown}: its server has closed it meanwhile; try again"));
    let mounted = ask(&arguments.target, Request::Space)?;
    let (current, device) = match &mounted {
        Some(space) => {
            let current = bytes(space, "size");
            // To resize to the size that it has makes the server ask again for the size of the device.
            let space = ask(&arguments.target, Request::Resize(current))?.ok_or_else(closed)?;
            (current, bytes(&space, "device"))
        }
        None => {
            let volume = open(&arguments.target, Access::Read)?;
            (volume.statistics().blocks * BLOCK, volume.device().size())
        }
    };
    let (size, hint) = match arguments.size {
        NewSize::Max => (Some(device), ""),
        NewSize::Changed(size) => (size.apply(current), unit_hint(size.amount())),
    };
    let too_large = || Error::input(format!("{shown}: the new size is too large"));
    let size = size.ok_or_else(too_large)? / BLOCK * BLOCK;
    if size < current {
        let has = format!("{shown}: has {} ({current} bytes)", format::size(current));
        return Err(refused(format!("{has}, and a volume cannot shrink{hint}")));
    }
    if size == current {
        let what = format!("{shown}: has {} already\n", format::size(size));
        return arguments.print(&what, current, size);
    }
    let text = format!("{shown}: resized to {}\n", format::size(size));
    let image = if size > device { rbd_admin(path)? } else { None };
    match &mounted {
        Some(_) if size > device && image.is_none() => {
            let has = format!("{shown}: has only {} ({device} bytes)", format::size(device));
            return Err(refused(format!("{has}; enlarge it first, a file with truncate -s")));
        }
        Some(_) => {}
        None => {
            // Fails if another program has the volume open. Checked before the file grows.
            drop(open_quietly(&arguments.target, Access::ReadWrite)?);
            if path.is_file() {
                extend_file(path, size, arguments.quiet)?;
            }
        }
    }
    if let Some(image) = image {
        if size > MAX_BYTES {
            return Err(too_large());
        }
        image.enlarge(size).map_err(|error| cluster_error(&error))?;
    }
    if mounted.is_some() {
        ask(&arguments.target, Request::Resize(size))?.ok_or_else(closed)?;
        return arguments.print(&text, current, size);
    }
    let volume = open_quietly(&arguments.target, Access::ReadWrite)?;
    volume.resize(size).map_err(|error| with_path(shown, error))?;
    arguments.print(&text, current, size)
}

/// A number of the server's reply.
fn bytes(space: &Value, name: &str) -> u64 {
    space[name].as_u64().unwrap_or(0)
}

impl Arguments {
    /// Prints the report. Returns the exit code.
    fn print(&self, text: &str, previous: u64, size: u64) -> Result<u8, Error> {
        let json = || document(json!({ "size": size, "previous": previous }));
        match self.json {
            true => print(&json())?,
            false => self.quiet.print(text)?,
        }
        Ok(0)
    }
}

/// Extends a file to at least `size`, or leaves it as it was. Meanwhile no program can open the volume in it.
fn extend_file(path: &Path, size: u64, quiet: QuietOptions) -> Result<(), Error> {
    let shown = for_message(path);
    let failed = |error: io::Error| {
        let failed = Error::run(format!("{shown}: cannot be enlarged"));
        with_io_code(failed, &error).because(error)
    };
    let stop = stop_on_interrupt()?;
    let file = HostFile::options().write(true).open(path).map_err(failed)?;
    // The lock that a writer of the volume holds. Closing `file` releases it.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let advice = mounts::advice(path, b"/");
            let otherwise = || "another program has the volume open; close it there first".into();
            return Err(Error::in_use(format!("{shown}: {}", advice.unwrap_or_else(otherwise))));
        }
        locked => locked.map_err(|errno| failed(errno.into()))?,
    }
    let length = file.metadata().map_err(failed)?.len();
    let progress = ByteProgress::start(size.saturating_sub(length), quiet);
    if let Err(error) = append_zeros(&file, length, size, &stop, &progress) {
        // The volume does not use the new part yet.
        file.set_len(length).map_err(failed)?;
        return Err(match stop.load(Ordering::Relaxed) {
            true => Error::interrupted().because("the volume is as it was"),
            false => failed(error),
        });
    }
    Ok(())
}

/// Extends a file with written zeros. Fails with `Interrupted` once `stop` is set.
pub fn append_zeros(
    file: &HostFile,
    from: u64,
    to: u64,
    stop: &AtomicBool,
    progress: &ByteProgress,
) -> io::Result<()> {
    if from < to {
        // Detects a full disk before anything is written. Not every file system supports it.
        match fallocate(file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => {}
            reserved => reserved?,
        }
    }
    let check_stop = || match stop.load(Ordering::Relaxed) {
        true => Err(io::Error::from(io::ErrorKind::Interrupted)),
        false => Ok(()),
    };
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        check_stop()?;
        let length = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..length as usize], at)?;
        at += length;
        progress.add(length);
    }
    file.sync_all()?;
    check_stop()
}
