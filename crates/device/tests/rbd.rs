//! Images of Ceph's RBD, on clusters of one or two storage daemons: what librbd stores is a device.

mod harness;

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::ceph::{CephCluster, TestImage, until};
use harness::model::{SIZE, run};
use harness::{TestQueue, poll_in};
use rustix::process::{Pid, Signal, kill_process};
use uringfs_buffer::Buffer;
use uringfs_device::backend::rbd::{Rbd, RbdAdmin, RbdTarget};
use uringfs_device::{Access, Backend, Device, Errno, Op, Payload, Ready, Request, Tag};

fn buffer(length: usize, byte: u8) -> Payload {
    Payload::Buffer(Buffer::copy_of(&vec![byte; length]))
}

fn write(tested: &mut TestQueue, address: u64, length: usize, byte: u8) {
    let request = tested.request(Op::Write, address, buffer(length, byte), 0);
    assert_eq!(tested.run(request).1, Ok(length as u64));
}

fn open(target: &RbdTarget) -> TestQueue {
    TestQueue::own(Device::new(Rbd::open(target, Access::ReadWrite).unwrap()).unwrap())
}

/// The address of its client.
fn address(device: &Device) -> String {
    device.properties()[1].value.clone()
}

/// Turns the queue, which begins no renewal otherwise, until this is so. Returns what has ended.
fn turn_until(
    tested: &mut TestQueue,
    is_so: impl Fn(&TestQueue) -> bool,
) -> Vec<(Request, Result<u64, Errno>)> {
    let mut ended = Vec::new();
    let until = Instant::now() + Duration::from_secs(600);
    while !is_so(tested) {
        assert!(tested.queue.in_flight() > 0, "all have ended: {ended:?}");
        assert!(Instant::now() < until, "nothing has come of it in ten minutes");
        tested.queue.submit().unwrap();
        if let Ready::Readable(event) = tested.queue.ready() {
            let _ = poll_in(event, Duration::from_millis(100));
        }
        tested.reap(&mut ended);
    }
    ended
}

/// Whether an entry of the blocklist ends in about ten years.
fn ends_in_ten_years(until: &str) -> bool {
    let year = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec / 31_556_952;
    // Ten times 365 days may end in the ninth year.
    until[..4].parse::<i64>().is_ok_and(|found| found >= 1970 + year + 9)
}

fn refusal(target: &RbdTarget, access: Access) -> (ErrorKind, String) {
    let error = Rbd::open(target, access).expect_err("refused");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    (error.kind(), text)
}

#[test]
fn an_image_agrees_with_the_model() {
    let cluster = CephCluster::get();
    for options in ["", "&cache=on"] {
        for (seed, unit) in [(1, 4096), (2, 512)] {
            let image = cluster.image(SIZE);
            let target = image.target_with("", options);
            let backend = Rbd::open(&target, Access::ReadWrite).unwrap();
            let mut tested = TestQueue::own(Device::new(backend).unwrap());
            let geometry = tested.device.geometry();
            let caches = (geometry.volatile_cache, geometry.cached_in_process);
            assert_eq!(caches, (!options.is_empty(), !options.is_empty()));
            let model = run(&mut tested, seed, unit);
            drop(tested);
            let exported = image.export();
            let differs = exported
                .iter()
                .zip(&model.bytes)
                .position(|(found, expected)| expected.is_some_and(|expected| expected != *found));
            assert_eq!((differs, exported.len() as u64), (None, SIZE), "{target}: rbd export");
        }
    }
}

