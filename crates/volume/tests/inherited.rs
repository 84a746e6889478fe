//! What a file loses when it is written or given away.

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::memory::Memory;
use uringfs_file::{File, Size};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{Credentials, Follow, FormatOptions, OpenOptions, SetXattr, Volume};

const SOMEBODY: Credentials = Credentials::Of { user: 1000, group: 100 };
const CAPABILITY: &str = "security.capability";

fn volume() -> (Device, Volume) {
    let device = Device::new(Memory::new(32 << 20).unwrap()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    (device.clone(), Volume::open_on(device).unwrap())
}

fn open(volume: &Volume, path: &str, permissions: u16, credentials: Credentials) -> File {
    let create = Some(permissions);
    volume.open(path, OpenOptions { create, credentials, ..OpenOptions::default() }).unwrap()
}

fn xattr(volume: &Volume, path: &str, name: &str) -> Option<Vec<u8>> {
    volume.xattr(path, Follow::No, name).ok()
}

#[test]
fn whoever_changes_a_file_takes_its_capability() {
    let (device, volume) = volume();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    open(&volume, "/a", 0o755, Credentials::Trusted);
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    let write = |file: &File| {
        let (_, written) = reactor.block_on(file.write(Buffer::zeroed(8192), 0));
        assert_eq!(written, Ok(8192));
    };
    let give = || {
        volume.set_xattr("/a", Follow::No, CAPABILITY, b"all", SetXattr::Create).unwrap();
    };
    let is_gone = || assert_eq!(xattr(&volume, "/a", CAPABILITY), None);
    for credentials in [Credentials::Trusted, SOMEBODY] {
        // Found in the catalog by who opens it, then set while it is open.
        give();
        volume.sync().unwrap();
        let file = volume.open("/a", OpenOptions { credentials, ..Default::default() }).unwrap();
        write(&file);
        is_gone();
        write(&file);
        give();
        write(&file);
        is_gone();
        for ask in [
            file.set_size(5000),
            file.allocate(0, 9000, Size::Keep),
            file.punch_hole(0, 100),
            file.zero_range(0, 100, Size::Keep),
        ] {
            give();
            reactor.block_on(ask).unwrap();
            is_gone();
        }
        give();
        let truncate = OpenOptions { truncate: true, credentials, ..OpenOptions::default() };
        volume.open("/a", truncate).unwrap();
        is_gone();
    }
    give();
    volume.set_attributes("/a", Follow::No, |inode| inode.permissions = 0o700).unwrap();
    assert!(xattr(&volume, "/a", CAPABILITY).is_some());
    volume.set_attributes("/a", Follow::No, |inode| inode.set_owner(None, Some(5))).unwrap();
    is_gone();
}
