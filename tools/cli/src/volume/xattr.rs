//! `uringfs xattr`: lists, reads, sets and removes extended attributes in a volume.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::format;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{open_at, sync};
use super::size_options::long_help;
use super::verbose::{VerboseOptions, quoted};
use super::volume_path::{VolumePath, as_path, with_path};
use crate::json::{document, with_bytes};
use crate::output::{print, print_bytes};
use clap::Subcommand;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs::volume::{Follow, SetXattr};
use uringfs_lab::Error;

/// Whether a symbolic link stands for its target. As of getfattr, `-h` is no help.
#[derive(clap::Args, Clone, Copy)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct LinkOptions {
    /// The attributes of a symbolic link, not of the file it leads to
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

impl LinkOptions {
    fn follow(self) -> Follow {
        if self.no_dereference { Follow::No } else { Follow::Yes }
    }
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Arguments {
    /// Print the names of a file's attributes
    List {
        /// TARGET:/path
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
        #[command(flatten)]
        link: LinkOptions,
        #[command(flatten)]
        glob: GlobOptions,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the value of an attribute
    Get {
        /// The name of the attribute, as in user.comment
        name: OsString,
        /// TARGET:/path
        #[arg(value_name = "TARGET:/path")]
        path: OsString,
        #[command(flatten)]
        link: LinkOptions,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set an attribute
    Set {
        /// The name of the attribute, as in user.comment
        name: OsString,
        /// The value
        value: OsString,
        /// TARGET:/path
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
        #[command(flatten)]
        link: LinkOptions,
        #[command(flatten)]
        glob: GlobOptions,
        #[command(flatten)]
        verbose: VerboseOptions,
    },
    /// Remove an attribute
    Remove {
        /// The name of the attribute, as in user.comment
        name: OsString,
        /// TARGET:/path
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
        #[command(flatten)]
        link: LinkOptions,
        #[command(flatten)]
        glob: GlobOptions,
        #[command(flatten)]
        verbose: VerboseOptions,
    },
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    match arguments {
        Arguments::List { paths, link, glob, json } => list(&paths, link, glob, json),
        Arguments::Get { name, path, link, json } => {
            let path = VolumePath::parse(&path)?;
            let volume = open_at(&path, Access::Read)?;
            let value = volume.get_xattr(as_path(&path.bytes), link.follow(), name.as_bytes());
            let value = value.map_err(|error| with_path(&path, error))?;
            if json {
                let fields = with_bytes("value", &value, json!({}));
                let fields = with_bytes("name", name.as_bytes(), fields);
                print(&document(with_bytes("path", &path.bytes, fields)))?;
            } else {
                print_bytes(&value)?;
            }
            Ok(0)
        }
        Arguments::Set { name, value, paths, link, glob, verbose } => {
            change_all(&paths, glob, |volume, path| {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                let file = as_path(&path.bytes);
                let set = volume.set_xattr(file, link.follow(), name, value, SetXattr::Either);
                set.map_err(|error| with_path(path, error))?;
                verbose.print(&[b"set ", &format::printable(name), b" of ", &quoted(path)])
            })
        }
        Arguments::Remove { name, paths, link, glob, verbose } => {
            change_all(&paths, glob, |volume, path| {
                let name = name.as_bytes();
                let removed = volume.remove_xattr(as_path(&path.bytes), link.follow(), name);
                removed.map_err(|error| with_path(path, error))?;
                verbose.print(&[b"removed ", &format::printable(name), b" of ", &quoted(path)])
            })
        }
    }
}

/// Prints one name per line; with several files, below the path of each.
fn list(
    paths: &[OsString],
    link: LinkOptions,
    glob: GlobOptions,
    as_json: bool,
) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let errors = ErrorSink::default();
    let paths = glob.expand_each(&volume, &paths, Missing::Refused, &errors);
    let mut files = Vec::new();
    for path in &paths {
        let names = volume
            .list_xattrs(as_path(&path.bytes), link.follow())
            .map_err(|error| with_path(path, error));
        let Some(names) = errors.record(names) else { continue };
        if as_json {
            let name = |name: &Vec<u8>| with_bytes("name", name, json!({}));
            let names: Vec<Value> = names.iter().map(name).collect();
            files.push(with_bytes("path", &path.bytes, json!({ "attributes": names })));
            continue;
        }
        let mut text = Vec::new();
        if paths.len() > 1 {
            text.extend(format::printable(&path.bytes));
            text.extend_from_slice(b":\n");
        }
        for name in names {
            text.extend(format::printable(&name));
            text.push(b'\n');
        }
        print_bytes(&text)?;
    }
    if as_json {
        print(&document(json!({ "files": files })))?;
    }
    Ok(errors.exit_code())
}

fn change_all(
    paths: &[OsString],
    glob: GlobOptions,
    change_one: impl Fn(&Files, &VolumePath) -> Result<(), Error>,
) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        errors.record(change_one(&volume, &path));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}