#[test]
fn fio_reads_what_we_write_and_we_read_what_fio_writes() {
    let cluster = CephCluster::get();
    let image = cluster.image(8 << 20);
    let fio = |keys: &[&str]| {
        let name = format!("--rbdname={}", image.name);
        let output = Command::new("fio")
            .args([
                "--name=job",
                "--ioengine=rbd",
                "--pool=rbd",
                "--clientname=admin",
                "--direct=1",
            ])
            .args([&name, "--size=8m", "--bs=4k", "--iodepth=16", "--verify=crc32c"])
            .args(keys)
            .env("CEPH_CONF", cluster.configuration())
            .current_dir(cluster.folder())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    fio(&["--rw=randwrite", "--do_verify=0"]);
    let mut bytes = Vec::new();
    {
        let mut tested = TestQueue::own(image.open(Access::ReadWrite));
        (0..8).for_each(|part| bytes.extend(tested.read(part << 20, 1 << 20)));
        assert!(bytes == image.export(), "other bytes than rbd export's");
        assert!(bytes.chunks(4096).all(|block| block[..2] == 0xacca_u16.to_le_bytes()));
        // The bytes of fio, at the same places, from here.
        for part in 0..8u64 {
            write(&mut tested, part << 20, 1 << 20, 0);
            let part_bytes = &bytes[(part as usize) << 20..][..1 << 20];
            let payload = Payload::Buffer(Buffer::copy_of(part_bytes));
            let request = tested.request(Op::Write, part << 20, payload, 0);
            assert_eq!(tested.run(request).1, Ok(1 << 20));
        }
    }
    fio(&["--rw=randwrite", "--verify_only"]);
}

#[test]
fn a_second_writer_is_refused_and_told_who_has_the_image() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let mut first = TestQueue::own(image.open(Access::ReadWrite));
    write(&mut first, 0, 4096, 1);
    let (kind, text) = refusal(&image.target(), Access::ReadWrite);
    let process = format!("process {}", std::process::id());
    let address = &first.device.properties()[1].value;
    assert!(text.contains(&format!("the client at {address} ")), "{address}: {text}");
    assert_eq!(kind, ErrorKind::ResourceBusy, "{text}");
    assert!(text.contains("127.0.0.1:") && text.contains(&process), "{text}");
    assert!(text.contains("take-over"), "{text}");
    // A reader takes no lock, and the writer keeps it.
    let mut reader = TestQueue::own(image.open(Access::Read));
    assert_eq!(reader.read(0, 4096), [1; 4096]);
    let request = reader.request(Op::Write, 0, buffer(4096, 2), 0);
    assert_eq!(reader.run(request).1, Err(Errno::BADF));
    write(&mut first, 4096, 4096, 3);
    drop((first, reader));
    write(&mut TestQueue::own(image.open(Access::ReadWrite)), 0, 4096, 4);
}

/// A process of its own that has an image open for writing.
struct Writer {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// The image of a process that others start.
const WRITER_TARGET: &str = "URINGFS_TEST_RBD_TARGET";

#[test]
fn requests_in_flight_at_the_drop_of_their_device_end_well() {
    let cluster = CephCluster::get();
    let image = cluster.image(16 << 20);
    let mut tested = TestQueue::own(image.open(Access::ReadWrite));
    for part in 0..8 {
        let request = tested.request(Op::Write, part << 20, buffer(1 << 20, 0xaa), part);
        tested.queue.push(request).unwrap();
    }
    tested.queue.submit().unwrap();
    // A reactor has more of them than its queue.
    let later: Vec<_> = (8..12)
        .map(|part| tested.request(Op::Write, part << 20, buffer(1 << 20, 0xaa), part))
        .collect();
    let TestQueue { device, mut queue, .. } = tested;
    drop(device);
    later.into_iter().for_each(|request| queue.push(request).unwrap());
    queue.submit().unwrap();
    let mut ended = 0;
    while ended < 12 || queue.reap().is_some() {
        match queue.reap() {
            Some(step) => {
                assert_eq!(step.result, Ok(1 << 20));
                ended += 1;
            }
            None => {
                if let Ready::Readable(event) = queue.ready() {
                    let _ = poll_in(event, Duration::from_millis(100));
                }
            }
        }
    }
    let backend = Rbd::open(&image.target(), Access::ReadWrite).unwrap();
    assert_eq!(backend.notice(), None);
    let mut next = TestQueue::own(Device::new(backend).unwrap());
    assert!(next.read(0, 12 << 20) == [0xaa; 12 << 20]);
}

#[test]
fn caches_that_the_configuration_of_an_image_turns_on_are_known_or_refused() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let set = |name, value| {
        drop(cluster.command(&["rbd", "config", "image", "set", &image.name, name, value]))
    };
    set("rbd_cache", "true");
    assert!(image.open(Access::ReadWrite).geometry().volatile_cache);
    let target = image.target_with("", "&request-timeout=60");
    let (kind, text) = refusal(&target, Access::ReadWrite);
    assert!(kind == ErrorKind::Unsupported && text.contains("turns rbd_cache on"), "{text}");
    set("rbd_cache", "false");
    assert!(!image.open(Access::ReadWrite).geometry().volatile_cache);
    set("rbd_persistent_cache_mode", "ssd");
    let (kind, text) = refusal(&image.target(), Access::ReadWrite);
    assert!(kind == ErrorKind::Unsupported && text.contains("on this machine alone"), "{text}");
}

const OWN_NETWORK: &str = "URINGFS_TEST_RBD_NETWORK";

const OWN_THREADS: &str = "URINGFS_TEST_RBD_THREADS";

const ENDING_TARGET: &str = "URINGFS_TEST_RBD_ENDING_TARGET";

impl Writer {
    fn start(image: &TestImage) -> Writer {
        Writer::start_with(image, "")
    }

