//! `uringfs mkfs`: creates an empty volume on a block device or in a file. Creates the file if it does
//! not exist. Refuses a target that holds data or is in use.

use super::byte_progress::ByteProgress;
use super::exit_codes::{refused, with_cause_code, with_io_code};
use super::format;
use super::open_volume::{open_device, open_error, open_quietly};
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::resize::append_zeros;
use super::size_change::{BLOCK, unit_hint};
use super::volume_path::with_path;
use super::whole_volume::{inspect_for_write, whole_volume};
use crate::json::document;
use crate::output::print;
use serde_json::json;
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uringfs::device::Access;
use uringfs::device::backend::parse_size;
use uringfs::file::FileOptions;
use uringfs::{File, FormatOptions, Reactor, ReactorOptions, Volume, create_image};
use uringfs_lab::Error;
use uringfs_lab::run::stop_on_interrupt;
use uringfs_lab::targets::{TargetInfo, probe};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A block device or a file; a file that does not exist is created
    target: OsString,

    /// Size of the volume, as in 4G, rounded down to whole blocks; required for a new or empty file [default: all of an existing
    /// target]. K and KiB are 1024 bytes, KB is 1000; M, G and T likewise
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,

    /// Block size; only 4096 is supported
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse_block_size)]
    block_size: u64,

    /// Volume label, at most 64 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,

    /// Overwrite existing data on the target
    #[arg(short, long)]
    force: bool,

    /// Leave a new file sparse: its blocks are reserved only when they are written, and writes fail if the disk is full
    #[arg(long)]
    sparse: bool,

    /// Check whether the volume can be created, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    quiet: QuietOptions,

    /// Print JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// The part at the end of a target to zero. Other formats keep signatures or backup copies there: the copy of a GUID
/// partition table, superblocks of RAID members, ZFS labels.
const TAIL_BYTES: u64 = 1 << 20;
/// The unit of the sizes of devices.
const SECTOR_BYTES: u64 = 512;

fn parse_block_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        BLOCK => Ok(BLOCK),
        _ => Err("only a block size of 4096 bytes is supported".into()),
    }
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    create(&arguments).map_err(|error| match arguments.size.map(|size| (size, unit_hint(size))) {
        None | Some((_, "")) => error,
        Some((size, hint)) => {
            // The size as it was given, not rounded down to whole blocks.
            let text = error.to_string().replace("of 0 bytes", &format!("of {size} bytes"));
            Error::input(text + hint).exiting_with(error.exit_code())
        }
    })
}

fn create(arguments: &Arguments) -> Result<u8, Error> {
    let target = whole_volume(&arguments.target, "is made")?;
    let path = Path::new(&target);
    let shown = for_message(path);
    let blocks = arguments.size.map(|size| size / arguments.block_size);
    let mut options = FormatOptions::new().label(&arguments.label);
    if let Some(size) = arguments.size {
        options = options.size(size / arguments.block_size * arguments.block_size);
    }
    let found = inspect_for_write(path)?;
    let is_new = found == TargetInfo::Missing;
    let is_empty_file = matches!(found, TargetInfo::File { size: 0, .. });
    let size = match (blocks, is_new) {
        (None, true) => {
            let what = format!("{shown} does not exist; give --size, as in 4G, to create it");
            return Err(Error::input(what));
        }
        (None, false) if is_empty_file => {
            return Err(refused(format!("{shown}: is empty; give --size, as in 4G")));
        }
        (blocks, _) => blocks.map_or(found.size(), |blocks| blocks * arguments.block_size),
    };
    let grows = is_new || is_empty_file;
    if let TargetInfo::File { size: there, .. } = found
        && !grows
        && there < size
    {
        let there = format::size(there);
        let advice = "remove it first, or leave --size out to use only this";
        return Err(refused(format!("{shown}: has {there}, which is less than --size; {advice}")));
    }
    if !grows {
        refuse_data(path, &found, arguments.force)?;
    }
    let (text, size_bytes) = match grows {
        _ if arguments.dry_run => {
            let size_bytes = try_format(path, grows, size, &options)?;
            let json = document(json!({ "size": size_bytes, "created": false }));
            let text = format!("{shown}: would create a volume of {}\n", format::size(size_bytes));
            print(if arguments.json { &json } else { &text })?;
            return Ok(0);
        }
        true => {
            let stop = stop_on_interrupt()?;
            if is_new {
                create_image(path, 0).map_err(|error| open_error(path, &error))?;
            }
            let formatted = match arguments.sparse {
                true => format_sparse_file(path, size, &options),
                false => format_new_file(path, size, &options, &stop, arguments.quiet),
            };
            formatted.inspect_err(|_| {
                // The file is as before: missing or empty.
                let _ = match is_new {
                    true => std::fs::remove_file(path),
                    false => truncate(path),
                };
            })?
        }
        false => (String::new(), format_target(path, &options)?),
    };
    let text = format!("{text}{shown}: created a volume of {}\n", format::size(size_bytes));
    if !arguments.json {
        return arguments.quiet.print(&text).map(|()| 0);
    }
    let volume = open_quietly(&target, Access::Read)?;
    let fields = json!({ "size": size_bytes, "created": true, "label": volume.label(), "uuid": format::uuid(volume.uuid()) });
    print(&document(fields))?;
    Ok(0)
}

