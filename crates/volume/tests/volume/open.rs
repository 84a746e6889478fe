//! Opening a file: buffered by default, direct on request.

use std::path::Path;

use rustix::fs::{major, minor, stat};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Access, Device, Errno, Op};
use uringfs_file::{Advice, FallocateSize, File, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};
use uringfs_volume::{AsyncVolume, Error, FormatOptions, OpenOptions, Volume, VolumeOptions};

use crate::fixture::{self, formatted, reactor};
use crate::loop_device::{LoopDevice, is_root};

#[test]
fn a_file_is_opened_buffered_unless_direct_is_requested() {
    let sim = Sim::new(SimOptions::new(32 << 20));
    drop(formatted(&sim));
    let cache = Cache::new(1 << 20);
    let options = VolumeOptions::new().page_cache(cache.clone());
    let volume = options.open_on(Device::new(sim).unwrap()).unwrap();
    let reactor = reactor();
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600);
    let file = volume.open_with("/a", create).unwrap();
    let direct =
        volume.open_with("/a", OpenOptions::new().read(true).write(true).direct(true)).unwrap();

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
    let create = |exclusive| {
        OpenOptions::new().read(true).write(true).create(true).mode(0o600).create_new(exclusive)
    };
    volume.create_dir("/d").unwrap();
    volume.open_with("/f", create(true)).unwrap();
    for (link, target) in LINKS {
        volume.symlink(target, format!("/{link}")).unwrap();
    }
    let error = volume.open_with(link, create(exclusive)).err().map(|error| error.errno());
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

#[test]
fn a_handle_writes_only_if_it_was_opened_for_writing() {
    let volume = fixture::formatted(&Sim::new(SimOptions::new(16 << 20)));
    volume.write("/a", "text").unwrap();
    let refused = |error: Result<File, Error>| error.err().unwrap().errno();
    for options in [OpenOptions::new().read(true), OpenOptions::new().read(true).direct(true)] {
        let file = options.open(&volume, "/a").unwrap();
        assert_eq!(file.read_at(Buffer::zeroed(10), 0).wait().0, Ok(4));
        for file in [file.direct(), file.buffered(&Cache::new(1 << 20)), file] {
            let bytes = || Buffer::copy_of(&[1; 4096]);
            assert_eq!(file.write_at(bytes(), 0).wait().0, Err(Errno::BADF));
            assert_eq!(file.write_atomic(bytes(), 0).wait().0, Err(Errno::BADF));
            assert_eq!(file.append(bytes()).wait().0, Err(Errno::BADF));
            assert_eq!(file.set_len(0).wait(), Err(Errno::BADF));
            assert_eq!(file.discard(0, 4).wait(), Err(Errno::BADF));
            assert_eq!(file.write_zeroes(0, 4).wait(), Err(Errno::BADF));
            assert_eq!(file.sync_all().wait(), Ok(()));
        }
        for options in [options.create(true), options.create_new(true), options.truncate(true)] {
            assert_eq!(refused(options.open(&volume, "/b")), Errno::INVAL);
        }
    }
    assert_eq!(
        refused(OpenOptions::new().read(true).write(true).create_new(true).open(&volume, "/a")),
        Errno::EXIST
    );
    assert_eq!(volume.read("/a").unwrap(), b"text");
    let created = volume.create_file("/a").unwrap();
    assert_eq!((created.len(), volume.metadata("/a").unwrap().mode()), (0, 0o100_644));
    assert_eq!(created.write_at(Buffer::copy_of(b"new"), 0).wait().0, Ok(3));
    assert_eq!(volume.open_file("/a").unwrap().len(), 3);
}