    fn start_with(image: &TestImage, options: &str) -> Writer {
        let mut writer = Writer::start_test("writes_until_a_write_fails", image, options);
        writer.wait_for("writing");
        writer
    }

    fn start_test(test: &str, image: &TestImage, options: &str) -> Writer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(WRITER_TARGET, image.target_with("", options).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Writer { process, output }
    }

    /// The rest of the next line that begins so.
    fn wait_for(&mut self, begin: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the writer has ended");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The test of a process that others start. It overwrites its first blocks until a write fails. It has a line when the first
/// writes are done, and one with the error at the end.
#[test]
fn writes_until_a_write_fails() {
    let Ok(target) = std::env::var(WRITER_TARGET) else { return };
    let mut tested = open(&RbdTarget::parse(&target).unwrap().unwrap());
    for round in 0.. {
        for part in 0..8 {
            let request = tested.request(Op::Write, part << 12, buffer(4096, 0xaa), part);
            tested.queue.push(request).unwrap();
        }
        let ended = tested.finish();
        if let Some((_, Err(errno))) = ended.iter().find(|(_, result)| result.is_err()) {
            let request = tested.request(Op::Read, 0, buffer(4096, 0), 0);
            return println!("failed {errno:?}, and reads {:?}", tested.run(request).1);
        }
        if round == 0 {
            println!("\nwriting");
        }
    }
}

/// The test of a process that others start. It has a line when the image is open, and reads once its input has ended.
#[test]
fn reads_once_its_input_has_ended() {
    let Ok(target) = std::env::var(WRITER_TARGET) else { return };
    let mut tested = open(&RbdTarget::parse(&target).unwrap().unwrap());
    println!("\nopen");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let request = tested.request(Op::Read, 0, buffer(4096, 0), 0);
    println!("reads {:?}", tested.run(request).1);
}

#[test]
fn a_writer_without_requests_notices_that_its_image_was_taken() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let mut old = Writer::start_test("reads_once_its_input_has_ended", &image, "&lease=15");
    old.wait_for("open");
    let short = image.target_with("", "&take-over=20s");
    let backend = Rbd::open(&short, Access::ReadWrite).unwrap();
    let notice = backend.notice().unwrap().to_owned();
    let taken =
        notice.strip_prefix("taken from the client at ").unwrap().split(' ').next().unwrap();
    assert!(cluster.blocklist().contains(taken), "{notice}");
    write(&mut TestQueue::own(Device::new(backend).unwrap()), 0, 4096, 0xbb);
    until(|| !cluster.blocklist().contains(taken), "the entry is still there");
    drop(old.process.stdin.take());
    assert_eq!(old.wait_for("reads"), "Err(SHUTDOWN)");
}

#[test]
fn a_writer_whose_lock_others_have_broken_is_shut_out_for_good() {
    let cluster = CephCluster::get();
    let images = [(); 2].map(|()| cluster.image(4 << 20));
    let mut writers = images.each_ref().map(Writer::start);
    writers.iter().for_each(|writer| writer.signal(Signal::STOP));
    let entry_of = |address: &str| {
        let entries = RbdAdmin::new(&images[0].target()).blocklist().unwrap();
        entries.into_iter().find(|entry| entry.address == address).unwrap().until
    };
    // By `rbd`, which shuts it out for an hour.
    let listed = cluster.command(&["rbd", "lock", "ls", &images[0].name]);
    let words: Vec<_> = listed.lines().last().unwrap().split_whitespace().collect();
    let [locker, auto, number, address] = words[..] else { panic!("{listed}") };
    let id = format!("{auto} {number}");
    cluster.command(&["rbd", "lock", "rm", &images[0].name, &id, locker]);
    assert!(!ends_in_ten_years(&entry_of(address)));
    let backend = Rbd::open(&images[0].target(), Access::ReadWrite).unwrap();
    let notice = backend.notice().unwrap().to_owned();
    assert!(notice.contains(address) && notice.ends_with("shut out for 10y"), "{notice}");
    assert!(ends_in_ten_years(&entry_of(address)));
    // By librbd itself, for a resize.
    let listed = cluster.command(&["rbd", "lock", "ls", &images[1].name]);
    let address = listed.split_whitespace().last().unwrap();
    let has_watcher = || cluster.command(&["rbd", "status", &images[1].name]).contains("watcher=");
    until(|| !has_watcher(), "the cluster has heard of a process that is stopped");
    RbdAdmin::new(&images[1].target()).enlarge(8 << 20).unwrap();
    assert!(ends_in_ten_years(&entry_of(address)));
    let backend = Rbd::open(&images[1].target(), Access::ReadWrite).unwrap();
    assert_eq!(backend.notice(), None);
    for writer in &mut writers {
        writer.signal(Signal::CONT);
        assert_eq!(writer.wait_for("failed"), "SHUTDOWN, and reads Err(SHUTDOWN)");
    }
}

#[test]
fn a_stopped_writer_is_shut_out_for_good() {
    let cluster = CephCluster::get();
    for option in ["&take-over=1h", "&take-over"] {
        let image = cluster.image(4 << 20);
        let mut old = Writer::start(&image);
        old.signal(Signal::STOP);
        // Without the option it is as if the other one were there.
        let (kind, text) = refusal(&image.target(), Access::ReadWrite);
        assert!(kind == ErrorKind::ResourceBusy && text.contains("take-over"), "{text}");
        let target = image.target_with("", option);
        let backend = Rbd::open(&target, Access::ReadWrite).unwrap();
        let mut new = TestQueue::own(Device::new(backend).unwrap());
        assert_eq!(new.read(0, 4096), [0xaa; 4096]);
        write(&mut new, 0, 64 << 10, 0xbb);
        old.signal(Signal::CONT);
        assert_eq!(old.wait_for("failed"), "SHUTDOWN, and reads Err(SHUTDOWN)");
        assert_eq!(old.process.wait().unwrap().code(), Some(0));
        assert_eq!(new.read(0, 64 << 10), [0xbb; 64 << 10]);
        write(&mut new, 0, 4096, 0xcc);
    }
    let admin = RbdAdmin::new(&cluster.image(4 << 20).target());
    let entries = admin.blocklist().unwrap();
    let ends_last = entries.iter().find(|entry| ends_in_ten_years(&entry.until));
    let address = &ends_last.expect("an entry of ten years").address;
    assert!(admin.remove_from_blocklist(address).unwrap());
    assert!(!admin.remove_from_blocklist(address).unwrap());
    let left = admin.blocklist().unwrap();
    assert!(left.iter().all(|entry| entry.address != *address), "{left:?}");
}

#[test]
fn the_kernel_ends_a_stopped_writer_that_has_a_lease_which_others_can_then_outlast() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let short = image.target_with("", "&take-over=20s");
    let old = Writer::start(&image);
    let (kind, text) = refusal(&short, Access::ReadWrite);
    assert!(kind == ErrorKind::InvalidInput && text.contains("has no lease"), "{text}");
    drop(old);
    let long = Writer::start_with(&image, "&lease=16");
    let (_, text) = refusal(&short, Access::ReadWrite);
    assert!(text.contains("has a lease of 16s"), "{text}");
    drop(long);
    let mut old = Writer::start_with(&image, "&lease=15");
    old.signal(Signal::STOP);
    let backend = Rbd::open(&short, Access::ReadWrite).unwrap();
    let notice = backend.notice().unwrap();
    assert!(notice.contains(&format!("process {}", old.process.id())), "{notice}");
    assert!(notice.ends_with("shut out for 20s"), "{notice}");
    let mut new = TestQueue::own(Device::new(backend).unwrap());
    write(&mut new, 0, 64 << 10, 0xbb);
    // It is stopped, and ends nevertheless.
    assert_eq!(old.process.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert_eq!(new.read(0, 64 << 10), [0xbb; 64 << 10]);
}

#[test]
fn the_image_of_a_process_that_has_died_is_taken_at_once() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let mut old = Writer::start(&image);
    old.signal(Signal::KILL);
    old.process.wait().unwrap();
    let mut new = TestQueue::own(image.open(Access::ReadWrite));
    let owner = cluster.command(&["rbd", "lock", "ls", &image.name]);
    assert_eq!(owner.lines().filter(|line| line.contains("client.")).count(), 1, "{owner}");
    assert_eq!(new.read(0, 4096), [0xaa; 4096]);
    write(&mut new, 0, 4096, 1);
}

