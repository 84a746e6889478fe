//! `uringfs ls`: lists directories of a volume. Prints one name per line, on a terminal too.

use super::entries::{Entries, Entry};
use super::error_sink::ErrorSink;
use super::file_json;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::ls_rows::{ListedFile, RowFormat, RowOptions};
use super::open_volume::{is_directory, lookup, lookup_with, open_at};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, join, with_path};
use crate::json::{document, with_bytes};
use crate::output::{print, print_bytes};
use clap::{Arg, ArgAction, ValueEnum};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{FileType, Follow, Inode};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(arg = Arg::new("one").short('1').help("List one name per line, as always").action(ArgAction::SetTrue))]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Also list names that begin with a dot, and . and ..
    #[arg(short, long, overrides_with = "almost_all")]
    all: bool,

    /// Also list names that begin with a dot
    #[arg(short = 'A', long, overrides_with = "all")]
    almost_all: bool,

    /// List directories themselves, not their contents
    #[arg(short, long)]
    directory: bool,

    /// List directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Sort by time, newest first: by modification time, or that of --time, -u or -c
    #[arg(short = 't', overrides_with_all = ["by_size", "by_extension", "unsorted", "sort"])]
    by_time: bool,

    /// Sort by size, largest first
    #[arg(short = 'S', overrides_with_all = ["by_time", "by_extension", "unsorted", "sort"])]
    by_size: bool,

    /// Sort by extension
    #[arg(short = 'X', overrides_with_all = ["by_time", "by_size", "unsorted", "sort"])]
    by_extension: bool,

    /// Do not sort: list in the order of the directory, which is that of names
    #[arg(short = 'U', overrides_with_all = ["by_time", "by_size", "by_extension", "sort"])]
    unsorted: bool,

    /// Sort by this instead of the name
    #[arg(
        long,
        value_name = "WORD",
        overrides_with_all = ["by_time", "by_size", "by_extension", "unsorted"]
    )]
    sort: Option<Order>,

    /// List directories, and links to directories, before other files
    #[arg(long)]
    group_directories_first: bool,

    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,

    #[command(flatten)]
    rows: RowOptions,

    /// Print JSON, with all attributes
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let errors = ErrorSink::default();
    let found = arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors);
    let as_json = arguments.json;
    let mut listing = Listing::new(&volume, arguments, &errors);
    listing.print(&found)?;
    if as_json {
        print(&document(json!({ "listings": listing.listings })))?;
    }
    Ok(errors.exit_code())
}

struct Listing<'l> {
    volume: &'l Files,
    errors: &'l ErrorSink,
    hidden: Hidden,
    order: Order,
    is_reversed: bool,
    is_recursive: bool,
    lists_directories: bool,
    /// Whether the output or its order needs the attributes of files.
    needs_inodes: bool,
    is_long: bool,
    /// Whether the output or its order needs the inodes that links lead to.
    needs_targets: bool,
    groups_directories: bool,
    has_total: bool,
    format: RowFormat,
    /// The listings for the JSON document; None for text.
    listings: Option<Vec<Value>>,
}

/// The names with a dot at the beginning that are listed.
#[derive(PartialEq, Eq)]
enum Hidden {
    Omitted,
    Listed,
    /// With `.` and `..`.
    ListedWithDots,
}

/// The order of files.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Name,
    Time,
    Size,
    Extension,
    /// The order of the directory, which is that of names
    None,
}

impl<'l> Listing<'l> {
    fn new(volume: &'l Files, arguments: Arguments, errors: &'l ErrorSink) -> Self {
        let is_long = arguments.rows.is_long();
        let order = match &arguments {
            Arguments { by_time: true, .. } => Order::Time,
            Arguments { by_size: true, .. } => Order::Size,
            Arguments { by_extension: true, .. } => Order::Extension,
            Arguments { unsorted: true, .. } => Order::None,
            Arguments { sort: Some(order), .. } => *order,
            // A time that is not printed is for the order.
            _ if arguments.rows.has_chosen_time() && !is_long => Order::Time,
            _ => Order::Name,
        };
        Self {
            volume,
            errors,
            hidden: match (arguments.all, arguments.almost_all) {
                (true, _) => Hidden::ListedWithDots,
                (false, true) => Hidden::Listed,
                (false, false) => Hidden::Omitted,
            },
            needs_inodes: arguments.rows.needs_inodes() || order != Order::Name || arguments.json,
            needs_targets: arguments.rows.marks_targets() || arguments.group_directories_first,
            groups_directories: arguments.group_directories_first,
            has_total: arguments.rows.has_total(),
            order,
            is_reversed: arguments.reverse,
            is_recursive: arguments.recursive && !arguments.directory,
            lists_directories: !arguments.directory,
            is_long,
            format: RowFormat::new(arguments.rows),
            listings: arguments.json.then(Vec::new),
        }
    }

