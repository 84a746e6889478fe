//! `uringfs mkfs`: an empty volume on a block device or in a file, which is made if it is not
//! there. What holds something, or is in use, is left alone.

use super::format;
use super::resize::append_zeros;
use super::size_change::BLOCK;
use super::volume_path::with_path;
use crate::output::print;
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uringfs::backend::parse_size;
use uringfs::{
    Access, Device, File, FileOptions, FormatOptions, Reactor, ReactorOptions, Volume, create_image,
};
use uringfs_lab::Error;
use uringfs_lab::run::stop_on_interrupt;
use uringfs_lab::targets::{Found, Target, Volumes, inspect, probe};

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// A block device, or a file; one that is not there is made
    target: OsString,

    /// Of the volume, as in 4G, in whole blocks; of what is there already, all is used. K and KiB are 1024
    /// bytes, KB 1000; so M, G, T
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,

    /// Bytes
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse_block_size)]
    block_size: u64,

    /// A name for people, of 64 bytes at most
    #[arg(long, default_value = "")]
    label: String,

    /// Destroy what the target holds
    #[arg(long)]
    force: bool,
}

/// Bytes at a target's end where others have what they are known by, or come back from: the copy of a GUID
/// partition table, what RAID members say of themselves, labels of ZFS.
const TAIL_BYTES: u64 = 1 << 20;

fn parse_block_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        BLOCK => Ok(BLOCK),
        _ => Err("a volume's blocks are of 4096 bytes; no other size is supported".into()),
    }
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = path.display();
    let blocks = arguments.size.map(|size| size / arguments.block_size);
    let options = FormatOptions { label: arguments.label.clone(), blocks };
    let found = inspect(&Target::Path(path.to_owned()), true, &mut Volumes::default())?;
    let (text, made) = if found == Found::Nothing {
        let blocks = blocks.ok_or_else(|| {
            Error::input(format!("{shown} does not exist; give --size, as in 4G, to make it"))
        })?;
        let stop = stop_on_interrupt()?;
        create_image(path, 0).map_err(|error| Error::input(error.to_string()))?;
        format_new_file(path, blocks * arguments.block_size, &options, &stop).inspect_err(|_| {
            // It is no volume, and nobody else's.
            let _ = std::fs::remove_file(path);
        })?
    } else {
        refuse_data(path, &found, arguments.force)?;
        (String::new(), format_target(path, &options)?)
    };
    print(&format!("{text}{shown}: a volume of {}\n", format::size(made)))?;
    Ok(0)
}

/// Makes a volume in an empty file, which it fills with zeros: the file's blocks are reserved, and later
/// writes change none of its file system's metadata. Answers in words what that took, and the
/// volume's size in bytes.
fn format_new_file(
    path: &Path,
    size: u64,
    options: &FormatOptions,
    stop: &AtomicBool,
) -> Result<(String, u64), Error> {
    let shown = path.display();
    let failed = |error: io::Error| match stop.load(Ordering::Relaxed) {
        true => Error::interrupted(),
        false => Error::input(format!("{shown}: cannot be made")).because(error),
    };
    let file = HostFile::options().write(true).open(path).map_err(failed)?;
    // Of holes at first: what cannot be a volume is known before zeros are written for minutes.
    file.set_len(size).map_err(failed)?;
    format_target(path, options)?;
    file.set_len(0).map_err(failed)?;
    let began = Instant::now();
    append_zeros(&file, 0, size, stop).map_err(failed)?;
    let text = format!(
        "{shown}: wrote {} of zeros in {:.1} s, so that its blocks are reserved\n",
        format::size(size),
        began.elapsed().as_secs_f64(),
    );
    Ok((text, format_target(path, options)?))
}

/// Refuses what holds something.
fn refuse_data(path: &Path, found: &Found, force: bool) -> Result<(), Error> {
    let shown = path.display();
    if found.size() == 0 {
        let what = format!("{shown}: is empty; remove it, and it is made with --size");
        return Err(Error::input(what));
    }
    if force {
        return Ok(());
    }
    let unreadable =
        |error: io::Error| Error::input(format!("{shown}: cannot be read")).because(error);
    let file = HostFile::open(path).map_err(unreadable)?;
    let holds = probe(&file).map_err(unreadable)?;
    let holds = match (holds, found) {
        (Some(known), _) => Some(known),
        // Of a device only what is known counts; a file may be anything of the user's.
        (None, Found::File { size, .. }) if !is_all_zero(&file, *size).map_err(unreadable)? => {
            Some("data")
        }
        _ => None,
    };
    match holds {
        Some(what) => Err(Error::input(format!("{shown}: holds {what}; --force destroys it"))),
        None => Ok(()),
    }
}

/// Whether a file is all zeros.
fn is_all_zero(file: &HostFile, size: u64) -> io::Result<bool> {
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(part.len() as u64) as usize;
        match file.read_at(&mut part[..length], at) {
            Ok(0) => return Ok(true),
            Ok(read) if part[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            Ok(read) => at += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// What of a range is no superblock: there other file systems and partition tables have what they are known by.
fn gaps_between(range: Range<u64>, superblocks: &[u64]) -> Vec<Range<u64>> {
    let (mut at, mut gaps) = (range.start, Vec::new());
    for superblock in superblocks.iter().filter(|address| range.contains(address)) {
        gaps.push(at..*superblock);
        at = superblock + BLOCK;
    }
    gaps.push(at..range.end);
    gaps.retain(|range| !range.is_empty());
    gaps
}

/// Makes the volume; answers its size in bytes.
fn format_target(path: &Path, options: &FormatOptions) -> Result<u64, Error> {
    let device =
        Device::open(path, Access::ReadWrite).map_err(|error| Error::input(error.to_string()))?;
    Volume::format(&device, options).map_err(|error| with_path(&path.display(), error))?;
    let volume =
        Volume::open_on(device.clone()).map_err(|error| with_path(&path.display(), error))?;
    let failed = |error: io::Error| {
        Error::run(format!("{}: cannot be written", path.display())).because(error)
    };
    let reactor = Reactor::new(ReactorOptions::default()).map_err(failed)?;
    let whole = File::over(device.clone(), FileOptions::default());
    reactor
        .block_on(async {
            let end = device.geometry().size;
            let superblocks = volume.superblocks();
            for ends in [0..volume.reserved_bytes(), end - TAIL_BYTES..end] {
                for unused in gaps_between(ends, &superblocks) {
                    whole.write_zeroes(unused.start, unused.end - unused.start).await?;
                }
            }
            whole.sync().await
        })
        .map_err(|errno| failed(errno.into()))?;
    Ok(volume.statistics().blocks * BLOCK)
}
