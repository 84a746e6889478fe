//! Truncation to 0 during other changes of the file: each change happens before or after it, and no
//! call fails.

use std::time::Duration;

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Clock, Device, VirtualClock};
use uringfs_file::{FallocateSize, File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{FormatOptions, OpenOptions, Volume};

const LATENCY: Duration = Duration::from_millis(1);

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).direct(true)
}

/// A reactor on a slow device, whose clock the reactor advances.
fn slow() -> (Volume, Reactor) {
    let clock = Clock::Virtual(VirtualClock::default());
    let options = SimOptions::new(16 << 20).latency(LATENCY..=LATENCY).clock(clock.clone());
    let device = Device::new(Sim::new(options)).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    let reactor = Reactor::new(ReactorOptions::new().clock(clock)).unwrap();
    (volume, reactor)
}

#[test]
fn changes_of_a_file_do_not_fail_when_it_is_truncated() {
    type Start = fn(&Reactor, &File);
    const TOKEN: Token = Token::new(1);
    let changes: [(&str, Start); 9] = [
        ("overwrite", |reactor, file| {
            reactor.write_at(file, Buffer::aligned(4096, 4096), 0, TOKEN).unwrap();
        }),
        ("overwrite of parts", |reactor, file| {
            reactor.write_at(file, Buffer::copy_of(&[1; 9000]), 700, TOKEN).unwrap();
        }),
        ("write past the end", |reactor, file| {
            reactor.write_at(file, Buffer::aligned(8192, 4096), 40_960, TOKEN).unwrap();
        }),
        ("append", |reactor, file| {
            reactor.write_at(file, Buffer::copy_of(&[1; 100]), file.len(), TOKEN).unwrap();
        }),
        ("set_size", |reactor, file| reactor.start(file.set_len(50_000), TOKEN).unwrap()),
        ("allocate", |reactor, file| {
            reactor.start(file.allocate(0, 50_000, FallocateSize::Extend), TOKEN).unwrap();
        }),
        ("punch_hole", |reactor, file| {
            reactor.start(file.punch_hole(100, 9000), TOKEN).unwrap();
        }),
        ("zero_range", |reactor, file| {
            reactor.start(file.zero_range(100, 9000, FallocateSize::Keep), TOKEN).unwrap();
        }),
        ("zero_range of the end", |reactor, file| {
            reactor.start(file.zero_range(9000, 50_000, FallocateSize::Extend), TOKEN).unwrap();
        }),
    ];
    for (name, start) in changes {
        // Truncate after each number of steps, until the change has completed before.
        for steps in 0.. {
            let (volume, reactor) = slow();
            let file = volume.open_with("/a", create()).unwrap();
            let (written, _) = reactor.block_on(file.write_at(Buffer::copy_of(&[7; 13_000]), 0));
            assert_eq!(written, Ok(13_000));
            let mut completed = Vec::new();
            start(&reactor, &file);
            for _ in 0..steps {
                reactor.reap(1, Some(LATENCY / 3), &mut completed).unwrap();
            }
            let was_done = !completed.is_empty();
            volume.open_with("/a", create().truncate(true)).unwrap();
            while completed.is_empty() {
                reactor.reap(1, None, &mut completed).unwrap();
            }
            assert!(completed[0].result().is_ok(), "{name}, {steps}: {:?}", completed[0].result());
            if was_done {
                assert!(steps > 1, "{name}");
                break;
            }
        }
    }
}
