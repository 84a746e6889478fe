//! A file's access control list and its mode agree, as on Linux. The expected values are those of
//! Linux 6.18 on ext4 and tmpfs.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_volume::{Credentials, FileType, Follow, Inode, OpenOptions, SetXattr, Volume};

use crate::fixture::{create, formatted, reactor};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// The ID of entries that have none.
const NO_ID: u32 = u32::MAX;

/// A list of entries: tag, permissions, ID.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

/// Entries for owner, user 1000, group, mask and others.
fn named([owner, user, group, mask, others]: [u16; 5]) -> Vec<u8> {
    list(&[
        (1, owner, NO_ID),
        (2, user, 1000),
        (4, group, NO_ID),
        (16, mask, NO_ID),
        (32, others, NO_ID),
    ])
}

/// Entries for owner, group and others, as in a mode.
fn plain(owner: u16, group: u16, others: u16) -> Vec<u8> {
    list(&[(1, owner, NO_ID), (4, group, NO_ID), (32, others, NO_ID)])
}

/// A volume with a file and a directory.
fn volume() -> Volume {
    let volume = formatted(&Sim::new(SimOptions::new(16 << 20)));
    create(&volume, "/f");
    volume.create_dir("/d").unwrap();
    volume
}

fn set(volume: &Volume, path: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
    let set = volume.set_xattr(path, Follow::Yes, name, value, SetXattr::Either);
    set.map_err(|error| error.errno())
}

fn get(volume: &Volume, path: &str, name: &str) -> Option<Vec<u8>> {
    volume.get_xattr(path, Follow::Yes, name).ok()
}

fn remove(volume: &Volume, path: &str, name: &str) -> Result<(), Errno> {
    volume.remove_xattr(path, Follow::Yes, name).map_err(|error| error.errno())
}

fn chmod(volume: &Volume, path: &str, mode: u16) {
    let set = |inode: &mut Inode| inode.permissions = mode;
    volume.set_attributes(path, Follow::Yes, set).unwrap();
}

fn mode(volume: &Volume, path: &str) -> u16 {
    volume.metadata(path).unwrap().inode().permissions
}

