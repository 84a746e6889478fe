//! Requests to the server of a mount as no kernel would send them. No panics, no memory without bound, one reply at most for
//! each request, and a sound volume at the end.

#![no_main]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::thread;

use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, Sim, SimOptions};
use uringfs::volume::CheckOptions;
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions};

const SIZE: u64 = 16 << 20;
/// Bytes of the front of a request: its length first, then its operation, then a number that its reply repeats.
const HEADER: usize = 40;

/// The volume that every input begins with: a file and a directory.
static VOLUME: LazyLock<Sim> = LazyLock::new(|| {
    let sim = Sim::new(SimOptions::new(SIZE));
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    let volume = Volume::open_on(device).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/f", vec![7; 10_000]).unwrap();
    volume.close().unwrap();
    sim.restart_record();
    sim
});

// Input: requests, each with its length in two bytes before it. The length in its header is the real one unless the last bit
// of the request's reply number is set.
fuzz_target!(|bytes: &[u8]| {
    let sim = VOLUME.crash_image(Crash::KeepAll);
    let volume = Volume::open_on(Device::new(sim.clone()).unwrap()).unwrap();
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let server = thread::spawn(move || {
        let options = MountOptions::new();
        Mount::on_connection(theirs, volume, &options).unwrap().serve().unwrap();
    });
    let mut unanswered = HashMap::<u64, usize>::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (request, after) = after.split_at(length);
        rest = after;
        let mut request = request.to_vec();
        if request.len() >= HEADER {
            let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
            *unanswered.entry(unique).or_default() += 1;
            if unique & 1 == 0 {
                request[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            }
        }
        if !request.is_empty() && send(&ours, &request, SendFlags::empty()).is_err() {
            break;
        }
        receive(&ours, RecvFlags::DONTWAIT, &mut unanswered);
    }
    shutdown(&ours, Shutdown::Write).unwrap();
    receive(&ours, RecvFlags::empty(), &mut unanswered);
    server.join().unwrap();
    let device = Device::new(sim).unwrap();
    let report = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
});

/// Receives replies until there is none, or none can follow.
fn receive(socket: &OwnedFd, flags: RecvFlags, unanswered: &mut HashMap<u64, usize>) {
    let mut reply = vec![0; (1 << 20) + 4096];
    while let Ok((length, _)) = recv(socket, &mut reply[..], flags) {
        if length == 0 {
            return;
        }
        let said = u32::from_ne_bytes(reply[..4].try_into().unwrap());
        assert_eq!(said as usize, length);
        let unique = u64::from_ne_bytes(reply[8..16].try_into().unwrap());
        let left = unanswered.get_mut(&unique).expect("a reply to a request");
        *left = left.checked_sub(1).expect("one reply to a request");
    }
}
