//! Opening a file: buffered by default, direct on request.

mod fixture;

use fixture::{formatted, reactor};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_device::{Device, Errno};
use uringfs_reactor::Counter;
use uringfs_volume::{OpenOptions, Volume, VolumeOptions};

#[test]
fn a_file_is_opened_buffered_unless_direct_is_requested() {
    let sim = Sim::new(SimOptions::new(32 << 20));
    drop(formatted(&sim));
    let cache = Cache::new(1 << 20);
    let options = VolumeOptions { page_cache: Some(cache.clone()), ..VolumeOptions::default() };
    let volume = Volume::open_with(Device::new(sim).unwrap(), &options).unwrap();
    let reactor = reactor();
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/a", create).unwrap();
    let direct = volume.open("/a", OpenOptions::direct()).unwrap();

    reactor.block_on(file.write(Buffer::copy_of(b"hello"), 3)).1.unwrap();
    assert_eq!(reactor.counters().get(Counter::CacheDirtied), 1);
    assert_eq!(cache.statistics().dirty_bytes, 4096);
    let mut found = [0; 5];
    assert_eq!((file.try_read(&mut found, 3), &found), (Ok(5), b"hello"));
    // One file for both kinds of handle, each of which gives access to the other kind.
    assert_eq!(direct.try_read(&mut found, 3), Err(Errno::AGAIN));
    for other in [&direct, &file.direct()] {
        assert_eq!(&reactor.block_on(other.read(Buffer::zeroed(5), 3)).0[..], b"hello");
    }
    assert_eq!(cache.statistics().dirty_bytes, 0);
    assert_eq!(direct.buffered(&cache).try_read(&mut found, 3), Ok(5));
}

#[test]
fn a_volume_without_its_own_page_cache_uses_the_process_wide_one() {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::default() };
    let file = volume.open("/a", create).unwrap();
    let before = Cache::of_process().statistics().used_bytes;
    reactor().block_on(file.write(Buffer::copy_of(&[7; 8192]), 0)).1.unwrap();
    assert_eq!(Cache::of_process().statistics().used_bytes, before + 8192);
}
