//! A device that became shorter after it was opened: every access beyond its new end fails (EIO), on every
//! path, and old bytes are never replaced by zeros.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uringfs_buffer::Buffer;
use uringfs_cache::{Cache, FOLIO};
use uringfs_device::backend::memory::Memory;
use uringfs_device::queue::QueueKind;
use uringfs_device::{Access, Backend, Device, Errno, Geometry, KernelTarget, Op, Request};
use uringfs_file::{Advice, File, FileOptions, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};

use crate::harness::{pattern, reap};

const SIZE: u64 = 1 << 20;
/// New end of the device, inside a folio.
const END: u64 = (512 << 10) + 1536;

/// Memory with a movable end. Bytes beyond it come back when it moves back.
struct Ending {
    memory: Memory,
    end: Arc<AtomicU64>,
}

impl Backend for Ending {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn description(&self) -> String {
        "memory with a movable end".into()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    /// As for a file, reads and writes are short at the end.
    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let begin = request.address + request.done();
        let there = self.end.load(Ordering::SeqCst).saturating_sub(begin);
        if matches!(request.op, Op::Read | Op::Write) && there == 0 {
            return Ok(0);
        }
        let moved = self.memory.perform(request)?;
        Ok(u64::from(moved).min(there) as u32)
    }
}

/// A file whose device can be made shorter.
struct Shrinking {
    file: File,
    end: End,
    reactor: Reactor,
    name: String,
}

enum End {
    Memory(Arc<AtomicU64>),
    Image(PathBuf),
}

impl Shrinking {
    fn all(folder: &Path) -> Vec<Shrinking> {
        let kinds = [QueueKind::Auto, QueueKind::Ring, QueueKind::Sync, QueueKind::Threads];
        let images = kinds.into_iter().map(|queue| {
            let path = folder.join(format!("{queue:?}"));
            std::fs::write(&path, &pattern(0, SIZE as usize)[..]).unwrap();
            let device = Device::open(&path, Access::ReadWrite).unwrap();
            Shrinking::new(device, End::Image(path), queue, format!("an image over {queue:?}"))
        });
        images.chain([Shrinking::in_memory()]).collect()
    }

    fn in_memory() -> Shrinking {
        let end = Arc::new(AtomicU64::new(SIZE));
        let memory = Memory::new(SIZE).unwrap();
        let device = Device::new(Ending { memory, end: end.clone() }).unwrap();
        let made = Shrinking::new(device, End::Memory(end), QueueKind::Sync, "memory".into());
        let written = made.reactor.block_on(made.file.write_at(pattern(0, SIZE as usize), 0));
        assert_eq!(written.0, Ok(SIZE as usize));
        made
    }

    fn new(device: Device, end: End, queue: QueueKind, name: String) -> Shrinking {
        let options = ReactorOptions::new().queue(queue);
        let reactor = Reactor::new(options).unwrap();
        Shrinking { file: File::from_device(device, FileOptions::default()), end, reactor, name }
    }

    fn end_at(&self, bytes: u64) {
        match &self.end {
            End::Memory(end) => end.store(bytes, Ordering::SeqCst),
            End::Image(path) => {
                let image = OpenOptions::new().write(true).open(path).unwrap();
                image.set_len(bytes).unwrap();
            }
        }
    }

    fn read(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let (result, buffer) = self.reactor.block_on(file.read_at(Buffer::zeroed(length), offset));
        result.map(|read| buffer[..read].to_vec())
    }
}

/// The original bytes of a range.
fn bytes(from: u64, to: u64) -> Vec<u8> {
    pattern(0, SIZE as usize)[from as usize..to as usize].to_vec()
}

#[test]
fn direct_reads_beyond_the_new_end_fail() {
    let folder = tempfile::tempdir().unwrap();
    for made in Shrinking::all(folder.path()) {
        let (file, name) = (&made.file, &made.name);
        made.end_at(END);
        // The fast path by token and awaited, long reads, unaligned reads, vectored reads.
        made.reactor.read_at(file, Buffer::zeroed(512), SIZE / 2, Token::new(1)).unwrap();
        made.reactor.read_at(file, Buffer::zeroed(4096), SIZE - 4096, Token::new(2)).unwrap();
        for done in reap(&made.reactor, 2) {
            let expected = if done.token() == Token::new(1) { Ok(512) } else { Err(Errno::IO) };
            assert_eq!(done.result(), expected, "{name}");
        }
        for (offset, length) in [
            (SIZE - 4096, 4096),
            (SIZE / 2, 4096),
            (0, SIZE as usize),
            (SIZE / 2 + 77, 4000),
            (SIZE - 100, 100),
        ] {
            let read = made.read(file, offset, length);
            assert_eq!(read, Err(Errno::IO), "{name}: {length} from {offset} on");
        }
        for pieces in [[4096, 4096, 4096], [100, 9000, 77]] {
            let buffers = pieces.map(Buffer::zeroed).into();
            let read = made.reactor.block_on(file.read_vectored_at(buffers, SIZE / 2 - 4096)).0;
            assert_eq!(read, Err(Errno::IO), "{name}: {pieces:?}");
        }
        assert_eq!(made.read(file, 100, 5000), Ok(bytes(100, 5100)), "{name}");
        assert_eq!(made.read(file, SIZE, 4096), Ok(Vec::new()), "{name}: beyond the file's end");
    }
}

