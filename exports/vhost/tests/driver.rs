//! A disk under a driver that others wrote: the crate virtio-driver, over vhost-user, with split rings.
#![allow(unsafe_code)] // Its calls take raw memory.

mod harness;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use harness::{IMAGE_BYTES, Server};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use uringfs::reactor::QueueKind;
use uringfs::{FormatOptions, OpenOptions, ReactorOptions, Volume};
use uringfs_vhost::{Disk, PinMemory};
use virtio_driver::{
    VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkReqBuf,
    VirtioBlkTransport, VirtioFeatureFlags, VirtioTransport, iovec,
};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

const MEMORY_BYTES: usize = 4 << 20;
const EIO: i32 = 5;
const ENOTSUP: i32 = 95;

/// A driver with its memory for data.
struct Guest {
    transport: VhostUser<VirtioBlkConfig, VirtioBlkReqBuf>,
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    memory: MmapRegion,
}

fn shared_memory(bytes: usize) -> OwnedFd {
    let file = memfd_create("uringfs-guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    file
}

impl Guest {
    fn new(server: &Server, features: u64, queues: usize) -> Guest {
        let features = features | VirtioFeatureFlags::VERSION_1.bits();
        let socket = server.socket();
        let mut transport = VhostUser::new(socket.to_str().unwrap(), features).unwrap();
        let as_transport: &mut VirtioBlkTransport = &mut transport;
        let queues = VirtioBlkQueue::setup_queues(as_transport, queues, 64).unwrap();
        let file = fs::File::from(shared_memory(MEMORY_BYTES));
        let descriptor = file.try_clone().unwrap();
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), MEMORY_BYTES).unwrap();
        let address = memory.as_ptr().addr();
        transport.map_mem_region(address, MEMORY_BYTES, descriptor.as_raw_fd(), 0).unwrap();
        Guest { transport, queues, memory }
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.get_slice(offset, bytes.len()).unwrap().write_slice(bytes, 0).unwrap();
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.get_slice(offset, length).unwrap().read_slice(&mut bytes, 0).unwrap();
        bytes
    }

    fn address(&self, offset: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(offset)
    }

    /// Notifies the device, if it wants that.
    fn notify(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            self.transport.get_submission_notifier(queue).notify().unwrap();
        }
    }

    /// Waits for so many completions, with interrupts.
    fn wait(&mut self, queue: usize, count: usize) -> Vec<(usize, i32)> {
        let event = self.transport.get_completion_fd(queue);
        let mut completed = Vec::new();
        loop {
            let ended = self.queues[queue].completions().map(|ended| (ended.context, ended.ret));
            completed.extend(ended);
            if completed.len() >= count {
                return completed;
            }
            self.queues[queue].set_used_notif_enabled(true);
            if !self.queues[queue].completions().has_next() {
                wait_for(&event);
            }
        }
    }

    fn read(&mut self, disk_offset: u64, memory_offset: usize, length: usize) -> i32 {
        let address = self.address(memory_offset);
        // SAFETY: inside the memory that the device knows.
        unsafe { self.queues[0].read_raw(disk_offset, address, length, 0) }.unwrap();
        self.notify(0);
        self.wait(0, 1)[0].1
    }

    fn write(&mut self, disk_offset: u64, memory_offset: usize, length: usize) -> i32 {
        let address = self.address(memory_offset);
        // SAFETY: as above.
        unsafe { self.queues[0].write_raw(disk_offset, address, length, 0) }.unwrap();
        self.notify(0);
        self.wait(0, 1)[0].1
    }

    fn run(
        &mut self,
        start: impl FnOnce(&mut VirtioBlkQueue<'static, usize>) -> std::io::Result<()>,
    ) -> i32 {
        start(&mut self.queues[0]).unwrap();
        self.notify(0);
        self.wait(0, 1)[0].1
    }
}

