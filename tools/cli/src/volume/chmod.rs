//! `uringfs chmod`: changes the permissions of files in a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::files::Files;
use super::format;
use super::glob::{GlobOptions, Missing};
use super::mode_change::{ModeChange, umask};
use super::open_volume::{lookup_with, open_at, sync};
use super::verbose::{VerboseOptions, quoted};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{FileType, Follow, Inode};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Permissions in octal, as in 644, or changes, as in u+x,go-w or a=rX
    #[arg(value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,

    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Change directories recursively. Symbolic links in them are left alone
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print a line for each file whose mode changes
    #[arg(short, long)]
    changes: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let errors = ErrorSink::default();
    let job = ChmodJob { volume: &volume, arguments: &arguments, umask: umask(), errors: &errors };
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        match arguments.recursive {
            true => job.change_tree(&path),
            false => _ = errors.record(job.change(&path, Follow::Yes)),
        }
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

struct ChmodJob<'c> {
    volume: &'c Files,
    arguments: &'c Arguments,
    umask: u16,
    errors: &'c ErrorSink,
}

impl ChmodJob<'_> {
    /// Changes a file. Returns its kind.
    fn change(&self, path: &VolumePath, follow: Follow) -> Result<FileType, Error> {
        let find = || {
            lookup_with(self.volume, &path.bytes, follow).map_err(|error| with_path(path, error))
        };
        let (_, before) = find()?;
        if before.kind == FileType::Symlink {
            return Ok(before.kind);
        }
        let set = self.volume.set_attributes(as_path(&path.bytes), follow, |inode| {
            let is_directory = inode.kind == FileType::Directory;
            inode.permissions =
                self.arguments.mode.apply(inode.permissions, is_directory, self.umask);
        });
        set.map_err(|error| with_path(path, error))?;
        if self.arguments.changes || self.arguments.verbose.is_on() {
            self.report(path, &before, &find()?.1)?;
        }
        Ok(before.kind)
    }

    /// Prints the lines of coreutils.
    fn report(&self, path: &VolumePath, before: &Inode, after: &Inode) -> Result<(), Error> {
        let mode =
            |inode: &Inode| format!("{:04o} ({})", inode.permissions, &format::mode(inode)[1..]);
        let text = match before.permissions == after.permissions {
            true if self.arguments.changes => return Ok(()),
            true => format!(" retained as {}\n", mode(after)),
            false => format!(" changed from {} to {}\n", mode(before), mode(after)),
        };
        crate::output::print_bytes(&[b"mode of ", &quoted(path)[..], text.as_bytes()].concat())
    }

    /// Changes a file and everything below it. Uses no recursion, as trees may be deep.
    fn change_tree(&self, top: &VolumePath) {
        // A link that the user has named leads to its target.
        if self.errors.record(self.change(top, Follow::Yes)) != Some(FileType::Directory) {
            return;
        }
        let mut visited = VisitedDirectories::default();
        let mut left = vec![top.clone()];
        while let Some(directory) = left.pop() {
            let entries = Entries::new(self.volume, &directory.bytes);
            for (path, entry) in entries.with_paths(&directory, self.errors) {
                self.errors.record(self.change(&path, Follow::No));
                if entry.kind == FileType::Directory
                    && self.errors.record(visited.visit(&path, entry.inode)).is_some()
                {
                    left.push(path);
                }
            }
        }
    }
}
