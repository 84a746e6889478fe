//! The superblock: identity and size of a volume, and the blocks of its catalog. It lies in two
//! slots, so that one of them is whole at every moment. A backup superblock lies far from both. Only a
//! repair uses it; opening compares it with the slots. `docs/format.md` has the bytes.

// The modules, top down. Each imports only from modules below it.

/// The two slots and the backup.
mod slots;
/// Another format over the volume.
mod other_format;
/// The fields.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
mod superblock;
/// The bytes.
mod layout;

pub(crate) use layout::MAX_CATALOG_RUNS;
pub(crate) use slots::{
    LoadedSuperblock, REPAIR_ADVICE, SLOTS, SlotDefect, describe_backup, erase_blocks,
    with_repair_advice,
};
pub(crate) use superblock::{MAX_BLOCKS, MAX_LOG_BLOCKS, RESERVED_BLOCKS, Superblock, VERSION};

#[cfg(test)]
mod tests;
