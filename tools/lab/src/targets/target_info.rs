//! The kind, size and alignment of a target.

/// The kind, size and alignment of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetInfo {
    /// There is no such file; its directory exists.
    Missing,
    /// A regular file.
    File {
        /// Size in bytes.
        size: u64,
        /// O_DIRECT needs offsets and lengths that are multiples of this.
        alignment: u64,
    },
    /// A block device. If the job writes, it is not in use.
    Device {
        /// Size in bytes.
        size: u64,
        /// The logical block size.
        alignment: u64,
        /// The file system or other format on it.
        content: Option<&'static str>,
    },
    /// A virtual target of the engine.
    Virtual {
        /// Size in bytes.
        size: u64,
    },
}

impl TargetInfo {
    /// Size in bytes; 0 for a missing file.
    pub fn size(&self) -> u64 {
        match *self {
            Self::Missing => 0,
            Self::File { size, .. } | Self::Device { size, .. } | Self::Virtual { size } => size,
        }
    }

    /// The alignment of direct I/O, in bytes.
    pub fn alignment(&self) -> u64 {
        match *self {
            Self::File { alignment, .. } | Self::Device { alignment, .. } => alignment,
            Self::Missing | Self::Virtual { .. } => 1,
        }
    }
}
