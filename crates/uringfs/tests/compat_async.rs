//! Files with a cursor for asynchronous code: the same results as those of `std::fs::File`, real consumers in tokio and
//! futures, errors, and calls that are dropped.

#![cfg(all(feature = "tokio", feature = "futures"))]

use std::fs::File as StdFile;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt, BufReader,
    BufWriter, ReadBuf,
};
use tokio_util::codec::{Framed, LinesCodec};
use uringfs::compat::AsyncFile;
use uringfs::device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs::device::{Access, Clock, Device, VirtualClock};
use uringfs::file::FileOptions;
use uringfs::{Errno, File, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};

const SIZE: u64 = 256 << 10;

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
    WriteAll(usize, u8),
    Seek(SeekFrom),
    Flush,
    /// Polled once, and dropped.
    DropRead(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let length = || prop_oneof![0usize..300, 0usize..20_000, Just(4096)];
    let distance = || -30_000i64..30_000;
    let call = prop_oneof![
        length().prop_map(Call::Read),
        (length(), any::<u8>()).prop_map(|(length, byte)| Call::WriteAll(length, byte)),
        (0u64..60_000).prop_map(|to| Call::Seek(SeekFrom::Start(to))),
        distance().prop_map(|to| Call::Seek(SeekFrom::Current(to))),
        distance().prop_map(|to| Call::Seek(SeekFrom::End(to))),
        Just(Call::Flush),
        (1usize..20_000).prop_map(Call::DropRead),
    ];
    vec(call, 1..25)
}

fn bytes(length: usize, byte: u8) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add((at / 3) as u8)).collect()
}

type Outcome = (Result<u64, ErrorKind>, Vec<u8>);

fn outcome(number: io::Result<u64>, bytes: Vec<u8>) -> Outcome {
    (number.map_err(|error| error.kind()), bytes)
}

/// Calls std's file. A read asks for as many bytes as the other file has returned, which may be fewer than there are.
fn call_std(file: &mut StdFile, call: &Call, read: usize) -> Outcome {
    match *call {
        Call::Read(length) => {
            let mut into = vec![0; length];
            outcome(file.read(&mut into[..read]).map(|read| read as u64), into)
        }
        Call::WriteAll(length, byte) => {
            outcome(file.write_all(&bytes(length, byte)).map(|()| 0), Vec::new())
        }
        Call::Seek(to) => outcome(file.seek(to), Vec::new()),
        Call::Flush | Call::DropRead(_) => (Ok(0), Vec::new()),
    }
}

async fn call_tokio(file: &mut AsyncFile, call: &Call) -> Outcome {
    match *call {
        Call::Read(length) => {
            let mut into = vec![0; length];
            let read = AsyncReadExt::read(file, &mut into).await;
            outcome(read.map(|read| read as u64), into)
        }
        Call::WriteAll(length, byte) => {
            let written = AsyncWriteExt::write_all(file, &bytes(length, byte)).await;
            outcome(written.map(|()| 0), Vec::new())
        }
        Call::Seek(to) => outcome(AsyncSeekExt::seek(file, to).await, Vec::new()),
        Call::Flush => outcome(AsyncWriteExt::flush(file).await.map(|()| 0), Vec::new()),
        Call::DropRead(length) => {
            drop_read(file, length);
            (Ok(0), Vec::new())
        }
    }
}

async fn call_futures(file: &mut AsyncFile, call: &Call) -> Outcome {
    match *call {
        Call::Read(length) => {
            let mut into = vec![0; length];
            let read = futures_util::AsyncReadExt::read(file, &mut into).await;
            outcome(read.map(|read| read as u64), into)
        }
        Call::WriteAll(length, byte) => {
            let written = futures_util::AsyncWriteExt::write_all(file, &bytes(length, byte)).await;
            outcome(written.map(|()| 0), Vec::new())
        }
        Call::Seek(to) => outcome(futures_util::AsyncSeekExt::seek(file, to).await, Vec::new()),
        Call::Flush => {
            outcome(futures_util::AsyncWriteExt::flush(file).await.map(|()| 0), Vec::new())
        }
        Call::DropRead(length) => {
            drop_read(file, length);
            (Ok(0), Vec::new())
        }
    }
}