#[test]
fn setting_a_list_sets_the_mode_and_vice_versa() {
    let volume = volume();
    for path in ["/f", "/d"] {
        chmod(&volume, path, 0o2644);
        assert_eq!(set(&volume, path, ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
        assert_eq!(mode(&volume, path), 0o2670, "{path}");
        chmod(&volume, path, 0o2751);
        assert_eq!(get(&volume, path, ACCESS), Some(named([7, 7, 0, 5, 1])), "{path}");
        assert_eq!(mode(&volume, path), 0o2751);
        // Without a mask the mode's group bits are the group's permissions.
        assert_eq!(remove(&volume, path, ACCESS), Ok(()));
        assert_eq!((mode(&volume, path), get(&volume, path, ACCESS)), (0o2751, None));
        assert_eq!(remove(&volume, path, ACCESS), Ok(()), "the list equals the mode");
    }
}

#[test]
fn a_minimal_list_becomes_the_mode() {
    let volume = volume();
    assert_eq!(set(&volume, "/f", ACCESS, &plain(6, 5, 0)), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o650, None));
    // It also replaces a list with more entries.
    assert_eq!(set(&volume, "/f", ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
    assert_eq!(set(&volume, "/f", ACCESS, &plain(7, 4, 4)), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o744, None));
    assert_eq!(volume.list_xattrs("/f", Follow::No).unwrap(), [b""; 0]);
    // A mask needs a list, even without named entries.
    let masked = list(&[(1, 6, NO_ID), (4, 7, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)]);
    assert_eq!(set(&volume, "/f", ACCESS, &masked), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o640, Some(masked)));
}

#[test]
fn an_empty_list_removes_the_list_and_keeps_the_mode() {
    let volume = volume();
    for none in [&b""[..], &list(&[])] {
        assert_eq!(set(&volume, "/f", ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
        assert_eq!(set(&volume, "/f", ACCESS, none), Ok(()));
        assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o670, None));
        assert_eq!(set(&volume, "/d", DEFAULT, &plain(6, 5, 0)), Ok(()));
        assert_eq!(set(&volume, "/d", DEFAULT, none), Ok(()));
        assert_eq!((mode(&volume, "/d"), get(&volume, "/d", DEFAULT)), (0o755, None));
    }
}

#[test]
fn lists_ignore_the_create_and_replace_flags() {
    let volume = volume();
    for how in [SetXattr::Replace, SetXattr::Create] {
        let value = named([6, 7, 0, 7, 0]);
        volume.set_xattr("/f", Follow::Yes, ACCESS, &value, how).unwrap();
        assert_eq!(get(&volume, "/f", ACCESS), Some(value));
    }
}

#[test]
fn a_default_list_keeps_the_mode_and_needs_a_directory() {
    let volume = volume();
    for value in [named([6, 7, 0, 7, 0]), plain(6, 5, 0)] {
        assert_eq!(set(&volume, "/d", DEFAULT, &value), Ok(()));
        assert_eq!(
            (mode(&volume, "/d"), get(&volume, "/d", DEFAULT)),
            (0o755, Some(value.clone()))
        );
        chmod(&volume, "/d", 0o700);
        assert_eq!(get(&volume, "/d", DEFAULT), Some(value.clone()));
        chmod(&volume, "/d", 0o755);
        assert_eq!(set(&volume, "/f", DEFAULT, &value), Err(Errno::ACCESS));
    }
}

#[test]
fn an_invalid_list_is_refused_and_changes_nothing() {
    let volume = volume();
    let was = mode(&volume, "/f");
    let numbered = list(&[(1, 6, 5), (2, 7, 1000), (4, 0, 6), (16, 7, 8), (32, 0, 0)]);
    for wrong in [
        &numbered[..numbered.len() - 8],
        &numbered[..numbered.len() - 1],
        &[&[3], &numbered[1..]].concat(),
        &list(&[(1, 8, NO_ID), (4, 0, NO_ID), (32, 0, NO_ID)]),
        &list(&[(1, 6, 0), (2, 7, NO_ID), (4, 0, 0), (16, 7, 0), (32, 0, 0)]),
    ] {
        for (path, name) in [("/f", ACCESS), ("/d", ACCESS), ("/d", DEFAULT)] {
            assert_eq!(set(&volume, path, name, wrong), Err(Errno::INVAL), "{wrong:?}");
            assert_eq!(get(&volume, path, name), None);
        }
    }
    assert_eq!(mode(&volume, "/f"), was);
    // IDs are dropped from entries that have none.
    assert_eq!(set(&volume, "/f", ACCESS, &numbered), Ok(()));
    assert_eq!(get(&volume, "/f", ACCESS), Some(named([6, 7, 0, 7, 0])));
}

/// Set-group-ID grants the group's rights only if the group may execute the file. A list can grant
/// that, too.
#[test]
fn a_write_by_an_older_handle_clears_set_group_id() {
    let (volume, here) = (volume(), reactor());
    chmod(&volume, "/f", 0o2644);
    let credentials = Credentials::User { user: 1000, group: 100 };
    let theirs = volume
        .open_with(
            "/f",
            OpenOptions::new().read(true).write(true).credentials(credentials).direct(true),
        )
        .unwrap();
    let write = || assert_eq!(here.block_on(theirs.write_at(Buffer::copy_of(b"1"), 0)).0, Ok(1));
    write();
    assert_eq!(mode(&volume, "/f"), 0o2644);
    assert_eq!(set(&volume, "/f", ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
    write();
    assert_eq!(mode(&volume, "/f"), 0o670);
}

#[test]
fn a_list_and_its_mode_survive_closing_the_volume() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let volume = formatted(&sim);
    volume.mknod("/p", &Inode::new(FileType::Fifo, 0o600)).unwrap();
    assert_eq!(set(&volume, "/p", ACCESS, &named([6, 7, 0, 4, 1])), Ok(()));
    drop(volume);
    let volume = Volume::open_on(Device::new(sim).unwrap()).unwrap();
    assert_eq!(mode(&volume, "/p"), 0o641);
    assert_eq!(get(&volume, "/p", ACCESS), Some(named([6, 7, 0, 4, 1])));
    chmod(&volume, "/p", 0o600);
    assert_eq!(get(&volume, "/p", ACCESS), Some(named([6, 7, 0, 0, 0])));
}
