//! A process that writes and syncs is killed again and again. Every acknowledged write is there.

#[path = "../../device/tests/harness/random.rs"]
mod random;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use uringfs_buffer::Buffer;
use uringfs_device::{Access, Device};
use uringfs_file::File;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{FormatOptions, OpenOptions, Volume};

/// Path of the image, for the writing process.
const IMAGE: &str = "URINGFS_TEST_KILL_IMAGE";
/// Number of writes before this process began.
const FROM: &str = "URINGFS_TEST_KILL_FROM";
const FILES: u64 = 7;

fn open(image: &Path, access: Access) -> Volume {
    Volume::open_on(Device::open(image, access).unwrap()).unwrap()
}

fn file_of(volume: &Volume, n: u64) -> File {
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    volume.open_with(format!("/{}", n % FILES), create).unwrap()
}

/// The length of the n-th write. Its content is n, and it is appended to its file.
fn length_of(n: u64) -> usize {
    8 * (1 + (n as usize * 577) % 1000)
}

/// Not a test of its own: the process that is killed.
#[test]
fn writer() {
    let (Some(image), Ok(from)) = (std::env::var_os(IMAGE), std::env::var(FROM)) else { return };
    let volume = open(Path::new(&image), Access::ReadWrite);
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    // The test harness captures printed output.
    let mut output = std::fs::File::options().write(true).open("/proc/self/fd/3").unwrap();
    for n in from.parse::<u64>().unwrap().. {
        let file = file_of(&volume, n);
        let bytes = n.to_le_bytes().repeat(length_of(n) / 8);
        let offset = file.len();
        let (written, _) = reactor.block_on(file.write_at(Buffer::copy_of(&bytes), offset));
        assert_eq!(written, Ok(bytes.len()));
        match n % 3 {
            0 => volume.sync().unwrap(),
            1 => reactor.block_on(file.sync_all()).unwrap(),
            _ => reactor.block_on(file.sync_data()).unwrap(),
        }
        writeln!(output, "{n}").unwrap();
    }
}

/// Runs the writer until it has acknowledged `count` writes. Returns the next number.
fn killed_after(image: &Path, from: u64, count: u64) -> u64 {
    let mut child = Command::new("sh")
        .args(["-c", "exec \"$0\" --exact writer 3>&1 >/dev/null 2>&1"])
        .arg(std::env::current_exe().unwrap())
        .env(IMAGE, image)
        .env(FROM, from.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut next = from;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        next = line.unwrap().parse::<u64>().unwrap() + 1;
        if next == from + count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(next >= from + count, "the writer ended by itself after {next}");
    next
}

/// The numbers of the complete writes in a file. The last write may be cut short.
fn found(reactor: &Reactor, file: &File) -> Vec<u64> {
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(file.len() as usize), 0));
    let mut rest = &bytes[..read.unwrap()];
    let mut numbers = Vec::new();
    while let Some(first) = rest.first_chunk() {
        let n = u64::from_le_bytes(*first);
        let Some((write, behind)) = rest.split_at_checked(length_of(n)) else { break };
        if write.chunks(8).any(|word| word != first) {
            break;
        }
        numbers.push(n);
        rest = behind;
    }
    numbers
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let kills = random::scaled(50) as u64 / 4;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, vec![0; 64 << 20]).unwrap();
    let device = Device::open(&image, Access::ReadWrite).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    drop(device);
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    // A number is used once: a killed write is not repeated.
    let (mut from, mut acknowledged) = (0, Vec::new());
    for kill in 0..kills.max(5) {
        let next = killed_after(&image, from, 1 + kill % 17);
        acknowledged.extend(from..next);
        from = next + 1;
        let volume = open(&image, Access::ReadWrite);
        for residue in 0..FILES {
            let file = file_of(&volume, residue);
            let there = found(&reactor, &file);
            let missing = acknowledged.iter().find(|n| *n % FILES == residue && !there.contains(n));
            assert_eq!(missing, None, "kill {kill}, file {residue}: {there:?}");
            // Truncates a partial write, so that the next one begins after a complete one.
            let whole: usize = there.iter().map(|n| length_of(*n)).sum();
            assert_eq!(file.len(), whole as u64, "a file ends with a partial write");
        }
    }
}
