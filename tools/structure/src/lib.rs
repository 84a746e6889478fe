//! Finds import cycles between the files of a crate, and imports from a module above: [`examine`] returns [`Findings`].
//! [`leaks`] finds public items that name a type of a dependency; [`interface`] reads what public items mention.
//!
//! A root file lists its modules from high to low. A dependency leads from the file that uses a name to the file that
//! defines it, whatever re-exports lie between. Method calls, the output of macros, and imports between crates (which
//! cargo checks) are not seen. Code for tests and for loom is excluded.
//!
//! ```
//! let found = uringfs_structure::examine("lib.rs".as_ref(), &|path| match path.to_str()? {
//!     "lib.rs" => Some("mod high; mod low;".to_owned()),
//!     "high.rs" => Some("use crate::low::Low; pub struct High(Low);".to_owned()),
//!     "low.rs" => Some("pub struct Low; fn up(_: crate::high::High) {}".to_owned()),
//!     _ => None,
//! });
//! let found = found.unwrap();
//! assert_eq!(found.files_in_cycles(), 2);
//! assert_eq!(found.upward[0].to_string(), "low.rs -> high.rs: High");
//! ```

mod findings;

mod nameable;

mod interface;

mod dependencies;
mod resolve;
mod tokens;
mod tree;

mod excluded;

pub use dependencies::Dependency;
pub use findings::{Cycle, Findings, examine};
pub use interface::{Leak, leaks};
pub use nameable::{Interface, interface};
