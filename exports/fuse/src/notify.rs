//! [`Kernel`]: tells the kernel that names and files have changed without a request of its own, so that it drops what it has
//! cached.
//!
//! A notification waits for locks that requests hold until they are answered. So no thread that serves requests sends one.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::abi::{InvalidateEntryOut, InvalidateInodeOut, OutHeader, notification};
use crate::session::Session;

/// The kernel's side of a mount.
pub(crate) struct Kernel {
    session: Arc<Session>,
    channel: OwnedFd,
}

impl Kernel {
    pub(crate) fn new(session: Arc<Session>, channel: OwnedFd) -> Kernel {
        Kernel { session, channel }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// A name in a directory is another file's now, or none's. So the listing and the attributes of the directory have changed,
    /// too.
    pub(crate) fn name_changed(&self, directory: u64, name: &[u8]) {
        if !self.session.nodes.knows(directory) {
            return;
        }
        let entry = InvalidateEntryOut { directory, name_length: name.len() as u32, flags: 0 };
        self.send(notification::INVALIDATE_ENTRY, &[entry.as_bytes(), name, b"\0"]);
        self.listing_changed(directory);
    }

    /// The listing of a directory has changed.
    pub(crate) fn listing_changed(&self, directory: u64) {
        // Replies that are on their way may still be kept.
        self.session.nodes.listing_changed(directory);
        self.content_changed(directory);
    }

    /// Attributes of a file have changed.
    pub(crate) fn attributes_changed(&self, node: u64) {
        // A negative offset keeps the pages.
        self.file_changed(node, -1);
    }

    /// The bytes of a file have changed. The kernel writes its own pages of the file first if it has any that are dirty.
    pub(crate) fn content_changed(&self, node: u64) {
        self.file_changed(node, 0);
    }

    /// Makes the kernel write the bytes of a file that it has not passed on.
    pub(crate) fn write_back(&self, node: u64) {
        if self.session.kernel_writes_back() {
            self.content_changed(node);
        }
    }

    fn file_changed(&self, node: u64, offset: i64) {
        if self.session.nodes.knows(node) {
            let inode = InvalidateInodeOut { node, offset, length: 0 };
            self.send(notification::INVALIDATE_INODE, &[inode.as_bytes()]);
        }
    }

    /// It fails if the kernel has nothing to drop, or the file system is unmounted.
    fn send(&self, code: i32, parts: &[&[u8]]) {
        let length = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { length: length as u32, error: code, unique: 0 };
        let slices = [&[header.as_bytes()], parts].concat();
        let slices: Vec<_> = slices.iter().map(|part| IoSlice::new(part)).collect();
        let _ = rustix::io::retry_on_intr(|| rustix::io::writev(&self.channel, &slices));
    }
}
