//! Whether a run may overwrite what exists.

/// Whether the run may overwrite files and devices that it did not create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// No.
    #[default]
    Refuse,
    /// Yes, by the user's choice.
    Allow,
}
