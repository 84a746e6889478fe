//! A read by token allocates nothing, on the fast path and on the slow path.

use allocation_counter::measure;
use uringfs_buffer::BufferPool;
use uringfs_device::Device;
use uringfs_device::backend::file::{Allocation, File as ImageFile};
use uringfs_device::backend::memory::Memory;
use uringfs_device::backend::null::Null;
use uringfs_device::queue::QueueKind;
use uringfs_file::{File, FileOptions, Tokens};
use uringfs_reactor::{Counter, Reactor, ReactorOptions, Token};

const SIZE: u64 = 1 << 20;
const BATCH: u64 = 32;

fn image() -> Device {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Device::new(ImageFile::create(&path, SIZE, Allocation::Written).unwrap()).unwrap()
}

#[test]
fn fast_path_reads_by_token_allocate_nothing() {
    reads_allocate_nothing(FileOptions::default(), Counter::FastPathTaken);
}

#[test]
fn slow_path_reads_by_token_allocate_nothing() {
    let options = FileOptions::new().simple_read(false);
    reads_allocate_nothing(options, Counter::SlowPath);
}

/// Reads batches of blocks over every queue. `path` counts them.
fn reads_allocate_nothing(options: FileOptions, path: Counter) {
    let cases = [
        ("null over the ring", Device::new(Null::new(SIZE)).unwrap(), QueueKind::Ring),
        ("image over the ring", image(), QueueKind::Ring),
        ("image in the call", image(), QueueKind::Sync),
        ("image over AIO", image(), QueueKind::Aio),
        ("memory in the call", Device::new(Memory::new(SIZE).unwrap()).unwrap(), QueueKind::Sync),
    ];
    for (name, device, queue) in cases {
        let file = File::from_device(device, options);
        let reactor = Reactor::new(ReactorOptions::new().queue(queue)).unwrap();
        let pool = BufferPool::new(4096, BATCH as usize).unwrap();
        let mut completed = Vec::with_capacity(BATCH as usize);
        let mut batch = |number: u64| {
            for place in 0..BATCH {
                let buffer = pool.get().expect("as many as in a batch");
                let offset = (number * BATCH + place) * 4096 % SIZE;
                reactor.read_at(&file, buffer, offset, Token::new(place)).unwrap();
            }
            let mut ended = 0;
            while ended < BATCH as usize {
                reactor.reap(BATCH as usize - ended, None, &mut completed).unwrap();
                ended += completed.len();
                completed.clear();
            }
        };
        (0..8).for_each(&mut batch);
        let allocated = measure(|| (8..108).for_each(&mut batch));
        assert_eq!(allocated.count_total, 0, "{name}: {allocated:?}");
        assert_eq!(reactor.counters().get(path), 108 * BATCH, "{name}");
    }
}