#[test]
fn a_write_that_times_out_is_executed_by_a_new_client_before_it_ends() {
    let cluster = Arc::new(CephCluster::start(2));
    let image = cluster.image(16 << 20);
    write(&mut TestQueue::own(image.open(Access::ReadWrite)), 0, 16 << 20, 0xaa);
    let mut tested = open(&image.target_with("", "&request-timeout=5"));
    let first = address(&tested.device);
    let written = |byte: u8| [vec![byte; 64 << 10], vec![0xaa; 448 << 10]].concat();
    // The monitor does not mark the stopped daemon as down by itself.
    cluster.command(&["ceph", "osd", "set", "nodown"]);
    // To all objects, some of which have their first copy on this daemon.
    cluster.signal("osd.0", Signal::STOP);
    for part in 0..32 {
        let request = tested.request(Op::Write, part << 19, buffer(64 << 10, 0xbb), part);
        tested.queue.push(request).unwrap();
    }
    let read = tested.request(Op::Read, 8 << 20, buffer(4096, 0), 32);
    tested.queue.push(read).unwrap();
    tested.queue.submit().unwrap();
    // A renewal waits for the same daemon.
    let mut ended = turn_until(&mut tested, |_| cluster.blocklist().contains(&first));
    assert!(tested.device.oldest_request().is_some_and(|age| age >= Duration::from_secs(5)));
    // A request that has not begun can be cancelled, one that may have been executed cannot.
    let late = tested.request(Op::Write, 0, buffer(4096, 0xdd), 33);
    tested.queue.push(late).unwrap();
    tested.queue.submit().unwrap();
    (0..=33).for_each(|tag| tested.queue.cancel(Tag(tag)));
    // The other daemon has all objects once the cluster does not count on this one.
    cluster.command(&["ceph", "osd", "unset", "nodown"]);
    cluster.command(&["ceph", "osd", "down", "0"]);
    ended.extend(tested.finish());
    ended.sort_by_key(|(request, _)| request.tag.0);
    assert_eq!(ended.len(), 34);
    for (request, result) in ended {
        let expected = match request.tag.0 {
            33 => Err(Errno::CANCELED),
            32 => Ok(4096),
            _ => Ok(64 << 10),
        };
        assert_eq!(result, expected, "{request:?}");
    }
    assert_ne!(address(&tested.device), first);
    assert_eq!(tested.device.oldest_request(), None);
    for part in 0..32 {
        assert!(tested.read(part << 19, 512 << 10) == written(0xbb), "{part}");
    }
    // The stopped daemon still has writes of the first client.
    (0..32).for_each(|part| write(&mut tested, part << 19, 64 << 10, 0xcc));
    cluster.signal("osd.0", Signal::CONT);
    let are_up = || cluster.command(&["ceph", "osd", "stat"]).contains("2 up");
    until(are_up, "the daemon is not up");
    for part in 0..32 {
        assert!(tested.read(part << 19, 512 << 10) == written(0xcc), "{part}");
    }
    drop(tested);
    assert!(image.export() == written(0xcc).repeat(32), "rbd export");
}

