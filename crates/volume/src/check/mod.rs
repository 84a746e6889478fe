//! [`Volume::check`]: whether everything a volume says of itself agrees, and making it agree again.
//!
//! A check reads the catalog as its last commit left it, a pass after the other: pages, then records,
//! names with inodes, blocks with free space, and with `deep` the files' bytes. To repair, each pass
//! also answers the records that would be right. They are committed, and all is checked again, until
//! nothing is left to repair: so what one repair brings to light the next round finds.
//!
//! # Memory
//! Apart from the catalog's cache: 32 bytes for each of [`Bounds::inodes`], a bit for each of
//! [`Bounds::blocks`], about 60 bytes for each directory, and what is found: its first 10,000 lines,
//! and 16 MiB of repairs a round. A volume with more inodes or blocks is gone through in several
//! passes.

mod blocks;
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
mod check;
mod data;
mod findings;
mod fixes;
mod links;
mod names;
mod opening;
mod paths;
mod reader;
mod rebuild;
mod records;
mod report;
mod round;
#[cfg(test)]
mod tests;
mod tree;
mod upgrade;

pub use report::{CheckOptions, CheckReport, CheckStep, Finding};