/// Begins a read, and drops it unless it has bytes at once: then they go back by a seek.
fn drop_read(file: &mut AsyncFile, length: usize) {
    let mut into = vec![0; length];
    let mut into = ReadBuf::new(&mut into);
    let context = &mut Context::from_waker(Waker::noop());
    if AsyncRead::poll_read(Pin::new(file), context, &mut into).is_ready() {
        let back = SeekFrom::Current(-(into.filled().len() as i64));
        assert!(futures_util::AsyncSeek::poll_seek(Pin::new(file), context, back).is_ready());
    }
}

proptest! {
    #[test]
    fn calls_agree_with_those_of_std(
        calls in calls(),
        direct: bool,
        append: bool,
        by_tokio: bool,
        own_reactor: bool,
    ) {
        thread_local!(static VOLUME: (Volume, TempDir) = volume());
        VOLUME.with(|(volume, folder)| {
            let path = folder.path().join("std");
            let _ = std::fs::remove_file(&path);
            let mut std = StdFile::options();
            std.read(true).write(!append).append(append).create(true);
            let mut std = std.open(&path).unwrap();
            let file = open(volume, "/file", direct);
            let new = if append { AsyncFile::append } else { AsyncFile::new };
            let mut file = new(file);
            let work = async {
                for step in &calls {
                    let ours = match by_tokio {
                        true => call_tokio(&mut file, step).await,
                        false => call_futures(&mut file, step).await,
                    };
                    let read = ours.0.map_or(0, |read| read as usize);
                    let theirs = call_std(&mut std, step, read.min(ours.1.len()));
                    assert!(ours == theirs, "{step:?}: {:?}, std {:?}", ours.0, theirs.0);
                }
                AsyncWriteExt::shutdown(&mut file).await.unwrap();
            };
            if own_reactor {
                Reactor::new(ReactorOptions::default()).unwrap().block_on(work);
            } else {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work);
            }
            let length = file.file().len() as usize;
            assert_eq!(length as u64, std.metadata().unwrap().len());
            let (read, all) = file.file().read_at(Vec::with_capacity(length + 1), 0).wait();
            assert_eq!(read, Ok(length));
            assert!(all == std::fs::read(&path).unwrap());
        });
    }
}

