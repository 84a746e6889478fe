//! Files, directories and links by name, through the public API.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Access, Device, Errno, Op};
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{Error, FileType, Follow, FormatOptions, OpenOptions, Rename, Time, Volume};

const SIZE: u64 = 64 << 20;

struct Machine {
    device: Device,
    reactor: Reactor,
}

impl Machine {
    fn new() -> Machine {
        let device = Device::new(Memory::new(SIZE).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        Machine::with(device)
    }

    /// A machine on a simulated device, which can be examined as after a power cut.
    fn simulated() -> (Machine, Sim) {
        let sim = Sim::new(SimOptions::new(SIZE));
        let device = Device::new(sim.clone()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        (Machine::with(device), sim)
    }

    fn with(device: Device) -> Machine {
        Machine { device, reactor: Reactor::new(ReactorOptions::default()).unwrap() }
    }

    fn after_power_cut(sim: &Sim) -> Machine {
        Machine::with(Device::new(sim.crash_image(Crash::LoseAll)).unwrap())
    }

    fn volume(&self) -> Volume {
        Volume::open_on(self.device.clone()).unwrap()
    }

    fn write(&self, file: &File, bytes: &[u8], offset: u64) {
        let (written, _) = self.reactor.block_on(file.write_at(Buffer::copy_of(bytes), offset));
        assert_eq!(written, Ok(bytes.len()));
    }

    fn read(&self, file: &File) -> Vec<u8> {
        let buffer = Buffer::zeroed(file.len() as usize + 100);
        let (read, buffer) = self.reactor.block_on(file.read_at(buffer, 0));
        buffer[..read.unwrap()].to_vec()
    }

    fn make(&self, volume: &Volume, path: &str, bytes: &[u8]) {
        self.write(&volume.open_with(path, create()).unwrap(), bytes, 0);
    }

    fn contents(&self, volume: &Volume, path: &str) -> Vec<u8> {
        self.read(
            &volume
                .open_with(path, OpenOptions::new().read(true).write(true).direct(true))
                .unwrap(),
        )
    }
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).direct(true)
}

fn names(volume: &Volume, path: &str) -> Vec<String> {
    let entries = volume.read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn errno<T>(result: Result<T, Error>) -> Errno {
    let error = result.err().expect("the call is refused");
    assert!(!error.to_string().contains('\n'));
    error.errno()
}

#[test]
fn a_file_is_found_again_with_its_content() {
    let machine = Machine::new();
    let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    {
        let volume = machine.volume();
        volume.create_dir("/logs").unwrap();
        machine.make(&volume, "/logs/today", &bytes);
        assert!(machine.contents(&volume, "/logs/today") == bytes);
    }
    let volume = machine.volume();
    assert!(machine.contents(&volume, "logs//./today") == bytes);
    let inode = volume.metadata("/logs/today").unwrap().into_inode();
    assert_eq!((inode.kind, inode.size, inode.links), (FileType::File, 100_000, 1));
    assert_eq!(inode.permissions, 0o644);
}

#[test]
fn synced_data_survive_without_closing() {
    let (machine, sim) = Machine::simulated();
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, b"first", 0);
    machine.reactor.block_on(file.sync_all()).unwrap();
    let machine = Machine::after_power_cut(&sim);
    assert_eq!(machine.contents(&machine.volume(), "/a"), b"first");
}

#[test]
fn holes_and_bytes_past_the_end_read_as_zeros() {
    let machine = Machine::new();
    let volume = machine.volume();
    // Foreign bytes in blocks that are freed and reused.
    machine.make(&volume, "/before", &[0xee; 40_000]);
    volume.remove_file("/before").unwrap();
    volume.sync().unwrap();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, &[1; 10], 20_000);
    machine.write(&file, &[2; 10], 5);
    let mut expected = vec![0; 20_010];
    expected[20_000..].fill(1);
    expected[5..15].fill(2);
    assert!(machine.read(&file) == expected);
    drop((file, volume));
    assert!(machine.contents(&machine.volume(), "/a") == expected);
}

