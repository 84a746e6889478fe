//! `uringfs stat`: shows the attributes of files in a volume.

use super::error_sink::ErrorSink;
use super::file_json;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup_with, open_at};
use super::stat_format::{self, StatFormat};
use super::volume_path::{VolumePath, with_path};
use crate::json::document;
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs::volume::{Follow, Inode, InodeNumber};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Print each file in this format, and a newline
    #[arg(short = 'c', long, value_name = "FORMAT", conflicts_with = "printf")]
    format: Option<OsString>,

    /// Print each file in this format, in which \n is a newline, \t a tab and so on
    #[arg(long, value_name = "FORMAT")]
    printf: Option<OsString>,

    /// Follow links
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["format", "printf"])]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let errors = ErrorSink::default();
    let follow = if arguments.dereference { Follow::Yes } else { Follow::No };
    let mut found = Vec::new();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        let inode = lookup_with(&volume, &path.bytes, follow);
        if let Some(inode) = errors.record(inode.map_err(|error| with_path(&path, error))) {
            found.push((inode, path));
        }
    }
    if arguments.json {
        let file = |((number, inode), path): &((InodeNumber, Inode), VolumePath)| {
            Value::from(file_json::file(&path.bytes, *number, inode))
        };
        let files: Vec<Value> = found.iter().map(file).collect();
        print(&document(json!({ "files": files })))?;
        return Ok(errors.exit_code());
    }
    let (format, has_escapes) = match (&arguments.format, &arguments.printf) {
        (Some(format), _) => ([format.as_bytes(), b"\n"].concat(), false),
        (None, Some(format)) => (format.as_bytes().to_vec(), true),
        (None, None) => (stat_format::DEFAULT.as_bytes().to_vec(), false),
    };
    let mut formatter = StatFormat::new();
    for (inode, path) in &found {
        print_bytes(&formatter.text(&format, has_escapes, path, inode))?;
    }
    Ok(errors.exit_code())
}