fn text() -> (Vec<String>, Vec<u8>) {
    let lines: Vec<_> = (0..100_000).map(|number| format!("line {number}")).collect();
    let text = lines.join("\n") + "\n";
    (lines, text.into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_copies_reads_lines_and_frames() {
    let (volume, _folder) = volume();
    let (lines, text) = text();
    for direct in [false, true] {
        let mut file = AsyncFile::new(open(&volume, "/text", direct));
        let copied = tokio::io::copy(&mut &text[..], &mut file).await.unwrap();
        assert_eq!(copied, text.len() as u64);
        AsyncWriteExt::flush(&mut file).await.unwrap();
        AsyncSeekExt::rewind(&mut file).await.unwrap();
        let mut all = Vec::new();
        AsyncReadExt::read_to_end(&mut file, &mut all).await.unwrap();
        assert!(all == text);
        AsyncSeekExt::rewind(&mut file).await.unwrap();
        let mut read = BufReader::with_capacity(64 << 10, file).lines();
        for line in &lines {
            assert_eq!(read.next_line().await.unwrap().as_ref(), Some(line));
        }
        assert_eq!(read.next_line().await.unwrap(), None);

        let file = AsyncFile::new(open(&volume, "/frames", direct));
        let mut frames = Framed::new(file, LinesCodec::new());
        for line in &lines[..2000] {
            futures_util::SinkExt::feed(&mut frames, line).await.unwrap();
        }
        futures_util::SinkExt::<&String>::flush(&mut frames).await.unwrap();
        let mut file = frames.into_inner();
        AsyncSeekExt::rewind(&mut file).await.unwrap();
        let mut frames = Framed::new(file, LinesCodec::new());
        for line in &lines[..2000] {
            let read = futures_util::StreamExt::next(&mut frames).await.unwrap();
            assert_eq!(read.as_ref().unwrap(), line);
        }
        assert!(futures_util::StreamExt::next(&mut frames).await.is_none());
    }
}

#[test]
fn futures_copy_on_a_reactor() {
    let (volume, _folder) = volume();
    let (_, text) = text();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.block_on(async {
        let mut file = AsyncFile::new(open(&volume, "/text", true));
        futures_util::io::copy(&mut &text[..], &mut file).await.unwrap();
        futures_util::AsyncWriteExt::flush(&mut file).await.unwrap();
        futures_util::AsyncSeekExt::seek(&mut file, SeekFrom::Start(5)).await.unwrap();
        let mut copy = AsyncFile::append(open(&volume, "/copy", false));
        let reader = futures_util::io::BufReader::new(file);
        futures_util::io::copy_buf(reader, &mut copy).await.unwrap();
        futures_util::AsyncWriteExt::close(&mut copy).await.unwrap();
        assert!(volume.read("/copy").unwrap() == text[5..]);
    });
}

#[tokio::test]
async fn an_accepted_write_that_fails_is_reported_once() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let file = File::from_device(Device::new(sim.clone()).unwrap(), FileOptions::default());
    let mut file = AsyncFile::new(file);
    AsyncWriteExt::write_all(&mut file, b"good").await.unwrap();
    AsyncWriteExt::flush(&mut file).await.unwrap();
    sim.inject(Rule::new(None, When::Nth(1), Fault::Error(Errno::IO)));
    // A write that fails at once reports it itself.
    let failed = match AsyncWriteExt::write_all(&mut file, &[1; 4096]).await {
        Ok(()) => AsyncWriteExt::flush(&mut file).await.unwrap_err(),
        Err(failed) => failed,
    };
    assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    AsyncWriteExt::flush(&mut file).await.unwrap();
    AsyncSeekExt::rewind(&mut file).await.unwrap();
    let mut into = [0; 4];
    AsyncReadExt::read_exact(&mut file, &mut into).await.unwrap();
    assert_eq!(&into, b"good");
}

#[tokio::test]
async fn a_file_of_fixed_size_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    uringfs::create_image(&path, 8192).unwrap();
    let mut file = AsyncFile::new(File::open(&path, Access::ReadWrite).unwrap());
    AsyncSeekExt::seek(&mut file, SeekFrom::End(-10)).await.unwrap();
    // Accepted as a whole; the rest of it has no place.
    AsyncWriteExt::write_all(&mut file, &[1; 100]).await.unwrap();
    let failed = AsyncWriteExt::flush(&mut file).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::StorageFull);
    AsyncSeekExt::seek(&mut file, SeekFrom::Start(8190)).await.unwrap();
    let mut all = Vec::new();
    AsyncReadExt::read_to_end(&mut file, &mut all).await.unwrap();
    assert_eq!(all, [1; 2]);
}