/// Waits for an interrupt. The eventfd does not block: the device has set that.
fn wait_for(event: &virtio_driver::EventFd) {
    use std::os::fd::BorrowedFd;
    // SAFETY: the caller holds the eventfd.
    let borrowed = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let mut polled = [rustix::event::PollFd::new(&borrowed, rustix::event::PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: 30, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut polled, Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "no interrupt within 30 seconds");
    let _ = event.read();
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Features of rings, alone and together.
fn ring_features() -> [u64; 4] {
    let indirect = VirtioFeatureFlags::RING_INDIRECT_DESC.bits();
    let event_index = VirtioFeatureFlags::RING_EVENT_IDX.bits();
    [0, indirect, event_index, indirect | event_index]
}

#[test]
fn written_bytes_are_on_the_disk_and_read_back() {
    for features in ring_features() {
        let server = Server::new(|disk| disk);
        let mut guest = Guest::new(&server, features | Blk::FLUSH.bits(), 1);
        for (disk_offset, memory_offset, length) in [
            (0, 0, 4096),
            (8192, 4096, 65536),
            // Part of a block, and memory at every alignment that a guest may choose.
            (512, 8192, 512),
            (1536, 8192 + 512, 1024),
            (4096 + 512, 3, 8192),
            (IMAGE_BYTES - 512, 77, 512),
            (1 << 20, 0, 2 << 20),
        ] {
            let bytes = pattern(length, disk_offset + length as u64);
            guest.fill(memory_offset, &bytes);
            assert_eq!(guest.write(disk_offset, memory_offset, length), 0);
            assert_eq!(guest.run(|queue| queue.flush(0)), 0);
            let mut found = vec![0; length];
            let image = fs::File::open(server.image()).unwrap();
            image.read_exact_at(&mut found, disk_offset).unwrap();
            assert!(found == bytes, "{disk_offset} {length}");
            guest.fill(memory_offset, &vec![0; length]);
            assert_eq!(guest.read(disk_offset, memory_offset, length), 0);
            assert!(guest.bytes(memory_offset, length) == bytes, "{disk_offset} {length}");
        }
    }
}

#[test]
fn many_requests_are_in_flight_in_every_queue() {
    const QUEUES: usize = 3;
    const DEPTH: usize = 16;
    for features in ring_features() {
        let server = Server::new(|disk| disk.queues(QUEUES));
        let mut guest = Guest::new(&server, features | Blk::MQ.bits(), QUEUES);
        let config = guest.transport.get_config().unwrap();
        assert_eq!(config.num_queues.to_native(), QUEUES as u16);
        let block = |queue: usize, request: usize| queue * 1024 + request;
        for round in 0..8 {
            for queue in 0..QUEUES {
                for request in 0..DEPTH {
                    let offset = block(queue, request) * 512;
                    guest.fill(offset, &pattern(512, (round * 10_000 + offset) as u64));
                    let (address, at) = (guest.address(offset), offset as u64);
                    // SAFETY: inside the memory that the device knows.
                    unsafe { guest.queues[queue].write_raw(at, address, 512, request) }.unwrap();
                }
                guest.notify(queue);
            }
            for queue in 0..QUEUES {
                let mut completed = guest.wait(queue, DEPTH);
                completed.sort_unstable();
                let expected: Vec<_> = (0..DEPTH).map(|request| (request, 0)).collect();
                assert_eq!(completed, expected);
            }
        }
        let image = fs::read(server.image()).unwrap();
        for queue in 0..QUEUES {
            for request in 0..DEPTH {
                let offset = block(queue, request) * 512;
                let expected = pattern(512, (70_000 + offset) as u64);
                assert!(image[offset..offset + 512] == expected, "{queue} {request}");
            }
        }
    }
}

/// Rounds of so many writes at once, each followed by a read of its block.
fn write_and_read_rounds(guest: &mut Guest, depth: usize) {
    let block = |request: usize| 4096 * request;
    for request in 0..depth {
        guest.fill(block(request), &pattern(4096, request as u64 + 1));
        let (address, offset) = (guest.address(block(request)), block(request) as u64);
        // SAFETY: inside the memory that the device knows.
        unsafe { guest.queues[0].write_raw(offset, address, 4096, request) }.unwrap();
    }
    guest.notify(0);
    assert!(guest.wait(0, depth).iter().all(|(_, result)| *result == 0));
    for request in 0..depth {
        assert_eq!(guest.read(block(request) as u64, 1 << 20, 4096), 0);
        assert!(guest.bytes(1 << 20, 4096) == pattern(4096, request as u64 + 1));
    }
}

#[test]
fn a_disk_without_polling_answers_every_notification_and_never_looks() {
    for features in ring_features() {
        let server = Server::new(|disk| disk.polling(false));
        let mut guest = Guest::new(&server, features, 1);
        for depth in [1, 2, 16, 1, 16] {
            write_and_read_rounds(&mut guest, depth);
        }
        assert_eq!(server.handle().polls(), 0);
    }
}

#[test]
fn a_disk_looks_for_more_work_unless_polling_is_off() {
    let server = Server::new(|disk| disk);
    let mut guest = Guest::new(&server, 0, 1);
    while server.handle().polls() == 0 {
        write_and_read_rounds(&mut guest, 16);
    }
}

#[test]
fn segments_of_a_request_may_lie_anywhere() {
    for features in ring_features() {
        let server = Server::new(|disk| disk);
        let mut guest = Guest::new(&server, features, 1);
        let lengths = [512, 4096, 1024, 512, 2048];
        let places = [100_000, 8192, 300_007, 300_007 + 1024, 65536];
        let total: usize = lengths.iter().sum();
        let bytes = pattern(total, 5);
        let mut at = 0;
        let mut segments = Vec::new();
        for (place, length) in places.into_iter().zip(lengths) {
            guest.fill(place, &bytes[at..at + length]);
            at += length;
            segments.push(iovec { iov_base: guest.address(place).cast(), iov_len: length });
        }
        let write = |queue: &mut VirtioBlkQueue<'static, usize>| {
            // SAFETY: inside the memory that the device knows.
            unsafe { queue.writev(512, segments.as_ptr(), segments.len(), 0) }
        };
        assert_eq!(guest.run(write), 0);
        assert!(fs::read(server.image()).unwrap()[512..512 + total] == bytes);
        places.into_iter().zip(lengths).for_each(|(place, length)| {
            guest.fill(place, &vec![0; length]);
        });
        let read = |queue: &mut VirtioBlkQueue<'static, usize>| {
            // SAFETY: as above.
            unsafe { queue.readv(512, segments.as_ptr(), segments.len(), 0) }
        };
        assert_eq!(guest.run(read), 0);
        let read: Vec<u8> = places
            .into_iter()
            .zip(lengths)
            .flat_map(|(place, length)| guest.bytes(place, length))
            .collect();
        assert!(read == bytes);
    }
}

