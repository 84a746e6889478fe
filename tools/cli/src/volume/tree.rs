//! `uringfs tree`: shows directories of a volume as trees. Draws lines on a terminal, and ASCII elsewhere.

use super::entries::{Entries, Entry};
use super::error_sink::ErrorSink;
use super::files::Files;
use super::format;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open_at};
use super::size_options::long_help;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, with_path};
use crate::json::{document, with_bytes};
use crate::output::{print, print_bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::IsTerminal;
use uringfs::device::Access;
use uringfs::volume::FileType;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Also show names that begin with a dot
    #[arg(short, long)]
    all: bool,

    /// Show directories only
    #[arg(short, long)]
    directories: bool,

    /// Levels of directories to show
    #[arg(short = 'L', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    level: Option<u32>,

    /// Print JSON: a flat list of files with their levels
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::Read)?;
    let errors = ErrorSink::default();
    let is_terminal = std::io::stdout().is_terminal();
    let lines = if is_terminal { TERMINAL_LINES } else { ASCII_LINES };
    let (as_json, glob) = (arguments.json, arguments.glob);
    let (counts, files) = ([0, 0], Vec::new());
    let mut tree = Tree { volume: &volume, errors: &errors, arguments, lines, counts, files };
    for path in glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        let text = tree.text(&path);
        if !as_json {
            print_bytes(&text)?;
        }
    }
    let [directories, others] = tree.counts;
    let summary = match as_json {
        true => {
            document(json!({"files": tree.files, "directories": directories, "others": others}))
        }
        false => tree.summary(),
    };
    print(&summary)?;
    Ok(errors.exit_code())
}

/// The lines before a name, and before the names below it.
struct Lines {
    middle: [&'static str; 2],
    last: [&'static str; 2],
}

const TERMINAL_LINES: Lines =
    Lines { middle: ["├── ", "│   "], last: ["└── ", "    "] };
const ASCII_LINES: Lines = Lines { middle: ["|-- ", "|   "], last: ["`-- ", "    "] };

struct Tree<'t> {
    volume: &'t Files,
    errors: &'t ErrorSink,
    arguments: Arguments,
    lines: Lines,
    /// The directories and the other files shown.
    counts: [u64; 2],
    /// The files for the JSON document.
    files: Vec<Value>,
}

/// An entry, with the lines of the tree that precede it.
struct Branch {
    path: VolumePath,
    entry: Entry,
    lead: String,
    level: u32,
    is_last: bool,
}

impl Tree<'_> {
    /// A directory and everything below it.
    fn text(&mut self, top: &VolumePath) -> Vec<u8> {
        let mut text = format::printable(&top.bytes);
        text.push(b'\n');
        let mut visited = VisitedDirectories::default();
        // The entries to show, the next one last.
        let mut left = self.branches(top, "", 1);
        while let Some(Branch { path, entry, lead, level, is_last }) = left.pop() {
            if self.arguments.json {
                let fields = json!({"kind": format::kind(entry.kind), "level": level});
                self.files.push(with_bytes("path", &path.bytes, fields));
            }
            let [knot, line] = if is_last { self.lines.last } else { self.lines.middle };
            text.extend_from_slice(lead.as_bytes());
            text.extend_from_slice(knot.as_bytes());
            text.extend(self.name(&path, &entry));
            text.push(b'\n');
            if entry.kind != FileType::Directory {
                self.counts[1] += 1;
            } else if self.errors.record(visited.visit(&path, entry.inode)).is_some() {
                self.counts[0] += 1;
                if self.arguments.level.is_none_or(|levels| level < levels) {
                    left.extend(self.branches(&path, &(lead + line), level + 1));
                }
            }
        }
        text
    }

    /// The name of an entry; of a link with its target.
    fn name(&self, path: &VolumePath, entry: &Entry) -> Vec<u8> {
        let mut name = format::printable(&entry.name);
        if entry.kind == FileType::Symlink {
            let found = lookup(self.volume, &path.bytes);
            let found = found.map_err(|error| with_path(path, error));
            if let Some((_, inode)) = self.errors.record(found) {
                name.extend_from_slice(b" -> ");
                name.extend(format::printable(&inode.target));
            }
        }
        name
    }

    /// The entries of a directory to show, the first one last.
    fn branches(&self, directory: &VolumePath, lead: &str, level: u32) -> Vec<Branch> {
        let found = Entries::new(self.volume, &directory.bytes).with_paths(directory, self.errors);
        let is_shown = |entry: &Entry| {
            (self.arguments.all || !entry.name.starts_with(b"."))
                && (!self.arguments.directories || entry.kind == FileType::Directory)
        };
        let branch =
            |(path, entry)| Branch { path, entry, lead: lead.to_owned(), level, is_last: false };
        let mut all: Vec<Branch> = found.filter(|(_, entry)| is_shown(entry)).map(branch).collect();
        if let Some(last) = all.last_mut() {
            last.is_last = true;
        }
        all.reverse();
        all
    }

    fn summary(&self) -> String {
        let [directories, files] = self.counts;
        let directories = format::count(directories, "directory", "directories");
        match self.arguments.directories {
            true => format!("\n{directories}\n"),
            false => format!("\n{directories}, {}\n", format::count(files, "file", "files")),
        }
    }
}