#[test]
fn buffered_reads_beyond_the_new_end_fail_and_cache_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for made in Shrinking::all(folder.path()) {
        let name = &made.name;
        let file = made.file.buffered(&Cache::new(SIZE));
        made.end_at(END);
        assert_eq!(made.read(&file, SIZE - 4096, 4096), Err(Errno::IO), "{name}");
        assert_eq!(made.read(&file, END / FOLIO * FOLIO, 100), Err(Errno::IO), "{name}");
        let advise = file.advise(Advice::WillNeed, 0, SIZE);
        assert_eq!(made.reactor.block_on(advise), Ok(()), "{name}");
        // Reads succeed up to the first bad folio; readahead has reached it by then.
        let mut found = Vec::new();
        while let Ok(read) = made.read(&file, found.len() as u64, 3000) {
            assert!(!read.is_empty(), "{name}: the end at {}", found.len());
            found.extend(read);
        }
        assert_eq!(found, bytes(0, END / FOLIO * FOLIO), "{name}");
        let cached = file.cached(0..SIZE);
        assert!(cached.iter().all(|range| range.end <= END / FOLIO * FOLIO), "{name}: {cached:?}");
        // The old bytes are back if the device has its old size.
        if let End::Memory(_) = made.end {
            made.end_at(SIZE);
            assert_eq!(made.read(&file, 0, SIZE as usize), Ok(bytes(0, SIZE)), "{name}");
        }
    }
}

#[test]
fn partial_writes_beyond_the_new_end_fail_and_keep_other_bytes() {
    let made = Shrinking::in_memory();
    for file in [made.file.clone(), made.file.buffered(&Cache::new(SIZE))] {
        made.end_at(END);
        let mut written = Vec::new();
        for (offset, length) in [(SIZE - 1000, 100), (END - 100, 200), (SIZE / 2 - 50, 2000)] {
            let write = file.write_at(Buffer::copy_of(&vec![0xee; length]), offset);
            let result = made.reactor.block_on(write).0;
            assert!(result != Ok(length), "{length} at {offset}");
            written.push(offset..offset + result.unwrap_or(0) as u64);
        }
        made.end_at(SIZE);
        assert_eq!(made.reactor.block_on(file.sync_all()), Ok(()));
        let found = made.read(&made.file, 0, SIZE as usize).unwrap();
        let mut expected = bytes(0, SIZE);
        for range in written {
            expected[range.start as usize..range.end as usize].fill(0xee);
        }
        assert!(found == expected, "unwritten bytes have changed");
        assert_eq!(
            made.reactor.block_on(file.write_at(pattern(0, SIZE as usize), 0)).0,
            Ok(SIZE as usize)
        );
        assert_eq!(made.reactor.block_on(file.sync_all()), Ok(()));
    }
}

#[test]
fn a_write_that_makes_no_progress_fails() {
    let made = Shrinking::in_memory();
    made.end_at(END);
    let write = |file: &File, length| {
        made.reactor.block_on(file.write_at(Buffer::zeroed(length), END / 4096 * 4096)).0
    };
    assert_eq!(write(&made.file, 4096), Err(Errno::IO));
    assert_eq!(write(&made.file, 64 << 10), Err(Errno::IO));
    let durably = made.file.write_durably(Buffer::zeroed(4096), SIZE - 4096);
    assert_eq!(made.reactor.block_on(durably).0, Err(Errno::IO));
    let file = made.file.buffered(&Cache::new(SIZE));
    assert_eq!(write(&file, 64 << 10), Ok(64 << 10));
    assert_eq!(made.reactor.block_on(file.sync_all()), Err(Errno::IO));
    made.end_at(SIZE);
    assert_eq!(made.reactor.block_on(file.sync_all()), Ok(()));
}