#[test]
fn attempts_to_renew_a_client_leave_one_entry_each_and_the_object_map_valid() {
    let cluster = Arc::new(CephCluster::start_with_copies(2, 1));
    let daemon_of = |object: &str| {
        let map = cluster.command(&["ceph", "osd", "map", "rbd", object, "--format", "json"]);
        let number = map.split_once("\"acting_primary\":").unwrap().1;
        format!("osd.{}", &number[..1])
    };
    // The daemon that stops has the object map, for which attempts take the lock in vain. The other one has what an opening
    // needs before that, and the header, which says whether the map is valid.
    let goes_on = daemon_of("rbd_info");
    let (image, stops) = loop {
        let image = cluster.image(16 << 20);
        let info = cluster.command(&["rbd", "info", &image.name]);
        let id = info.split_once("rbd_data.").unwrap().1.split_whitespace().next().unwrap();
        let needed = [format!("rbd_id.{}", image.name), format!("rbd_header.{id}")];
        let stops = daemon_of(&format!("rbd_object_map.{id}"));
        if stops != goes_on && needed.iter().all(|object| daemon_of(object) == goes_on) {
            break (image, stops);
        }
    };
    let mut tested = open(&image.target_with("", "&request-timeout=3"));
    // The monitor does not mark the stopped daemon as down by itself.
    cluster.command(&["ceph", "osd", "set", "nodown"]);
    let epoch = || {
        let stat = cluster.command(&["ceph", "osd", "stat", "--format", "json"]);
        let number = stat.split_once("\"epoch\":").unwrap().1.split_once(',').unwrap().0;
        number.parse::<usize>().unwrap()
    };
    let before = epoch();
    cluster.signal(&stops, Signal::STOP);
    for part in 0..4 {
        let request = tested.request(Op::Write, part << 22, buffer(4096, 0xbb), part);
        tested.queue.push(request).unwrap();
    }
    tested.queue.submit().unwrap();
    let shut_out = || cluster.blocklist().lines().count();
    let mut ended = turn_until(&mut tested, |_| shut_out() >= 3);
    // Each client is shut out once by the device, and once by librbd if it has the lock.
    let epochs = epoch() - before;
    assert!(epochs < 2 * shut_out(), "{epochs} epochs");
    cluster.signal(&stops, Signal::CONT);
    ended.extend(tested.finish());
    assert!(ended.len() == 4 && ended.iter().all(|(_, result)| *result == Ok(4096)), "{ended:?}");
    (0..4).for_each(|part| assert_eq!(tested.read(part << 22, 4096), [0xbb; 4096]));
    let info = cluster.command(&["rbd", "info", &image.name]);
    assert!(!info.contains("invalid"), "{info}");
}

