//! Notices that another client has taken the image, also while there are no requests.
//!
//! The client from which an image is taken is shut out for as long as its entry is on the blocklist. Its next request after that
//! would be executed, and find what the other client has written.

use std::sync::Arc;
use std::time::Duration;

use uringfs_errno::Errno;

use super::opened::OpenedImage;
use super::owner::Owner;
use super::periodic::Periodic;

/// The time between two looks: a few of them while the shortest entry is on the blocklist.
const PERIOD: Duration = Duration::from_secs(5);

/// Reads the image's owner again and again, until the returned thread is dropped.
pub(super) fn begin(opened: &Arc<OpenedImage>) -> Result<Periodic, Errno> {
    let opened = Arc::downgrade(opened);
    let look = move || opened.upgrade().iter().for_each(|opened| look(opened));
    Periodic::begin("uringfs-rbd-owner", PERIOD, look)
}

fn look(opened: &OpenedImage) {
    let instance = opened.instance();
    // A renewal shuts the instance out itself, and reads the owner, too.
    let is_in_use = || opened.generation() == Some(instance.generation);
    if opened.is_lost() || !is_in_use() {
        return;
    }
    let is_taken = match Owner::announced(instance.image()) {
        Ok(owner) => owner.is_some_and(|owner| Some(&owner.address) != instance.address.as_ref()),
        Err(errno) => errno == Errno::SHUTDOWN,
    };
    if is_taken && is_in_use() {
        tracing::error!(target: "uringfs", event = "rbd_lost", "{}: another client has taken the image", opened.target);
        opened.lose();
    }
}
