//! Volumes whose cache of records is smaller than what they change.

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::memory::Memory;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FormatOptions, OpenOptions, Volume, VolumeOptions};

#[test]
fn a_commit_of_more_files_than_the_cache_has_room_for_ends() {
    const FILES: usize = 500;
    let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
    let volume = Volume::create_on(device.clone(), &FormatOptions::default()).unwrap();
    for number in 0..FILES {
        volume.write(format!("/{number}"), "before").unwrap();
    }
    volume.close().unwrap();
    // For about 80 inodes.
    let options = VolumeOptions::new().catalog_cache_bytes(20_000);
    let volume = options.open_on(device.clone()).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    for number in 0..FILES {
        let direct = OpenOptions::new().write(true).direct(true);
        let file = volume.open_with(format!("/{number}"), direct).unwrap();
        reactor.block_on(file.write_at(Buffer::copy_of(b"after!"), 0)).0.unwrap();
        reactor.block_on(file.set_len(7)).unwrap();
    }
    volume.sync().unwrap();
    assert_eq!(volume.warnings(), [""; 0]);
    volume.close().unwrap();
    let volume = Volume::open_on(device).unwrap();
    for number in 0..FILES {
        assert_eq!(volume.read(format!("/{number}")).unwrap(), b"after!\0", "{number}");
    }
}

#[test]
fn a_path_of_more_names_than_the_cache_has_room_for_is_found() {
    let directory = "/d".repeat(200);
    let [path, renamed] = ["file", "renamed"].map(|name| format!("{directory}/{name}"));
    let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
    let volume = Volume::create_on(device.clone(), &FormatOptions::default()).unwrap();
    volume.create_dir_all(&directory).unwrap();
    volume.write(&path, "bytes").unwrap();
    volume.close().unwrap();
    // For about 30 records.
    let options = VolumeOptions::new().catalog_cache_bytes(8_000);
    let volume = options.open_on(device.clone()).unwrap();
    assert_eq!(volume.read(&path).unwrap(), b"bytes");
    volume.rename(&path, &renamed).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    assert_eq!(reactor.block_on(volume.as_async().metadata(&renamed)).unwrap().len(), 5);
    volume.close().unwrap();
    assert_eq!(Volume::open_on(device).unwrap().read(&renamed).unwrap(), b"bytes");
}
