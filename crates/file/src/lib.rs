//! Moving a byte range between a caller and where its mapping says.
//!
//! A [`File`] is a device and a [`Map`]. It is asked by awaiting
//! ([`File::read`] and the rest), or by token on a reactor ([`Tokens`]).
//! Small reads take the simple way; everything else is an operation.

mod append;
mod ask;
mod atomic;
mod buffered;
mod buffered_write;
mod cached;
mod direct;
mod entry;
mod file;
mod glance;
mod lock;
mod map;
mod options;
mod promised;
mod readahead;
mod simple;
mod space;
mod transfer;
mod unsaved;
mod waiting_threads;
mod write_back;

pub use ask::{Answer, Ask, Tokens};
pub use atomic::LONGEST_ATOMIC;
pub use cached::Advice;
pub use file::File;
pub use glance::{Glance, Reads, View, Window};
pub use lock::WriteLock;
pub use map::{
    Commit, Durable, Flat, Generation, Map, Mapping, Piece, Place, Prepared, Promise, Reservation,
};
pub use options::{BufferedWait, FileOptions, WriteLocking};
pub use space::Size;
