//! The server does not cache what the kernel caches: a file that is read twice takes its size in memory once. This test
//! measures its own memory, so it is alone in its program.

mod harness;

use std::fs::{self, File};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{Mounted, threads};
use uringfs::cache::Cache;
use uringfs::device::backend::file::File as ImageFile;
use uringfs::device::{Access, Backend, Device, Geometry, Op};
use uringfs::{Errno, FormatOptions, Volume};
use uringfs_device::{KernelTarget, Request};

const SIZE: usize = 256 << 20;
const CHUNK: usize = 1 << 20;

/// An image whose reads are counted, in bytes.
struct Counted {
    image: ImageFile,
    read: Arc<AtomicU64>,
}

impl Backend for Counted {
    fn geometry(&self) -> &Geometry {
        self.image.geometry()
    }

    fn description(&self) -> String {
        self.image.description()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let is_read = request.op == Op::Read;
        let moved = self.image.perform(request)?;
        if is_read {
            self.read.fetch_add(moved.into(), Ordering::SeqCst);
        }
        Ok(moved)
    }
}

/// The memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_file_that_is_read_twice_takes_its_size_in_memory_once() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let format = FormatOptions::new().size(320 << 20);
    Volume::create(&image, &format).unwrap().close().unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let image = ImageFile::open(&image, Access::ReadWrite).unwrap();
    let device = Device::new(Counted { image, read: read.clone() }).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let mut mounted = Mounted::with(folder, volume, &threads(1));
    let path = mounted.path("file");
    let content = vec![7; CHUNK];
    let mut file = File::create(&path).unwrap();
    for _ in 0..SIZE / CHUNK {
        std::io::Write::write_all(&mut file, &content).unwrap();
    }
    file.sync_all().unwrap();
    // The kernel has the pages of the writes: it forgets them, so that the file is read from the device.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(file);

    let mut chunk = vec![0; CHUNK];
    let mut read_all = || {
        let before = read.load(Ordering::SeqCst);
        let mut file = File::open(&path).unwrap();
        for _ in 0..SIZE / CHUNK {
            file.read_exact(&mut chunk).unwrap();
            assert!(chunk == content);
        }
        read.load(Ordering::SeqCst) - before
    };
    let (filled, memory) = (Cache::of_process().statistics().filled, resident());
    let first = read_all();
    assert!(first >= SIZE as u64, "only {first} bytes were read from the device");
    let second = read_all();
    // A busy machine may have taken pages back.
    assert!(second < SIZE as u64 / 4, "{second} bytes were read again");
    assert_eq!(Cache::of_process().statistics().filled, filled, "the volume has cached a page");
    let grown = resident().saturating_sub(memory);
    assert!(grown < SIZE as u64 / 8, "the server has grown by {grown} bytes");
    mounted.end();
}
