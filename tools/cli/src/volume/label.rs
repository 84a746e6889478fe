//! `uringfs label`: prints the label of a volume, or changes it.

use super::exit_codes::NO_SOUND_VOLUME;
use super::open_volume::open_device;
use super::quoting::for_message;
use super::saving_server::wait_for_saving_server;
use super::volume_path::with_path;
use crate::json::document;
use crate::output::print;
use serde_json::json;
use std::ffi::OsString;
use std::path::Path;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume
    target: OsString,

    /// The new label, at most 64 bytes; '' for none. No program may have the volume open
    label: Option<String>,

    /// Print JSON: the label, and the one before it
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = Path::new(&arguments.target);
    let shown = for_message(path);
    let access = if arguments.label.is_some() { Access::ReadWrite } else { Access::Read };
    wait_for_saving_server(path);
    let device = open_device(path, access)?;
    // Takes no lock: the label can be read while the volume is open.
    let found = Volume::identify(&device).map_err(|error| with_path(shown, error))?;
    let old = match (found, &arguments.label) {
        (Some(found), _) => found.label,
        // Its error says what is wrong.
        (None, Some(_)) => String::new(),
        (None, None) => {
            let what = format!("{shown}: no volume, or a damaged one; see uringfs check");
            return Err(Error::input(what).exiting_with(NO_SOUND_VOLUME));
        }
    };
    if let Some(label) = &arguments.label {
        Volume::set_label(&device, label).map_err(|error| with_path(shown, error))?;
    }
    let label = arguments.label.as_ref().unwrap_or(&old);
    match (arguments.json, &arguments.label) {
        (true, Some(_)) => print(&document(json!({ "label": label, "previous": old })))?,
        (true, None) => print(&document(json!({ "label": label })))?,
        (false, Some(_)) => {}
        (false, None) => print(&format!("{label}\n"))?,
    }
    Ok(0)
}
