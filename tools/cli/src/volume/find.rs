//! `uringfs find`: finds files below directories of a volume, with the tests of `find` that administrators use most.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::file_json;
use super::find_tests::{Candidate, FindTests};
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open};
use super::verbose::printable_path;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, with_path};
use crate::json::document;
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs::volume::FileType;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path, and then tests
    #[arg(
        required = true,
        value_name = "TARGET:/path | TEST",
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    arguments: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { arguments: all, glob } = arguments;
    let is_test = |argument: &OsString| argument.as_bytes().starts_with(b"-") || argument == "!";
    let (paths, tests) = all.split_at(all.iter().position(is_test).unwrap_or(all.len()));
    if paths.is_empty() {
        return Err(Error::input("find: the path is missing; give it before the tests"));
    }
    let paths = VolumePath::parse_all(paths)?;
    let volume = open(&paths[0].target, Access::Read)?;
    let tests = FindTests::parse(tests, &volume, &paths[0])?;
    let glob = glob.or(tests.expands_globs);
    let errors = ErrorSink::default();
    let mut find = Find { volume: &volume, tests: &tests, errors: &errors, files: Vec::new() };
    for path in glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        find.walk(path)?;
    }
    if tests.prints_json {
        print(&document(json!({ "files": find.files })))?;
    }
    Ok(errors.exit_code())
}

struct Find<'f> {
    volume: &'f Volume,
    tests: &'f FindTests,
    errors: &'f ErrorSink,
    /// The files for the JSON document.
    files: Vec<Value>,
}

impl Find<'_> {
    /// Prints a path and what is below it. Uses no recursion, as trees may be deep.
    fn walk(&mut self, top: VolumePath) -> Result<(), Error> {
        let found = lookup(self.volume, &top.bytes).map_err(|error| with_path(&top, error));
        let Some((_, inode)) = self.errors.record(found) else { return Ok(()) };
        self.print(&top, inode.kind, 0)?;
        let mut visited = VisitedDirectories::default();
        let mut stack = Vec::new();
        if inode.kind == FileType::Directory && self.tests.max_depth > 0 {
            stack.push((Entries::new(self.volume, &top.bytes), top));
        }
        while let Some((entries, directory)) = stack.last_mut() {
            let Some((path, entry)) = entries.next_with_path(directory, self.errors) else {
                stack.pop();
                continue;
            };
            let depth = stack.len() as u64;
            self.print(&path, entry.kind, depth)?;
            if entry.kind == FileType::Directory
                && depth < self.tests.max_depth
                && self.errors.record(visited.visit(&path, entry.inode)).is_some()
            {
                stack.push((Entries::new(self.volume, &path.bytes), path));
            }
        }
        Ok(())
    }

    /// Prints a path that all tests accept.
    fn print(&mut self, path: &VolumePath, kind: FileType, depth: u64) -> Result<(), Error> {
        if depth < self.tests.min_depth {
            return Ok(());
        }
        let candidate = Candidate { volume: self.volume, path, kind };
        if self.errors.record(self.tests.accept(&candidate)) != Some(true) {
            return Ok(());
        }
        if self.tests.prints_json {
            let found = lookup(self.volume, &path.bytes);
            let found = found.map_err(|error| with_path(path, error));
            if let Some((number, inode)) = self.errors.record(found) {
                self.files.push(file_json::file(&path.bytes, number, &inode).into());
            }
            return Ok(());
        }
        match self.tests.ends_in_zero {
            // Not for a terminal: the exact bytes.
            true => print_bytes(&[&path.argument()[..], b"\0"].concat()),
            false => print_bytes(&[&printable_path(path)[..], b"\n"].concat()),
        }
    }
}
