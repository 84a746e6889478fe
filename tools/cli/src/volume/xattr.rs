//! `uringfs xattr`: the extended attributes of a volume's files.

use super::complaints::Complaints;
use super::opening::{close, open};
use super::place::Place;
use super::{glob, words};
use crate::output::print_bytes;
use clap::Subcommand;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::{Access, Follow, SetXattr};
use uringfs_lab::Error;

/// What the command does.
#[derive(Subcommand)]
pub enum Arguments {
    /// Print the names of a file's attributes
    List {
        /// TARGET:/path, with wildcards
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
    },
    /// Print the bytes of an attribute
    Get {
        /// As in user.name
        name: OsString,
        /// TARGET:/path
        #[arg(value_name = "TARGET:/path")]
        path: OsString,
    },
    /// Set an attribute
    Set {
        /// As in user.name
        name: OsString,
        /// Its bytes
        value: OsString,
        /// TARGET:/path, with wildcards
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
    },
    /// Remove an attribute
    Remove {
        /// As in user.name
        name: OsString,
        /// TARGET:/path, with wildcards
        #[arg(required = true, value_name = "TARGET:/path")]
        paths: Vec<OsString>,
    },
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    match arguments {
        Arguments::List { paths } => list(&paths),
        Arguments::Get { name, path } => {
            let place = Place::parse(&path)?;
            let volume = open(&place.target, Access::Read)?;
            let value = volume.xattr(&place.path, Follow::No, name.as_bytes());
            print_bytes(&value.map_err(|error| place.said(error))?)?;
            Ok(0)
        }
        Arguments::Set { name, value, paths } => change(&paths, |volume, path| {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            volume.set_xattr(path, Follow::No, name, value, SetXattr::Either)
        }),
        Arguments::Remove { name, paths } => {
            change(&paths, |volume, path| volume.remove_xattr(path, Follow::No, name.as_bytes()))
        }
    }
}

/// A name a line; with several files each below its path.
fn list(paths: &[OsString]) -> Result<u8, Error> {
    let places = Place::parse_all(paths)?;
    let volume = open(&places[0].target, Access::Read)?;
    let complaints = Complaints::default();
    let places = glob::expand_each(&volume, &places, &complaints);
    for place in &places {
        let names = volume.xattrs(&place.path, Follow::No).map_err(|error| place.said(error));
        let Some(names) = complaints.told(names) else { continue };
        let mut text = Vec::new();
        if places.len() > 1 {
            text.extend(words::shown(&place.path));
            text.extend_from_slice(b":\n");
        }
        for name in names {
            text.extend(words::shown(&name));
            text.push(b'\n');
        }
        print_bytes(&text)?;
    }
    Ok(complaints.exit_code())
}

fn change(
    paths: &[OsString],
    how: impl Fn(&uringfs::Volume, &[u8]) -> Result<(), uringfs::VolumeError>,
) -> Result<u8, Error> {
    let places = Place::parse_all(paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let complaints = Complaints::default();
    for place in glob::expand_each(&volume, &places, &complaints) {
        complaints.told(how(&volume, &place.path).map_err(|error| place.said(error)));
    }
    close(&volume, &places[0].target)?;
    Ok(complaints.exit_code())
}
