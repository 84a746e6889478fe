//! `uringfs resize`: a volume that becomes larger. A file becomes larger with its volume, and its blocks
//! are reserved as `mkfs` does.

use super::format;
use super::open_volume::open;
use super::size_change::{BLOCK, SizeChange};
use super::volume_path::with_path;
use crate::output::print;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use uringfs::Access;
use uringfs_lab::Error;
use uringfs_lab::run::stop_on_interrupt;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume, which no program has open
    target: OsString,

    /// SIZE as in 8G, or +SIZE to grow by, in whole blocks of 4096 bytes: not less than it has, and of a
    /// device not more than that current. K and KiB are 1024 bytes, KB 1000; so M, G, T
    #[arg(value_parser = SizeChange::parse_larger)]
    size: SizeChange,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = path.display();
    let current = open(&arguments.target, Access::Read)?.statistics().blocks * BLOCK;
    let size = arguments.size.apply(current).map(|size| size / BLOCK * BLOCK);
    let size = size.ok_or_else(|| Error::input(format!("{shown}: no volume is so large")))?;
    if size < current {
        let what = format!("{shown}: has {current} bytes, and a volume cannot shrink to {size}");
        return Err(Error::input(what));
    }
    // Nobody has it open: known before the file becomes larger.
    drop(open(&arguments.target, Access::ReadWrite)?);
    if path.is_file() {
        extend_file(path, size)?;
    }
    let volume = open(&arguments.target, Access::ReadWrite)?;
    volume.resize(size).map_err(|error| with_path(&shown, error))?;
    print(&format!("{shown}: a volume of {}\n", format::size(size)))?;
    Ok(0)
}

/// Makes a file at least as long, or leaves it as it was. Meanwhile nobody opens the volume in it.
fn extend_file(path: &Path, size: u64) -> Result<(), Error> {
    let shown = path.display();
    let failed =
        |error: io::Error| Error::run(format!("{shown}: cannot be made larger")).because(error);
    let stop = stop_on_interrupt()?;
    let file = HostFile::options().write(true).open(path).map_err(failed)?;
    // The lock of who writes to the volume; it ends with `file`.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let what = "another program has the volume open; close it there first";
            return Err(Error::input(format!("{shown}: {what}")));
        }
        locked => locked.map_err(|errno| failed(errno.into()))?,
    }
    let length = file.metadata().map_err(failed)?.len();
    if let Err(error) = append_zeros(&file, length, size, &stop) {
        // The volume does not know of it yet.
        file.set_len(length).map_err(failed)?;
        return Err(match stop.load(Ordering::Relaxed) {
            true => Error::interrupted(),
            false => failed(error),
        });
    }
    Ok(())
}

/// Writes zeros behind a file's end. An error also when it is told to stop.
pub fn append_zeros(file: &HostFile, from: u64, to: u64, stop: &AtomicBool) -> io::Result<()> {
    if from < to {
        // Finds out about a full disk before anything is written; not every file system can.
        match fallocate(file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => {}
            reserved => reserved?,
        }
    }
    let go_on = || match stop.load(Ordering::Relaxed) {
        true => Err(io::Error::from(io::ErrorKind::Interrupted)),
        false => Ok(()),
    };
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        go_on()?;
        let length = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..length as usize], at)?;
        at += length;
    }
    file.sync_all()?;
    go_on()
}
