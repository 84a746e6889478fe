//! A disk on an export of an NBD server.

mod harness;
#[allow(dead_code)] // The test uses a part of it.
#[path = "../../../crates/device/tests/harness/nbd_peer.rs"]
mod nbd_peer;

use harness::Server;
use harness::front_end::{Driver, FLUSH, Queue, READ, WRITE_OUT, data_at, feature};
use nbd_peer::{ALL_FLAGS, CachedDisk, Offer, cached_disk};
use uringfs::File;
use uringfs::device::{Access, Device};
use uringfs::file::FileOptions;
use uringfs_device::backend::nbd::Nbd;

const SIZE: usize = 1 << 20;

#[test]
fn a_guest_reads_and_writes_an_export_of_an_nbd_server() {
    let folder = tempfile::tempdir().unwrap();
    let remote = CachedDisk::new(SIZE);
    let offer = Offer::new(SIZE as u64, ALL_FLAGS);
    let peer = cached_disk(folder.path(), &remote, offer, Vec::new());
    let device = Device::new(Nbd::open(&peer.target(), Access::ReadWrite).unwrap()).unwrap();
    let file = File::from_device(device, FileOptions::default());
    let server = Server::of_file(tempfile::tempdir().unwrap(), file, |disk| disk);
    let mut driver = Driver::new(&server.socket(), feature::FLUSH, Queue::split(0, 64));
    driver.memory.write(data_at(0), &[7; 4096]);
    assert_eq!(driver.run(WRITE_OUT, 8, 4096), (0, 1));
    driver.memory.write(data_at(0), &[0xee; 4096]);
    assert_eq!(driver.run(READ, 8, 4096), (0, 4097));
    assert_eq!(driver.memory.read(data_at(0), 4096), [7; 4096]);
    assert_eq!(driver.run(FLUSH, 0, 0), (0, 1));
    assert_eq!(remote.stable()[4096..8192], [7; 4096]);
}
