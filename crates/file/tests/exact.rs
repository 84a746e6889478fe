//! Reads and writes of a whole buffer.

mod harness;

use std::io::ErrorKind;

use harness::{BackEnd, pattern, reactor_by};
use uringfs_buffer::Buffer;
use uringfs_device::VirtualClock;
use uringfs_file::{File, FileOptions};

const SIZE: u64 = 64 << 10;

#[test]
fn short_transfers_are_continued() {
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let made = BackEnd::ShakySim.make(tempfile::tempdir().unwrap().path(), SIZE, &clock);
    let file = File::over(made.device, FileOptions::default());
    reactor.block_on(async {
        for round in 0..10 {
            let (written, buffer) = file.write_all_at(pattern(round, 20_000), 700 * round).await;
            written.unwrap();
            assert!(buffer[..] == pattern(round, 20_000)[..]);
            let (read, buffer) = file.read_exact_at(Buffer::zeroed(20_000), 700 * round).await;
            read.unwrap();
            assert!(buffer[..] == pattern(round, 20_000)[..]);
        }
    });
}

#[test]
fn the_end_of_the_file_is_an_error_with_what_there_is() {
    let clock = VirtualClock::default();
    let reactor = reactor_by(&clock);
    let made = BackEnd::Memory.make(tempfile::tempdir().unwrap().path(), SIZE, &clock);
    let file = File::over(made.device, FileOptions::default());
    reactor.block_on(async {
        let (written, buffer) = file.write_all_at(pattern(1, 5000), SIZE - 3000).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(buffer[..] == pattern(1, 5000)[..]);
        let (read, buffer) = file.read_exact_at(Buffer::zeroed(5000), SIZE - 3000).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buffer.len(), 5000);
        assert!(buffer[..3000] == pattern(1, 5000)[..3000]);
        let (read, buffer) = file.read_exact_at(Buffer::zeroed(0), SIZE).await;
        assert!(read.is_ok() && buffer.is_empty());
    });
}