#[test]
fn a_handle_without_read_refuses_all_reads() {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    volume.write("/a", [7; 8192]).unwrap();
    let reactor = reactor();
    for direct in [false, true] {
        let file = OpenOptions::new().write(true).direct(direct).open(&volume, "/a").unwrap();
        // A write of part of a block reads the rest of it, with or without the permission to read.
        assert_eq!(reactor.block_on(file.write_at(Buffer::copy_of(b"part"), 100)).0, Ok(4));
        file.sync_all().wait().unwrap();
        for file in [file.clone(), file.direct(), file.buffered(&Cache::of_process())] {
            for length in [0, 3, 4096] {
                let read = file.read_at(Buffer::zeroed(length), 0);
                assert_eq!(reactor.block_on(read).0, Err(Errno::BADF), "{length} bytes");
                assert_eq!(file.read_at(Buffer::zeroed(length), 0).wait().0, Err(Errno::BADF));
            }
            let read = file.read_vectored_at(vec![Buffer::zeroed(4096), Buffer::zeroed(8)], 0);
            assert_eq!(reactor.block_on(read).0, Err(Errno::BADF));
            reactor.read_at(&file, Buffer::zeroed(4096), 0, Token::new(1)).unwrap();
            let mut completed = Vec::new();
            reactor.reap(1, None, &mut completed).unwrap();
            assert_eq!(completed[0].result(), Err(Errno::BADF));
            assert_eq!(file.try_read_at(&mut [0; 4], 0), Err(Errno::BADF));
            assert_eq!(file.page(0).err(), Some(Errno::BADF));
        }
    }
    let content = volume.read("/a").unwrap();
    assert_eq!(
        (&content[96..108], content.len()),
        (&b"\x07\x07\x07\x07part\x07\x07\x07\x07"[..], 8192)
    );
}

#[test]
fn without_read_and_write_nothing_is_opened() {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    volume.write("/a", b"text").unwrap();
    for options in [OpenOptions::new(), OpenOptions::new().create(true)] {
        assert_eq!(options.open(&volume, "/a").unwrap_err().errno(), Errno::INVAL);
    }
}

#[test]
fn a_volume_is_created_opened_and_closed_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let errno = |result: Result<Volume, Error>| result.err().unwrap().errno();
    let message = |result: Result<Volume, Error>| result.err().unwrap().to_string();
    let shown = path.display();
    assert_eq!(
        message(Volume::open(&path)),
        format!("{shown} does not exist; check the name, or make a volume with `Volume::create`")
    );
    assert_eq!(
        message(Volume::create(&path, &FormatOptions::new())),
        format!("'{shown}': a new file needs a size: give it with `FormatOptions::size`")
    );
    assert_eq!(errno(Volume::create(&path, &FormatOptions::new().size(4096))), Errno::INVAL);
    assert!(!path.exists());
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let no_volume = message(Volume::open(&path));
    assert!(
        no_volume.starts_with(&format!("'{shown}': this is not a uringfs volume")),
        "{no_volume}"
    );
    std::fs::remove_file(&path).unwrap();
    let options = FormatOptions::new().size(16 << 20).label("new");
    let volume = Volume::create(&path, &options).unwrap();
    for options in [&options, &FormatOptions::new()] {
        let refused = Volume::create(&path, options).err().unwrap();
        assert_eq!(refused.errno(), Errno::EXIST);
        assert!(refused.to_string().contains("`FormatOptions::overwrite`"), "{refused}");
    }
    assert_eq!(errno(Volume::open(&path)), Errno::BUSY);
    volume.write("/a", "text").unwrap();
    volume.close().unwrap();

    let readers = [(); 2].map(|()| VolumeOptions::new().read_only(true).open(&path).unwrap());
    for volume in readers {
        assert!(volume.is_read_only());
        assert_eq!((volume.label(), volume.read("/a").unwrap()), ("new", b"text".to_vec()));
        let refused = OpenOptions::new().read(true).write(true).open(&volume, "/a").err().unwrap();
        assert_eq!(refused.errno(), Errno::ROFS);
        assert_eq!(refused.to_string(), "'/a': the volume is open for reading only");
        let busy = message(Volume::open(&path));
        assert!(busy.ends_with("for reading only; close that handle first"), "{busy}");
        volume.close().unwrap();
    }
    let volume = Volume::open(&path).unwrap();
    let file = volume.open_file("/a").unwrap();
    assert_eq!(volume.clone().close().unwrap_err().errno(), Errno::BUSY);
    assert_eq!(volume.close().unwrap_err().errno(), Errno::BUSY);
    assert_eq!(file.read_at(Buffer::zeroed(4), 0).wait().0, Ok(4));
    drop(file);
    let volume = Volume::create(&path, &FormatOptions::new().overwrite(true)).unwrap();
    assert!(!volume.exists("/a").unwrap());
    volume.close().unwrap();
}

