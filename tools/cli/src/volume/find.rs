//! `uringfs find`: finds files below directories of a volume, with the tests and actions of `find` that administrators
//! use most.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::files::Files;
use super::find_expression::{Action, Expression, Options};
use super::find_tests::Candidate;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open_at, sync};
use super::owners::OwnerNames;
use super::times::TimeFormat;
use super::verbose::printable_path;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, last_name, with_path};
use super::{file_json, format};
use crate::json::document;
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs::volume::{FileType, Time};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path, and then an expression
    #[arg(
        required = true,
        value_name = "TARGET:/path | EXPRESSION",
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    arguments: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,
}

/// The options that may stand before the paths, too.
const OPTIONS: [&str; 4] = ["--json", "-json", "--glob", "-depth"];

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { arguments: all, glob } = arguments;
    let begins_expression = |argument: &OsString| {
        argument.as_bytes().starts_with(b"-") || argument == "!" || argument == "("
    };
    let is_option = |argument: &&OsString| OPTIONS.iter().any(|option| *argument == option);
    let (options, rest) = all.split_at(all.iter().take_while(is_option).count());
    let end = rest.iter().position(begins_expression).unwrap_or(rest.len());
    let (paths, tests) = rest.split_at(end);
    if paths.is_empty() {
        return Err(Error::input("find: the path is missing; give it before the tests"));
    }
    let paths = VolumePath::parse_all(paths)?;
    let expression = Expression::parse(&[options, tests].concat(), &paths[0])?;
    let options = &expression.options;
    let access = if options.deletes { Access::ReadWrite } else { Access::Read };
    let volume = open_at(&paths[0], access)?;
    let reference_time = |path: &VolumePath| {
        let (_, inode) = lookup(&volume, &path.bytes).map_err(|error| with_path(path, error))?;
        Ok(inode.modified)
    };
    let reference_times: Result<Vec<Time>, Error> =
        expression.references.iter().map(reference_time).collect();
    let errors = ErrorSink::default();
    let mut find = Find {
        volume: &volume,
        expression: &expression,
        reference_times: &reference_times?,
        errors: &errors,
        output: Output {
            volume: &volume,
            errors: &errors,
            prints_json: options.prints_json,
            files: Vec::new(),
            held_back: is_held_back(&volume, options).then(Vec::new),
            owners: OwnerNames::default(),
            times: TimeFormat::new(),
        },
    };
    let glob = glob.or(options.expands_globs);
    for path in glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        find.walk(path)?;
    }
    let Output { files, held_back, .. } = find.output;
    if options.prints_json {
        print(&document(json!({ "files": files })))?;
    }
    if options.deletes {
        sync(&volume, &paths[0].target)?;
    }
    drop(volume);
    print_bytes(&held_back.unwrap_or_default())?;
    Ok(errors.exit_code())
}

/// Whether paths are printed only after the volume has been closed, so that the reader of a pipe can open it for writing, as in
/// `find -print0 | xargs -0 uringfs rm`. Others can use a served volume at any time, and a terminal shows what has been found.
fn is_held_back(volume: &Files, options: &Options) -> bool {
    matches!(volume, Files::Volume(_)) && !options.deletes && !std::io::stdout().is_terminal()
}

struct Find<'f> {
    volume: &'f Files,
    expression: &'f Expression,
    reference_times: &'f [Time],
    errors: &'f ErrorSink,
    output: Output<'f>,
}

/// A directory whose entries are visited one after the other.
struct OpenDirectory {
    path: VolumePath,
    entries: Entries,
}

