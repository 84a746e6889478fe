//! Programs of others as clients.

mod harness;

use std::fs;

use harness::{Served, memory, run, volume_file};
use uringfs::File;
use uringfs::cache::Cache;
use uringfs::device::Access;
use uringfs_nbd::{Export, ServerOptions};

/// Commands of nbdsh, each checked by itself.
const SCRIPT: &str = r#"
import nbd, sys, errno
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errno == errno.errorcode[number], (error.errno, errno.errorcode[number])
    else:
        raise AssertionError("no error")
h.set_request_structured_replies(structured)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
# The server checks requests.
h.set_strict_mode(0)
size = h.get_size()
assert size == 64 << 20, size
assert h.get_structured_replies_negotiated() == structured
assert h.can_cache() == cached
for can in (h.can_flush, h.can_fua, h.can_trim, h.can_zero, h.can_fast_zero, h.can_multi_conn):
    assert can(), can
flags = (h.can_df(), h.is_read_only())
assert flags == (structured, False), flags
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
one = bytes(range(256)) * 16
h.pwrite(one, 4096)
assert h.pread(4096, 4096) == one
h.pwrite(one * 3, 12345, nbd.CMD_FLAG_FUA)
assert h.pread(len(one) * 3, 12345) == one * 3
long = bytes(one * 256 * 24)
h.pwrite(long, 1 << 20)
assert h.pread(len(long), 1 << 20) == long
if structured:
    assert h.pread(4096, 4096, nbd.CMD_FLAG_DF) == one
h.flush()
h.zero(8192, 4096)
assert h.pread(8192, 4096) == bytes(8192)
h.zero(4096, 1 << 20, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(4096, 1 << 20) == bytes(4096)
h.trim(1 << 20, 2 << 20)
h.trim(4096, 0, nbd.CMD_FLAG_FUA)
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.ENOSPC, lambda: h.pwrite(one, size - 512))
fails(errno.EINVAL, lambda: h.pread(1, 1 << 62))
fails(errno.EINVAL, lambda: h.trim(512, size))
fails(errno.ENOSPC, lambda: h.zero(512, size))
if cached:
    h.cache(1 << 20, 0)
else:
    fails(errno.EINVAL, lambda: h.cache(512, 0))
assert h.pread(512, 0) == bytes(512)
# Many at a time.
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(one)), 4096 * n) for n in range(100)]
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
buffers = [nbd.Buffer(4096) for n in range(100)]
cookies = [h.aio_pread(buffers[n], 4096 * n) for n in range(100)]
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
assert all(bytes(buffer.to_bytearray()) == one for buffer in buffers)
if structured:
    extents = []
    def add(context, offset, found, error):
        extents.extend(found)
    h.block_status(size, 0, add)
    assert sum(extents[::2]) == size, extents
    extents.clear()
    h.block_status(1 << 20, 0, add, nbd.CMD_FLAG_REQ_ONE)
    assert len(extents) == 2 and extents[1] == 0, extents
h.shutdown()
"#;

fn nbdsh(served: &Served, structured: bool, cached: bool, script: &str) {
    let settings = format!(
        "uri = '{}'\nstructured = {}\ncached = {}\n",
        served.uri(),
        if structured { "True" } else { "False" },
        if cached { "True" } else { "False" },
    );
    // Debian's nbdsh is for the system's Python.
    run("/usr/bin/python3", &["-m", "nbd", "-c", &settings, "-c", script]);
}

#[test]
fn every_command_and_flag_is_served() {
    let (_volume, file, _folder) = volume_file(64 << 20);
    let cached = file.buffered(&Cache::of_process());
    for file in [memory(64 << 20), file, cached] {
        let is_cached = file.is_buffered();
        let served = Served::new(file);
        for structured in [true, false] {
            nbdsh(&served, structured, is_cached, SCRIPT);
        }
    }
}

