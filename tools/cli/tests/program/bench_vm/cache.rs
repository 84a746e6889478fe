//! The cache of `bench vm`: it is filled once, must be complete, and can be read-only.

use super::{FakePrograms, fails, names};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Fakes of apt and dpkg with all packages, and of QEMU, which fails.
fn with_packages() -> FakePrograms {
    let fakes = FakePrograms::new();
    fakes.add(
        "apt-get",
        "case $* in
            *--print-uris*) echo \"'http://m.example/debian/dists/stable/InRelease' release 0 \";;
            *download*) for word; do
                case $word in [a-z]*=*) : >${word%%=*}_1_amd64.deb;; esac; done;;
            *) printf 'Origin: Debian\\nLabel: Debian\\n' >../lists/release;;
        esac",
    );
    fakes.add(
        "apt-cache",
        "for word; do case $word in
            search) echo 'linux-image-6.1.0-1-cloud-amd64 - Linux'
                echo 'linux-image-6.12.1-cloud-amd64 - Linux'; exit;;
            show) ;;
            linux-image-6.12*) printf 'Package: %s\\nVersion: 6.12.1-1\\n\\n' $word;;
            linux-image-*) printf 'Package: %s\\nVersion: 6.1.7-1\\n\\n' $word;;
            [a-z]*) printf 'Package: %s\\nVersion: 1\\n\\n' $word;;
        esac; done",
    );
    fakes.add(
        "dpkg-deb",
        "case $2 in
            *linux-image*) /bin/mkdir $3/boot; : >$3/boot/vmlinuz-${2##*/linux-image-};;
            *busybox*) /bin/mkdir $3/bin $3/sbin
                for name in bin/busybox sbin/mkfs.ext4 sbin/mkfs.xfs sbin/losetup; do
                    : >$3/$name; /bin/chmod 6755 $3/$name; done;;
        esac",
    );
    fakes.add("qemu-system-x86_64", "echo 'it is none' >&2; exit 1");
    fakes
}

#[test]
fn the_cache_is_filled_once_and_set_id_bits_are_removed() {
    let fakes = with_packages();
    fails(&fakes, &[], 1, "QEMU failed: it is none");
    let mut found = names(&fakes.cache());
    found.sort();
    assert_eq!(found, ["guest", "lock"]);
    let guest = fakes.cache().join("guest");
    let manifest = fs::read_to_string(guest.join("manifest.json")).unwrap();
    assert!(manifest.contains("6.12.1-1") && manifest.contains("6.1.7-1"), "{manifest}");
    let mode = guest.join("tools/sbin/losetup").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    for gone in ["apt-get", "apt-cache", "dpkg-deb"] {
        fs::remove_file(fakes.folder().join("bin").join(gone)).unwrap();
    }
    fails(&fakes, &[], 1, "QEMU failed: it is none");
}

#[test]
fn a_complete_cache_needs_no_lock() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "exit 1");
    fails(&fakes, &[], 1, "QEMU failed");
    assert_eq!(names(&fakes.cache()), ["guest"]);
}

#[test]
fn leftovers_of_a_killed_run_are_removed() {
    let fakes = FakePrograms::new();
    fs::create_dir_all(fakes.cache().join("fetching-1/new")).unwrap();
    fails(&fakes, &[], 1, "busybox-static");
    assert_eq!(names(&fakes.cache()), ["lock"]);
}

#[test]
fn an_incomplete_cache_is_an_error_that_names_what_to_remove() {
    let fakes = FakePrograms::with_cache();
    fakes.add("qemu-system-x86_64", "exit 1");
    let guest = fakes.cache().join("guest");
    let redo = format!("remove {} to fetch it again", guest.display());
    fs::write(guest.join("manifest.json"), r#"{"packages": []}"#).unwrap();
    fails(&fakes, &[], 1, &format!("{redo}: no kernel in it"));
    fs::remove_file(guest.join("tools/sbin/losetup")).unwrap();
    fails(&fakes, &[], 1, &format!("{redo}: no tools/sbin/losetup in it"));
}

#[test]
fn an_unusable_cache_directory_is_an_error() {
    let fakes = FakePrograms::new();
    fs::write(fakes.cache(), "a file").unwrap();
    fails(&fakes, &[], 1, "--cache DIR names another");
}
