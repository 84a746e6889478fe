//! The commands on volumes, and what they share: how a place in a volume is written, how a volume
//! is opened, and what is said of it.

pub mod about;
pub mod check;
pub mod chown;
mod complaints;
pub mod du;
mod entered;
mod entries;
mod existing;
mod flight;
pub mod get;
mod glob;
mod hard_links;
mod host;
pub mod list;
pub mod mkfs;
pub mod names;
mod opening;
mod place;
pub mod put;
pub mod resize;
pub mod show;
mod size;
mod source;
mod staged;
mod staging;
mod transfer;
pub mod truncate;
mod words;
pub mod xattr;
