//! The targets of jobs: their names, whether they may be used, and the files that the run creates.
//! Everything is checked before anything is written.

mod claim;
mod disk;
mod inspect;
mod layout;
mod volumes;
mod initial_content;
mod target_info;
mod target;
mod volume_file;
mod signature;
mod nvme_namespace;
mod nvme_command;

pub(crate) use claim::CLAIMED_BY_PARENT;
pub use claim::claim;
pub use disk::{DiskMonitor, DiskStats};
pub use initial_content::InitialContent;
pub use inspect::{inspect, inspect_files};
pub use layout::CreatedFiles;
pub use nvme_command::{DataRange, NvmeCommand, Transfer};
pub use nvme_namespace::Namespace;
pub use signature::{VOLUME, probe, probe_device};
pub use target::{Access, Target, drop_page_cache};
pub use target_info::TargetInfo;
pub use volume_file::{VolumeFile, is_volume};
pub use volumes::Volumes;
