//! The lines of `ls`: names, and in the long format columns that are aligned within one listing.

use super::colors::{ColorWhen, paint};
use super::format;
use super::owners::OwnerNames;
use super::size_options::SizeOptions;
use super::times::TimeFormat;
use uringfs::volume::{FileType, Inode, InodeNumber};

/// The options that decide what a line shows.
#[derive(clap::Args)]
pub struct RowOptions {
    /// Long format: mode, links, user, group, size, modification time
    #[arg(short, long)]
    long: bool,

    /// Long format with numbers of users and groups
    #[arg(short, long)]
    numeric_uid_gid: bool,

    /// Long format with the full modification time
    #[arg(long)]
    full_time: bool,

    /// Print the inode number of each file
    #[arg(short, long)]
    inode: bool,

    /// Print names without quotes, on a terminal, too
    #[arg(short = 'N', long)]
    literal: bool,

    /// Print the space of each file in blocks of 1024 bytes
    #[arg(short = 's', long)]
    size: bool,

    /// Mark kinds of files behind their names: / directory, * executable, @ link, | FIFO, = socket
    #[arg(short = 'F', long)]
    classify: bool,

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

impl RowOptions {
    pub fn is_long(&self) -> bool {
        self.long || self.numeric_uid_gid || self.full_time
    }

    /// Whether lines show more than names and inode numbers.
    pub fn needs_inodes(&self) -> bool {
        self.is_long() || self.size || self.classify || self.color.is_on()
    }

    /// Whether links are followed for the marks of their targets.
    pub fn marks_targets(&self) -> bool {
        self.classify && self.is_long()
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
                    text.extend(file.target.as_ref().and_then(mark));
                }
                Some(inode) if self.options.classify => text.extend(mark(inode)),
                _ => {}
            }
            text.push(b'\n');
        }
        text
    }

    /// A name as it is printed.
    pub fn name(&self, name: &[u8]) -> Vec<u8> {
        match self.options.literal {
            true => format::unquoted(name),
            false => format::printable(name),
        }
    }

    fn is_quoted(&self, name: &[u8]) -> bool {
        !self.options.literal && format::printable(name) != name
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
        let time = match self.options.full_time {
            true => self.times.full(inode.modified),
            false => self.times.listed(inode.modified),
        };
        cells.extend([Cell::Left(format::mode(inode)), Cell::Right(inode.links.to_string())]);
        cells.extend([user, group, Cell::Right(size), Cell::Right(time)]);
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
