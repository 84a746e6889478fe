//! `uringfs du`: shows the space that files and directories use on the device.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::files::Files;
use super::format;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open_at};
use super::size_options::SizeOptions;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, with_path};
use crate::json::{document, with_bytes};
use crate::output::{print, print_bytes};
use serde_json::json;
use std::collections::HashSet;
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{FileType, InodeNumber};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print only a total for each path
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,

    /// Print a line for each file, too
    #[arg(short, long)]
    all: bool,

    /// Print directories and files down to so many levels below each path
    #[arg(short = 'd', long, value_name = "LEVELS")]
    max_depth: Option<usize>,

    /// Print the total of all paths
    #[arg(short = 'c', long)]
    total: bool,

    /// Count the sizes of files, not the space that they use
    #[arg(long)]
    apparent_size: bool,

    /// As --apparent-size, and print bytes if no other option names a unit
    #[arg(short = 'b', long)]
    bytes: bool,

    /// Print sizes in units of 1048576 bytes
    #[arg(short = 'm', overrides_with_all = ["kibibytes", "human_readable", "si"])]
    mebibytes: bool,

    #[command(flatten)]
    sizes: SizeOptions,

    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,

    /// TARGET:/path; directories are counted recursively
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,
}

/// Prints one line per directory, without -h in units of 1024 bytes, as `du` of coreutils. Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let unit = match &arguments {
        Arguments { mebibytes: true, .. } => 1 << 20,
        Arguments { bytes: true, sizes: SizeOptions { kibibytes: false, .. }, .. } => 1,
        _ => 1024,
    };
    let line = |bytes, path: &[u8]| line(&arguments.sizes.text(bytes, unit), path);
    let mut counter = UsageCounter {
        volume: &volume,
        counts_sizes: arguments.apparent_size || arguments.bytes,
        counted: HashSet::new(),
        visited: VisitedDirectories::default(),
    };
    let errors = ErrorSink::default();
    let mut usage = Vec::new();
    let mut report = |bytes: u64, path: &VolumePath| match arguments.json {
        true => {
            usage.push(with_bytes("path", &path.bytes, json!({ "bytes": bytes })));
            Ok(())
        }
        false => print_bytes(&line(bytes, &path.bytes)),
    };
    let max_depth = if arguments.summarize { 0 } else { arguments.max_depth.unwrap_or(usize::MAX) };
    let mut total = 0;
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        counter.visited = VisitedDirectories::default();
        let mut stack: Vec<Directory> = Vec::new();
        let mut next = Some(path.clone());
        // Uses no recursion, as trees may be deep.
        loop {
            let mut bytes = 0;
            match next.take() {
                None => {}
                Some(inner) => match errors.record(counter.measure(&inner)) {
                    Some(Usage::Directory) => stack.push(Directory::new(&volume, inner)),
                    Some(Usage::Bytes(found)) if stack.is_empty() => {
                        total += found;
                        report(found, &path)?;
                        break;
                    }
                    Some(Usage::Bytes(found)) => {
                        bytes = found;
                        if arguments.all && stack.len() <= max_depth {
                            report(found, &inner)?;
                        }
                    }
                    Some(Usage::Counted) | None if stack.is_empty() => break,
                    Some(Usage::Counted) | None => {}
                },
            }
            let last = stack.last_mut().expect("the loop ends at a path that is not a directory");
            last.bytes += bytes;
            match last.entries.next_with_path(&last.path, &errors) {
                Some((path, _)) => next = Some(path),
                None => {
                    let Directory { path, bytes, .. } =
                        stack.pop().expect("the stack is not empty");
                    if stack.len() <= max_depth {
                        report(bytes, &path)?;
                    }
                    match stack.last_mut() {
                        Some(last) => last.bytes += bytes,
                        None => {
                            total += bytes;
                            break;
                        }
                    }
                }
            }
        }
    }
    if arguments.json {
        print(&document(json!({ "usage": usage, "total": total })))?;
    } else if arguments.total {
        print_bytes(&line(total, b"total"))?;
    }
    Ok(errors.exit_code())
}

/// A directory that is being counted.
struct Directory {
    path: VolumePath,
    entries: Entries,
    bytes: u64,
}

impl Directory {
    fn new(volume: &Files, path: VolumePath) -> Self {
        let entries = Entries::new(volume, &path.bytes);
        Self { path, entries, bytes: 0 }
    }
}

enum Usage {
    Directory,
    Bytes(u64),
    /// The file was counted under another name.
    Counted,
}

struct UsageCounter<'v> {
    volume: &'v Files,
    /// Whether the sizes of files count, not the space that they use.
    counts_sizes: bool,
    /// Files with several names. Each is counted under the first name that is met.
    counted: HashSet<InodeNumber>,
    /// The directories visited from the current path on.
    visited: VisitedDirectories,
}

impl UsageCounter<'_> {
    fn measure(&mut self, path: &VolumePath) -> Result<Usage, Error> {
        let found = lookup(self.volume, &path.bytes);
        let (number, inode) = found.map_err(|error| with_path(path, error))?;
        Ok(match inode.kind {
            FileType::Directory => {
                self.visited.visit(path, number)?;
                Usage::Directory
            }
            _ if inode.links > 1 && !self.counted.insert(number) => Usage::Counted,
            _ if self.counts_sizes => Usage::Bytes(inode.size),
            _ => Usage::Bytes(inode.allocated()),
        })
    }
}

fn line(size: &str, path: &[u8]) -> Vec<u8> {
    let mut line = format!("{size}\t").into_bytes();
    line.extend(format::printable(path));
    line.push(b'\n');
    line
}
