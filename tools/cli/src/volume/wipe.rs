//! `uringfs wipe`: erases the superblocks of a volume, as `wipefs -a` does for other formats, so that nothing takes the
//! target for a volume any more. Leaves everything else as it is.

use super::exit_codes::{NO_SOUND_VOLUME, open_error, with_cause_code, with_io_code};
use super::quiet::QuietOptions;
use super::size_change::BLOCK;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use uringfs_lab::Error;
use uringfs_lab::targets::{Target, TargetInfo, Volumes, inspect};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume that no program has open
    target: OsString,

    /// Say what would be erased, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    quiet: QuietOptions,
}

/// The first bytes of a superblock.
const MAGIC: &[u8] = b"uringfs\x1a";
/// Where a superblock has the number of blocks of its volume.
const TOTAL_BLOCKS_OFFSET: usize = 136;
/// The blocks of the primary superblocks.
const SLOTS: [u64; 2] = [0, 16];
/// The block of the backup superblock; in a smaller volume it is the last one.
const BACKUP_BLOCK: u64 = (64 << 20) / BLOCK;
/// Blocks read at once in the search.
const SCAN_BLOCKS: u64 = 256;

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = path.display();
    // Refuses a target that is in use, and an open volume.
    let found = inspect(&Target::Path(path.to_owned()), true, &mut Volumes::default())
        .map_err(with_cause_code)?;
    let opened = HostFile::options().read(true).write(true).open(path);
    if found == TargetInfo::Missing {
        let missing = opened.map(drop).expect_err("the target does not exist");
        return Err(open_error(&io::Error::new(missing.kind(), format!("{shown} does not exist"))));
    }
    let failed = |error: io::Error| {
        with_io_code(Error::run(format!("{shown}: cannot be wiped")), &error).because(error)
    };
    let file = opened.map_err(failed)?;
    // The lock that a program holds that has the volume open.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let what = "another program has the volume open; close it there first";
            return Err(Error::in_use(format!("{shown}: {what}")));
        }
        locked => locked.map_err(|errno| failed(errno.into()))?,
    }
    let blocks = superblocks(&file).map_err(failed)?;
    if blocks.is_empty() {
        let what = format!("{shown}: holds no uringfs volume; nothing was changed");
        return Err(Error::input(what).exiting_with(NO_SOUND_VOLUME));
    }
    if !arguments.dry_run {
        // The backup first: until the last write, a repair can restore the others.
        let zeros = [0; BLOCK as usize];
        let erased = blocks.iter().rev().try_for_each(|block| {
            file.write_all_at(&zeros, block * BLOCK).and_then(|()| file.sync_all())
        });
        erased.map_err(failed)?;
    }
    let would = if arguments.dry_run { "would erase" } else { "erased" };
    let list: Vec<String> = blocks.iter().map(u64::to_string).collect();
    let list = list.join(", ");
    arguments.quiet.print(&format!("{shown}: {would} the superblocks in blocks {list}\n"))?;
    Ok(0)
}

/// The blocks that begin as a superblock and are at the place of one, in ascending order, damaged or not.
fn superblocks(file: &HostFile) -> io::Result<Vec<u64>> {
    let end = (&*file).seek(SeekFrom::End(0))? / BLOCK;
    let end = end.min(BACKUP_BLOCK + 1);
    let mut found = Vec::new();
    for first in (0..end).step_by(SCAN_BLOCKS as usize) {
        let mut bytes = vec![0; (SCAN_BLOCKS.min(end - first) * BLOCK) as usize];
        file.read_exact_at(&mut bytes, first * BLOCK)?;
        let blocks = (first..).zip(bytes.chunks_exact(BLOCK as usize));
        let superblocks = blocks.filter(|(block, bytes)| is_superblock(*block, bytes));
        found.extend(superblocks.map(|(block, _)| block));
    }
    Ok(found)
}

/// A file in the volume may contain superblocks, too, but hardly ever at such a place.
fn is_superblock(block: u64, bytes: &[u8]) -> bool {
    let total = bytes[TOTAL_BLOCKS_OFFSET..].first_chunk().copied().map_or(0, u64::from_le_bytes);
    let is_backup = block == BACKUP_BLOCK.min(total.saturating_sub(1));
    bytes.starts_with(MAGIC) && (SLOTS.contains(&block) || is_backup)
}
