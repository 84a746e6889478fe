//! The catalog's space. It grows with commits. Where it cannot grow, new names are refused in
//! advance, and removals still work.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake};

use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FileType, FormatOptions, Inode, OpenOptions, Volume};

fn formatted(bytes: u64) -> Device {
    let device = Device::new(Memory::new(bytes).unwrap()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    device
}

fn make(volume: &Volume, path: &str) -> Result<(), Errno> {
    let made = volume.mknod(path, &Inode::new(FileType::File, 0o644));
    made.map(drop).map_err(|error| error.errno())
}

fn create(volume: &Volume, path: &str) -> File {
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    volume.open_with(path, create).unwrap()
}

fn count(volume: &Volume, path: &str) -> usize {
    volume.read_dir(path).unwrap().inspect(|entry| assert!(entry.is_ok())).count()
}

#[test]
fn a_huge_commit_gets_the_catalog_pages_it_needs() {
    let device = formatted(256 << 20);
    let volume = Volume::open_on(device.clone()).unwrap();
    for directory in 0..10 {
        volume.create_dir(format!("/d{directory}")).unwrap();
    }
    // The catalog begins with 4 MiB. These names take 20 MiB.
    for file in 0..100_000 {
        let directory = file % 10;
        make(&volume, &format!("/d{directory}/a file with a long name, number {file}")).unwrap();
    }
    volume.sync().unwrap();
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(count(&volume, "/d7"), 10_000);
    assert_eq!(volume.warnings(), Vec::<String>::new());
}

/// Fills the volume with bytes, so that the catalog cannot grow.
fn fill_with_bytes(volume: &Volume, reactor: &Reactor) -> File {
    let file = create(volume, "/bytes");
    let full = (0..).find_map(|part| {
        let write = file.write_at(Buffer::copy_of(&[7; 4096]), part * 4096);
        reactor.block_on(write).0.err()
    });
    assert_eq!(full, Some(Errno::NOSPC));
    volume.sync().unwrap();
    file
}

fn path(number: usize) -> String {
    format!("/{number:0200}")
}

/// Makes names until one is refused. Returns its number.
fn fill_with_names(volume: &Volume, from: usize) -> usize {
    let refused = (from..).find(|number| match make(volume, &path(*number)) {
        Ok(()) => false,
        Err(errno) => {
            assert_eq!(errno, Errno::NOSPC);
            true
        }
    });
    refused.unwrap()
}

#[test]
fn a_full_catalog_refuses_names_and_allows_removals() {
    let device = formatted(9 << 20);
    let volume = Volume::open_on(device.clone()).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    drop(fill_with_bytes(&volume, &reactor));
    let fill = |from| fill_with_names(&volume, from);
    let mut made = fill(0);
    assert!(made > 1000, "{made}");
    for _ in 0..3 {
        // All acknowledged names can be made durable, and nothing has stopped.
        volume.sync().unwrap();
        assert_eq!(count(&volume, "/"), made + 1);
        for number in made / 2..made {
            volume.remove_file(path(number)).unwrap();
        }
        volume.sync().unwrap();
        let again = fill(made / 2);
        assert!(again * 10 > made * 9, "{again} after {made}");
        made = again;
    }
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(count(&volume, "/"), made + 1);
    assert_eq!(volume.symlink_metadata("/bytes").unwrap().inode().kind, FileType::File);
    assert_eq!(volume.warnings(), Vec::<String>::new());
}

#[test]
fn a_commit_has_pages_for_writes_to_preallocated_blocks() {
    const SIZE: u64 = 1 << 30;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = Volume::open_on(formatted(SIZE)).unwrap();
    let file = create(&volume, "/f");
    assert_eq!(reactor.block_on(file.allocate(0, SIZE / 2, FallocateSize::Extend)), Ok(()));
    volume.sync().unwrap();
    // Every other block: each write adds two extents.
    let mut buffer = Buffer::copy_of(&[7; 4096]);
    for block in (0..SIZE / 2 / 4096).step_by(2) {
        let (written, back) = reactor.block_on(file.write_at(buffer, block * 4096));
        assert_eq!(written, Ok(4096));
        buffer = back;
    }
    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
}

#[test]
fn the_catalog_grows_by_scattered_free_blocks() {
    const SIZE: u64 = 24 << 20;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = Volume::open_on(formatted(SIZE)).unwrap();
    let file = create(&volume, "/f");
    let blocks = volume.statistics().free_blocks;
    assert_eq!(reactor.block_on(file.allocate(0, blocks * 4096, FallocateSize::Extend)), Ok(()));
    volume.sync().unwrap();
    // Runs of sixteen free blocks, and no longer one.
    for block in (0..blocks).step_by(32) {
        assert_eq!(reactor.block_on(file.punch_hole(block * 4096, 16 * 4096)), Ok(()));
    }
    let before = volume.statistics().catalog_blocks;
    for name in 0..12_000 {
        make(&volume, &format!("/{name:0100}")).unwrap();
    }
    volume.sync().unwrap();
    assert!(volume.statistics().catalog_blocks > before);
}

#[test]
fn created_names_can_be_committed_with_few_usable_free_blocks() {
    let device = formatted(24 << 20);
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = Volume::open_on(device.clone()).unwrap();
    let file = create(&volume, "/f");
    let blocks = volume.statistics().free_blocks;
    assert_eq!(reactor.block_on(file.allocate(0, blocks * 4096, FallocateSize::Extend)), Ok(()));
    // Every other block is free, and the catalog can add a few hundred runs.
    for block in (0..blocks).step_by(2) {
        assert_eq!(reactor.block_on(file.punch_hole(block * 4096, 4096)), Ok(()));
    }
    volume.sync().unwrap();
    let free = volume.statistics().free_blocks;
    assert!(free > blocks / 4, "{free} of {blocks}");
    let made = fill_with_names(&volume, 0);
    assert!(made > 1000, "{made}");
    volume.sync().unwrap();
    for number in made / 2..made {
        volume.remove_file(path(number)).unwrap();
    }
    volume.sync().unwrap();
    // A file that takes all remaining blocks is removed, too.
    drop(file);
    volume.remove_file("/f").unwrap();
    volume.sync().unwrap();
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(count(&volume, "/"), made / 2);
    assert!(volume.statistics().free_blocks > free);
    assert_eq!(volume.warnings(), Vec::<String>::new());
}

struct ChannelWaker(Sender<()>);

impl Wake for ChannelWaker {
    fn wake(self: Arc<Self>) {
        // Nothing listens after the last poll.
        let _ = self.0.send(());
    }
}

#[test]
fn creating_a_name_in_a_full_catalog_ends_with_enospc_despite_concurrent_commits() {
    let volume = Volume::open_on(formatted(9 << 20)).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let file = fill_with_bytes(&volume, &reactor);
    let next = fill_with_names(&volume, 0);
    let tasks = volume.as_async();
    let new = Inode::new(FileType::File, 0o644);
    let mut making = pin!(tasks.mknod(path(next), &new));
    let (sender, receiver) = channel();
    let waker = Arc::new(ChannelWaker(sender)).into();
    let made = (1..20).find_map(|round| {
        reactor.block_on(file.set_len(file.len() - round)).unwrap();
        match making.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(made) => Some(made),
            Poll::Pending => {
                receiver.recv().unwrap();
                None
            }
        }
    });
    let refused = made.expect("the call completes").unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
}