#[test]
fn names_behave_as_with_system_calls() {
    let machine = Machine::new();
    let volume = &machine.volume();
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    volume.create_dir_with_mode("/d/e", 0o700).unwrap();
    machine.make(volume, "/d/f", b"f");
    machine.make(volume, "/g", b"g");

    assert_eq!(errno(volume.create_dir_with_mode("/d", 0o700)), Errno::EXIST);
    assert_eq!(errno(volume.create_dir_with_mode("/x/y", 0o700)), Errno::NOENT);
    assert_eq!(errno(volume.create_dir_with_mode("/g/y", 0o700)), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_file("/d")), Errno::ISDIR);
    assert_eq!(errno(volume.remove_dir("/d")), Errno::NOTEMPTY);
    assert_eq!(errno(volume.remove_dir("/g")), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_file("/h")), Errno::NOENT);
    assert_eq!(errno(volume.hard_link("/d", "/h")), Errno::PERM);
    assert_eq!(
        errno(volume.open_with("/d", OpenOptions::new().read(true).write(true).direct(true))),
        Errno::ISDIR
    );
    let exclusive = create().create_new(true);
    assert_eq!(errno(volume.open_with("/g", exclusive)), Errno::EXIST);
    assert_eq!(errno(volume.rename("/d", "/d/e/d")), Errno::INVAL);
    assert_eq!(errno(volume.rename_with("/g", "/d/f", Rename::NoReplace)), Errno::EXIST);
    assert_eq!(errno(volume.rename("/g", "/d/e")), Errno::ISDIR);
    assert_eq!(errno(volume.rename("/d/e", "/g")), Errno::NOTDIR);
    assert_eq!(errno(volume.rename_with("/g", "/h", Rename::Exchange)), Errno::NOENT);

    volume.hard_link("/g", "/d/e/same").unwrap();
    assert_eq!(volume.metadata("/g").unwrap().inode().links, 2);
    volume.rename("/g", "/d/e/same").unwrap();
    assert_eq!(volume.metadata("/g").unwrap().inode().links, 2, "two names of one file stay");
    volume.remove_file("/g").unwrap();
    volume.rename_with("/d/e/same", "/d/f", Rename::Exchange).unwrap();
    assert_eq!(machine.contents(volume, "/d/f"), b"g");
    assert_eq!(machine.contents(volume, "/d/e/same"), b"f");
    volume.rename("/d/e", "/moved").unwrap();
    assert_eq!(machine.contents(volume, "/moved/same"), b"f");
    assert_eq!(names(volume, "/"), ["d", "moved"]);
    assert_eq!(volume.metadata("/d").unwrap().inode().links, 2);
    assert_eq!(volume.metadata("/").unwrap().inode().links, 4);
    volume.rename("/d/f", "/moved/same").unwrap();
    volume.rename("/d", "/moved/d").unwrap();
    assert_eq!(machine.contents(volume, "/moved/d/../same"), b"g");
    volume.remove_dir("/moved/d").unwrap();
    assert_eq!(names(volume, "/moved"), ["same"]);
}

#[test]
fn symbolic_links_are_followed_and_loops_detected() {
    let machine = Machine::new();
    let volume = &machine.volume();
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    machine.make(volume, "/d/f", b"there");
    volume.symlink("d/f", "/near").unwrap();
    volume.symlink("/near", "/d/far").unwrap();
    volume.symlink("circle", "/circle").unwrap();
    volume.symlink("nowhere", "/broken").unwrap();
    assert_eq!(machine.contents(volume, "/d/far"), b"there");
    let link = volume.symlink_metadata("/d/far").unwrap().into_inode();
    assert_eq!((&link.target[..], link.size), (&b"/near"[..], 5));
    assert_eq!(errno(volume.metadata("/circle")), Errno::LOOP);
    assert_eq!(errno(volume.metadata("/broken")), Errno::NOENT);
    assert_eq!(errno(volume.symlink("", "/empty")), Errno::INVAL);
}

#[test]
fn names_have_the_limits_of_linux() {
    let machine = Machine::new();
    let volume = &machine.volume();
    let (longest, longer) = (format!("/{}", "n".repeat(255)), "n".repeat(256));
    machine.make(volume, &longest, b"x");
    assert_eq!(errno(volume.open_with(&longer, create())), Errno::NAMETOOLONG);
    volume.open_with(OsStr::from_bytes(&[b'/', 0xff, 0xfe]), create()).unwrap();
    assert_eq!(errno(volume.open_with("/a\0b", create())), Errno::INVAL);
    assert_eq!(errno(volume.create_dir_with_mode("/", 0o700)), Errno::EXIST);
    assert_eq!(errno(volume.create_dir_with_mode("/.", 0o700)), Errno::EXIST);
    assert_eq!(errno(volume.metadata("a/".repeat(3000))), Errno::NAMETOOLONG);
}