#[test]
fn holes_of_a_file_are_reported_and_copied() {
    let (_volume, file, _folder) = volume_file(64 << 20);
    file.write_at(vec![7; 65536], 1 << 20).wait().0.unwrap();
    let served = Served::with(
        Export::new("disk", file.clone()).description("a disk with a hole"),
        ServerOptions::new(),
    );
    let map = run("nbdinfo", &["--map", &served.uri()]);
    let fields: Vec<Vec<&str>> =
        map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(fields[0][..3], ["0", "1048576", "3"]);
    assert_eq!(fields[1][..3], ["1048576", "65536", "0"]);
    assert_eq!(fields[2][..3], ["1114112", "65994752", "3"]);
    let info = run("nbdinfo", &["--list", &served.uri()]);
    for expected in [
        "export=\"disk\"",
        "description: a disk with a hole",
        "export-size: 67108864 (64M)",
        "base:allocation",
        "can_multi_conn: true",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(expected), "{expected}: {info}");
    }
    let before = file.allocated();
    let copy = served.folder.path().join("copy");
    let copy = copy.to_str().unwrap();
    run("nbdcopy", &[&served.uri(), copy]);
    assert_eq!(fs::metadata(copy).unwrap().len(), 64 << 20);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", copy, &served.uri()]);
    run("nbdcopy", &["--destination-is-zero", "--flush", copy, &served.uri()]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", copy, &served.uri()]);
    assert!(file.allocated() <= before + (1 << 20), "holes stay holes");
}

#[test]
fn qemu_and_fio_use_a_disk() {
    let (_volume, file, _folder) = volume_file(64 << 20);
    let served = Served::new(file);
    let uri = served.uri();
    let source = served.folder.path().join("source");
    let bytes: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 251) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    let source = source.to_str().unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    let back = served.folder.path().join("back");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, back.to_str().unwrap()]);
    let back = fs::read(back).unwrap();
    assert!(back[..bytes.len()] == bytes && back[bytes.len()..].iter().all(|byte| *byte == 0));
    let commands = [
        "write -P 5 512 1024",
        "write -z -u 64k 64k",
        "write -f -P 6 1M 1M",
        "read -P 5 512 1024",
        "read -P 0 64k 64k",
        "read -P 6 1M 1M",
        "discard 2M 1M",
        "flush",
    ];
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let arguments: Vec<&str> = ["-f", "raw", &uri].into_iter().chain(commands).collect();
    let output = run("qemu-io", &arguments);
    assert!(!output.contains("failed"), "{output}");
    run("qemu-img", &["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4096", &uri]);
    run(
        "qemu-img",
        &["bench", "-f", "raw", "-w", "-c", "2000", "-d", "32", "--flush-interval=100", &uri],
    );
    let report = run(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randrw",
            "--bsrange=512-64k",
            "--size=16m",
            "--iodepth=16",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--randseed=7",
        ],
    );
    assert!(report.contains("err= 0"), "{report}");
}

#[test]
fn a_client_that_connects_learns_that_the_image_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    uringfs::create_image(&path, 1 << 20).unwrap();
    let served = Served::new(File::open(&path, Access::ReadWrite).unwrap());
    let size = || run("nbdinfo", &["--size", &served.uri()]);
    assert_eq!(size(), "1048576\n");
    let image = fs::File::options().write(true).open(&path).unwrap();
    image.set_len(3 << 20).unwrap();
    assert_eq!(size(), "3145728\n");
    nbdsh(&served, true, false, "h.connect_uri(uri); h.pwrite(b'x' * 4096, 2 << 20)");
    assert_eq!(fs::read(&path).unwrap()[2 << 20], b'x');
}

#[test]
fn a_read_only_export_refuses_changes() {
    let served =
        Served::with(Export::new("disk", memory(1 << 20)).read_only(true), ServerOptions::new());
    let script = r#"
h.connect_uri(uri)
assert h.is_read_only() and not h.can_trim() and not h.can_zero() and h.can_flush()
h.set_strict_mode(0)
for change in (lambda: h.pwrite(bytes(512), 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)):
    try:
        change()
    except nbd.Error as error:
        assert error.errno == 'EPERM', error.errno
    else:
        raise AssertionError("no error")
h.flush()
assert h.pread(512, 0) == bytes(512)
"#;
    nbdsh(&served, true, false, script);
}
