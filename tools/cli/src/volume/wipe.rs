//! `uringfs wipe`: erases the superblocks of a volume, as `wipefs -a` does for other formats, so that nothing takes the
//! target for a volume any more. Leaves everything else as it is.

use super::exit_codes::{NO_SOUND_VOLUME, open_error, with_cause_code};
use super::quiet::QuietOptions;
use super::quoting::for_message;
use super::volume_path::with_path;
use std::ffi::OsString;
use std::path::Path;
use uringfs::Volume;
use uringfs::device::{Access, Device};
use uringfs_lab::Error;
use uringfs_lab::targets::{Target, Volumes, inspect};

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
    let path = Path::new(&arguments.target);
    let shown = path.display();
    // Refuses a target that is in use, and an open volume.
    inspect(&Target::Path(path.to_owned()), true, &mut Volumes::default())
        .map_err(with_cause_code)?;
    let access = if arguments.dry_run { Access::Read } else { Access::ReadWrite };
    let device = Device::open(path, access).map_err(|error| open_error(&error))?;
    let blocks = match arguments.dry_run {
        true => Volume::superblock_blocks(&device),
        false => Volume::wipe(&device),
    };
    let blocks = blocks.map_err(|error| with_path(&shown, error))?;
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