#[test]
fn a_changing_directory_is_listed_in_order() {
    let machine = Machine::new();
    let volume = &machine.volume();
    let all: Vec<String> = (0..5000).map(|n| format!("name-{n:05}")).collect();
    for (index, name) in all.iter().enumerate() {
        volume.open_with(format!("/{name}"), create()).unwrap();
        if index % 1500 == 0 {
            volume.sync().unwrap();
        }
    }
    assert!(names(volume, "/") == all);
    volume.sync().unwrap();
    // A batch of the catalog's names, all of which are removed.
    for name in &all[10..3000] {
        volume.remove_file(format!("/{name}")).unwrap();
    }
    let left: Vec<String> = [&all[..10], &all[3000..]].concat();
    assert!(names(volume, "/") == left);
}

#[test]
fn a_removed_open_file_lives_until_it_is_closed() {
    let machine = Machine::new();
    let volume = machine.volume();
    volume.sync().unwrap();
    let before = volume.statistics().free_blocks;
    machine.make(&volume, "/a", &[7; 1 << 20]);
    let file =
        volume.open_with("/a", OpenOptions::new().read(true).write(true).direct(true)).unwrap();
    volume.remove_file("/a").unwrap();
    volume.sync().unwrap();
    assert!(machine.read(&file) == [7; 1 << 20]);
    assert_eq!(volume.statistics().free_blocks, before - 256);
    drop(file);
    // One commit frees them, and the next one releases them, since no read is in flight.
    volume.sync().unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.statistics().free_blocks, before);
}

#[test]
fn orphans_of_a_crash_are_reclaimed_at_open() {
    let (machine, sim) = Machine::simulated();
    let volume = machine.volume();
    volume.sync().unwrap();
    let before = volume.statistics().free_blocks;
    machine.make(&volume, "/a", &[7; 1 << 20]);
    let _open =
        volume.open_with("/a", OpenOptions::new().read(true).write(true).direct(true)).unwrap();
    volume.remove_file("/a").unwrap();
    volume.sync().unwrap();
    let machine = Machine::after_power_cut(&sim);
    let volume = machine.volume();
    volume.sync().unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.statistics().free_blocks, before);
}

#[test]
fn a_full_volume_refuses_and_remains_usable() {
    let machine = Machine::new();
    let volume = machine.volume();
    let file = volume.open_with("/big", create()).unwrap();
    let mut offset = 0;
    let refused = loop {
        let write = file.write_at(Buffer::zeroed(1 << 20), offset);
        match machine.reactor.block_on(write).0 {
            Ok(bytes) => offset += bytes as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Errno::NOSPC);
    // Without the blocks reserved for superblocks.
    assert!(offset > (SIZE - (4 << 20)) * 9 / 10);
    volume.sync().unwrap();
    // Names can still be made, and removing frees blocks.
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    drop(file);
    volume.remove_file("/big").unwrap();
    volume.sync().unwrap();
    volume.sync().unwrap();
    machine.make(&volume, "/next", &[1; 1 << 20]);
    drop(volume);
    assert!(machine.contents(&machine.volume(), "/next") == [1; 1 << 20]);
}

#[test]
fn threads_make_and_write_files_concurrently() {
    let machine = Machine::new();
    let volume = machine.volume();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let volume = volume.clone();
            scope.spawn(move || {
                let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                for n in 0..20u8 {
                    let file = volume.open_with(format!("/{thread}-{n}"), create()).unwrap();
                    for part in 0..5 {
                        let bytes = Buffer::copy_of(&[thread * 20 + n; 3000]);
                        let (written, _) = reactor.block_on(file.write_at(bytes, part * 3000));
                        assert_eq!(written, Ok(3000));
                    }
                    if n % 5 == 0 {
                        reactor.block_on(file.sync_all()).unwrap();
                    }
                }
            });
        }
    });
    drop(volume);
    let volume = machine.volume();
    for (thread, n) in (0..4u8).flat_map(|thread| (0..20u8).map(move |n| (thread, n))) {
        let found = machine.contents(&volume, &format!("/{thread}-{n}"));
        assert!(found == [thread * 20 + n; 15_000], "{thread}-{n}");
    }
}

#[test]
fn times_are_the_last_ones_set() {
    let machine = Machine::new();
    let volume = machine.volume();
    let modified = || volume.metadata("/a").unwrap().inode().modified;
    machine.make(&volume, "/a", b"first");
    assert!(modified() > Time::from_nanoseconds(0));
    volume
        .set_attributes("/a", Follow::Yes, |inode| inode.modified = Time::from_nanoseconds(77))
        .unwrap();
    volume.sync().unwrap();
    assert_eq!(modified(), Time::from_nanoseconds(77));
    machine.make(&volume, "/a", &[1; 5000]);
    assert!(modified() > Time::from_nanoseconds(77));
    volume.sync().unwrap();
    assert!(modified() > Time::from_nanoseconds(77));
}

