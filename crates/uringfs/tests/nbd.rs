//! Files and volumes on exports of NBD servers, through reactors.

#[path = "../../device/tests/harness/nbd_peer.rs"]
#[allow(dead_code)]
mod nbd_peer;
#[path = "../../device/tests/harness/nbd_server.rs"]
#[allow(dead_code)]
mod nbd_server;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use nbd_peer::{ALL_FLAGS, CachedDisk, Cut, Offer, cached_disk};
use nbd_server::NbdServer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs::device::backend::nbd::{Nbd, NbdTarget};
use uringfs::device::{Access, Device, Target};
use uringfs::file::FileOptions;
use uringfs::volume::CheckOptions;
use uringfs::{
    Buffer, File, FormatOptions, OpenOptions, Reactor, ReactorOptions, Token, Tokens, Volume,
};
use uringfs_nbd_protocol::handshake::export_flags;

const SIZE: u64 = 64 << 20;

fn device(target: &NbdTarget) -> Device {
    Device::new(Nbd::open(target, Access::ReadWrite).unwrap()).unwrap()
}

fn image(folder: &Path) -> String {
    let path = folder.join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Servers with one connection for all, and with several.
fn commands(image: &str) -> [String; 3] {
    [
        format!("nbdkit -f memory {SIZE}"),
        format!("nbdkit -f --filter=multi-conn file {image} multi-conn-mode=disable"),
        format!("qemu-nbd -t -e 0 -f raw {image}"),
    ]
}

#[test]
fn a_volume_grows_with_its_export() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let server = NbdServer::start(folder.path(), &format!("nbdkit -f file {image}"));
    let device = device(&server.target(""));
    let volume = Volume::create_on(device.clone(), &FormatOptions::new()).unwrap();
    volume.write("/before", [4; 100_000]).unwrap();
    std::fs::File::options().write(true).open(&image).unwrap().set_len(2 * SIZE).unwrap();
    volume.resize(2 * SIZE).unwrap();
    volume.write("/after", vec![5; 80 << 20]).unwrap();
    volume.close().unwrap();
    let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(volume.read("/before").unwrap(), [4; 100_000]);
    assert_eq!(volume.read("/after").unwrap(), vec![5; 80 << 20]);
}

#[test]
fn reactors_in_several_threads_use_one_export() {
    let folder = tempfile::tempdir().unwrap();
    for command in commands(&image(folder.path())) {
        let socket = tempfile::tempdir().unwrap();
        let server = NbdServer::start(socket.path(), &command);
        let target: Target = server.target("").to_string().parse().unwrap();
        let file =
            File::from_device(target.open(Access::ReadWrite).unwrap(), FileOptions::default());
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            for thread in 0..3u64 {
                let (file, barrier) = (&file, &barrier);
                scope.spawn(move || {
                    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                    let (name, _) = reactor.queue_of(file.device()).unwrap();
                    assert_eq!(name, "own");
                    let offset = |number| (3 * number + thread) * 4096;
                    for number in 0..200 {
                        let buffer = Buffer::copy_of(&[(number + thread) as u8; 4096]);
                        reactor.write_at(file, buffer, offset(number), Token::new(number)).unwrap();
                    }
                    let mut completed = Vec::new();
                    while completed.len() < 200 {
                        reactor.reap(1, None, &mut completed).unwrap();
                    }
                    assert!(completed.drain(..).all(|one| one.result() == Ok(4096)));
                    assert_eq!(reactor.block_on(file.sync_all()), Ok(()));
                    barrier.wait();
                    // Blocks that another thread has written, by another connection.
                    let other = (thread + 1) % 3;
                    let offset = |number| (3 * number + other) * 4096;
                    for number in 0..200 {
                        let read = file.read_at(Buffer::zeroed(4096), offset(number));
                        let (read, found) = reactor.block_on(read);
                        assert_eq!(read, Ok(4096));
                        assert_eq!(found[..], [(number + other) as u8; 4096]);
                    }
                });
            }
        });
    }
}

#[test]
fn a_foreign_loop_waits_for_an_export() {
    let folder = tempfile::tempdir().unwrap();
    let server = NbdServer::start(folder.path(), "nbdkit -f --filter=delay memory 1M rdelay=5ms");
    let file = File::from_device(device(&server.target("")), FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let descriptor = reactor.fd().unwrap();
    for number in 0..20 {
        reactor.read_at(&file, Buffer::zeroed(4096), number * 4096, Token::new(number)).unwrap();
        let mut completed = Vec::new();
        loop {
            reactor.turn().unwrap();
            reactor.reap(0, None, &mut completed).unwrap();
            if !completed.is_empty() {
                break;
            }
            let most = Timespec { tv_sec: 30, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&most));
            assert_eq!(woken, Ok(1), "nothing came in 30 seconds");
        }
        assert_eq!(completed[0].result(), Ok(4096));
    }
}

