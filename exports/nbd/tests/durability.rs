//! Data that is acknowledged as durable survives a power cut.

mod harness;

use harness::Served;
use harness::client::{begin, call, read};
use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When, WriteCache};
use uringfs::file::FileOptions;
use uringfs::{Buffer, Errno, File, FormatOptions, OpenOptions, Volume};
use uringfs_nbd_protocol::transmission::{Command, Request, command_flags};

const SIZE: u64 = 64 << 20;

fn options() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).direct(true)
}

/// A file of a volume on a simulated device that loses what was not flushed.
fn simulated() -> (Sim, Volume, File) {
    let sim = Sim::new(SimOptions::new(SIZE).cache(WriteCache::Volatile));
    let volume = Volume::create_on(Device::new(sim.clone()).unwrap(), &FormatOptions::new());
    let volume = volume.unwrap();
    let file = options().open(&volume, "/disk").unwrap();
    file.set_len(8 << 20).wait().unwrap();
    (sim, volume, file)
}

/// The first bytes at an offset of the disk after a power cut.
fn after_power_cut(sim: &Sim, offset: u64) -> [u8; 512] {
    let volume = Volume::open_on(Device::new(sim.crash_image(Crash::LoseAll)).unwrap()).unwrap();
    let file = options().open(&volume, "/disk").unwrap();
    let (read, bytes) = file.read_at(Buffer::zeroed(512), offset).wait();
    read.unwrap();
    bytes[..].try_into().unwrap()
}

/// As `CAN_MULTI_CONN` says.
#[test]
fn a_flush_on_one_connection_covers_writes_of_another() {
    let (sim, _volume, file) = simulated();
    let served = Served::new(file);
    // Two threads serve them.
    let (mut writer, mut flusher) = (begin(&served, "disk"), begin(&served, "disk"));
    for round in 1..10u8 {
        let offset = u64::from(round) * 4096;
        let write = Request::new(Command::WRITE, 0, 1, offset, 512);
        assert_eq!(call(&mut writer, write, &[round; 512]), 0);
        assert_eq!(read(&mut flusher, offset), [round; 512]);
        assert_eq!(after_power_cut(&sim, offset), [0; 512], "nothing has flushed it");
        assert_eq!(call(&mut flusher, Request::new(Command::FLUSH, 0, 2, 0, 0), &[]), 0);
        assert_eq!(after_power_cut(&sim, offset), [round; 512]);
    }
}

#[test]
fn changes_with_fua_are_durable() {
    let (sim, _volume, file) = simulated();
    let served = Served::new(file);
    let mut stream = begin(&served, "disk");
    let fua = command_flags::FUA;
    let write = |offset| Request::new(Command::WRITE, fua, 1, offset, 512);
    assert_eq!(call(&mut stream, write(4096), &[7; 512]), 0);
    assert_eq!(after_power_cut(&sim, 4096), [7; 512]);
    assert_eq!(call(&mut stream, Request::new(Command::WRITE_ZEROES, fua, 2, 4096, 4096), &[]), 0);
    assert_eq!(after_power_cut(&sim, 4096), [0; 512]);
    assert_eq!(call(&mut stream, write(8192), &[8; 512]), 0);
    let no_hole = fua | command_flags::NO_HOLE;
    let zero = Request::new(Command::WRITE_ZEROES, no_hole, 3, 8192, 4096);
    assert_eq!(call(&mut stream, zero, &[]), 0);
    assert_eq!(after_power_cut(&sim, 8192), [0; 512]);
    assert_eq!(call(&mut stream, write(12288), &[9; 512]), 0);
    assert_eq!(call(&mut stream, Request::new(Command::TRIM, fua, 4, 12288, 4096), &[]), 0);
    assert_eq!(after_power_cut(&sim, 12288), [0; 512]);
}

#[test]
fn errors_of_the_device_reach_the_client() {
    let sim = Sim::new(SimOptions::new(1 << 20));
    let device = Device::new(sim.clone()).unwrap();
    let served = Served::new(File::from_device(device, FileOptions::new()));
    let mut stream = begin(&served, "disk");
    let read_512 = Request::new(Command::READ, 0, 1, 0, 512);
    sim.inject(Rule::new(None, When::From(1), Fault::Error(Errno::IO)));
    assert_eq!(call(&mut stream, read_512, &[]), 5);
    assert_eq!(call(&mut stream, Request::new(Command::WRITE, 0, 2, 0, 512), &[1; 512]), 5);
    assert_eq!(call(&mut stream, Request::new(Command::FLUSH, 0, 3, 0, 0), &[]), 5);
    sim.clear_faults();
    assert_eq!(read(&mut stream, 0), [0; 512]);
}