#[test]
fn a_volume_reopens_at_once_after_operations_on_a_background_reactor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let volume = Volume::create(&path, &FormatOptions::new().size(16 << 20)).unwrap();
    volume.write("/a", [7; 8192]).unwrap();
    volume.close().unwrap();
    fn text() -> Buffer {
        Buffer::copy_of(b"text")
    }
    type NamedOperation = (&'static str, fn(&File));
    let operations: [NamedOperation; 13] = [
        ("read", |file| assert!(file.read_at(Buffer::zeroed(100), 0).wait().0.unwrap() > 0)),
        ("buffered read", |file| {
            let file = file.buffered(&Cache::of_process());
            file.read_at(Buffer::zeroed(100), 0).wait().0.unwrap();
        }),
        ("write", |file| assert!(file.write_at(text(), 0).wait().0.unwrap() > 0)),
        ("durable write", |file| assert!(file.write_durably(text(), 0).wait().0.unwrap() > 0)),
        ("atomic write", |file| {
            file.write_atomic(Buffer::zeroed(4096), 0).wait().0.unwrap();
        }),
        ("append", |file| assert!(file.append_durably(text()).wait().0.unwrap() >= 8192)),
        ("sync", |file| file.sync_all().wait().unwrap()),
        ("resize", |file| file.set_len(8192).wait().unwrap()),
        ("allocate", |file| file.allocate(0, 8192, FallocateSize::Keep).wait().unwrap()),
        ("zeros", |file| file.write_zeroes(0, 10).wait().unwrap()),
        ("discard", |file| file.discard(0, 4096).wait().unwrap()),
        ("advice", |file| file.advise(Advice::WillNeed, 0, 4096).wait().unwrap()),
        ("refused write", |file| {
            assert_eq!(file.write_at(text(), u64::MAX).wait().0, Err(Errno::FBIG));
        }),
    ];
    let open = OpenOptions::new().read(true).write(true).direct(true);
    for round in 0..4 {
        for (name, operation) in operations {
            let volume = Volume::open(&path);
            let volume = volume.unwrap_or_else(|error| panic!("round {round}, {name}: {error}"));
            let file = open.open(&volume, "/a").unwrap();
            operation(&file);
            drop((file, volume));
            let device = Device::open(&path, Access::ReadWrite).unwrap();
            Volume::set_label(&device, "new")
                .unwrap_or_else(|error| panic!("round {round}, after {name}: {error}"));
        }
    }
}

#[test]
fn a_volume_closes_at_once_after_a_sync_of_a_buffered_file() {
    let volume = fixture::formatted(&Sim::new(SimOptions::new(16 << 20)));
    let file = volume.create_file("/a").unwrap();
    // Two runs of write-back. The flusher of the file is still there when it is closed.
    for offset in [0, 100_000] {
        file.write_at(Buffer::copy_of(b"text"), offset).wait().0.unwrap();
    }
    file.sync_all().wait().unwrap();
    drop(file);
    volume.close().unwrap();
}

#[test]
fn close_reports_a_commit_that_failed() {
    let sim = Sim::new(SimOptions::new(16 << 20));
    let volume = fixture::formatted(&sim);
    volume.create_dir("/d").unwrap();
    sim.fail_nth(Op::Flush, 1, Errno::IO);
    assert_eq!(volume.close().unwrap_err().errno(), Errno::IO);
}