#[test]
fn a_volume_acknowledges_nothing_after_its_device_failed() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    volume.create_dir_with_mode("/kept", 0o700).unwrap();
    volume.sync().unwrap();
    volume.create_dir_with_mode("/lost", 0o700).unwrap();
    sim.inject(Rule::new(Op::Flush, When::From(1), Fault::Error(Errno::IO)));
    assert_eq!(errno(volume.sync()), Errno::IO);
    sim.clear_faults();
    assert_eq!(errno(volume.sync()), Errno::IO);
    assert_eq!(errno(volume.create_dir_with_mode("/more", 0o700)), Errno::ROFS);
    assert!(volume.is_read_only());
    assert_eq!(names(&volume, "/"), ["kept", "lost"]);
    drop(volume);
    let volume = Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap();
    assert_eq!(names(&volume, "/"), ["kept"]);
}

#[test]
fn a_volume_has_one_writer_or_many_readers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 16 << 20]).unwrap();
    let open = |access| Volume::open_on(Device::open(&path, access).unwrap());
    let device = Device::open(&path, Access::ReadWrite).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    drop(device);
    let writer = open(Access::ReadWrite).unwrap();
    assert_eq!(errno(open(Access::ReadWrite)), Errno::BUSY);
    assert_eq!(errno(open(Access::Read)), Errno::BUSY);
    drop(writer);
    let readers = [open(Access::Read).unwrap(), open(Access::Read).unwrap()];
    assert_eq!(errno(open(Access::ReadWrite)), Errno::BUSY);
    assert_eq!(errno(readers[0].create_dir_with_mode("/d", 0o700)), Errno::ROFS);
    drop(readers);
    open(Access::ReadWrite).unwrap();
}

#[test]
fn a_process_opens_a_volume_for_writing_once_by_any_path() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["image", "link", "symlink"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], vec![0; 16 << 20]).unwrap();
    std::fs::hard_link(&paths[0], &paths[1]).unwrap();
    std::os::unix::fs::symlink(&paths[0], &paths[2]).unwrap();
    let file = Device::open(&paths[0], Access::ReadWrite).unwrap();
    Volume::format(&file, &FormatOptions::default()).unwrap();
    for device in [file, Machine::new().device] {
        let volume = Volume::open_on(device.clone()).unwrap();
        // A refused opening does not release the lock of the holder.
        for _ in 0..2 {
            assert_eq!(errno(Volume::open_on(device.clone())), Errno::BUSY);
            assert_eq!(errno(Volume::format(&device, &FormatOptions::default())), Errno::BUSY);
        }
        volume.create_dir_with_mode("/d", 0o700).unwrap();
        drop(volume);
        Volume::open_on(device).unwrap();
    }
    let writer = Volume::open_on(Device::open(&paths[0], Access::ReadWrite).unwrap()).unwrap();
    for path in &paths {
        let open = |access| Volume::open_on(Device::open(path, access).unwrap());
        assert_eq!(errno(open(Access::ReadWrite)), Errno::BUSY);
        assert_eq!(errno(open(Access::Read)), Errno::BUSY);
    }
    drop(writer);
    // One of two readers of a device closes: the other still excludes writers.
    let device = Device::open(&paths[0], Access::Read).unwrap();
    let [one, other] = [device.clone(), device].map(|device| Volume::open_on(device).unwrap());
    drop(one);
    assert!(is_locked(&paths[0]));
    drop(other);
    assert!(!is_locked(&paths[0]));
}

#[test]
fn a_simulated_device_holds_one_writer_by_all_its_handles() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let device = || Device::new(sim.clone()).unwrap();
    let writer = Volume::create_on(device(), &FormatOptions::default()).unwrap();
    assert_eq!(errno(Volume::open_on(device())), Errno::BUSY);
    assert_eq!(errno(Volume::format(&device(), &FormatOptions::default())), Errno::BUSY);
    // The device after a power cut is another one.
    Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap();
    drop(writer);
    Volume::open_on(device()).unwrap();
}

/// Whether another program would find the lock taken.
fn is_locked(path: &std::path::Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    match file.try_lock() {
        Ok(()) => false,
        Err(std::fs::TryLockError::WouldBlock) => true,
        Err(std::fs::TryLockError::Error(error)) => panic!("{error}"),
    }
}

