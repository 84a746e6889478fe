//! `uringfs mkdir`: creates directories in a volume.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::mode_change::{ModeChange, umask};
use super::open_volume::{is_directory, open_at, sync};
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path, join, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::Follow;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Create parent directories as needed; no error if the directory exists
    #[arg(short, long)]
    parents: bool,

    /// Permissions of the new directories, as for chmod. Parents have the usual ones
    #[arg(short, long, value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: Option<ModeChange>,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let errors = ErrorSink::default();
    let job = MkdirJob { volume: &volume, arguments: &arguments, umask: umask() };
    for path in &paths {
        errors.record(match arguments.parents {
            true => job.create_with_parents(path),
            false => job.create(path),
        });
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

struct MkdirJob<'m> {
    volume: &'m Files,
    arguments: &'m Arguments,
    umask: u16,
}

impl MkdirJob<'_> {
    fn create(&self, path: &VolumePath) -> Result<(), Error> {
        let with_path = |error| with_path(path, error);
        self.volume
            .create_dir_with_mode(as_path(&path.bytes), u32::from(0o777 & !self.umask))
            .map_err(with_path)?;
        if let Some(mode) = &self.arguments.mode {
            // The new directory may have inherited the set-group-ID bit, which stays.
            let set = self.volume.set_attributes(as_path(&path.bytes), Follow::No, |inode| {
                let inherited = inode.permissions & !0o777;
                inode.permissions = mode.apply(0o777 | inherited, true, self.umask);
            });
            set.map_err(with_path)?;
        }
        self.arguments.verbose.report("mkdir: created directory", &[path])
    }

    fn create_with_parents(&self, path: &VolumePath) -> Result<(), Error> {
        let names = path.bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut names = names.peekable();
        let mut at = b"/".to_vec();
        while let Some(name) = names.next() {
            at = join(&at, name);
            let directory = path.in_same_volume(at.clone());
            if is_directory(self.volume, &at) {
                continue;
            }
            match names.peek() {
                Some(_) => self.create_parent(&directory)?,
                None => self.create(&directory)?,
            }
        }
        Ok(())
    }

    /// A parent is accessible to its user, so that the next directory can be created in it.
    fn create_parent(&self, path: &VolumePath) -> Result<(), Error> {
        let made = self
            .volume
            .create_dir_with_mode(as_path(&path.bytes), u32::from(0o777 & !self.umask | 0o300));
        made.map_err(|error| with_path(path, error))?;
        self.arguments.verbose.report("mkdir: created directory", &[path])
    }
}