#[test]
fn a_volume_is_created_opened_and_closed_in_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Reactor::new(ReactorOptions::new()).unwrap().block_on(async {
        let missing = AsyncVolume::open(&path).await.unwrap_err();
        assert_eq!((missing.errno(), missing.path()), (Errno::NOENT, Some(&*path)));
        let options = FormatOptions::new().size(64 << 20);
        let volume = AsyncVolume::create(&path, &options).await.unwrap();
        let exists = AsyncVolume::create(&path, &options).await.unwrap_err();
        assert_eq!((exists.errno(), exists.path()), (Errno::EXIST, Some(&*path)));
        volume.write("/a", "text").await.unwrap();
        let clone = volume.clone();
        assert_eq!(clone.close().await.unwrap_err().errno(), Errno::BUSY);
        volume.close().await.unwrap();

        let volume = VolumeOptions::new().read_only(true).open_async(&path).await.unwrap();
        assert_eq!(volume.read("/a").await.unwrap(), b"text");
        volume.close().await.unwrap();
        // The last commit fails.
        let sim = Sim::new(SimOptions::new(16 << 20));
        let volume = fixture::formatted(&sim).as_async();
        volume.create_dir("/d").await.unwrap();
        sim.fail_nth(Op::Flush, 1, Errno::IO);
        assert_eq!(volume.close().await.unwrap_err().errno(), Errno::IO);
    });
}

#[test]
fn a_raw_handle_for_writing_and_an_open_volume_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let [path, hard_link, symlink] = ["image", "hard", "soft"].map(|name| folder.path().join(name));
    Volume::create(&path, &FormatOptions::new().size(16 << 20)).unwrap().close().unwrap();
    std::fs::hard_link(&path, &hard_link).unwrap();
    std::os::unix::fs::symlink(&path, &symlink).unwrap();
    exclude_each_other(&[&path, &hard_link, &symlink], 2);
}

#[test]
fn a_raw_handle_and_an_open_volume_on_a_block_device_exclude_each_other_as_root() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 16 << 20, &[]);
    let [symlink, node] = ["soft", "node"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink(&disk.path, &symlink).unwrap();
    let number = stat(&disk.path).unwrap().st_rdev;
    let by_number = format!("/dev/block/{}:{}", major(number), minor(number));
    let device = Device::open(&disk.path, Access::ReadWrite).unwrap();
    Volume::create_on(device, &FormatOptions::new().overwrite(true)).unwrap().close().unwrap();
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, 0o600.into(), number).unwrap();
    let mut paths: Vec<&Path> = vec![&disk.path, &symlink, &node];
    // udev makes this name, and not every system has it.
    paths.extend(Path::new(&by_number).exists().then_some(Path::new(&by_number)));
    // The kernel allows one exclusive opener of a block device.
    exclude_each_other(&paths, 1);
}

/// `paths` are names of one file or device, which has a volume and can have so many raw handles for writing.
fn exclude_each_other(paths: &[&Path], raw_handles: usize) {
    for first in paths {
        let volume = Volume::open(first).unwrap();
        for path in paths {
            let refused = File::open(path, Access::ReadWrite).err().unwrap();
            assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy, "{refused}");
            assert_eq!(refused.to_string().matches(path.to_str().unwrap()).count(), 1, "{refused}");
        }
        let reader = File::open(first, Access::Read).unwrap();
        volume.close().unwrap();

        let raw: Vec<File> =
            (0..raw_handles).map(|_| File::open(first, Access::ReadWrite).unwrap()).collect();
        let clone = raw[0].clone();
        drop(raw);
        for path in paths {
            assert_eq!(Volume::open(path).unwrap_err().errno(), Errno::BUSY);
            let refused = VolumeOptions::new().read_only(true).open(path).unwrap_err();
            assert_eq!(refused.errno(), Errno::BUSY);
        }
        drop(clone);
        Volume::open(first).unwrap().close().unwrap();
        drop(reader);
    }
}