impl Find<'_> {
    /// Visits a path and what is below it. Uses no recursion, as trees may be deep.
    fn walk(&mut self, top: VolumePath) -> Result<(), Error> {
        let found = lookup(self.volume, &top.bytes).map_err(|error| with_path(&top, error));
        let Some((_, inode)) = self.errors.record(found) else { return Ok(()) };
        let options = &self.expression.options;
        let mut visited = VisitedDirectories::default();
        let mut stack: Vec<OpenDirectory> = Vec::new();
        let mut next = Some((top, inode.kind, None));
        loop {
            if let Some((path, kind, number)) = next.take() {
                let depth = stack.len() as u64;
                let is_pruned = !options.is_contents_first && self.visit(&path, kind, depth)?;
                let enters = kind == FileType::Directory
                    && depth < options.max_depth
                    && !is_pruned
                    && number.is_none_or(|number| {
                        self.errors.record(visited.visit(&path, number)).is_some()
                    });
                match enters {
                    true => {
                        let entries = Entries::new(self.volume, &path.bytes);
                        stack.push(OpenDirectory { path, entries });
                    }
                    false if options.is_contents_first => _ = self.visit(&path, kind, depth)?,
                    false => {}
                }
            }
            let Some(directory) = stack.last_mut() else { return Ok(()) };
            match directory.entries.next_with_path(&directory.path, self.errors) {
                Some((path, entry)) => next = Some((path, entry.kind, Some(entry.inode))),
                None => {
                    let path = stack.pop().expect("the last one was used above").path;
                    if options.is_contents_first {
                        self.visit(&path, FileType::Directory, stack.len() as u64)?;
                    }
                }
            }
        }
    }

    /// Evaluates the expression for a file. Returns whether it is pruned.
    fn visit(&mut self, path: &VolumePath, kind: FileType, depth: u64) -> Result<bool, Error> {
        if depth < self.expression.options.min_depth {
            return Ok(false);
        }
        let file = Candidate::new(self.volume, path, kind, self.reference_times);
        let (mut is_pruned, output) = (false, &mut self.output);
        let mut failed = Ok(());
        let evaluated = self.expression.evaluate(&file, &mut |action| {
            match action {
                Action::Prune => is_pruned = true,
                Action::Delete => return Ok(output.delete(path, kind)),
                action => failed = output.print(action, &file),
            }
            Ok(true)
        });
        self.errors.record(evaluated);
        failed.map(|()| is_pruned)
    }
}

/// The actions.
struct Output<'f> {
    volume: &'f Files,
    errors: &'f ErrorSink,
    prints_json: bool,
    /// The files for the JSON document.
    files: Vec<Value>,
    /// The lines that wait until the volume is closed, if they do.
    held_back: Option<Vec<u8>>,
    owners: OwnerNames,
    times: TimeFormat,
}

impl Output<'_> {
    fn print(&mut self, action: Action, file: &Candidate<'_>) -> Result<(), Error> {
        if self.prints_json {
            if let Some((number, inode)) = self.errors.record(file.inode()) {
                self.files.push(file_json::file(&file.path.bytes, *number, inode).into());
            }
            return Ok(());
        }
        match action {
            // Not for a terminal: the exact bytes.
            Action::PrintZero => self.line_out(&[&file.path.argument()[..], b"\0"].concat()),
            Action::List => match self.errors.record(self.line(file)) {
                Some(line) => self.line_out(&line),
                None => Ok(()),
            },
            _ => self.line_out(&[&printable_path(file.path)[..], b"\n"].concat()),
        }
    }

    fn line_out(&mut self, line: &[u8]) -> Result<(), Error> {
        match &mut self.held_back {
            Some(lines) => {
                lines.extend_from_slice(line);
                Ok(())
            }
            None => print_bytes(line),
        }
    }

    /// The line of `-ls`.
    fn line(&mut self, file: &Candidate<'_>) -> Result<Vec<u8>, Error> {
        let (number, inode) = file.inode()?;
        let name = |name: Option<&str>, number: u32| {
            name.map_or_else(|| number.to_string(), str::to_owned)
        };
        let size = match inode.kind {
            FileType::BlockDevice(device) | FileType::CharacterDevice(device) => {
                format!("{:>3}, {:>3}", rustix::fs::major(device), rustix::fs::minor(device))
            }
            _ => inode.size.to_string(),
        };
        let attributes = format!(
            "{:>9} {:>6} {} {:>3} {:<8} {:<8} {size:>8} {} ",
            number.0,
            inode.allocated().div_ceil(1024),
            format::mode(inode),
            inode.links,
            name(self.owners.user(inode.user), inode.user),
            name(self.owners.group(inode.group), inode.group),
            self.times.listed(inode.modified),
        );
        let mut line = [attributes.as_bytes(), &printable_path(file.path)].concat();
        if inode.kind == FileType::Symlink {
            line.extend_from_slice(b" -> ");
            line.extend(format::printable(&inode.target));
        }
        line.push(b'\n');
        Ok(line)
    }

    /// Removes a file or an empty directory, but never the root directory. Returns whether it is gone.
    fn delete(&self, path: &VolumePath, kind: FileType) -> bool {
        if last_name(&path.bytes).is_none() {
            return true;
        }
        let removed = match kind {
            FileType::Directory => self.volume.remove_dir(as_path(&path.bytes)),
            _ => self.volume.remove_file(as_path(&path.bytes)),
        };
        self.errors.record(removed.map_err(|error| with_path(path, error))).is_some()
    }
}
