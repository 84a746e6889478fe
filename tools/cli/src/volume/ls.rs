//! `uringfs ls`: lists directories of a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::open_volume::{is_directory, lookup, open};
use super::size_options::SizeOptions;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, with_path};
use super::{format, glob};
use crate::output::print_bytes;
use std::ffi::OsString;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs::volume::FileType;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Long format: mode, links, user, group, size and modification time (UTC)
    #[arg(short)]
    long: bool,

    #[command(flatten)]
    sizes: SizeOptions,

    /// List directories recursively
    #[arg(short = 'R')]
    recursive: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::Read)?;
    let errors = ErrorSink::default();
    let found = glob::expand_each(&volume, &paths, &errors);
    let is_alone = found.len() == 1 && !arguments.recursive;
    let is_listed = |path: &VolumePath| match arguments.long {
        // The long format shows a link itself.
        true => {
            let found = lookup(&volume, &path.bytes);
            found.is_ok_and(|(_, inode)| inode.kind == FileType::Directory)
        }
        false => is_directory(&volume, &path.bytes),
    };
    let (directories, files): (Vec<VolumePath>, Vec<VolumePath>) =
        found.into_iter().partition(is_listed);
    for path in &files {
        if let Some(line) = errors.record(line(&volume, path, &path.bytes, &arguments)) {
            print_bytes(&line)?;
        }
    }
    let mut is_first = files.is_empty();
    for top in directories {
        let mut visited = VisitedDirectories::default();
        // The directories to list, the next one last.
        let mut left = vec![top];
        while let Some(directory) = left.pop() {
            let mut text = Vec::new();
            if !is_alone {
                text.extend_from_slice(if is_first { b"" } else { b"\n" });
                text.extend(format::printable(&directory.bytes));
                text.extend_from_slice(b":\n");
            }
            is_first = false;
            let first = left.len();
            let entries = Entries::new(&volume, &directory.bytes);
            for (path, entry) in entries.with_paths(&directory, &errors) {
                let line = line(&volume, &path, &entry.name, &arguments);
                text.extend(errors.record(line).unwrap_or_default());
                if arguments.recursive
                    && entry.kind == FileType::Directory
                    && errors.record(visited.visit(&path, entry.inode)).is_some()
                {
                    left.push(path);
                }
            }
            left[first..].reverse();
            print_bytes(&text)?;
        }
    }
    Ok(errors.exit_code())
}

/// One line of output: a name, in the long format with its attributes.
fn line(
    volume: &Volume,
    path: &VolumePath,
    name: &[u8],
    arguments: &Arguments,
) -> Result<Vec<u8>, Error> {
    let Arguments { long, sizes, .. } = *arguments;
    let mut line = Vec::new();
    if long || name == path.bytes {
        let found = lookup(volume, &path.bytes);
        let (_, inode) = found.map_err(|error| with_path(path, error))?;
        if long {
            let size_width = if sizes.human_readable { 5 } else { 12 };
            line = format!(
                "{} {:>3} {:>5} {:>5} {:>size_width$} {} ",
                format::mode(&inode),
                inode.links,
                inode.user,
                inode.group,
                sizes.text(inode.size, 1),
                format::time(inode.modified),
            )
            .into_bytes();
        }
        line.extend(format::printable(name));
        if long && inode.kind == FileType::Symlink {
            line.extend_from_slice(b" -> ");
            line.extend(format::printable(&inode.target));
        }
    } else {
        line.extend(format::printable(name));
    }
    line.push(b'\n');
    Ok(line)
}
