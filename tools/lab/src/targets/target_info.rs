//! What a target turned out to be.

/// What a target turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing there, in a folder that is.
    Nothing,
    /// An ordinary file.
    File {
        /// Bytes.
        size: u64,
        /// What O_DIRECT wants offsets and lengths to be multiples of.
        alignment: u64,
    },
    /// A block device; if it is to be written, nobody uses it.
    Device {
        /// Bytes.
        size: u64,
        /// Its logical block size.
        alignment: u64,
        /// What lies on it.
        content: Option<&'static str>,
    },
    /// The engine's own.
    Virtual {
        /// Bytes.
        size: u64,
    },
}

impl Found {
    /// Its size; nothing has none.
    pub fn size(&self) -> u64 {
        match *self {
            Self::Nothing => 0,
            Self::File { size, .. } | Self::Device { size, .. } | Self::Virtual { size } => size,
        }
    }

    /// What direct I/O must be aligned to.
    pub fn alignment(&self) -> u64 {
        match *self {
            Self::File { alignment, .. } | Self::Device { alignment, .. } => alignment,
            Self::Nothing | Self::Virtual { .. } => 1,
        }
    }
}
