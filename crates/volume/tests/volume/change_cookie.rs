//! The change cookie of a file: it differs after each change of the content, also over power cuts, and after nothing else.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File};
use uringfs_volume::{FileTimes, FileType, Follow, Inode, Link, OpenOptions, SetXattr, Volume};

use crate::fixture::{formatted, reactor};

const LENGTH: u64 = 64 << 10;

fn new_sim() -> Sim {
    Sim::new(SimOptions::new(64 << 20))
}

fn cookie(volume: &Volume, path: &str) -> u64 {
    volume.metadata(path).unwrap().change_cookie()
}

fn open(volume: &Volume, path: &str, direct: bool) -> File {
    volume.open_with(path, OpenOptions::new().read(true).write(true).direct(direct)).unwrap()
}

fn crashed(sim: &Sim) -> Volume {
    Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap()
}

#[test]
fn each_change_of_the_content_has_another_cookie() {
    let volume = formatted(&new_sim());
    let mut seen = Vec::new();
    let mut changed = |what: &str| {
        let now = cookie(&volume, "/file");
        assert!(!seen.contains(&now), "{what}: {now:x} again");
        seen.push(now);
    };
    volume.write("/file", vec![1; LENGTH as usize]).unwrap();
    changed("created");
    for direct in [false, true] {
        let file = open(&volume, "/file", direct);
        // Twice in a tick of the clock, too.
        for _ in 0..10 {
            file.write_at(vec![2; 4096], 0).wait().0.unwrap();
            changed("overwritten");
        }
        file.append(vec![3; 100]).wait().0.unwrap();
        changed("appended");
        file.punch_hole(8192, 4096).wait().unwrap();
        changed("a hole");
        file.zero_range(16384, 4096, FallocateSize::Keep).wait().unwrap();
        changed("zeroed");
        file.write_at(vec![2; 4096], 8192).wait().0.unwrap();
        changed("written in a hole");
        file.set_len(LENGTH / 2).wait().unwrap();
        changed("truncated");
        file.set_len(LENGTH).wait().unwrap();
        changed("extended");
        file.set_len(0).wait().unwrap();
        changed("emptied");
        file.write_at(vec![1; LENGTH as usize], 0).wait().0.unwrap();
        changed("written");
    }
    let replacement = OpenOptions::new().write(true).truncate(true);
    drop(volume.open_with("/file", replacement).unwrap());
    changed("truncated by open");
}

#[test]
fn what_changes_no_content_leaves_the_cookie() {
    let sim = new_sim();
    let volume = formatted(&sim);
    volume.write("/file", "content").unwrap();
    let written = cookie(&volume, "/file");
    let file = open(&volume, "/file", false);
    volume.set_permissions("/file", Permissions::from_mode(0o600)).unwrap();
    volume.set_times("/file", FileTimes::new().set_modified(SystemTime::now())).unwrap();
    volume.set_xattr("/file", Follow::Yes, "user.a", b"1", SetXattr::Either).unwrap();
    volume.rename("/file", "/renamed").unwrap();
    volume.hard_link("/renamed", "/file").unwrap();
    assert_eq!(volume.read("/file").unwrap(), b"content");
    file.sync_all().wait().unwrap();
    assert_eq!(cookie(&volume, "/file"), written);
    drop(file);
    volume.sync().unwrap();
    assert_eq!(cookie(&crashed(&sim), "/file"), written);
    volume.create_dir("/directory").unwrap();
    volume.write("/directory/file", "").unwrap();
    assert_eq!(cookie(&volume, "/directory"), 0);
}

#[test]
fn a_cookie_that_a_power_cut_took_is_not_given_again() {
    let sim = new_sim();
    let volume = formatted(&sim);
    volume.write("/file", "durable").unwrap();
    volume.sync().unwrap();
    let durable = cookie(&volume, "/file");
    let overwrite = |volume: &Volume| {
        let file = open(volume, "/file", false);
        file.write_at("changed", 0).wait().0.unwrap();
        cookie(volume, "/file")
    };
    let lost = overwrite(&volume);
    let recovered = crashed(&sim);
    assert_eq!(cookie(&recovered, "/file"), durable);
    assert_eq!(recovered.read("/file").unwrap(), b"durable");
    let again = overwrite(&recovered);
    assert!(again != lost && again != durable && lost != durable);
}

#[test]
fn a_link_replaces_a_file_only_if_it_is_unchanged() {
    let volume = formatted(&new_sim());
    volume.write("/name", "old").unwrap();
    let root = volume.root();
    reactor().block_on(async {
        let (there, metadata) = root.lookup("name").await.unwrap();
        let (new, _) = root.create_unnamed(&Inode::new(FileType::File, 0o644)).await.unwrap();
        let unchanged =
            |change_cookie| Link::ReplaceUnchanged { number: there.number(), change_cookie };
        let link = async |name: &str, how| {
            new.link_with(&root, name, how).await.map_err(|error| error.errno())
        };
        let file = there.open(OpenOptions::new().write(true)).await.unwrap();
        file.write_at("new", 0).await.0.unwrap();
        assert_eq!(link("name", unchanged(metadata.change_cookie())).await, Err(Errno::STALE));
        assert_eq!(link("none", unchanged(metadata.change_cookie())).await, Err(Errno::NOENT));
        let now = there.metadata().await.unwrap().change_cookie();
        let other = Link::ReplaceUnchanged { number: new.number(), change_cookie: now };
        assert_eq!(link("name", other).await, Err(Errno::STALE));
        link("name", unchanged(now)).await.unwrap();
        assert_eq!(root.lookup("name").await.unwrap().0, new);
    });
}