#[test]
fn every_way_to_the_device_serves_a_guest() {
    for queue in [QueueKind::Ring, QueueKind::Aio, QueueKind::Sync, QueueKind::Threads] {
        for pin_memory in [PinMemory::On, PinMemory::Off] {
            let options = |disk: Disk| {
                disk.reactor(ReactorOptions::new().queue(queue)).pin_memory(pin_memory)
            };
            let server = Server::new(options);
            let mut guest = Guest::new(&server, Blk::WRITE_ZEROES.bits(), 1);
            for (offset, memory_offset, length) in
                [(0, 0, 8192), (512, 4096, 1024), (4096, 5, 3 << 20), (0, 4096, 4096)]
            {
                let bytes = pattern(length, offset + 1);
                guest.fill(memory_offset, &bytes);
                assert_eq!(guest.write(offset, memory_offset, length), 0, "{queue:?}");
                guest.fill(memory_offset, &vec![0; length]);
                assert_eq!(guest.read(offset, memory_offset, length), 0, "{queue:?}");
                assert!(guest.bytes(memory_offset, length) == bytes, "{queue:?} {offset}");
            }
            assert_eq!(guest.run(|queue| queue.write_zeroes(512, 1024, false, 0)), 0);
            assert_eq!(guest.read(0, 0, 4096), 0);
            assert!(guest.bytes(512, 1024).iter().all(|byte| *byte == 0), "{queue:?}");
        }
    }
}

