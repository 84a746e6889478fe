//! [`Volume::check`](crate::Volume::check): whether everything a volume says of itself agrees, and making it agree again.
//!
//! A check reads the catalog as its last commit left it, a pass after the other: pages, then records,
//! names with inodes, blocks with free space, and with `deep` the files' bytes. To repair, each pass
//! also answers the records that would be right. They are committed, and all is checked again, until
//! nothing is left to repair: so what one repair brings to light the next round finds.
//!
//! # Memory
//! Apart from the catalog's cache: 32 bytes for each of [`round::Bounds::inodes`], a bit for each of
//! [`round::Bounds::blocks`], about 60 bytes for each directory, and what is found: its first 10,000 lines,
//! and 16 MiB of repairs a round. A volume with more inodes or blocks is gone through in several
//! passes.

// A volume of an older version becomes one of this.
mod upgrade;

// The passes in their order, round after round.
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
mod check;

// What is left goes into a new catalog.
mod rebuild;

// Pass: every directory hangs on the root.
mod tree;

// Pass: names and inodes.
mod names;

// Pass: links that an inode counts.
mod links;

// Pass: extents and free space.
mod blocks;

// Pass: the bytes of files.
mod data;

// Pass: every record by itself.
mod records;

// The lock, the superblock, the catalog.
mod opening;

// What the passes of a round share.
mod round;

// What was found so far.
mod findings;

// Paths of inodes that findings name.
mod paths;

// Records in order, a few at a time.
mod reader;

// Records that would be right.
mod fixes;

// What a check is asked, and reports.
mod report;

#[cfg(test)]
mod tests;

pub use report::{CheckOptions, CheckReport, CheckStep, Finding};
