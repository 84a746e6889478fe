//! Files with a cursor, for code that takes the traits of std, tokio or futures.
//!
//! - [`BlockingFile`]: [`io::Read`], [`io::Write`] and [`io::Seek`], for `io::copy`, serde, tar or zip.
//! - `AsyncFile`, only with the cargo feature `tokio` or `futures`: `AsyncRead`, `AsyncWrite` and `AsyncSeek` of the crate
//!   tokio or futures-io (`uringfs = { version = "0.1", features = ["tokio"] }`).
//!
//! Their calls take borrowed memory, which the kernel must not keep. So the bytes are copied, except cached bytes that
//! are read, which are copied only once. A [`File`](crate::File) with memory of your own is faster.

#[cfg(doc)]
use std::io;

// A file for asynchronous code.
#[cfg(any(feature = "tokio", feature = "futures"))]
mod async_file;
// The traits of futures-io.
#[cfg(feature = "futures")]
mod futures;
// The traits of tokio.
#[cfg(feature = "tokio")]
mod tokio;
// A file for threads that may block.
mod blocking;
// A position that calls move.
mod cursor;

#[cfg(any(feature = "tokio", feature = "futures"))]
pub use async_file::AsyncFile;
pub use blocking::BlockingFile;