#[test]
fn an_emptied_large_directory_is_removed_without_a_commit() {
    let (machine, sim) = Machine::simulated();
    let volume = machine.volume();
    volume.create_dir_with_mode("/d", 0o700).unwrap();
    let paths: Vec<_> = (0..3000).map(|number| format!("/d/{number}")).collect();
    for path in &paths {
        volume.open_with(path, create()).unwrap();
    }
    volume.sync().unwrap();
    sim.restart_record();
    for path in &paths {
        volume.remove_file(path).unwrap();
    }
    assert_eq!(volume.read_dir("/d").unwrap().count(), 0);
    volume.remove_dir("/d").unwrap();
    assert!(sim.record().is_empty());
}

#[test]
fn a_trailing_slash_requires_a_directory() {
    let machine = Machine::new();
    let volume = machine.volume();
    machine.make(&volume, "/f", b"of f");
    machine.make(&volume, "/g", b"of g");
    volume.create_dir("/d/").unwrap();
    volume.symlink("f", "/to_f").unwrap();
    volume.symlink("d", "/to_d").unwrap();
    volume.symlink("f/", "/to_f_slash").unwrap();
    volume.symlink("none", "/to_none").unwrap();

    // Missing names, and names that are not directories.
    for (path, expected) in [
        ("/f/", Errno::NOTDIR),
        ("/f//", Errno::NOTDIR),
        ("/to_f/", Errno::NOTDIR),
        ("/to_f_slash", Errno::NOTDIR),
        ("/none/", Errno::NOENT),
        ("/to_none/", Errno::NOENT),
    ] {
        assert_eq!(errno(volume.metadata(path)), expected, "{path}");
        assert_eq!(
            errno(volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true))),
            expected,
            "{path}"
        );
        assert_eq!(errno(volume.read_dir(path)), expected, "{path}");
        assert_eq!(errno(volume.list_xattrs(path, Follow::Yes)), expected, "{path}");
        let set = volume.set_attributes(path, Follow::Yes, |inode| inode.permissions = 0);
        assert_eq!(errno(set), expected, "{path}");
    }
    assert!(volume.symlink_metadata("/to_f_slash").unwrap().is_symlink());
    assert!(!volume.symlink_metadata("/to_d/").unwrap().is_symlink());

    // Names to be created.
    assert_eq!(errno(volume.open_with("/none/", create())), Errno::ISDIR);
    assert_eq!(errno(volume.open_with("/f/", create())), Errno::NOTDIR);
    assert_eq!(errno(volume.open_with("/d/", create())), Errno::ISDIR);
    assert_eq!(errno(volume.symlink("x", "/none/")), Errno::NOENT);
    assert_eq!(errno(volume.hard_link("/f", "/none/")), Errno::NOENT);
    assert_eq!(errno(volume.hard_link("/f/", "/new")), Errno::NOTDIR);
    assert_eq!(errno(volume.hard_link("/f", "/g/")), Errno::EXIST);

    // Names to be removed or renamed.
    assert_eq!(errno(volume.remove_file("/f/")), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_file("/to_d/")), Errno::NOTDIR);
    assert_eq!(errno(volume.remove_file("/d/")), Errno::ISDIR);
    assert_eq!(errno(volume.remove_file("/none/")), Errno::NOENT);
    assert_eq!(errno(volume.remove_dir("/to_d/")), Errno::NOTDIR);
    for how in [Rename::Replace, Rename::NoReplace] {
        assert_eq!(errno(volume.rename_with("/f", "/none/", how)), Errno::NOTDIR);
        assert_eq!(errno(volume.rename_with("/f/", "/new", how)), Errno::NOTDIR);
        assert_eq!(errno(volume.rename_with("/to_d/", "/new", how)), Errno::NOTDIR);
        assert_eq!(errno(volume.rename_with("/none/", "/new", how)), Errno::NOENT);
    }
    assert_eq!(errno(volume.rename("/f", "/d/")), Errno::NOTDIR);
    assert_eq!(errno(volume.rename_with("/d", "/g/", Rename::Exchange)), Errno::NOTDIR);
    volume.rename_with("/f", "/d", Rename::Exchange).unwrap();
    volume.rename_with("/f/", "/d", Rename::Exchange).unwrap();
    volume.rename("/d/", "/e/").unwrap();
    volume.rename_with("/e", "/d/", Rename::NoReplace).unwrap();
    assert_eq!(names(&volume, "/"), ["d", "f", "g", "to_d", "to_f", "to_f_slash", "to_none"]);
    assert_eq!(machine.contents(&volume, "/f"), b"of f");
    volume.remove_dir("/d//").unwrap();
}