#[test]
fn a_file_of_a_volume_is_a_disk_with_holes() {
    let folder = tempfile::tempdir().unwrap();
    let options = FormatOptions::new().size(64 << 20);
    let volume = Volume::create(folder.path().join("volume"), &options).unwrap();
    for direct in [true, false] {
        let options = OpenOptions::new().read(true).write(true).create(true).direct(direct);
        let file = options.open(&volume, "/disk").unwrap();
        file.set_len(IMAGE_BYTES).wait().unwrap();
        let socket = tempfile::tempdir().unwrap();
        let server = Server::of_file(socket, file.clone(), |disk| disk);
        let features = Blk::DISCARD | Blk::WRITE_ZEROES | Blk::FLUSH;
        let mut guest = Guest::new(&server, features.bits(), 1);
        let config = guest.transport.get_config().unwrap();
        assert_eq!((config.capacity.to_native(), config.write_zeroes_may_unmap), (32768, 1));
        // A hole reads as zeros, whole and beside data.
        guest.fill(0, &pattern(65536, 9));
        assert_eq!(guest.read(0, 0, 65536), 0);
        assert!(guest.bytes(0, 65536).iter().all(|byte| *byte == 0));
        let bytes = pattern(65536, 3);
        guest.fill(0, &bytes);
        assert_eq!(guest.write(8192, 0, 65536), 0);
        assert_eq!(guest.run(|queue| queue.flush(0)), 0);
        assert_eq!(guest.read(4096, 1 << 20, 16384), 0);
        assert!(guest.bytes((1 << 20) + 4096, 12288) == bytes[..12288]);
        assert!(guest.bytes(1 << 20, 4096).iter().all(|byte| *byte == 0));
        let before = file.allocated();
        assert_eq!(guest.run(|queue| queue.discard(8192, 16384, 0)), 0);
        assert_eq!(guest.run(|queue| queue.write_zeroes(8192 + 16384, 16384, true, 0)), 0);
        assert_eq!(before - file.allocated(), 32768);
        assert_eq!(guest.run(|queue| queue.write_zeroes(8192 + 32768 + 512, 1024, true, 0)), 0);
        assert_eq!(guest.read(8192, 0, 65536), 0);
        let mut expected = bytes;
        expected[..32768].fill(0);
        expected[32768 + 512..32768 + 1536].fill(0);
        assert!(guest.bytes(0, 65536) == expected);
        drop(guest);
        drop(server);
        drop(file);
        volume.remove_file("/disk").unwrap();
    }
    volume.close().unwrap();
}

#[test]
fn a_read_only_disk_refuses_every_change() {
    let server = Server::new(|disk| disk.read_only(true));
    let features = Blk::RO | Blk::DISCARD | Blk::WRITE_ZEROES;
    let mut guest = Guest::new(&server, features.bits(), 1);
    let offered = Blk::from_bits_truncate(guest.transport.get_features());
    assert_eq!(offered & features, Blk::RO);
    guest.fill(0, &[1; 4096]);
    assert_eq!(guest.write(0, 0, 4096), -EIO);
    assert_eq!(guest.run(|queue| queue.write_zeroes(0, 4096, false, 0)), -ENOTSUP);
    assert_eq!(guest.run(|queue| queue.discard(0, 4096, 0)), -ENOTSUP);
    assert_eq!(guest.read(0, 0, 4096), 0);
    assert!(guest.bytes(0, 4096).iter().all(|byte| *byte == 0));
}

#[test]
fn requests_beyond_the_end_fail_alone() {
    let server = Server::new(|disk| disk);
    let mut guest = Guest::new(&server, Blk::WRITE_ZEROES.bits(), 1);
    for offset in [IMAGE_BYTES - 512, IMAGE_BYTES, 1 << 40, u64::MAX / 512 * 512] {
        assert_eq!(guest.read(offset, 0, 1024), -EIO, "{offset}");
        assert_eq!(guest.write(offset, 0, 1024), -EIO, "{offset}");
        assert_eq!(guest.run(|queue| queue.write_zeroes(offset, 1024, false, 0)), -EIO);
    }
    assert_eq!(guest.read(0, 0, 513), -EIO);
    assert_eq!(guest.read(IMAGE_BYTES - 512, 0, 512), 0);
}

#[test]
fn one_front_end_after_the_other_is_served() {
    let server = Server::new(|disk| disk);
    for round in 0..4_u8 {
        let mut guest = Guest::new(&server, 0, 1);
        assert_eq!(guest.read(0, 0, 512), 0);
        assert_eq!(guest.bytes(0, 512), [round; 512]);
        guest.fill(0, &[round + 1; 512]);
        assert_eq!(guest.write(0, 0, 512), 0);
    }
}
