//! What a check is asked, and what it reports.

use std::fmt;

use crate::records::inode::InodeNumber;

/// What a check does.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Mends what can be mended without losing more than is lost already.
    pub repair: bool,
    /// Reads every block that files use.
    pub deep: bool,
    /// Repairs though the device does not give all blocks of the catalog, and takes what they hold for lost. Else
    /// such a volume is not repaired: what cannot be read now may be read later, or on another machine.
    pub accept_unreadable: bool,
}

/// What a check goes through, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, or was; in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Findings that are not listed, since there are too many.
    pub unlisted: u64,
    /// Of these, those that are not repaired.
    pub unlisted_left: u64,
    /// Files of all kinds but directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks that files use.
    pub used_blocks: u64,
    /// Blocks that were read, where that was asked for.
    pub read_blocks: u64,
}

impl CheckReport {
    /// Nothing was wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.unlisted == 0
    }

    /// Nothing is wrong now.
    pub fn is_repaired(&self) -> bool {
        self.unlisted_left == 0 && self.findings.iter().all(|finding| finding.is_repaired)
    }
}

/// Something that is wrong, or was. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file it is about, from the root on, where that is known. Any bytes but 0.
    pub path: Option<Vec<u8>>,
    /// The inode it is about, if it is about one.
    pub inode: Option<InodeNumber>,
    /// What is wrong, and where it was repaired, what was done.
    pub what: String,
    /// It is right now.
    pub is_repaired: bool,
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
