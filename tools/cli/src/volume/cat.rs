//! `uringfs cat`: writes the contents of files to standard output.

use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::image::ImageFiles;
use super::open_volume::open_at;
use super::pipeline::{CHUNK_BYTES, DEVICE_TOO_SHORT, Pipeline};
use super::volume_path::{VolumePath, as_path, with_path};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use uringfs::Buffer;
use uringfs::device::Access;
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let errors = ErrorSink::default();
    let paths = arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors);
    print_each(&volume, &paths, &errors)?;
    Ok(errors.exit_code())
}

/// Writes files to standard output, one after the other. Returns the exit code.
pub fn print_contents(volume: &Files, paths: &[VolumePath]) -> Result<u8, Error> {
    let errors = ErrorSink::default();
    print_each(volume, paths, &errors)?;
    Ok(errors.exit_code())
}

fn print_each(volume: &Files, paths: &[VolumePath], errors: &ErrorSink) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let output_error = |error| Error::run("cannot write to standard output").because(error);
    let Some(first) = paths.first() else { return Ok(()) };
    if ImageFiles::of_volume(&first.target)?.contains_open_file(&out).map_err(output_error)? {
        return Err(refused("standard output is the image that is being read"));
    }
    for path in paths {
        match print_file(volume, path, &mut out) {
            // The reader of the pipe has closed it.
            Err(Failed::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(Failed::Output(error)) => return Err(output_error(error)),
            Err(Failed::Input(error)) => _ = errors.record::<()>(Err(error)),
            Ok(()) => _ = errors.record(Ok(())),
        }
    }
    Ok(())
}

/// Writes a file to `out`. An error of `out` becomes that of `output_error`.
pub fn write_contents(
    volume: &Files,
    path: &VolumePath,
    out: &mut impl Write,
    output_error: impl FnOnce(std::io::Error) -> Error,
) -> Result<(), Error> {
    print_file(volume, path, out).map_err(|failed| match failed {
        Failed::Input(error) => error,
        Failed::Output(error) => output_error(error),
    })
}

enum Failed {
    Input(Error),
    Output(std::io::Error),
}

/// Reads many chunks at once, and writes them in order.
fn print_file(volume: &Files, path: &VolumePath, out: &mut impl Write) -> Result<(), Failed> {
    let unreadable = |error: std::io::Error| {
        Failed::Input(Error::run(format!("{path}: cannot be read")).because(error))
    };
    let file = volume.open(as_path(&path.bytes), Opening::Read);
    let file = file.map_err(|error| Failed::Input(with_path(path, error)))?;
    let mut pipeline = Pipeline::new().map_err(Failed::Input)?;
    let size = file.len();
    let (mut requested, mut printed) = (0, 0);
    let mut chunks = BTreeMap::new();
    while printed < size {
        let finished = match requested < size {
            true => pipeline.wait_for_slot(),
            false => pipeline.drain(),
        };
        for chunk in finished.map_err(unreadable)? {
            let read = chunk.result.map_err(|errno| unreadable(errno.into()))?;
            if read != chunk.buffer.len() as u64 {
                return Err(unreadable(std::io::Error::other(DEVICE_TOO_SHORT)));
            }
            chunks.insert(chunk.context, chunk.buffer);
        }
        if requested < size {
            let buffer = Buffer::zeroed((size - requested).min(CHUNK_BYTES as u64) as usize);
            let length = buffer.len() as u64;
            pipeline.read(&file, buffer, requested, requested).map_err(unreadable)?;
            requested += length;
        }
        while let Some(buffer) = chunks.remove(&printed) {
            out.write_all(&buffer).map_err(Failed::Output)?;
            printed += buffer.len() as u64;
        }
    }
    out.flush().map_err(Failed::Output)
}