/// Formats memory of the target's size instead of the target. Returns the size of the volume in bytes.
fn try_format(path: &Path, grows: bool, size: u64, options: &FormatOptions) -> Result<u64, Error> {
    /// The largest device in memory. A volume that fits into it fits into a larger device, too.
    const MAX_BYTES: u64 = 1 << 40;
    let input_error = |error: io::Error| open_error(path, &error);
    if !grows {
        open_device(path, Access::ReadWrite)?;
    }
    let size = size.min(MAX_BYTES) / SECTOR_BYTES * SECTOR_BYTES;
    let device =
        uringfs::device::Target::Memory(size).open(Access::ReadWrite).map_err(input_error)?;
    Volume::format(&device, &options.clone().size(size))
        .map_err(|error| with_path(for_message(path), error))?;
    let volume = Volume::open_on(device).map_err(|error| with_path(for_message(path), error))?;
    Ok(volume.statistics().blocks * BLOCK)
}

fn truncate(path: &Path) -> io::Result<()> {
    HostFile::options().write(true).open(path)?.set_len(0)
}

/// Creates a volume in an empty file without writing the rest of the file.
fn format_sparse_file(
    path: &Path,
    size: u64,
    options: &FormatOptions,
) -> Result<(String, u64), Error> {
    let extended = HostFile::options().write(true).open(path).and_then(|file| file.set_len(size));
    extended.map_err(|error| {
        let failed = Error::input(format!("{}: cannot be created", for_message(path)));
        with_io_code(failed, &error).because(error)
    })?;
    Ok((String::new(), format_target(path, options)?))
}

/// Creates a volume in an empty file. Fills the file with zeros first: this reserves its blocks, so later writes
/// do not change metadata of its file system. Returns a message about the zeros, and the volume's size in bytes.
fn format_new_file(
    path: &Path,
    size: u64,
    options: &FormatOptions,
    stop: &AtomicBool,
    quiet: QuietOptions,
) -> Result<(String, u64), Error> {
    let shown = for_message(path);
    let failed = |error: io::Error| match stop.load(Ordering::Relaxed) {
        true => Error::interrupted().because("the new file was removed"),
        false => {
            let failed = Error::input(format!("{shown}: cannot be created"));
            with_io_code(failed, &error).because(error)
        }
    };
    let file = HostFile::options().write(true).open(path).map_err(failed)?;
    // Format a sparse file first, so that errors are found before zeros are written for minutes.
    file.set_len(size).map_err(failed)?;
    format_target(path, options)?;
    file.set_len(0).map_err(failed)?;
    let began = Instant::now();
    let progress = ByteProgress::start(size, quiet);
    append_zeros(&file, 0, size, stop, &progress).map_err(failed)?;
    drop(progress);
    let text = format!(
        "{shown}: wrote {} of zeros in {:.1} s to reserve its blocks\n",
        format::size(size),
        began.elapsed().as_secs_f64(),
    );
    Ok((text, format_target(path, options)?))
}

/// Refuses a device without space and, unless `force` is set, a target that holds data.
fn refuse_data(path: &Path, found: &TargetInfo, force: bool) -> Result<(), Error> {
    let shown = for_message(path);
    if found.size() == 0 {
        return Err(refused(format!("{shown}: has no space: its size is 0")));
    }
    if force {
        return Ok(());
    }
    let holds = match found {
        // A device counts as used only with a known signature; a file with any data.
        TargetInfo::Device { content, .. } => *content,
        _ => content_of_file(path, found.size()).map_err(|error| {
            with_cause_code(Error::input(format!("{shown}: cannot be read")).because(error))
        })?,
    };
    match holds {
        Some(what) => Err(refused(format!("{shown}: holds {what}; --force destroys it"))),
        None => Ok(()),
    }
}

/// The content of a file, in words; `None` if it has only zeros.
fn content_of_file(path: &Path, size: u64) -> io::Result<Option<&'static str>> {
    let file = HostFile::open(path)?;
    Ok(match probe(&file)? {
        None if !is_all_zero(&file, size)? => Some("data"),
        known => known,
    })
}

/// Whether a file contains only zeros.
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

/// The parts of a range between superblocks. Other file systems and partition tables keep signatures there.
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

/// Creates the volume. Returns its size in bytes.
fn format_target(path: &Path, options: &FormatOptions) -> Result<u64, Error> {
    let device = open_device(path, Access::ReadWrite)?;
    Volume::format(&device, options).map_err(|error| with_path(for_message(path), error))?;
    let volume =
        Volume::open_on(device.clone()).map_err(|error| with_path(for_message(path), error))?;
    let failed = |error: io::Error| {
        Error::run(format!("{}: cannot be written", for_message(path))).because(error)
    };
    let reactor = Reactor::new(ReactorOptions::default()).map_err(failed)?;
    let whole = File::from_device(device.clone(), FileOptions::default());
    reactor
        .block_on(async {
            let end = device.geometry().size;
            let superblocks = volume.superblocks();
            for ends in [0..volume.reserved_bytes(), end - TAIL_BYTES..end] {
                for unused in gaps_between(ends, &superblocks) {
                    whole.write_zeroes(unused.start, unused.end - unused.start).await?;
                }
            }
            whole.sync_all().await
        })
        .map_err(|errno| failed(errno.into()))?;
    Ok(volume.statistics().blocks * BLOCK)
}
