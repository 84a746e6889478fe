//! `uringfs wipe`: erases the superblocks of a volume, as `wipefs -a` does for other formats, so that nothing takes the
//! target for a volume any more. Leaves everything else as it is.

use super::exit_codes::NO_SOUND_VOLUME;
use super::open_volume::open_device;
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::volume_path::with_path;
use super::whole_volume::{inspect_for_write, whole_volume};
use std::ffi::OsString;
use std::path::Path;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

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

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let target = whole_volume(&arguments.target, "is wiped")?;
    let path = Path::new(&target);
    let shown = for_message(path);
    // Refuses a target that is in use, and an open volume.
    inspect_for_write(path)?;
    let access = if arguments.dry_run { Access::Read } else { Access::ReadWrite };
    let device = open_device(path, access)?;
    let blocks = match arguments.dry_run {
        true => Volume::superblock_blocks(&device),
        false => Volume::wipe(&device),
    };
    let blocks = blocks.map_err(|error| with_path(shown, error))?;
    if blocks.is_empty() {
        let what = format!("{shown}: holds no uringfs volume; nothing was changed");
        return Err(Error::input(what).exiting_with(NO_SOUND_VOLUME));
    }
    let would = if arguments.dry_run { "would erase" } else { "erased" };
    let list: Vec<String> = blocks.iter().map(u64::to_string).collect();
    let list = list.join(", ");
    arguments.quiet.print(&format!("{shown}: {would} the superblocks in blocks {list}\n"))?;
    Ok(0)
}
