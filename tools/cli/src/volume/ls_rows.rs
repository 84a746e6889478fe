//! The lines of `ls`: names, and in the long format columns that are aligned within one listing.

use super::colors::{ColorWhen, paint};
use super::format;
use super::owners::OwnerNames;
use super::quoting::{self, CStyle};
use super::size_options::SizeOptions;
use super::times::TimeFormat;
use clap::ValueEnum;
use uringfs::volume::{FileType, Inode, InodeNumber, Time};

/// The options that decide what a line shows.
#[derive(clap::Args)]
pub struct RowOptions {
    /// Long format: mode, links, user, group, size, time
    #[arg(short, long)]
    long: bool,

    /// Long format with numbers of users and groups
    #[arg(short, long)]
    numeric_uid_gid: bool,

    /// Long format without the user
    #[arg(short = 'g')]
    without_user: bool,

    /// Long format without the group
    #[arg(short = 'o')]
    without_group: bool,

    /// No group in the long format
    #[arg(short = 'G', long)]
    no_group: bool,

    /// Long format with the full time
    #[arg(long)]
    full_time: bool,

    /// Show this time in the long format; without it, and with -t, sort by it
    #[arg(long, value_name = "WORD", overrides_with_all = ["access_time", "change_time"])]
    time: Option<TimeChoice>,

    /// As --time=access
    #[arg(short = 'u', overrides_with_all = ["time", "change_time"])]
    access_time: bool,

    /// As --time=status: the last change of content or attributes
    #[arg(short = 'c', overrides_with_all = ["time", "access_time"])]
    change_time: bool,

    /// Print the inode number of each file
    #[arg(short, long)]
    inode: bool,

    /// Print names without quotes, on a terminal, too
    #[arg(short = 'N', long, overrides_with_all = ["escape", "quote_name"])]
    literal: bool,

    /// Print special characters in names as in C, as in \n and \302, and spaces as '\ '
    #[arg(short = 'b', long, overrides_with_all = ["literal", "quote_name"])]
    escape: bool,

    /// Print names in double quotes, as strings of C
    #[arg(short = 'Q', long, overrides_with_all = ["literal", "escape"])]
    quote_name: bool,

    /// Print names without quotes, and ? for each special character, unless -b or -Q is given
    #[arg(short = 'q', long)]
    hide_control_chars: bool,

    /// Print the space of each file in blocks of 1024 bytes
    #[arg(short = 's', long)]
    size: bool,

    /// Mark kinds of files behind their names: / directory, * executable, @ link, | FIFO, = socket
    #[arg(short = 'F', long, overrides_with = "slash")]
    classify: bool,

    /// Mark directories with a slash behind their names
    #[arg(short = 'p', overrides_with = "classify")]
    slash: bool,

    /// Colour names by the kinds of files
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always"
    )]
    color: ColorWhen,

    #[command(flatten)]
    sizes: SizeOptions,
}

/// A time of a file.
#[derive(ValueEnum, Clone, Copy, Default)]
pub enum TimeChoice {
    #[default]
    #[value(alias = "mtime")]
    Modification,
    #[value(aliases = ["atime", "use"])]
    Access,
    /// Of content or attributes
    #[value(alias = "ctime")]
    Status,
    #[value(alias = "creation")]
    Birth,
}

impl RowOptions {
    pub fn is_long(&self) -> bool {
        self.long
            || self.numeric_uid_gid
            || self.full_time
            || self.without_user
            || self.without_group
    }

    /// Whether an option names the time.
    pub fn has_chosen_time(&self) -> bool {
        self.time.is_some() || self.access_time || self.change_time
    }

    fn time_choice(&self) -> TimeChoice {
        match (self.access_time, self.change_time) {
            (true, _) => TimeChoice::Access,
            (false, true) => TimeChoice::Status,
            (false, false) => self.time.unwrap_or_default(),
        }
    }

    /// Whether lines show more than names and inode numbers.
    pub fn needs_inodes(&self) -> bool {
        self.is_long() || self.size || self.classify || self.slash || self.color.is_on()
    }

    /// Whether links are followed for the marks of their targets.
    pub fn marks_targets(&self) -> bool {
        (self.classify || self.slash) && self.is_long()
    }

    /// Whether the total of a directory is printed.
    pub fn has_total(&self) -> bool {
        self.is_long() || self.size
    }
}

/// A file to print.
pub struct ListedFile {
    pub name: Vec<u8>,
    pub number: InodeNumber,
    pub kind: FileType,
    /// Read only if the output or its order needs it.
    pub inode: Option<Inode>,
    /// The inode that a link leads to, if its mark is printed.
    pub target: Option<Inode>,
}

/// Formats the lines of listings.
pub struct RowFormat {
    options: RowOptions,
    has_colors: bool,
    owners: OwnerNames,
    times: TimeFormat,
}

/// A cell of a column.
enum Cell {
    Left(String),
    Right(String),
}

impl RowFormat {
    pub fn new(options: RowOptions) -> Self {
        let has_colors = options.color.is_on();
        Self { options, has_colors, owners: OwnerNames::default(), times: TimeFormat::new() }
    }

    /// The first line of a directory in the long format: the space of all files.
    pub fn total(&self, files: &[ListedFile]) -> String {
        let allocated = |file: &ListedFile| file.inode.as_ref().map_or(0, Inode::allocated);
        let bytes = files.iter().map(allocated).sum();
        format!("total {}\n", self.options.sizes.text(bytes, 1024))
    }

