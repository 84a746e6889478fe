//! A disk in memory that is served to guests, for the targets.

use std::path::PathBuf;
use std::thread;

use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::file::FileOptions;
use uringfs::reactor::QueueKind;
use uringfs::{File, ReactorOptions};
use uringfs_vhost::{Disk, PinMemory, VhostServer};

/// The size of the disk in bytes.
const SIZE: u64 = 1 << 20;

/// Serves until the process ends.
pub struct Served {
    pub socket: PathBuf,
}

impl Served {
    pub fn new(packed: bool) -> Served {
        let name = format!("uringfs-fuzz-{}-{packed}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let file =
            File::from_device(Device::new(Memory::new(SIZE).unwrap()).unwrap(), FileOptions::new());
        let disk = Disk::new(file)
            .queues(2)
            .packed(packed)
            .polling(false)
            .pin_memory(PinMemory::Off)
            .reactor(ReactorOptions::new().queue(QueueKind::Sync));
        let server = VhostServer::bind(&socket, 0o600, disk).unwrap();
        thread::spawn(move || server.serve().unwrap());
        Served { socket }
    }
}