#[test]
fn a_write_that_times_out_when_its_device_is_removed_is_shut_out_before_the_image_is_given_back() {
    let cluster = Arc::new(CephCluster::start(1));
    let image = cluster.image(8 << 20);
    let mut tested = open(&image.target_with("", "&request-timeout=5"));
    write(&mut tested, 0, 64 << 10, 0xaa);
    let first = address(&tested.device);
    cluster.signal("osd.0", Signal::STOP);
    let request = tested.request(Op::Write, 0, buffer(64 << 10, 0xbb), 0);
    tested.queue.push(request).unwrap();
    tested.queue.submit().unwrap();
    tested.device.remove();
    turn_until(&mut tested, |_| cluster.blocklist().contains(&first));
    cluster.signal("osd.0", Signal::CONT);
    let ended = tested.finish();
    assert!(matches!(ended[..], [(_, Ok(0x1_0000))]), "{ended:?}");
    let backend = Rbd::open(&image.target(), Access::ReadWrite).unwrap();
    assert_eq!(backend.notice(), None);
    let mut next = TestQueue::own(Device::new(backend).unwrap());
    assert_eq!(next.read(0, 64 << 10), [0xbb; 64 << 10]);
}

/// The test of a process that another one starts, and that has no other threads than this test's.
#[test]
fn its_threads_are_counted() {
    if std::env::var(OWN_THREADS).is_err() {
        return;
    }
    let cluster = Arc::new(CephCluster::start(1));
    let image = cluster.image(8 << 20);
    let mut tested = open(&image.target_with("", "&request-timeout=5"));
    let mut idle = TestQueue::own(tested.device.clone());
    write(&mut tested, 0, 4096, 0xaa);
    assert_eq!(idle.read(0, 4096), [0xaa; 4096]);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let (first, before) = (address(&tested.device), threads());
    cluster.signal("osd.0", Signal::STOP);
    let request = tested.request(Op::Write, 0, buffer(4096, 0xbb), 0);
    tested.queue.push(request).unwrap();
    tested.queue.submit().unwrap();
    turn_until(&mut tested, |_| cluster.blocklist().contains(&first));
    cluster.signal("osd.0", Signal::CONT);
    assert_eq!(tested.finish()[0].1, Ok(4096));
    assert_ne!(address(&tested.device), first);
    // Those of the client before have ended, though a queue has used it last.
    until(|| threads() <= before, "there are more threads than before");
    assert_eq!(idle.read(0, 4096), [0xbb; 4096]);
}

#[test]
fn a_client_that_was_replaced_leaves_no_threads() {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "its_threads_are_counted", "--nocapture"])
        .env(OWN_THREADS, "")
        .status()
        .unwrap();
    assert!(ended.success(), "{ended:?}");
}

#[test]
fn without_its_monitor_an_image_is_used_and_none_is_opened() {
    let cluster = Arc::new(CephCluster::start(1));
    let (image, other) = (cluster.image(8 << 20), cluster.image(4 << 20));
    let mut tested = TestQueue::own(image.open(Access::ReadWrite));
    cluster.signal("mon.a", Signal::STOP);
    write(&mut tested, 0, 4 << 20, 1);
    let (kind, text) = refusal(&other.target_with("", "&timeout=1"), Access::ReadWrite);
    assert!(kind == ErrorKind::TimedOut && text.contains("no monitor"), "{text}");
    // An opening goes on with the monitor.
    let target = other.target_with("", "&timeout=600");
    let opening = std::thread::spawn(move || write(&mut open(&target), 0, 4096, 2));
    write(&mut tested, 0, 4 << 20, 3);
    assert!(!opening.is_finished());
    cluster.signal("mon.a", Signal::CONT);
    opening.join().unwrap();
    // One that is killed and started again, while requests are under way.
    for part in 0..32 {
        let request = tested.request(Op::Write, part << 18, buffer(256 << 10, 4), part);
        tested.queue.push(request).unwrap();
    }
    tested.queue.submit().unwrap();
    cluster.restart("mon.a");
    assert!(tested.finish().iter().all(|(_, result)| *result == Ok(256 << 10)));
    write(&mut TestQueue::own(other.open(Access::ReadWrite)), 0, 4096, 5);
    drop(tested);
    assert!(image.export() == [4; 8 << 20], "rbd export");
}

