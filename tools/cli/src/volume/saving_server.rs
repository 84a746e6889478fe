//! Waits for the server of a mount that is gone. After an unmount it goes on saving, and has the volume open until all is
//! durable; a killed one has it open for another moment. Only `uringfs umount`, and `umount.fuse.uringfs` for umount(8),
//! wait for that themselves.

use super::mounts::{arguments_of, mounted_from, serves_a_mount, user_in_another_namespace};
use super::quoting::for_message;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use uringfs::volume::Holder;

/// The longest wait. The command then reports who has the volume open.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait without a word.
const QUIET: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits while the volume of a target is mounted nowhere, but open in the server of a mount.
pub(super) fn wait_for_saving_server(target: &Path) {
    let (begin, mut has_spoken) = (Instant::now(), false);
    while let Some(server) = saving_server(target)
        && begin.elapsed() < TIMEOUT
    {
        if !has_spoken && begin.elapsed() >= QUIET {
            let shown = for_message(target);
            if let Some(user) = user_in_another_namespace(server) {
                let what = format!(
                    "{shown}: process {user} has it mounted in a mount namespace of its own"
                );
                return crate::output::print_error(&what);
            }
            let what = format!("{shown}: unmounted; waiting until process {server} has saved it");
            crate::output::print_error(&what);
            has_spoken = true;
        }
        sleep(POLL_INTERVAL);
    }
}

/// Whether the volume of a target is mounted nowhere, but open in the server of a mount.
pub(super) fn is_saving(target: &Path) -> bool {
    saving_server(target).is_some_and(|server| user_in_another_namespace(server).is_none())
}

fn saving_server(target: &Path) -> Option<u32> {
    let server = Holder::find(target)?.process();
    // A process that is ending has no memory any more, with its arguments, but keeps its files for another moment.
    let may_serve = serves_a_mount(server) || arguments_of(server).is_empty();
    (may_serve && mounted_from(target).is_none()).then_some(server)
}
