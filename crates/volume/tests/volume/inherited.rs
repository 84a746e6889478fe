//! Attributes that a new file inherits from its directory, and those that a write or a change of
//! owner clears.

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::memory::Memory;
use uringfs_file::{FallocateSize, File};
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{
    Credentials, FileType, Follow, FormatOptions, Inode, OpenOptions, SetXattr, Volume,
};

const USER: Credentials = Credentials::User { user: 1000, group: 100 };
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

fn volume() -> (Device, Volume) {
    let device = Device::new(Memory::new(32 << 20).unwrap()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    (device.clone(), Volume::open_on(device).unwrap())
}

fn open(volume: &Volume, path: &str, permissions: u16, credentials: Credentials) -> File {
    volume
        .open_with(
            path,
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .mode(permissions.into())
                .credentials(credentials)
                .direct(true),
        )
        .unwrap()
}

fn inode(volume: &Volume, path: &str) -> Inode {
    volume.symlink_metadata(path).unwrap().into_inode()
}

fn xattr(volume: &Volume, path: &str, name: &str) -> Option<Vec<u8>> {
    volume.get_xattr(path, Follow::No, name).ok()
}

/// A list with permissions for the owner, user 7, the group, the mask and others.
fn list([owner, named, group, mask, others]: [u8; 5]) -> Vec<u8> {
    let entry = |tag: u8, permissions: u8, id: i32| {
        [&[tag, 0, permissions, 0][..], &id.to_le_bytes()].concat()
    };
    let entries = [(1, owner, -1), (2, named, 7), (4, group, -1), (16, mask, -1), (32, others, -1)];
    let entries = entries.map(|(tag, permissions, id)| entry(tag, permissions, id));
    [&[2, 0, 0, 0][..], &entries.concat()].concat()
}

#[test]
fn files_inherit_the_group_of_a_set_group_id_directory() {
    let (_, volume) = volume();
    volume.create_dir("/d").unwrap();
    let set = |inode: &mut Inode| (inode.group, inode.permissions) = (50, 0o2775);
    volume.set_attributes("/d", Follow::No, set).unwrap();
    open(&volume, "/d/file", 0o2755, Credentials::Superuser);
    open(&volume, "/d/theirs", 0o2755, USER);
    open(&volume, "/d/locked", 0o2745, USER);
    volume.create_dir_with_mode("/d/directory", 0o700).unwrap();
    volume.mknod("/d/directory/fifo", &Inode::new(FileType::Fifo, 0o600)).unwrap();
    volume.symlink("file", "/d/link").unwrap();
    let found = |path| (inode(&volume, path).group, inode(&volume, path).permissions);
    assert_eq!(found("/d/file"), (50, 0o2755));
    // A user outside the group cannot create a program that runs with it.
    assert_eq!(found("/d/theirs"), (50, 0o755));
    assert_eq!(found("/d/locked"), (50, 0o2745));
    assert_eq!(found("/d/directory"), (50, 0o2700));
    assert_eq!(found("/d/directory/fifo"), (50, 0o600));
    assert_eq!(found("/d/link"), (50, 0o777));
    open(&volume, "/theirs", 0o2755, USER);
    assert_eq!(found("/theirs"), (100, 0o2755));
}

#[test]
fn files_inherit_the_default_list_of_a_directory() {
    let (device, volume) = volume();
    volume.create_dir("/d").unwrap();
    let handed_on = list([7, 6, 5, 7, 1]);
    volume.set_xattr("/d", Follow::No, DEFAULT, &handed_on, SetXattr::Either).unwrap();
    open(&volume, "/d/file", 0o640, Credentials::Superuser);
    volume.create_dir_with_mode("/d/directory", 0o777).unwrap();
    volume.symlink("file", "/d/link").unwrap();
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    open(&volume, "/d/directory/below", 0o600, USER);
    for (path, mode, given) in [
        ("/d/file", 0o640, [6, 6, 5, 4, 0]),
        ("/d/directory", 0o771, [7, 6, 5, 7, 1]),
        ("/d/directory/below", 0o600, [6, 6, 5, 0, 0]),
    ] {
        assert_eq!(inode(&volume, path).permissions, mode, "{path}");
        assert_eq!(xattr(&volume, path, ACCESS), Some(list(given)), "{path}");
    }
    assert_eq!(xattr(&volume, "/d/directory", DEFAULT), Some(handed_on));
    assert_eq!(xattr(&volume, "/d/file", DEFAULT), None);
    assert_eq!(xattr(&volume, "/d/link", ACCESS), None);
    // A minimal list becomes the mode.
    let plain = [&list([6, 0, 4, 0, 0])[..12], &list([6, 0, 4, 0, 0])[20..28], &[32, 0], &[0; 6]];
    volume.set_xattr("/d", Follow::No, DEFAULT, &plain.concat(), SetXattr::Either).unwrap();
    open(&volume, "/d/plain", 0o777, Credentials::Superuser);
    assert_eq!(inode(&volume, "/d/plain").permissions, 0o640);
    assert_eq!(xattr(&volume, "/d/plain", ACCESS), None);
}

#[test]
fn changing_a_file_removes_its_capability() {
    let (device, volume) = volume();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    open(&volume, "/a", 0o755, Credentials::Superuser);
    drop(volume);
    let volume = Volume::open_on(device).unwrap();
    let write = |file: &File| {
        let (written, _) = reactor.block_on(file.write_at(Buffer::zeroed(8192), 0));
        assert_eq!(written, Ok(8192));
    };
    let give = || {
        volume.set_xattr("/a", Follow::No, CAPABILITY, b"all", SetXattr::Create).unwrap();
    };
    let is_gone = || assert_eq!(xattr(&volume, "/a", CAPABILITY), None);
    for credentials in [Credentials::Superuser, USER] {
        // Found in the catalog at open, then set while the file is open.
        give();
        volume.sync().unwrap();
        let file = volume
            .open_with(
                "/a",
                OpenOptions::new().read(true).write(true).credentials(credentials).direct(true),
            )
            .unwrap();
        write(&file);
        is_gone();
        write(&file);
        give();
        write(&file);
        is_gone();
        for operation in [
            file.set_len(5000),
            file.allocate(0, 9000, FallocateSize::Keep),
            file.punch_hole(0, 100),
            file.zero_range(0, 100, FallocateSize::Keep),
        ] {
            give();
            reactor.block_on(operation).unwrap();
            is_gone();
        }
        give();
        let truncate = OpenOptions::new()
            .read(true)
            .write(true)
            .truncate(true)
            .credentials(credentials)
            .direct(true);
        volume.open_with("/a", truncate).unwrap();
        is_gone();
    }
    give();
    volume.set_attributes("/a", Follow::No, |inode| inode.permissions = 0o700).unwrap();
    assert!(xattr(&volume, "/a", CAPABILITY).is_some());
    volume.set_attributes("/a", Follow::No, |inode| inode.set_owner(None, Some(5))).unwrap();
    is_gone();
}
