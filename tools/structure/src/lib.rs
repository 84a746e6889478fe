//! Reads the files of a crate and says which of them import each other in a circle, and which
//! import from a module that stands above their own: [`examine`] gives [`Findings`].
//!
//! A root file lists its modules from high to low, and an arrow leads from the file that names
//! something to the file that defines it, whatever re-exports lie between. Not seen are calls of
//! methods, what macros make of their tokens, and imports between crates, which cargo keeps
//! straight. Left out is code for tests and for loom.
//!
//! ```
//! let found = uringfs_structure::examine("lib.rs".as_ref(), &|path| match path.to_str()? {
//!     "lib.rs" => Some("mod high; mod low;".to_owned()),
//!     "high.rs" => Some("use crate::low::Low; pub struct High(Low);".to_owned()),
//!     "low.rs" => Some("pub struct Low; fn up(_: crate::high::High) {}".to_owned()),
//!     _ => None,
//! });
//! let found = found.unwrap();
//! assert_eq!(found.circled(), 2);
//! assert_eq!(found.up[0].to_string(), "low.rs -> high.rs: High");
//! ```

mod findings;

mod arrows;
mod resolve;
mod tokens;
mod tree;

mod left_out;

pub use arrows::Arrow;
pub use findings::{Circle, Findings, examine};
