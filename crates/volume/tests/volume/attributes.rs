//! Attributes of files: owners, times, set-ID bits, extended attributes.

use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use uringfs_buffer::Buffer;
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::sim::{Crash, Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_file::{FallocateSize, File, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};
use uringfs_volume::{
    AtimePolicy, Credentials, Error, FileType, Follow, FormatOptions, Inode, OpenOptions, SetXattr,
    Time, Volume,
};

const USER: Credentials = Credentials::User { user: 1000, group: 100 };

/// An access control list without named entries, with a mask: a mode cannot express it.
const LIST: [u8; 36] = [
    2, 0, 0, 0, // version
    1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, // the owner
    4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff, // the group
    16, 0, 5, 0, 0xff, 0xff, 0xff, 0xff, // the mask
    32, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, // others
];

struct Machine {
    device: Device,
    reactor: Reactor,
}

impl Machine {
    fn new() -> Machine {
        let device = Device::new(Memory::new(32 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        Machine { device, reactor: Reactor::new(ReactorOptions::default()).unwrap() }
    }

    fn volume(&self) -> Volume {
        Volume::open_on(self.device.clone()).unwrap()
    }

    /// Writes by token, on the fast path where possible.
    fn write(&self, file: &File, length: usize) {
        self.reactor.write_at(file, Buffer::aligned(length, 4096), 0, Token::new(1)).unwrap();
        self.reap(length);
    }

    fn read(&self, file: &File) {
        self.reactor.read_at(file, Buffer::aligned(4096, 4096), 0, Token::new(1)).unwrap();
        self.reap(4096);
    }

    fn reap(&self, length: usize) {
        let mut completed = Vec::new();
        self.reactor.reap(1, None, &mut completed).unwrap();
        assert_eq!(completed[0].result(), Ok(length as u64));
    }

    fn count(&self, counter: Counter) -> u64 {
        self.reactor.counters().get(counter)
    }
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).direct(true)
}

fn inode(volume: &Volume, path: &str) -> Inode {
    volume.symlink_metadata(path).unwrap().into_inode()
}

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.map(drop).unwrap_err().errno()
}

/// Sets times in the past.
fn set_times(volume: &Volume, path: &str, accessed: Time, modified: Time) {
    let set = |inode: &mut Inode| {
        (inode.accessed, inode.modified) = (accessed, modified);
    };
    volume.set_attributes(path, Follow::No, set).unwrap();
}

#[test]
fn an_overwrite_updates_the_change_time_and_sync_keeps_it() {
    let machine = Machine::new();
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, 4096);
    volume.sync().unwrap();
    set_times(&volume, "/a", Time::from_nanoseconds(1), Time::from_nanoseconds(2));
    machine.write(&file, 4096);
    let moved = inode(&volume, "/a");
    assert!(
        moved.modified > Time::from_nanoseconds(2)
            && moved.changed >= moved.modified
            && moved.accessed == Time::from_nanoseconds(1)
    );
    machine.reactor.block_on(file.sync_all()).unwrap();
    // No sync follows: the volume stays as a power cut would leave it.
    let modified = inode(&volume, "/a").modified;
    drop((file, volume));
    assert_eq!(inode(&machine.volume(), "/a").modified, modified);
}

#[test]
fn sync_keeps_attributes_of_a_file_without_writes() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let (volume, reactor) =
        (Volume::open_on(device).unwrap(), Reactor::new(ReactorOptions::default()).unwrap());
    let left = || {
        let image = sim.crash_image(Crash::LoseAll);
        inode(&Volume::open_on(Device::new(image).unwrap()).unwrap(), "/a").permissions
    };
    let file = volume.open_with("/a", create()).unwrap();
    reactor.block_on(file.sync_all()).unwrap();
    assert_eq!(left(), 0o644);
    volume.set_attributes("/a", Follow::No, |inode| inode.permissions = 0o600).unwrap();
    reactor.block_on(file.sync_all()).unwrap();
    assert_eq!(left(), 0o600);
}

#[test]
fn overwrites_within_a_clock_tick_take_the_fast_path() {
    let machine = Machine::new();
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, 4096);
    let (before, shared) =
        (machine.count(Counter::SlowPath), machine.count(Counter::WriteUnlocked));
    for _ in 0..2000 {
        machine.write(&file, 4096);
    }
    assert_eq!(machine.count(Counter::WriteUnlocked), shared + 2000);
    // Once for each tick of the coarse clock, which ticks every few milliseconds.
    assert!(machine.count(Counter::SlowPath) < before + 2000);
}