    /// The lines of a listing.
    pub fn lines(&mut self, files: &[ListedFile]) -> Vec<u8> {
        let device_widths = device_widths(files);
        let rows: Vec<Vec<Cell>> =
            files.iter().map(|file| self.cells(file, device_widths)).collect();
        let columns = rows.first().map_or(0, Vec::len);
        let width = |column: usize| rows.iter().map(|row| row[column].text().len()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let has_quotes =
            self.options.is_long() && files.iter().any(|file| self.is_quoted(&file.name));
        let mut text = Vec::new();
        for (file, row) in files.iter().zip(&rows) {
            for (cell, width) in row.iter().zip(&widths) {
                let cell = match cell {
                    Cell::Left(text) => format!("{text:<width$} "),
                    Cell::Right(text) => format!("{text:>width$} "),
                };
                text.extend_from_slice(cell.as_bytes());
            }
            let name = self.name(&file.name);
            // The first letters of names with and without quotes are below each other.
            let is_indented = has_quotes && name == file.name;
            text.extend_from_slice(if is_indented { b" " } else { b"" });
            text.extend(match &file.inode {
                Some(inode) if self.has_colors => paint(name, inode),
                _ => name,
            });
            match &file.inode {
                Some(inode) if self.options.is_long() && inode.kind == FileType::Symlink => {
                    text.extend_from_slice(b" -> ");
                    text.extend(self.name(&inode.target));
                    text.extend(file.target.as_ref().and_then(|target| self.mark(target)));
                }
                Some(inode) => text.extend(self.mark(inode)),
                None => {}
            }
            text.push(b'\n');
        }
        text
    }

    /// A name as it is printed.
    pub fn name(&self, name: &[u8]) -> Vec<u8> {
        match &self.options {
            RowOptions { escape: true, .. } => quoting::escaped(name, CStyle::Escape),
            RowOptions { quote_name: true, .. } => quoting::escaped(name, CStyle::Quote),
            RowOptions { hide_control_chars: true, .. } => format::with_question_marks(name),
            RowOptions { literal: true, .. } => format::unquoted(name),
            _ => format::printable(name),
        }
    }

    /// Whether a name is printed in quotes that others do not have.
    fn is_quoted(&self, name: &[u8]) -> bool {
        let RowOptions { literal, hide_control_chars, escape, quote_name, .. } = self.options;
        let has_shell_quotes = !(literal || hide_control_chars || escape || quote_name);
        has_shell_quotes && format::printable(name) != name
    }

    /// The time of a file that is printed.
    pub fn time(&self, inode: &Inode) -> Time {
        match self.options.time_choice() {
            TimeChoice::Modification => inode.modified,
            TimeChoice::Access => inode.accessed,
            TimeChoice::Status => inode.changed,
            TimeChoice::Birth => inode.created,
        }
    }

    /// The mark behind a name.
    fn mark(&self, inode: &Inode) -> Option<u8> {
        let is_directory = inode.kind == FileType::Directory;
        match self.options.classify || self.options.slash && is_directory {
            true => mark(inode),
            false => None,
        }
    }

    /// The columns before the name.
    fn cells(&mut self, file: &ListedFile, device_widths: [usize; 2]) -> Vec<Cell> {
        let mut cells = Vec::new();
        if self.options.inode {
            cells.push(Cell::Right(file.number.0.to_string()));
        }
        if let Some(inode) = file.inode.as_ref().filter(|_| self.options.size) {
            cells.push(Cell::Right(self.options.sizes.text(inode.allocated(), 1024)));
        }
        let Some(inode) = file.inode.as_ref().filter(|_| self.options.is_long()) else {
            return cells;
        };
        let owner = |name: Option<&str>, number: u32| match name {
            Some(name) => Cell::Left(name.to_owned()),
            None => Cell::Right(number.to_string()),
        };
        let (user, group) = match self.options.numeric_uid_gid {
            true => (owner(None, inode.user), owner(None, inode.group)),
            false => (
                owner(self.owners.user(inode.user), inode.user),
                owner(self.owners.group(inode.group), inode.group),
            ),
        };
        let size = match device(inode.kind) {
            Some([major, minor]) => {
                let [majors, minors] = device_widths;
                format!("{major:>majors$}, {minor:>minors$}")
            }
            None => self.options.sizes.text(inode.size, 1),
        };
        let time = self.time(inode);
        let time = match self.options.full_time {
            true => self.times.full(time),
            false => self.times.listed(time),
        };
        cells.extend([Cell::Left(format::mode(inode)), Cell::Right(inode.links.to_string())]);
        let RowOptions { without_user, without_group, no_group, .. } = self.options;
        cells.extend((!without_user).then_some(user));
        cells.extend((!without_group && !no_group).then_some(group));
        cells.extend([Cell::Right(size), Cell::Right(time)]);
        cells
    }
}

impl Cell {
    fn text(&self) -> &str {
        let (Cell::Left(text) | Cell::Right(text)) = self;
        text
    }
}

/// The mark behind a name, as `ls -F` prints it.
fn mark(inode: &Inode) -> Option<u8> {
    match inode.kind {
        FileType::Directory => Some(b'/'),
        FileType::File if inode.permissions & 0o111 != 0 => Some(b'*'),
        FileType::Symlink => Some(b'@'),
        FileType::Fifo => Some(b'|'),
        FileType::Socket => Some(b'='),
        _ => None,
    }
}

/// The widths of the major and minor numbers of devices.
fn device_widths(files: &[ListedFile]) -> [usize; 2] {
    let devices = files.iter().filter_map(|file| device(file.inode.as_ref()?.kind));
    devices.fold([0, 0], |widths, numbers| {
        [0, 1].map(|at| widths[at].max(numbers[at].to_string().len()))
    })
}

/// The major and minor number of a device.
fn device(kind: FileType) -> Option<[u32; 2]> {
    match kind {
        FileType::BlockDevice(number) | FileType::CharacterDevice(number) => {
            Some([rustix::fs::major(number), rustix::fs::minor(number)])
        }
        _ => None,
    }
}
