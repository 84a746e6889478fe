//! `uringfs tree`: shows a directory of a volume as a tree.

use super::entries::{Entries, Entry};
use super::error_sink::ErrorSink;
use super::format;
use super::open_volume::open;
use super::visited::VisitedDirectories;
use super::volume_path::VolumePath;
use crate::output::print_bytes;
use std::ffi::OsString;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs::volume::FileType;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(value_name = "TARGET:/path")]
    path: OsString,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = VolumePath::parse(&arguments.path)?;
    let volume = open(&path.target, Access::Read)?;
    let mut text = format::printable(&path.bytes);
    text.push(b'\n');
    let (mut directories, mut others) = (0u64, 0u64);
    let mut visited = VisitedDirectories::default();
    let errors = ErrorSink::default();
    let branches = |directory: &VolumePath, lead: &str| branches(&volume, directory, lead, &errors);
    // The entries to show, the next one last.
    let mut left = branches(&path, "");
    left.reverse();
    while let Some(Branch { path, entry, lead, is_last }) = left.pop() {
        let (knot, line) = if is_last { ("`-- ", "    ") } else { ("|-- ", "|   ") };
        text.extend_from_slice(lead.as_bytes());
        text.extend_from_slice(knot.as_bytes());
        text.extend(format::printable(&entry.name));
        text.push(b'\n');
        if entry.kind == FileType::Directory {
            if errors.record(visited.visit(&path, entry.inode)).is_some() {
                directories += 1;
                left.extend(branches(&path, &(lead + line)).into_iter().rev());
            }
        } else {
            others += 1;
        }
    }
    text.extend_from_slice(format!("\n{directories} directories, {others} files\n").as_bytes());
    print_bytes(&text)?;
    Ok(errors.exit_code())
}

/// An entry, with the lines of the tree that precede it.
struct Branch {
    path: VolumePath,
    entry: Entry,
    lead: String,
    is_last: bool,
}

fn branches(
    volume: &Volume,
    directory: &VolumePath,
    lead: &str,
    errors: &ErrorSink,
) -> Vec<Branch> {
    let found = Entries::new(volume, &directory.bytes).with_paths(directory, errors);
    let branch = |(path, entry)| Branch { path, entry, lead: lead.to_owned(), is_last: false };
    let mut all: Vec<Branch> = found.map(branch).collect();
    if let Some(last) = all.last_mut() {
        last.is_last = true;
    }
    all
}
