//! The identity of the volume on a device, found without opening it.

use uringfs_device::Device;

use crate::blocks::BlockIo;
use crate::error::Error;
use crate::superblock::{Superblock, VERSION};
use crate::volume::volume::Volume;

/// A volume, by its superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The 16 bytes that identify the volume.
    pub uuid: [u8; 16],
    /// Its name, as given by the format or by [`Volume::set_label`].
    pub label: String,
    /// The version of its format.
    pub version: u32,
}

impl Volume {
    /// The volume that a device holds; None if there is none, if both of its superblocks are damaged, or if another
    /// format was made over it. Takes no lock, so that the volume may be open elsewhere.
    ///
    /// # Errors
    /// `Unsupported` for a format that this code does not know; `Io` if the superblocks cannot be read.
    pub fn identify(device: &Device) -> Result<Option<Identity>, Error> {
        let found = Superblock::peek(&BlockIo::new(device))?;
        let identity =
            |found: Superblock| Identity { uuid: found.uuid, label: found.label, version: VERSION };
        Ok(found.map(identity))
    }
}