    /// Prints the paths that are not listed as directories, and then the contents of directories.
    fn print(&mut self, paths: &[VolumePath]) -> Result<(), Error> {
        let is_alone = paths.len() == 1 && !self.is_recursive;
        let (mut directories, mut files) = (Vec::new(), Vec::new());
        for path in paths {
            let found = lookup(self.volume, &path.bytes);
            let found = found.map_err(|error| with_path(path, error));
            let Some((number, inode)) = self.errors.record(found) else { continue };
            let is_listed = self.lists_directories && self.is_directory(path, inode.kind);
            let name = path.bytes.clone();
            let target = self.target(path, inode.kind);
            let file = ListedFile { name, number, kind: inode.kind, inode: Some(inode), target };
            if is_listed { &mut directories } else { &mut files }.push(file);
        }
        self.sort(&mut directories);
        self.sort(&mut files);
        match &mut self.listings {
            Some(listings) if !files.is_empty() => {
                listings.push(json!({ "files": objects(&files) }))
            }
            Some(_) => {}
            None => print_bytes(&self.format.lines(&files))?,
        }
        let mut is_first = files.is_empty();
        for top in directories {
            let mut visited = VisitedDirectories::default();
            // The directories to list, the next one last.
            let mut left = vec![paths[0].in_same_volume(top.name)];
            while let Some(directory) = left.pop() {
                let files = self.entries(&directory);
                if let Some(listings) = &mut self.listings {
                    let fields = json!({ "files": objects(&files) });
                    listings.push(with_bytes("directory", &directory.bytes, fields));
                } else {
                    let header = (!is_alone).then_some(&directory.bytes[..]);
                    print_bytes(&self.text(&files, header, is_first))?;
                }
                is_first = false;
                if self.is_recursive {
                    left.extend(self.directories(&directory, files, &mut visited));
                }
            }
        }
        Ok(())
    }

    /// The text of a directory, below a line with its path if it is not the only one.
    fn text(&mut self, files: &[ListedFile], header: Option<&[u8]>, is_first: bool) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(directory) = header {
            text.extend_from_slice(if is_first { b"" } else { b"\n" });
            text.extend(self.format.name(directory));
            text.extend_from_slice(b":\n");
        }
        if self.has_total {
            text.extend_from_slice(self.format.total(files).as_bytes());
        }
        text.extend(self.format.lines(files));
        text
    }

    /// Whether a path is a directory; without the long format also a link to one.
    fn is_directory(&self, path: &VolumePath, kind: FileType) -> bool {
        match kind {
            FileType::Symlink => !self.is_long && is_directory(self.volume, &path.bytes),
            kind => kind == FileType::Directory,
        }
    }

    /// The inode that a link leads to, if it is needed.
    fn target(&self, path: &VolumePath, kind: FileType) -> Option<Inode> {
        let is_needed = self.needs_targets && kind == FileType::Symlink;
        let found = is_needed.then(|| lookup_with(self.volume, &path.bytes, Follow::Yes).ok());
        found.flatten().map(|(_, inode)| inode)
    }

    /// The entries of a directory to print, in their order.
    fn entries(&self, directory: &VolumePath) -> Vec<ListedFile> {
        let mut files = Vec::new();
        if self.hidden == Hidden::ListedWithDots {
            files.extend([&b"."[..], b".."].into_iter().filter_map(|name| {
                let path = directory.in_same_volume(join(&directory.bytes, name));
                let found = lookup(self.volume, &path.bytes);
                let found = found.map_err(|error| with_path(&path, error));
                let (number, inode) = self.errors.record(found)?;
                let name = name.to_vec();
                let (kind, target) = (inode.kind, None);
                Some(ListedFile { name, number, kind, inode: Some(inode), target })
            }));
        }
        let entries = Entries::new(self.volume, &directory.bytes);
        for (path, entry) in entries.with_paths(directory, self.errors) {
            if self.hidden == Hidden::Omitted && entry.name.starts_with(b".") {
                continue;
            }
            let inode = match self.needs_inodes {
                true => {
                    let found = lookup(self.volume, &path.bytes);
                    let found = found.map_err(|error| with_path(&path, error));
                    let Some((_, inode)) = self.errors.record(found) else { continue };
                    Some(inode)
                }
                false => None,
            };
            let Entry { name, kind, inode: number, .. } = entry;
            let target = self.target(&path, kind);
            files.push(ListedFile { name, number, kind, inode, target });
        }
        self.sort(&mut files);
        files
    }

    /// Sorts files. They stay in the order of their names where the order is equal.
    fn sort(&self, files: &mut [ListedFile]) {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        match self.order {
            Order::Name | Order::None => {}
            Order::Extension => {
                files.sort_by(|one, other| extension(&one.name).cmp(extension(&other.name)))
            }
            Order::Time => {
                let time = |inode: &Inode| self.format.time(inode);
                files.sort_by_key(|file| Reverse(file.inode.as_ref().map(time)));
            }
            Order::Size => {
                files.sort_by_key(|file| Reverse(file.inode.as_ref().map(|its| its.size)));
            }
        }
        if self.is_reversed && self.order != Order::None {
            files.reverse();
        }
        if self.groups_directories && self.order != Order::None {
            let is_directory = |file: &ListedFile| {
                let target = file.target.as_ref().map_or(file.kind, |target| target.kind);
                target == FileType::Directory
            };
            files.sort_by_key(|file| !is_directory(file));
        }
    }

    /// The directories among the entries of a directory, the first one last.
    fn directories(
        &self,
        parent: &VolumePath,
        files: Vec<ListedFile>,
        visited: &mut VisitedDirectories,
    ) -> Vec<VolumePath> {
        let mut found = Vec::new();
        let is_entry = |name: &[u8]| !matches!(name, b"." | b"..");
        for file in files {
            if file.kind == FileType::Directory && is_entry(&file.name) {
                let path = parent.in_same_volume(join(&parent.bytes, &file.name));
                let is_new = self.errors.record(visited.visit(&path, file.number)).is_some();
                found.extend(is_new.then_some(path));
            }
        }
        found.reverse();
        found
    }
}

/// The name from its last dot on; empty without a dot.
fn extension(name: &[u8]) -> &[u8] {
    name.iter().rposition(|byte| *byte == b'.').map_or(&[], |dot| &name[dot..])
}

fn objects(files: &[ListedFile]) -> Vec<Value> {
    let object = |file: &ListedFile| {
        let inode = file.inode.as_ref()?;
        Some(file_json::file(&file.name, file.number, inode).into())
    };
    files.iter().filter_map(object).collect()
}
