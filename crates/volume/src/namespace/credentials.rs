//! Who does something to a volume.

/// In whose name a file is opened. What it decides here is who owns what is made, and whether a write
/// takes away that the file runs as its owner; permissions are checked by who passes these on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// The program's own, which may do anything.
    #[default]
    Trusted,
    /// Somebody's, as a mount has them from the kernel.
    Of {
        /// The user, who owns what is made.
        user: u32,
        /// And the group.
        group: u32,
    },
}

/// When a file's time of access moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTime {
    /// With the first read after a change, and once a day (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Kept,
}
