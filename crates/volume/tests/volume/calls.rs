//! Durable overwrites that the thread which waits for them makes itself, by one call.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use rustix::fs::{MemfdFlags, memfd_create};
use uringfs_buffer::Buffer;
use uringfs_device::backend::file::File as ImageFile;
use uringfs_device::{Access, Backend, Device, Durability, Errno, Geometry, KernelTarget, Request};
use uringfs_file::File;
use uringfs_volume::{FormatOptions, Volume};

use crate::fixture::create;

const BLOCK: u64 = 4096;

/// Durable writes by calls of the thread that has made it.
#[derive(Default)]
struct Calls {
    made: AtomicU64,
    /// The next one fails, as a write whose flush fails.
    fails: AtomicBool,
}

struct Image {
    file: ImageFile,
    geometry: Geometry,
    thread: ThreadId,
    calls: Arc<Calls>,
}

impl Backend for Image {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn description(&self) -> String {
        "an image".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        self.file.kernel_target()
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if request.durability == Durability::Durable && thread::current().id() == self.thread {
            self.calls.made.fetch_add(1, Ordering::SeqCst);
            if self.calls.fails.swap(false, Ordering::SeqCst) {
                return Err(Errno::IO);
            }
        }
        self.file.perform(request)
    }
}

/// A volume with a file of 16 blocks, in memory, where a flush is faster than the clock that gives modification times.
fn machine() -> (Volume, File, Arc<Calls>) {
    let memory = std::fs::File::from(memfd_create("image", MemfdFlags::CLOEXEC).unwrap());
    memory.set_len(64 << 20).unwrap();
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let file = ImageFile::open(Path::new(&path), Access::ReadWrite).unwrap();
    let mut geometry = file.geometry().clone();
    (geometry.durable_writes, geometry.fua) = (true, false);
    let calls = Arc::new(Calls::default());
    let thread = thread::current().id();
    let device = Device::new(Image { file, geometry, thread, calls: calls.clone() }).unwrap();
    let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
    let file = create(&volume, "/file");
    let whole = Buffer::zeroed(16 * BLOCK as usize);
    assert_eq!(file.write_durably(whole, 0).wait().0, Ok(16 * BLOCK as usize));
    assert_eq!(calls.made.load(Ordering::SeqCst), 0, "blocks that are allocated need a commit");
    (volume, file, calls)
}

fn overwrite(file: &File, block: u64) -> Result<usize, Errno> {
    file.write_durably(Buffer::copy_of(&[7; BLOCK as usize]), block * BLOCK).wait().0
}

#[test]
fn a_durable_overwrite_is_a_call_unless_a_commit_is_due() {
    let (volume, file, calls) = machine();
    let made = || calls.made.load(Ordering::SeqCst);
    // The reactor writes the first one after a tick of the clock, which the modification time follows.
    while made() < 16 {
        for block in 0..16 {
            assert_eq!(overwrite(&file, block), Ok(BLOCK as usize));
        }
    }
    let before = made();
    assert_eq!(file.write_at(Buffer::zeroed(BLOCK as usize), 16 * BLOCK).wait().0, Ok(4096));
    assert_eq!(overwrite(&file, 16), Ok(BLOCK as usize));
    assert_eq!(made(), before, "the block was allocated since the last commit");
    let content = file.read_at(Buffer::zeroed(17 * BLOCK as usize), 0).wait().1;
    assert!(content.iter().all(|byte| *byte == 7));
    drop(file);
    volume.close().unwrap();
}

/// Others may have lost writes that they have not synced, and no later flush says so.
#[test]
fn no_sync_succeeds_after_a_durable_overwrite_whose_flush_failed() {
    let (volume, file, calls) = machine();
    calls.fails.store(true, Ordering::SeqCst);
    // Until one of them is a call.
    while calls.fails.load(Ordering::SeqCst) {
        let _ = overwrite(&file, 0);
    }
    assert_eq!(file.sync_data().wait(), Err(Errno::IO));
    assert!(volume.sync().is_err());
}
