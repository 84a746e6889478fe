//! Options and report of a check.

use std::fmt;

use crate::records::inode::InodeNumber;

/// Options of a check.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_volume::*;
/// #     pub use uringfs_device as device;
/// #     pub use uringfs_volume as volume;
/// # }
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::device::Device;
/// use uringfs::volume::CheckOptions;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::new(Memory::new(64 << 20)?)?;
/// Volume::format(&device, &FormatOptions::new())?;
/// let report = Volume::check(&device, CheckOptions::new().repair(true).deep(true), &mut |_, _| {})?;
/// assert!(report.is_sound() && report.directories == 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct CheckOptions {
    /// Repairs what can be repaired without losing more than is already lost.
    pub repair: bool,
    /// Reads every block that files use.
    pub deep: bool,
    /// Repairs even if the device fails to read blocks of the catalog, and gives up their contents. Without it such a
    /// volume is not repaired, since a later read, or one on another machine, may succeed.
    pub accept_unreadable: bool,
    /// Checks, and with [`Self::repair`] repairs, even if another format was made over the volume, such as a file system
    /// or a partition table. The repair destroys it. Without it such a volume is refused.
    pub overwrite_other_format: bool,
}

impl CheckOptions {
    /// A check of the metadata that repairs nothing.
    pub fn new() -> CheckOptions {
        CheckOptions::default()
    }

    /// Repairs what can be repaired without losing more than is already lost.
    pub fn repair(mut self, repair: bool) -> CheckOptions {
        self.repair = repair;
        self
    }

    /// Reads every block that files use.
    pub fn deep(mut self, deep: bool) -> CheckOptions {
        self.deep = deep;
        self
    }

    /// Repairs even if the device fails to read blocks of the catalog: see the field.
    pub fn accept_unreadable(mut self, accept_unreadable: bool) -> CheckOptions {
        self.accept_unreadable = accept_unreadable;
        self
    }

    /// Checks and repairs even if another format was made over the volume: see the field.
    pub fn overwrite_other_format(mut self, overwrite_other_format: bool) -> CheckOptions {
        self.overwrite_other_format = overwrite_other_format;
        self
    }
}

/// The steps of a check, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckStep {
    /// The catalog's pages.
    Pages,
    /// Its records.
    Records,
    /// Names and inodes.
    Names,
    /// Extents and free space.
    Blocks,
    /// The bytes of files.
    Data,
}

/// The report of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// All findings, repaired or not, in the order in which they were found.
    pub findings: Vec<Finding>,
    /// Findings beyond the limit of the list.
    pub unlisted: u64,
    /// Unlisted findings that are not repaired.
    pub unlisted_left: u64,
    /// Files of all kinds whose inodes a repair has replaced by new ones: their owners, modes, times and exact sizes are
    /// lost.
    pub recreated: u64,
    /// Files of all kinds but directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks that files use.
    pub used_blocks: u64,
    /// Blocks that were read, with [`CheckOptions::deep`].
    pub read_blocks: u64,
}

impl CheckReport {
    /// True if nothing was wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.unlisted == 0
    }

    /// True if nothing is wrong now.
    pub fn is_repaired(&self) -> bool {
        self.unlisted_left == 0 && self.findings.iter().all(|finding| finding.is_repaired)
    }
}

/// A fault that was found. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The path of the file concerned, from the root, if it is known. Any bytes but 0.
    pub path: Option<Vec<u8>>,
    /// The inode concerned, if there is one.
    pub inode: Option<InodeNumber>,
    /// The fault, and after a repair what was done.
    pub what: String,
    /// True if the fault is repaired.
    pub is_repaired: bool,
}

impl Finding {
    /// The finding of a check that another process has made, as that has reported it.
    #[doc(hidden)]
    pub fn reported(path: Option<Vec<u8>>, inode: Option<u64>, what: String) -> Finding {
        Finding { path, inode: inode.and_then(InodeNumber::new), what, is_repaired: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.inode) {
            (Some(path), Some(inode)) => write!(out, "{} (inode {}): ", line(path), inode.0)?,
            (Some(path), None) => write!(out, "{}: ", line(path))?,
            (None, Some(inode)) => write!(out, "inode {}: ", inode.0)?,
            (None, None) => {}
        }
        out.write_str(&self.what)
    }
}

/// A path as text without control characters.
fn line(path: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(path).chars() {
        match character.is_control() {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
    text
}