#[test]
fn reads_update_the_access_time_by_relatime() {
    let machine = Machine::new();
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, 4096);
    set_times(&volume, "/a", Time::from_nanoseconds(1), Time::from_nanoseconds(2));
    let kept =
        OpenOptions::new().read(true).write(true).access_time(AtimePolicy::Never).direct(true);
    machine.read(&volume.open_with("/a", kept).unwrap());
    assert_eq!(inode(&volume, "/a").accessed, Time::from_nanoseconds(1));
    let refused = machine.count(Counter::FastPathAtime);
    machine.read(&file);
    let first = inode(&volume, "/a").accessed;
    assert!(first > Time::from_nanoseconds(2));
    assert_eq!(machine.count(Counter::FastPathAtime), refused + 1);
    let simple = machine.count(Counter::FastPathTaken);
    for _ in 0..100 {
        machine.read(&file);
    }
    assert_eq!(inode(&volume, "/a").accessed, first);
    assert_eq!(machine.count(Counter::FastPathTaken), simple + 100);
    drop((file, volume));
    assert_eq!(inode(&machine.volume(), "/a").accessed, first);
}

#[test]
fn every_change_by_a_user_clears_the_set_id_bits() {
    let machine = Machine::new();
    let volume = machine.volume();
    let mine = volume.open_with("/a", create()).unwrap();
    machine.write(&mine, 8192);
    let set = || {
        let set = |inode: &mut Inode| inode.permissions = 0o6755;
        volume.set_attributes("/a", Follow::No, set).unwrap();
    };
    let permissions = || inode(&volume, "/a").permissions;
    let options = OpenOptions::new().read(true).write(true).credentials(USER).direct(true);
    let theirs = volume.open_with("/a", options).unwrap();
    set();
    machine.write(&mine, 4096);
    machine.read(&theirs);
    assert_eq!(permissions(), 0o6755);
    machine.write(&theirs, 4096);
    assert_eq!(permissions(), 0o755);
    for operation in [
        theirs.set_len(5000),
        theirs.allocate(0, 9000, FallocateSize::Keep),
        theirs.punch_hole(0, 100),
        theirs.zero_range(0, 100, FallocateSize::Keep),
    ] {
        set();
        machine.reactor.block_on(operation).unwrap();
        assert_eq!(permissions(), 0o755);
    }
    set();
    volume.open_with("/a", options.truncate(true)).unwrap();
    assert_eq!((permissions(), mine.len()), (0o755, 0));
    // They own what they create.
    volume.open_with("/b", options.create(true).mode(0o600)).unwrap();
    let made = inode(&volume, "/b");
    assert_eq!((made.user, made.group), (1000, 100));
}

#[test]
fn what_a_program_makes_belongs_to_its_user() {
    let make = || {
        let machine = Machine::new();
        let volume = machine.volume();
        volume.write("/file", "").unwrap();
        volume.create_dir("/directory").unwrap();
        volume.symlink("file", "/link").unwrap();
        ["/", "/file", "/directory", "/link"].map(|path| {
            let made = volume.symlink_metadata(path).unwrap();
            (made.uid(), made.gid())
        })
    };
    let own = (geteuid().as_raw(), getegid().as_raw());
    assert_eq!(make(), [own; 4]);
    if !geteuid().is_root() {
        return println!("not exercised: a thread of another user, which root begins");
    }
    let of_another = std::thread::spawn(move || {
        let (user, group) = (Uid::from_raw(1234), Gid::from_raw(1235));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        make()
    });
    assert_eq!(of_another.join().unwrap(), [(1234, 1235); 4]);
}

#[test]
fn block_counts_are_right_for_open_and_closed_files() {
    let machine = Machine::new();
    let volume = machine.volume();
    let file = volume.open_with("/a", create()).unwrap();
    machine.write(&file, 8192);
    machine.reactor.block_on(file.allocate(1 << 20, 4096, FallocateSize::Extend)).unwrap();
    assert_eq!((inode(&volume, "/a").blocks, file.allocated()), (3, 3 * 4096));
    drop((file, volume));
    let volume = machine.volume();
    assert_eq!(inode(&volume, "/a").blocks, 3);
    volume.open_with("/a", create().truncate(true)).unwrap();
    assert_eq!(inode(&volume, "/a").blocks, 0);
}

#[test]
fn type_bits_in_permissions_do_not_change_the_kind() {
    let volume = Machine::new().volume();
    let mut new = Inode::new(FileType::Directory, 0o755);
    new.permissions |= 0o100_000;
    volume.mknod("/d", &new).unwrap();
    assert_eq!(
        (inode(&volume, "/d").kind, inode(&volume, "/d").permissions),
        (FileType::Directory, 0o755)
    );
    let set = |inode: &mut Inode| inode.permissions = 0o140_700;
    volume.set_attributes("/d", Follow::No, set).unwrap();
    assert_eq!(
        (inode(&volume, "/d").kind, inode(&volume, "/d").permissions),
        (FileType::Directory, 0o700)
    );
}

#[test]
fn devices_sockets_and_fifos_exist_without_content() {
    let machine = Machine::new();
    let kinds = [
        FileType::BlockDevice(0x801),
        FileType::CharacterDevice(0x10_0005),
        FileType::Fifo,
        FileType::Socket,
    ];
    let volume = machine.volume();
    for (index, kind) in kinds.into_iter().enumerate() {
        volume.mknod(format!("/{index}"), &Inode::new(kind, 0o640)).unwrap();
    }
    drop(volume);
    let volume = machine.volume();
    for (index, kind) in kinds.into_iter().enumerate() {
        let path = format!("/{index}");
        assert_eq!(inode(&volume, &path).kind, kind);
        assert_eq!(
            errno(volume.open_with(&path, OpenOptions::new().read(true).write(true).direct(true))),
            Errno::NXIO
        );
    }
}

