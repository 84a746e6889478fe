//! The access control list of a file and its mode say the same, as on Linux. Expected is what Linux 6.18 answers on
//! ext4 and tmpfs.

mod made;

use made::{create, formatted, reactor};
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_volume::{Credentials, FileKind, Follow, Inode, OpenOptions, SetXattr, Volume};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// The number in entries that need none.
const NOBODY: u32 = u32::MAX;

/// A list of entries: tag, permissions, number.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

/// Of owner, user 1000, group, mask and others.
fn named([owner, user, group, mask, others]: [u16; 5]) -> Vec<u8> {
    list(&[
        (1, owner, NOBODY),
        (2, user, 1000),
        (4, group, NOBODY),
        (16, mask, NOBODY),
        (32, others, NOBODY),
    ])
}

/// Of owner, group and others: a mode.
fn plain(owner: u16, group: u16, others: u16) -> Vec<u8> {
    list(&[(1, owner, NOBODY), (4, group, NOBODY), (32, others, NOBODY)])
}

/// A volume with a file and a directory in it.
fn volume() -> Volume {
    let volume = formatted(&Sim::new(SimOptions::new(16 << 20)));
    create(&volume, "/f");
    volume.make_directory("/d", 0o755).unwrap();
    volume
}

fn set(volume: &Volume, path: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
    let set = volume.set_xattr(path, Follow::Yes, name, value, SetXattr::Either);
    set.map_err(|error| error.errno())
}

fn get(volume: &Volume, path: &str, name: &str) -> Option<Vec<u8>> {
    volume.xattr(path, Follow::Yes, name).ok()
}

fn remove(volume: &Volume, path: &str, name: &str) -> Result<(), Errno> {
    volume.remove_xattr(path, Follow::Yes, name).map_err(|error| error.errno())
}

fn chmod(volume: &Volume, path: &str, mode: u16) {
    let set = |inode: &mut Inode| inode.permissions = mode;
    volume.set_attributes(path, Follow::Yes, set).unwrap();
}

fn mode(volume: &Volume, path: &str) -> u16 {
    volume.inode(path, Follow::Yes).unwrap().1.permissions
}

#[test]
fn a_list_sets_the_mode_and_a_mode_the_list() {
    let volume = volume();
    for path in ["/f", "/d"] {
        chmod(&volume, path, 0o2644);
        assert_eq!(set(&volume, path, ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
        assert_eq!(mode(&volume, path), 0o2670, "{path}");
        chmod(&volume, path, 0o2751);
        assert_eq!(get(&volume, path, ACCESS), Some(named([7, 7, 0, 5, 1])), "{path}");
        assert_eq!(mode(&volume, path), 0o2751);
        // Without a mask the group's permissions are the group's.
        assert_eq!(remove(&volume, path, ACCESS), Ok(()));
        assert_eq!((mode(&volume, path), get(&volume, path, ACCESS)), (0o2751, None));
        assert_eq!(remove(&volume, path, ACCESS), Ok(()), "it says what the mode says");
    }
}

#[test]
fn a_list_that_a_mode_can_say_becomes_the_mode() {
    let volume = volume();
    assert_eq!(set(&volume, "/f", ACCESS, &plain(6, 5, 0)), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o650, None));
    // Also instead of one that said more.
    assert_eq!(set(&volume, "/f", ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
    assert_eq!(set(&volume, "/f", ACCESS, &plain(7, 4, 4)), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o744, None));
    assert_eq!(volume.xattrs("/f", Follow::No).unwrap(), [b""; 0]);
    // A mask says more, though nobody is named.
    let masked = list(&[(1, 6, NOBODY), (4, 7, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY)]);
    assert_eq!(set(&volume, "/f", ACCESS, &masked), Ok(()));
    assert_eq!((mode(&volume, "/f"), get(&volume, "/f", ACCESS)), (0o640, Some(masked)));
}

#[test]
fn a_list_without_entries_is_removed_and_the_mode_stays() {
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
fn lists_are_set_and_replaced_whatever_is_there() {
    let volume = volume();
    for how in [SetXattr::Replace, SetXattr::Create] {
        let value = named([6, 7, 0, 7, 0]);
        volume.set_xattr("/f", Follow::Yes, ACCESS, &value, how).unwrap();
        assert_eq!(get(&volume, "/f", ACCESS), Some(value));
    }
}

#[test]
fn a_default_list_leaves_the_mode_and_is_of_directories_only() {
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
fn what_is_no_list_is_refused_and_changes_nothing() {
    let volume = volume();
    let was = mode(&volume, "/f");
    let numbered = list(&[(1, 6, 5), (2, 7, 1000), (4, 0, 6), (16, 7, 8), (32, 0, 0)]);
    for wrong in [
        &numbered[..numbered.len() - 8],
        &numbered[..numbered.len() - 1],
        &[&[3], &numbered[1..]].concat(),
        &list(&[(1, 8, NOBODY), (4, 0, NOBODY), (32, 0, NOBODY)]),
        &list(&[(1, 6, 0), (2, 7, NOBODY), (4, 0, 0), (16, 7, 0), (32, 0, 0)]),
    ] {
        for (path, name) in [("/f", ACCESS), ("/d", ACCESS), ("/d", DEFAULT)] {
            assert_eq!(set(&volume, path, name, wrong), Err(Errno::INVAL), "{wrong:?}");
            assert_eq!(get(&volume, path, name), None);
        }
    }
    assert_eq!(mode(&volume, "/f"), was);
    // Numbers where none are needed are not kept.
    assert_eq!(set(&volume, "/f", ACCESS, &numbered), Ok(()));
    assert_eq!(get(&volume, "/f", ACCESS), Some(named([6, 7, 0, 7, 0])));
}

/// Set-group-ID lends the group's rights only where the group may run the file, and that a list says, too.
#[test]
fn a_file_that_lends_rights_by_a_list_loses_them_by_a_write_of_an_earlier_opening() {
    let (volume, here) = (volume(), reactor());
    chmod(&volume, "/f", 0o2644);
    let credentials = Credentials::Of { user: 1000, group: 100 };
    let theirs = volume.open("/f", OpenOptions { credentials, ..OpenOptions::direct() }).unwrap();
    let write = || assert_eq!(here.block_on(theirs.write(Buffer::copy_of(b"1"), 0)).1, Ok(1));
    write();
    assert_eq!(mode(&volume, "/f"), 0o2644);
    assert_eq!(set(&volume, "/f", ACCESS, &named([6, 7, 0, 7, 0])), Ok(()));
    write();
    assert_eq!(mode(&volume, "/f"), 0o670);
}

#[test]
fn a_list_and_its_mode_are_there_after_the_volume_was_closed() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let volume = formatted(&sim);
    volume.make("/p", Inode::new(FileKind::Fifo, 0o600)).unwrap();
    assert_eq!(set(&volume, "/p", ACCESS, &named([6, 7, 0, 4, 1])), Ok(()));
    drop(volume);
    let volume = Volume::open_on(Device::new(sim).unwrap()).unwrap();
    assert_eq!(mode(&volume, "/p"), 0o641);
    assert_eq!(get(&volume, "/p", ACCESS), Some(named([6, 7, 0, 4, 1])));
    chmod(&volume, "/p", 0o600);
    assert_eq!(get(&volume, "/p", ACCESS), Some(named([6, 7, 0, 0, 0])));
}