#[test]
fn a_reactor_with_an_idle_export_sleeps() {
    let folder = tempfile::tempdir().unwrap();
    let disk = CachedDisk::new(1 << 20);
    let peer = cached_disk(folder.path(), &disk, Offer::new(1 << 20, ALL_FLAGS), vec![]);
    let file = File::from_device(device(&peer.target()), FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let read = |reactor: &Reactor| {
        let (read, _) = reactor.block_on(file.read_at(Buffer::zeroed(4096), 0));
        assert_eq!(read, Ok(4096));
    };
    read(&reactor);
    // Its socket is readable from now on, and no request waits for it.
    peer.cut();
    let sleeps = || reactor.counters().get(uringfs::reactor::Counter::Sleeps);
    let before = sleeps();
    reactor.block_on(reactor.sleep(Duration::from_millis(200)));
    assert!(sleeps() - before < 10, "{} sleeps", sleeps() - before);
    read(&reactor);
}

fn write(volume: &Volume, path: &str, bytes: &[u8]) -> uringfs::Result<()> {
    let create = OpenOptions::new().read(true).write(true).create(true).truncate(true);
    let file = create.open(volume, path)?;
    let (written, _) = file.write_at(Buffer::copy_of(bytes), 0).wait();
    written?;
    Ok(file.sync_all().wait()?)
}

fn check(device: &Device, what: &str) {
    let report = Volume::check(device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

#[test]
fn a_volume_is_made_and_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    for command in commands(&image(folder.path())) {
        let socket = tempfile::tempdir().unwrap();
        let server = NbdServer::start(socket.path(), &command);
        let target = server.target("");
        let options = FormatOptions::new().overwrite(true);
        let volume = Volume::create_on(device(&target), &options).unwrap();
        volume.create_dir("/d").unwrap();
        let content = |number: usize| vec![number as u8; 1 + number * 777];
        for number in 0..50 {
            write(&volume, &format!("/d/{number}"), &content(number)).unwrap();
        }
        let second = Volume::open_on(device(&target.clone().with_timeout(Duration::from_secs(9))));
        let second = second.map(drop).unwrap_err();
        assert_eq!(second.errno(), uringfs::Errno::BUSY, "{command}: {second}");
        volume.close().unwrap();
        check(&device(&target), &command);
        let volume = Volume::open_on(device(&target)).unwrap();
        for number in 0..50 {
            assert_eq!(volume.read(format!("/d/{number}")).unwrap(), content(number), "{command}");
        }
    }
}

/// Writes files until the first error. Returns those that were synced.
fn fill(device: Device) -> BTreeMap<String, Vec<u8>> {
    let mut synced = BTreeMap::new();
    let Ok(volume) = Volume::open_on(device) else { return synced };
    for number in 0..6usize {
        let (path, bytes) = (format!("/{}", number % 4), vec![number as u8 + 1; 5000 + number]);
        match write(&volume, &path, &bytes) {
            Ok(()) => drop(synced.insert(path, bytes)),
            Err(_) => {
                // It may have been truncated, or have the new bytes.
                synced.remove(&path);
                break;
            }
        }
    }
    let _ = volume.close();
    synced
}

#[test]
fn a_volume_has_all_that_was_synced_when_its_server_is_killed_at_any_message() {
    const SIZE: usize = 16 << 20;
    let folder = tempfile::tempdir().unwrap();
    for flags in [ALL_FLAGS, ALL_FLAGS | export_flags::CAN_MULTI_CONN] {
        let offer = Offer::new(SIZE as u64, flags);
        let empty = CachedDisk::new(SIZE);
        let formatting = cached_disk(folder.path(), &empty, offer.clone(), vec![]);
        let volume = Volume::create_on(device(&formatting.target()), &FormatOptions::new());
        volume.unwrap().close().unwrap();
        drop(formatting);
        let run = |cuts: Vec<Cut>| {
            let disk = CachedDisk::with_content(empty.stable());
            let what = format!("{cuts:?}");
            let peer = cached_disk(folder.path(), &disk, offer.clone(), cuts);
            let synced = fill(device(&peer.target()));
            let messages = peer.messages();
            // After the cut, only the bytes on the medium are found.
            peer.cut();
            check(&device(&peer.target()), &what);
            let volume = Volume::open_on(device(&peer.target())).unwrap();
            for (path, bytes) in &synced {
                assert_eq!(volume.read(path).unwrap(), *bytes, "{what}: {path}");
            }
            (messages, synced.len())
        };
        let (messages, all) = run(vec![]);
        assert_eq!(all, 4);
        let (mut runs, mut interrupted) = (0, 0);
        for after in (8..messages).step_by(messages as usize / 40) {
            let in_the_middle = after % 2 == 1;
            let (_, synced) = run(vec![Cut { after, in_the_middle }]);
            runs += 1;
            interrupted += usize::from(synced < all);
        }
        println!("{messages} messages, {runs} runs, {interrupted} of them ended by an error");
        assert!(0 < interrupted && interrupted < runs);
    }
}