/// A file on a device whose requests take virtual time, with its reactor.
fn slow_file() -> (File, Reactor) {
    let clock = Clock::Virtual(VirtualClock::default());
    let latency = Duration::from_micros(100);
    let options = SimOptions::new(SIZE).latency(latency..=latency).clock(clock.clone());
    let file = File::from_device(Device::new(Sim::new(options)).unwrap(), FileOptions::default());
    let reactor = Reactor::new(ReactorOptions::default().clock(clock)).unwrap();
    // Futures that are polled outside of it are its own from now on.
    reactor.turn().unwrap();
    (file, reactor)
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_dropped_handle_still_writes_what_it_accepted() {
    let (file, reactor) = slow_file();
    for offset in [0, 100] {
        let mut handle = AsyncFile::new(file.clone());
        let seek = AsyncSeekExt::seek(&mut handle, SeekFrom::Start(offset));
        assert!(poll_once(seek).is_ready());
        let write = AsyncWriteExt::write(&mut handle, &[7; 8192]);
        assert!(matches!(poll_once(write), Poll::Ready(Ok(8192))));
        assert!(poll_once(AsyncWriteExt::flush(&mut handle)).is_pending());
        drop(handle);
        reactor.reap(usize::MAX, None, &mut Vec::new()).unwrap();
        let (read, bytes) = reactor.block_on(file.read_at(vec![0; 8192], offset));
        assert_eq!((read, bytes), (Ok(8192), vec![7; 8192]));
    }
}

#[test]
fn a_dropped_write_accepts_nothing() {
    let (file, reactor) = slow_file();
    let mut handle = AsyncFile::new(file.clone());
    reactor.block_on(async {
        assert_eq!(AsyncWriteExt::write(&mut handle, b"first").await.unwrap(), 5);
        // It waits for the first.
        assert!(poll_once(AsyncWriteExt::write(&mut handle, b"dropped")).is_pending());
        AsyncWriteExt::write_all(&mut handle, b"second").await.unwrap();
        AsyncWriteExt::flush(&mut handle).await.unwrap();
        let (_, bytes) = file.read_at(vec![9; 13], 0).await;
        assert_eq!(bytes, b"firstsecond\0\0");
    });
}

#[test]
fn bytes_of_a_dropped_read_are_returned_by_the_next() {
    let (file, reactor) = slow_file();
    let text: Vec<u8> = (0..10_000u32).map(|at| (at / 5) as u8).collect();
    reactor.block_on(async {
        file.write_all_at(text.clone(), 0).await.0.unwrap();
        let mut handle = AsyncFile::new(file.clone());
        assert!(poll_once(AsyncReadExt::read(&mut handle, &mut [0; 6000])).is_pending());
        let mut all: Vec<u8> = Vec::new();
        let mut into = [0; 700];
        while all.len() < text.len() {
            let read = AsyncReadExt::read(&mut handle, &mut into).await.unwrap();
            all.extend(&into[..read]);
        }
        assert_eq!(all[..text.len()], text);
        // A seek and a write drop what a read has received.
        AsyncSeekExt::rewind(&mut handle).await.unwrap();
        assert!(poll_once(AsyncReadExt::read(&mut handle, &mut [0; 6000])).is_pending());
        assert_eq!(AsyncSeekExt::seek(&mut handle, SeekFrom::Current(10)).await.unwrap(), 10);
        assert!(poll_once(AsyncReadExt::read(&mut handle, &mut [0; 6000])).is_pending());
        AsyncWriteExt::write_all(&mut handle, b"written").await.unwrap();
        let mut into = [0; 3];
        AsyncReadExt::read_exact(&mut handle, &mut into).await.unwrap();
        assert_eq!(into[..], text[17..20]);
        let (_, bytes) = file.read_at(vec![0; 20], 0).await;
        assert_eq!(bytes[..10], text[..10]);
        assert_eq!(&bytes[10..17], b"written");
    });
}

#[test]
fn nothing_waits_when_nothing_is_in_flight() {
    let (file, _reactor) = slow_file();
    let mut handle = AsyncFile::new(file);
    assert!(poll_once(AsyncWriteExt::flush(&mut handle)).is_ready());
    assert!(poll_once(AsyncSeekExt::stream_position(&mut handle)).is_ready());
    assert!(poll_once(AsyncReadExt::read(&mut handle, &mut [])).is_ready());
    let empty = poll_fn(|context| AsyncWrite::poll_write(Pin::new(&mut handle), context, &[]));
    assert!(matches!(poll_once(empty), Poll::Ready(Ok(0))));
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    is_send_and_sync(&handle);
    drop(BufWriter::new(handle));
}
