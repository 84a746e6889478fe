//! Volumes, one module a subject. One program, since linking takes longer than most modules' tests.

#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../../../device/tests/harness/loop_device.rs"]
mod loop_device;
#[path = "../../../device/tests/harness/random.rs"]
mod random;

mod access_lists;
mod allocator;
mod append;
mod atomic;
mod attributes;
mod backup_superblock;
mod bit_flips;
mod blocking;
mod buffered_cuts;
mod calls;
mod catalog_space;
mod change_cookie;
mod closing;
mod delayed;
mod delayed_reservation;
mod discard;
mod durable_overwrites;
mod errors;
mod extent_map;
mod fail_nth;
mod freeze;
mod fsx;
mod full;
mod inherited;
mod inode_refs;
mod label;
mod names;
mod online_check;
mod open;
mod other_format;
mod parallel;
mod partial;
mod races;
mod read_ahead;
mod reopened;
mod resize;
mod resized_device;
mod small_cache;
mod space;
mod std_names;
mod syncs;
mod tasks;
mod truncate;
mod upgrade;
