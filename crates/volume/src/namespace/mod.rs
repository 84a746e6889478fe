//! Names: directories, paths, permissions, and the operations on them.

// The operations of a volume, as closures over a transaction.
pub(crate) mod operations;

// Options for opening a file.
pub(crate) mod open_options;

// Inheritance of a new file from its directory.
pub(crate) mod inherit;

// POSIX access control lists.
pub(crate) mod acl;

// Paths, and the symbolic links in them.
pub(crate) mod path;

// Directories and their entries.
pub(crate) mod directory;

// The records that one operation reads and changes.
pub(crate) mod transaction;

// References that keep an inode without a name.
pub(crate) mod pins;

// The user of a handle, and its policy of access times.
pub(crate) mod credentials;
