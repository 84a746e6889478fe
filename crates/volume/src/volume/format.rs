//! Formats a volume.

use std::path::Path;

use uringfs_device::Device;

use crate::blocks::{BLOCK, BlockIo, Run};
use crate::catalog::{Batch, Catalog, CatalogOptions, Key, MIN_BLOCKS};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::state::{BLOCKS_KEY, SUPERBLOCK_KEY, encode_region};
use crate::error::{Error, ErrorKind};
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::space::allocator::Allocator;
use crate::superblock::{MAX_LOG_BLOCKS, RESERVED_BLOCKS, Superblock};
use crate::volume::options::FormatOptions;
use crate::volume::volume::Volume;

/// The share of blocks that stays free for the catalog, and for removing files, when the volume is full. It has a
/// lower and an upper bound.
const RESERVE_SHARE: u64 = 128;

impl Volume {
    /// Formats a device as an empty volume. Everything on it is lost.
    ///
    /// # Errors
    /// `Input` for a device that is too small (8.2 MiB are enough) or a label that is too long; EBUSY when any
    /// process has a volume on it open; errors of the device.
    pub fn format(device: &Device, options: &FormatOptions) -> Result<(), Error> {
        device.core().check_size();
        let blocks = BlockIo::new(device);
        let _lock = DeviceLock::acquire(device, LockKind::Exclusive)?;
        let total = options.size.map_or(blocks.count(), |size| size / BLOCK);
        if total > blocks.count() || total < RESERVED_BLOCKS + 2 * MIN_BLOCKS {
            let (least, there) =
                ((RESERVED_BLOCKS + 2 * MIN_BLOCKS) * BLOCK, blocks.count() * BLOCK);
            let why = match total > blocks.count() {
                true => format!("the device has {there}"),
                false => format!("a volume needs at least {least} bytes"),
            };
            let size = total.saturating_mul(BLOCK);
            let context = format!("cannot make a volume of {size} bytes: {why}");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let (runs, log) = layout(total);
        let mut superblock = Superblock::new(total, &options.label, runs.clone(), log)?;
        superblock.erase(&blocks)?;
        let catalog = Catalog::create(&blocks, &runs, log, CatalogOptions::default())?;
        let mut root = Inode::new(FileType::Directory, 0o755);
        if let Some(owner) = options.root_owner {
            (root.user, root.group) = owner;
        }
        root.parent = InodeNumber::ROOT;
        let mut batch = Batch::default();
        batch.put(Key::Inode(InodeNumber::ROOT.0), &root.to_record());
        batch.put(Key::State(BLOCKS_KEY), &total.to_be_bytes());
        batch.put(Key::State(SUPERBLOCK_KEY), &superblock.identity(1));
        let mut allocator = Allocator::open(total, reserve_blocks(total), [])?;
        for taken in superblock.system_runs().chain(runs).chain([log]) {
            allocator.claim::<Error>(taken, |_| Ok(None))?;
        }
        for changed in allocator.take_changed() {
            batch.put(Key::Region(changed.index), &encode_region(&changed));
        }
        catalog.checkpoint(&batch)?;
        catalog.close()?;
        superblock.write(&blocks)
    }

    /// Checks that a path is not part of an open volume of any process, neither by this name nor through a loop
    /// device over it or below it. Succeeds for a path that cannot be opened.
    ///
    /// # Errors
    /// EBUSY, naming the process that has the volume open.
    pub fn require_closed(path: &Path) -> Result<(), Error> {
        crate::core::device_lock::require_closed(path)
    }
}

/// The catalog's runs and the log of a new volume of this many blocks: one after the other, around the backup
/// superblock.
fn layout(total: u64) -> (Vec<Run>, Run) {
    let (start, backup) = (Superblock::reserved_for(total), Superblock::backup_block_in(total));
    let length = (total / 256).clamp(MIN_BLOCKS, 16 * MIN_BLOCKS);
    let run = Run { start, length };
    let runs = match (run.start..run.end()).contains(&backup) {
        true => {
            let second = Run { start: backup + 1, length: run.end() - backup };
            vec![Run { length: backup - start, ..run }, second]
        }
        false => vec![run],
    };
    let mut log = Run { start: runs[runs.len() - 1].end(), length: log_blocks(total) };
    if (log.start..log.end()).contains(&backup) {
        log.start = backup + 1;
    }
    (runs, log)
}

/// Blocks of the log for a volume of this many: large enough that few commits are checkpoints, small enough that
/// opening reads it at once.
fn log_blocks(total: u64) -> u64 {
    (total / 1024).clamp(4, MAX_LOG_BLOCKS / 2) * 2
}

pub(super) fn reserve_blocks(blocks: u64) -> u64 {
    (blocks / RESERVE_SHARE).clamp(64, 65_536)
}
