//! [`Instance`]: a client instance of the cluster that has the image open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uringfs_rbd::{Cluster, Image};

/// A client instance that has the image open.
pub(super) struct Instance {
    pub(super) cluster: Arc<Cluster>,
    /// `None` only in its drop.
    image: Option<Image>,
    /// Its address with its nonce. `None` for a reader.
    pub(super) address: Option<String>,
    /// Even. Each instance of a device has a greater one than those before.
    pub(super) generation: u64,
    is_left: AtomicBool,
}

impl Instance {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        image: Image,
        address: Option<String>,
        generation: u64,
    ) -> Instance {
        let (image, is_left) = (Some(image), AtomicBool::new(false));
        Instance { cluster, image, address, generation, is_left }
    }

    pub(super) fn image(&self) -> &Image {
        self.image.as_ref().expect("it is taken by the drop")
    }

    /// Notes that another instance has replaced it.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }
}

impl Drop for Instance {
    /// The close of an image waits for its requests, and those of an instance that was left may not end for a long time.
    fn drop(&mut self) {
        let image = self.image.take();
        if self.is_left.load(Ordering::Relaxed) {
            let close = move || drop(image);
            // Without a thread the closure is dropped here.
            let _ = thread::Builder::new().name("uringfs-rbd-close".into()).spawn(close);
        }
    }
}
