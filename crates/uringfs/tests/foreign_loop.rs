//! A reactor inside a foreign event loop. A loop that sleeps on the reactor's descriptor after a turn is always woken,
//! whatever the operation needs.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs::device::Access;
use uringfs::{Buffer, File, Options, Reactor, Token, Tokens};

const QUEUES: [&str; 5] = ["ring", "aio", "sync", "threads", "auto"];

fn reactor(queue: &str) -> Reactor {
    let mut options = Options::default();
    options.set("device.queue", queue).unwrap();
    Reactor::new(options.reactor).unwrap()
}

fn image(folder: &std::path::Path) -> File {
    let path = folder.join("image");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    File::open(&path, Access::ReadWrite).unwrap()
}

#[test]
fn the_descriptor_wakes_the_loop_for_each_step_of_an_operation() {
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    for queue in QUEUES {
        let reactor = reactor(queue);
        let fd = reactor.fd().unwrap();
        for round in 0..50 {
            // An unaligned write: reads a block, then writes it.
            let bytes = Buffer::copy_of(&[round; 100]);
            reactor.write_at(&file, bytes, 1000 + u64::from(round), Token::new(1)).unwrap();
            let mut completed = Vec::new();
            while completed.is_empty() {
                reactor.turn().unwrap();
                reactor.reap(0, None, &mut completed).unwrap();
                if completed.is_empty() {
                    let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
                    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
                    assert_eq!(
                        ready,
                        Ok(1),
                        "queue {queue}, round {round}: the loop was not woken"
                    );
                }
            }
            assert_eq!(completed[0].result(), Ok(100));
        }
    }
}

#[test]
fn reads_awaited_one_by_one_all_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = image(folder.path());
    for queue in QUEUES {
        let reactor = reactor(queue);
        let mut buffer = Buffer::zeroed(4096);
        for round in 0..2000 {
            let result;
            (result, buffer) = reactor.block_on(file.read_at(buffer, round % 256 * 4096));
            assert_eq!(result, Ok(4096), "queue {queue}");
        }
    }
}