#[test]
fn extended_attributes_are_set_read_listed_and_removed() {
    let machine = Machine::new();
    let volume = machine.volume();
    let create_file = |path: &str| drop(volume.open_with(path, create()).unwrap());
    create_file("/a");
    create_file("/ab");
    volume.symlink("a", "/s").unwrap();
    let set = |path: &str, name: &str, value: &[u8], how| {
        volume.set_xattr(path, Follow::No, name, value, how)
    };
    let get = |path: &str, name: &str| volume.get_xattr(path, Follow::Yes, name);
    set("/a", "user.one", b"1", SetXattr::Create).unwrap();
    set("/a", "trusted.two", b"", SetXattr::Either).unwrap();
    set("/a", "security.three", &[3; 65_536], SetXattr::Either).unwrap();
    set("/a", "system.posix_acl_access", &LIST, SetXattr::Either).unwrap();
    set("/ab", "user.other", b"other", SetXattr::Either).unwrap();
    assert_eq!(get("/s", "user.one").unwrap(), b"1");
    assert_eq!(errno(set("/a", "user.one", b"", SetXattr::Create)), Errno::EXIST);
    assert_eq!(errno(set("/a", "user.none", b"", SetXattr::Replace)), Errno::NODATA);
    set("/a", "user.one", b"2", SetXattr::Replace).unwrap();
    assert_eq!(errno(get("/a", "user.none")), Errno::NODATA);
    assert_eq!(errno(volume.remove_xattr("/a", Follow::No, "user.none")), Errno::NODATA);
    volume.remove_xattr("/a", Follow::No, "trusted.two").unwrap();
    drop(volume);
    let volume = machine.volume();
    let names = volume.list_xattrs("/a", Follow::No).unwrap();
    assert_eq!(names, [&b"security.three"[..], b"system.posix_acl_access", b"user.one"]);
    assert_eq!(volume.get_xattr("/a", Follow::No, "user.one").unwrap(), b"2");
    assert!(volume.get_xattr("/a", Follow::No, "security.three").unwrap() == [3; 65_536]);
    assert_eq!(volume.list_xattrs("/s", Follow::No).unwrap(), Vec::<Vec<u8>>::new());
    // Removing the file removes them.
    volume.remove_file("/a").unwrap();
    assert_eq!(errno(volume.list_xattrs("/a", Follow::No)), Errno::NOENT);
}

#[test]
fn extended_attributes_have_the_limits_of_linux() {
    let machine = Machine::new();
    let volume = machine.volume();
    volume.open_with("/a", create()).unwrap();
    volume.create_dir("/d").unwrap();
    volume.symlink("a", "/s").unwrap();
    volume.mknod("/p", &Inode::new(FileType::Fifo, 0o600)).unwrap();
    let set = |path: &str, name: &str, value: &[u8]| {
        volume.set_xattr(path, Follow::No, name, value, SetXattr::Either)
    };
    let longest = format!("user.{}", "n".repeat(250));
    set("/a", &longest, b"").unwrap();
    assert_eq!(errno(set("/a", &(longest + "n"), b"")), Errno::RANGE);
    assert_eq!(errno(set("/a", "", b"")), Errno::RANGE);
    assert_eq!(errno(set("/a", "user.x", &[0; 65_537])), Errno::TOOBIG);
    for name in ["user.", "x", "system.x", "btrfs.x", "system.posix_acl_accessx"] {
        assert_eq!(errno(set("/a", name, b"")), Errno::OPNOTSUPP, "{name}");
    }
    assert_eq!(errno(set("/s", "user.x", b"")), Errno::PERM);
    assert_eq!(errno(set("/p", "user.x", b"")), Errno::PERM);
    set("/s", "trusted.x", b"").unwrap();
    assert_eq!(errno(set("/s", "system.posix_acl_access", b"")), Errno::OPNOTSUPP);
    set("/d", "system.posix_acl_default", &LIST).unwrap();
    assert_eq!(errno(set("/d", "system.posix_acl_default", &LIST[1..])), Errno::INVAL);
    assert_eq!(errno(set("/a", "system.posix_acl_default", &LIST)), Errno::ACCESS);
    // All names of a file fit into one list.
    let refused = (0..).find_map(|n| set("/d", &format!("user.{n:0245}"), b"").err()).unwrap();
    assert_eq!(refused.errno(), Errno::NOSPC);
    let listed: usize =
        volume.list_xattrs("/d", Follow::No).unwrap().iter().map(|name| name.len() + 1).sum();
    assert!(listed <= 65_536 && listed > 65_000, "{listed}");
}
