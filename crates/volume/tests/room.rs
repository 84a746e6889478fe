//! The catalog's own room: it grows with what is committed, and where it cannot grow names are refused
//! before they are made, while removing goes on.

use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::{Device, Errno};
use uringfs_file::Size;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FileKind, Follow, FormatOptions, Inode, OpenOptions, Volume};

fn formatted(bytes: u64) -> Device {
    let device = Device::new(Memory::new(bytes).unwrap()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    device
}

fn make(volume: &Volume, path: &str) -> Result<(), Errno> {
    let made = volume.make(path, Inode::new(FileKind::File, 0o644));
    made.map(drop).map_err(|error| error.errno())
}

fn count(volume: &Volume, path: &str) -> usize {
    let (mut count, mut after) = (0, Vec::new());
    loop {
        let entries = volume.entries(path, &after).unwrap();
        let Some(last) = entries.last() else { return count };
        after.clone_from(&last.name);
        count += entries.len();
    }
}

#[test]
fn a_commit_far_larger_than_the_catalog_gets_the_room_it_needs() {
    let device = formatted(256 << 20);
    let volume = Volume::open_on(device.clone()).unwrap();
    for directory in 0..10 {
        volume.make_directory(format!("/d{directory}"), 0o755).unwrap();
    }
    // The catalog begins with 4 MiB; these are 20.
    for file in 0..100_000 {
        let directory = file % 10;
        make(&volume, &format!("/d{directory}/a file with a long name, number {file}")).unwrap();
    }
    volume.sync().unwrap();
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(count(&volume, "/d7"), 10_000);
    assert_eq!(volume.flaws(), Vec::<String>::new());
}

#[test]
fn a_full_catalog_refuses_names_and_removing_goes_on() {
    let device = formatted(9 << 20);
    let volume = Volume::open_on(device.clone()).unwrap();
    // Bytes take what the catalog could have.
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let create = OpenOptions { create: Some(0o644), ..OpenOptions::default() };
    let file = volume.open("/bytes", create).unwrap();
    let full = (0..).find_map(|part| {
        let write = file.write(Buffer::copy_of(&[7; 4096]), part * 4096);
        reactor.block_on(write).1.err()
    });
    assert_eq!(full, Some(Errno::NOSPC));
    drop(file);
    volume.sync().unwrap();
    let path = |number: usize| format!("/{number:0200}");
    let fill = |from: usize| {
        let refused = (from..).find(|number| match make(&volume, &path(*number)) {
            Ok(()) => false,
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                true
            }
        });
        refused.unwrap()
    };
    let mut made = fill(0);
    assert!(made > 1000, "{made}");
    for _ in 0..3 {
        // All that was acknowledged can be made durable, and nothing has stopped.
        volume.sync().unwrap();
        assert_eq!(count(&volume, "/"), made + 1);
        for number in made / 2..made {
            volume.remove(path(number)).unwrap();
        }
        volume.sync().unwrap();
        let again = fill(made / 2);
        assert!(again * 10 > made * 9, "{again} after {made}");
        made = again;
    }
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(count(&volume, "/"), made + 1);
    assert_eq!(volume.inode("/bytes", Follow::No).unwrap().1.kind, FileKind::File);
    assert_eq!(volume.flaws(), Vec::<String>::new());
}

#[test]
fn a_commit_has_room_for_what_was_written_into_blocks_allocated_ahead() {
    const SIZE: u64 = 1 << 30;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = Volume::open_on(formatted(SIZE)).unwrap();
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/f", create).unwrap();
    assert_eq!(reactor.block_on(file.allocate(0, SIZE / 2, Size::Extend)), Ok(()));
    volume.sync().unwrap();
    // Every other block: each write makes two extents more.
    let mut buffer = Buffer::copy_of(&[7; 4096]);
    for block in (0..SIZE / 2 / 4096).step_by(2) {
        let (back, written) = reactor.block_on(file.write(buffer, block * 4096));
        assert_eq!(written, Ok(4096));
        buffer = back;
    }
    assert_eq!(reactor.block_on(file.sync()), Ok(()));
}

#[test]
fn the_catalog_grows_by_what_there_is_where_free_blocks_are_scattered() {
    const SIZE: u64 = 24 << 20;
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let volume = Volume::open_on(formatted(SIZE)).unwrap();
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/f", create).unwrap();
    let blocks = volume.statistics().free_blocks;
    assert_eq!(reactor.block_on(file.allocate(0, blocks * 4096, Size::Extend)), Ok(()));
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