#[test]
fn requests_to_a_full_cluster_wait() {
    let cluster = Arc::new(CephCluster::start(1));
    let (image, other) = (cluster.image(8 << 20), cluster.image(4 << 20));
    let mut tested = TestQueue::own(image.open(Access::ReadWrite));
    write(&mut tested, 0, 4 << 20, 1);
    let set_ratios = |ratios: [&str; 3]| {
        for (name, ratio) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
            cluster.command(&["ceph", "osd", &format!("set-{name}-ratio"), ratio]);
        }
    };
    let is_full = || cluster.command(&["ceph", "osd", "dump"]).contains("exists,full,up");
    set_ratios(["0.00001", "0.00002", "0.00003"]);
    until(is_full, "the cluster is not full");
    // A request that was under way when the cluster became full may have been executed.
    let request = tested.request(Op::Write, 0, buffer(4096, 2), 0);
    tested.queue.push(request).unwrap();
    let ended = turn_until(&mut tested, |tested| {
        tested.device.oldest_request().is_some_and(|age| age >= Duration::from_secs(5))
    });
    assert!(ended.is_empty(), "{ended:?}");
    assert_eq!(TestQueue::own(image.open(Access::Read)).read(0, 4096), [1; 4096]);
    let (kind, text) = refusal(&other.target_with("", "&timeout=1"), Access::ReadWrite);
    assert!(kind == ErrorKind::TimedOut && text.contains("does not answer within 1 s"), "{text}");
    set_ratios(["0.85", "0.9", "0.95"]);
    assert!(matches!(tested.finish()[..], [(_, Ok(4096))]));
    assert_eq!(tested.read(0, 8192), [[2; 4096], [1; 4096]].concat());
}

#[test]
fn the_drop_of_a_device_gives_the_image_back_though_a_queue_is_left() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let mut tested = TestQueue::own(image.open(Access::ReadWrite));
    write(&mut tested, 0, 4096, 1);
    let TestQueue { device, queue, .. } = tested;
    drop(device);
    let backend = Rbd::open(&image.target(), Access::ReadWrite).unwrap();
    assert_eq!(backend.notice(), None);
    let mut next = TestQueue::own(Device::new(backend).unwrap());
    assert_eq!(next.read(0, 4096), [1; 4096]);
    drop(queue);
    write(&mut next, 0, 4096, 2);
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// The test of a process that another one starts in a network of its own, which only this process and its cluster have.
#[test]
fn its_network_is_cut() {
    if std::env::var(OWN_NETWORK).is_err() {
        return;
    }
    let link = |state| {
        let set = Command::new("ip").args(["link", "set", "lo", state]).status().unwrap();
        assert!(set.success());
    };
    link("up");
    let cluster = Arc::new(CephCluster::start(1));
    let images = ["", "&request-timeout=5"].map(|options| {
        let image = cluster.image(8 << 20);
        let backend = Rbd::open(&image.target_with("", options), Access::ReadWrite).unwrap();
        let mut tested = TestQueue::own(Device::new(backend).unwrap());
        write(&mut tested, 0, 8 << 20, 0xaa);
        (image, tested)
    });
    // A cluster without its network does not end.
    let _up = OnDrop(|| link("up"));
    link("down");
    let images = images.map(|(image, mut tested)| {
        for part in 0..8 {
            let request = tested.request(Op::Write, part << 20, buffer(64 << 10, 0xbb), part);
            tested.queue.push(request).unwrap();
        }
        tested.queue.submit().unwrap();
        (image, tested)
    });
    // The storage daemon gives up its watcher of an image after 30 seconds, and librbd has to take the lock again.
    let images = images.map(|(image, mut tested)| {
        let ended = turn_until(&mut tested, |tested| {
            tested.device.oldest_request().is_some_and(|age| age >= Duration::from_secs(40))
        });
        assert!(ended.is_empty(), "{ended:?}");
        let target = image.target_with("", "&timeout=1");
        let (kind, text) = refusal(&target, Access::Read);
        assert!(kind == ErrorKind::TimedOut && text.contains("within 1 s"), "{text}");
        (image, tested)
    });
    link("up");
    for (image, mut tested) in images {
        let ended = tested.finish();
        assert_eq!(ended.len(), 8);
        assert!(ended.iter().all(|(_, result)| *result == Ok(64 << 10)), "{ended:?}");
        assert_eq!(tested.device.oldest_request(), None);
        drop(tested);
        let written = [vec![0xbb; 64 << 10], vec![0xaa; 960 << 10]].concat();
        assert!(image.export() == written.repeat(8), "rbd export");
    }
}

#[test]
fn a_cut_of_the_network_is_waited_for() {
    let ended = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "its_network_is_cut", "--nocapture"])
        .env(OWN_NETWORK, "")
        .status()
        .unwrap();
    assert!(ended.success(), "{ended:?}");
}

