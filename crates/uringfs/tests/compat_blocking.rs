//! Files with a cursor for threads: the same results as those of `std::fs::File`, and real consumers.

use std::fs::File as StdFile;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use uringfs::compat::BlockingFile;
use uringfs::device::Access;
use uringfs::{File, FormatOptions, OpenOptions, Volume};

fn volume() -> (Volume, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = FormatOptions::new().size(64 << 20);
    (Volume::create(folder.path().join("image"), &options).unwrap(), folder)
}

fn open(volume: &Volume, name: &str, direct: bool) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
    options.direct(direct).open(volume, name).unwrap()
}

#[derive(Clone, Debug)]
enum Call {
    Read(usize),
    Write(usize, u8),
    Seek(SeekFrom),
    ReadAt(usize, u64),
    WriteAt(usize, u8, u64),
    ReadToEnd,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let length = || prop_oneof![0usize..300, 0usize..20_000, Just(4096)];
    let distance = || -30_000i64..30_000;
    let call = prop_oneof![
        length().prop_map(Call::Read),
        (length(), any::<u8>()).prop_map(|(length, byte)| Call::Write(length, byte)),
        (0u64..60_000).prop_map(|to| Call::Seek(SeekFrom::Start(to))),
        distance().prop_map(|to| Call::Seek(SeekFrom::Current(to))),
        distance().prop_map(|to| Call::Seek(SeekFrom::End(to))),
        (length(), 0u64..60_000).prop_map(|(length, offset)| Call::ReadAt(length, offset)),
        (length(), any::<u8>(), 0u64..60_000)
            .prop_map(|(length, byte, offset)| Call::WriteAt(length, byte, offset)),
        Just(Call::ReadToEnd),
    ];
    vec(call, 1..25)
}

fn bytes(length: usize, byte: u8) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add((at / 3) as u8)).collect()
}

/// The number that a call returns, or the kind of its error, and the bytes that it read.
type Outcome = (Result<u64, ErrorKind>, Vec<u8>);

fn outcome(number: io::Result<u64>, bytes: Vec<u8>) -> Outcome {
    (number.map_err(|error| error.kind()), bytes)
}

fn call(
    file: &mut (impl Read + Write + Seek),
    call: &Call,
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    write_at: impl Fn(&[u8], u64) -> io::Result<usize>,
) -> Outcome {
    let into = |length, read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>| {
        let mut into = vec![0; length];
        outcome(read(&mut into).map(|read| read as u64), into)
    };
    match *call {
        Call::Read(length) => into(length, &mut |into| file.read(into)),
        Call::Write(length, byte) => {
            outcome(file.write(&bytes(length, byte)).map(|length| length as u64), Vec::new())
        }
        Call::Seek(to) => outcome(file.seek(to), Vec::new()),
        Call::ReadAt(length, offset) => into(length, &mut |into| read_at(into, offset)),
        Call::WriteAt(length, byte, offset) => {
            outcome(write_at(&bytes(length, byte), offset).map(|length| length as u64), Vec::new())
        }
        Call::ReadToEnd => {
            let mut all = Vec::new();
            let read = file.read_to_end(&mut all);
            outcome(read.map(|read| read as u64), all)
        }
    }
}

proptest! {
    #[test]
    fn calls_agree_with_those_of_std(calls in calls(), direct: bool, append: bool) {
        thread_local!(static VOLUME: (Volume, TempDir) = volume());
        VOLUME.with(|(volume, folder)| {
            let path = folder.path().join("std");
            let _ = std::fs::remove_file(&path);
            let mut std = StdFile::options();
            std.read(true).write(!append).append(append).create(true);
            let mut std = std.open(&path).unwrap();
            let file = open(volume, "/file", direct);
            let new = if append { BlockingFile::append } else { BlockingFile::new };
            let mut file = new(file);
            for step in &calls {
                // Linux appends by `pwrite` to a file that is opened with O_APPEND.
                if append && matches!(step, Call::WriteAt(..)) {
                    continue;
                }
                let at = (file.file().clone(), std.try_clone().unwrap());
                let own = BlockingFile::new(at.0);
                let ours = call(
                    &mut file,
                    step,
                    |into, offset| own.read_at(into, offset),
                    |from, offset| own.write_at(from, offset),
                );
                let theirs = call(
                    &mut std,
                    step,
                    |into, offset| at.1.read_at(into, offset),
                    |from, offset| at.1.write_at(from, offset),
                );
                assert!(ours == theirs, "{step:?}: {:?}, std {:?}", ours.0, theirs.0);
                assert_eq!(file.stream_position().unwrap(), std.stream_position().unwrap());
            }
        });
    }
}

#[test]
fn long_files_pass_through_copy_and_lines() {
    let (volume, _folder) = volume();
    let mut text = Vec::new();
    for number in 0..200_000 {
        writeln!(text, "line {number}").unwrap();
    }
    for direct in [false, true] {
        let mut file = BlockingFile::new(open(&volume, "/text", direct));
        assert_eq!(io::copy(&mut &text[..], &mut file).unwrap(), text.len() as u64);
        file.flush().unwrap();
        file.rewind().unwrap();
        let mut all = Vec::new();
        io::copy(&mut file, &mut all).unwrap();
        assert!(all == text);
        file.rewind().unwrap();
        // One call moves no more than a mebibyte, except cached bytes.
        let read = file.read(&mut vec![0; 2 << 20]).unwrap();
        assert_eq!(read, if direct { 1 << 20 } else { 2 << 20 });
        file.rewind().unwrap();
        let lines = BufReader::new(file).lines();
        assert!(lines.enumerate().all(|(number, line)| line.unwrap() == format!("line {number}")));
    }
}

#[test]
fn a_file_of_fixed_size_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    uringfs::create_image(&path, 8192).unwrap();
    let mut file = BlockingFile::new(File::open(&path, Access::ReadWrite).unwrap());
    file.seek(SeekFrom::End(-10)).unwrap();
    assert_eq!(file.write(&[1; 100]).unwrap(), 10);
    assert_eq!(file.write(&[1; 100]).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(file.stream_position().unwrap(), 8192);
    let mut append = BlockingFile::append(file.into_inner());
    assert_eq!(append.write(&[1]).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn threads_read_through_one_handle() {
    let (volume, _folder) = volume();
    let file = BlockingFile::new(open(&volume, "/shared", true));
    for block in 0..32u8 {
        assert_eq!(file.write_at(&[block; 1000], u64::from(block) * 1000).unwrap(), 1000);
    }
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for block in (thread..32).step_by(4) {
                    let mut into = [0; 1000];
                    assert_eq!(file.read_at(&mut into, u64::from(block) * 1000).unwrap(), 1000);
                    assert_eq!(into, [block; 1000]);
                }
            });
        }
    });
}
