//! The user of a handle, and its policy of access times.

/// The user for whom a file is opened. It decides the owner of a new file, and whether writes strip set-ID bits.
/// This crate does not check permissions: its caller does that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// The program itself, which may do everything: writes keep set-ID bits, and new files belong to the effective user and
    /// group of the process.
    #[default]
    Superuser,
    /// A user, as a mount gets it from the kernel.
    User {
        /// The uid that owns new files.
        user: u32,
        /// The gid that owns new files.
        group: u32,
    },
}

/// When the access time of a file is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtimePolicy {
    /// By the first read after a change, and once a day (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
}
