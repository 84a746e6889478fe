//! Opening a file: buffered by default, direct on request.

mod fixture;

use fixture::{formatted, reactor};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_reactor::Counter;
use uringfs_volume::{OpenOptions, Volume, VolumeOptions};

#[test]
fn a_file_is_opened_buffered_unless_direct_is_requested() {
    let sim = Sim::new(SimOptions::new(32 << 20));
    drop(formatted(&sim));
    let cache = Cache::new(1 << 20);
    let options = VolumeOptions { page_cache: Some(cache.clone()), ..VolumeOptions::default() };
    let volume = Volume::open_with(Device::new(sim).unwrap(), &options).unwrap();
    let reactor = reactor();
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/a", create).unwrap();
    let direct = volume.open("/a", OpenOptions::direct()).unwrap();

    reactor.block_on(file.write_at(Buffer::copy_of(b"hello"), 3)).0.unwrap();
    assert_eq!(reactor.counters().get(Counter::CacheDirtied), 1);
    assert_eq!(cache.statistics().dirty_bytes, 4096);
    let mut found = [0; 5];
    assert_eq!((file.try_read_at(&mut found, 3), &found), (Ok(5), b"hello"));
    // One file for both kinds of handle, each of which gives access to the other kind.
    assert_eq!(direct.try_read_at(&mut found, 3), Err(Errno::AGAIN));
    for other in [&direct, &file.direct()] {
        assert_eq!(&reactor.block_on(other.read_at(Buffer::zeroed(5), 3)).1[..], b"hello");
    }
    assert_eq!(cache.statistics().dirty_bytes, 0);
    assert_eq!(direct.buffered(&cache).try_read_at(&mut found, 3), Ok(5));
}

#[test]
fn a_volume_without_its_own_page_cache_uses_the_process_wide_one() {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/a", create).unwrap();
    let before = Cache::of_process().statistics().used_bytes;
    reactor().block_on(file.write_at(Buffer::copy_of(&[7; 8192]), 0)).0.unwrap();
    assert_eq!(Cache::of_process().statistics().used_bytes, before + 8192);
}

/// Symbolic links, each with its target.
const LINKS: [(&str, &str); 8] = [
    ("new", "made"),
    ("in_directory", "d/made"),
    ("chain", "new"),
    ("nowhere", "missing/made"),
    ("through_file", "f/made"),
    ("slash", "made/"),
    ("up", "d/../made"),
    ("loop", "loop"),
];

/// Opens a link with create in a new volume. Returns the error, and the names of files afterwards.
fn create_in_volume(link: &str, exclusive: bool) -> (Option<Errno>, Vec<String>) {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    let create = |exclusive| OpenOptions { create: Some(0o600), exclusive, ..Default::default() };
    volume.create_dir("/d").unwrap();
    volume.open("/f", create(true)).unwrap();
    for (link, target) in LINKS {
        volume.symlink(target, format!("/{link}")).unwrap();
    }
    let error = volume.open(link, create(exclusive)).err().map(|error| error.errno());
    let names = |directory: &str| volume.read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let all = names("/").chain(names("/d"));
    let files = all.filter(|entry| entry.file_type().is_file());
    (error, files.map(|entry| entry.file_name().into_string().unwrap()).collect())
}

/// The same in a directory of the kernel's file system.
fn create_in_kernel(link: &str, exclusive: bool) -> (Option<Errno>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("d")).unwrap();
    std::fs::write(at("f"), "").unwrap();
    for (link, target) in LINKS {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    let mut options = std::fs::OpenOptions::new();
    let opened = options.write(true).create(true).create_new(exclusive).open(at(&link[1..]));
    let error = opened.err().and_then(|error| Errno::from_io_error(&error));
    let names = |directory: &str| std::fs::read_dir(at(directory)).unwrap();
    let all = names("").chain(names("d")).map(Result::unwrap);
    let files = all.filter(|entry| entry.file_type().unwrap().is_file());
    (error, files.map(|entry| entry.file_name().into_string().unwrap()).collect())
}

#[test]
fn create_follows_dangling_links_as_the_kernel_does() {
    for (link, target) in LINKS {
        for exclusive in [false, true] {
            let (link, sorted) = (format!("/{link}"), |(error, mut names): (_, Vec<_>)| {
                names.sort();
                (error, names)
            });
            let ours = sorted(create_in_volume(&link, exclusive));
            let kernels = sorted(create_in_kernel(&link, exclusive));
            assert_eq!(ours, kernels, "{link} -> {target}, exclusive: {exclusive}");
        }
    }
}
