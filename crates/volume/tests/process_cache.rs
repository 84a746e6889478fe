//! The page cache of the process. Alone in its program, since it measures that cache.

mod fixture;

use fixture::{formatted, reactor};
use uringfs_buffer::Buffer;
use uringfs_cache::Cache;
use uringfs_device::backend::sim::{Sim, SimOptions};
use uringfs_volume::OpenOptions;

#[test]
fn a_volume_without_its_own_page_cache_uses_the_process_wide_one() {
    let volume = formatted(&Sim::new(SimOptions::new(32 << 20)));
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600);
    let file = volume.open_with("/a", create).unwrap();
    let before = Cache::of_process().statistics().used_bytes;
    reactor().block_on(file.write_at(Buffer::copy_of(&[7; 8192]), 0)).0.unwrap();
    assert_eq!(Cache::of_process().statistics().used_bytes, before + 8192);
}
