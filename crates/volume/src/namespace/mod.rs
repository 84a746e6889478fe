//! Names: directories, paths, permissions, and the operations on them.

/// POSIX access control lists.
pub(crate) mod acl;
/// The user of a handle, and its policy of access times.
pub(crate) mod credentials;
/// Names in directories.
pub(crate) mod directory;
/// What a new file inherits from its directory.
pub(crate) mod inherit;
/// How a file is opened.
pub(crate) mod open_options;
/// The operations of a volume, as closures over a transaction.
pub(crate) mod operations;
/// Paths, and the symbolic links in them.
pub(crate) mod path;
/// The records that one operation reads and changes.
pub(crate) mod transaction;