/// The test of a process that others start: it ends while another thread closes its image.
#[test]
fn ends_while_its_image_is_closed() {
    let Ok(target) = std::env::var(ENDING_TARGET) else { return };
    let target = RbdTarget::parse(&target).unwrap().unwrap();
    let device = Device::new(Rbd::open(&target, Access::Read).unwrap()).unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        begun.send(()).unwrap();
        drop(device);
    });
    begins.recv().unwrap();
    std::process::exit(0);
}

#[test]
fn a_process_may_end_while_its_image_is_closed() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    for round in 0..20 {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends_while_its_image_is_closed"])
            .env(ENDING_TARGET, image.target().to_string())
            .output()
            .unwrap();
        assert!(ended.status.success(), "round {round}: {ended:?}");
    }
}

#[test]
fn a_snapshot_is_read_and_not_written() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let mut tested = TestQueue::own(image.open(Access::ReadWrite));
    write(&mut tested, 8192, 4096, 1);
    drop(tested);
    cluster.command(&["rbd", "snap", "create", "--no-progress", &format!("{}@before", image.name)]);
    write(&mut TestQueue::own(image.open(Access::ReadWrite)), 8192, 4096, 2);
    let target = image.target_with("@before", "");
    let backend = Rbd::open(&target, Access::Read).unwrap();
    let mut snapshot = TestQueue::own(Device::new(backend).unwrap());
    assert_eq!(snapshot.read(8192, 4096), [1; 4096]);
    let (kind, text) = refusal(&target, Access::ReadWrite);
    assert_eq!(kind, ErrorKind::ReadOnlyFilesystem, "{text}");
}

#[test]
fn a_resize_by_others_is_noticed() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let device = image.open(Access::ReadWrite);
    assert_eq!(device.size(), 4 << 20);
    cluster.command(&["rbd", "resize", "--no-progress", "--size", "6M", &image.name]);
    assert_eq!(device.refresh_size().unwrap(), 6 << 20);
    let admin = RbdAdmin::new(&image.target());
    admin.enlarge(8 << 20).unwrap();
    assert_eq!(device.refresh_size().unwrap(), 8 << 20);
    let error = admin.enlarge(4 << 20).unwrap_err();
    assert!(error.to_string().contains("larger than 4194304 bytes"), "{error}");
    let mut tested = TestQueue::own(device);
    write(&mut tested, (8 << 20) - 4096, 4096, 7);
    assert_eq!(tested.read((8 << 20) - 4096, 4096), [7; 4096]);
}

#[test]
fn the_guide_starts_nothing_at_boot_that_takes_an_image() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/cluster.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let units: Vec<_> = guide.split("```").filter(|block| block.starts_with("ini\n")).collect();
    assert!(units.iter().any(|unit| unit.contains("--take-over")), "{units:?}");
    for unit in units {
        assert!(!unit.contains("--take-over") || !unit.contains("[Install]"), "{unit}");
    }
}

#[test]
fn what_cannot_be_opened_is_explained_in_one_line() {
    let cluster = CephCluster::get();
    let image = cluster.image(4 << 20);
    let configuration = cluster.configuration().display();
    let parse = |text: String| RbdTarget::parse(&text).unwrap().unwrap();
    let silent = cluster.folder().join("silent.conf");
    std::fs::write(&silent, "[global]\nmon host = 127.0.0.1:1\nkey =\n").unwrap();
    let silent = silent.display();
    for (target, kind, expected) in [
        (format!("rbd:none/x?conf={configuration}"), ErrorKind::NotFound, "no pool none"),
        (format!("rbd:rbd/none?conf={configuration}"), ErrorKind::NotFound, "no image none"),
        (format!("rbd:rbd/space/x?conf={configuration}"), ErrorKind::NotFound, "rbd/space"),
        (
            format!("rbd:rbd/{}@none?conf={configuration}", image.name),
            ErrorKind::NotFound,
            "snapshot none",
        ),
        ("rbd:rbd/x?conf=/no/such".into(), ErrorKind::NotFound, "configuration /no/such"),
        (format!("rbd:rbd/x?conf={silent}&timeout=1"), ErrorKind::TimedOut, "within 1 s"),
    ] {
        let (found, text) = refusal(&parse(target.clone()), Access::Read);
        assert!(found == kind && text.contains(expected), "{target}: {found:?}: {text}");
    }
    let name = "without-lock";
    cluster.command(&["rbd", "create", "--size", "4M", "--image-feature", "layering", name]);
    let target = parse(format!("rbd:rbd/{name}?conf={configuration}"));
    let (_, text) = refusal(&target, Access::ReadWrite);
    assert!(text.contains("rbd feature enable"), "{text}");
    Rbd::open(&target, Access::Read).unwrap();
}
