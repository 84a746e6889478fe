//! What a job reads and writes: which targets it names, whether they may be used, and the files
//! the run makes itself. Everything is checked before anything is written.

mod disk;
mod inspect;
mod layout;
mod volumes;
mod content;
mod found;
mod target;
mod volume_file;
mod signature;

pub use content::Content;
pub use disk::{DiskUse, Disks};
pub use found::Found;
pub use inspect::inspect;
pub use layout::Made;
pub use signature::probe;
pub use target::{Access, Target, drop_cached};
pub use volume_file::{VolumeFile, is_volume};
pub use volumes::Volumes;
