//! [`Volume::check`](crate::Volume::check): verifies that a volume's metadata are consistent, and repairs them.
//! [`Volume::check_online`](crate::Volume::check_online) runs the same passes over a snapshot of an open volume
//! (`check/online.rs`).
//!
//! A check reads the catalog as its last commit left it, in passes: pages, then records, names against inodes,
//! blocks against free space, and with `deep` the files' bytes. For a repair each pass also returns the corrected
//! records. They are committed, and all passes run again until nothing is left to repair. So a later round finds
//! what an earlier repair uncovered.
//!
//! The device must not be open for writing elsewhere. If no superblock is valid, a repair uses the backup superblock,
//! if the catalog confirms it. Pages with one flipped bit are corrected by their checksums. If pages are lost, the
//! rest of the catalog is copied into a new one in free blocks, which the superblock then names
//! (`check/rebuild.rs`).
//!
//! # Memory
//! Apart from the catalog's cache: 32 bytes for each of [`round::Bounds::inodes`], a bit for each of
//! [`round::Bounds::blocks`], about 60 bytes per directory, the first 10,000 findings, about 16 bytes for
//! each of 2^20 lost inodes, and 16 MiB of repairs per round. A volume with more inodes or blocks takes several passes.

// Upgrades a volume of an older version.
mod upgrade;

// The same passes over a snapshot of an open volume.
mod online;

// The passes in order, round after round.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
mod check;

// Moves what is left of a catalog into a new one.
mod rebuild;

// Pass: every directory is reachable from the root; every attribute has an inode.
mod tree;

// Pass: names against inodes.
mod names;

// Pass: link counts, and inodes without a name.
mod links;

// Pass: extents against free space.
mod blocks;

// Pass: the bytes of files.
mod data;

// Pass: each record by itself.
mod records;

// Opening for a check: lock, superblock, catalog.
mod opening;

// The shared state of the passes of a round.
mod round;

// The findings so far.
mod findings;

// Paths of the inodes that findings name.
mod paths;

// Iterators over records.
mod reader;

// Corrected records.
mod fixes;

// Options and report.
mod report;

#[cfg(test)]
mod tests;

pub use report::{CheckOptions, CheckReport, CheckStep, Finding};
