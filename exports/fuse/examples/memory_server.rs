//! Mounts a volume in memory with one file: what the volume adds to the carrier, without a device, for scripts/bench/fuse.
//!
//!     memory_server DIRECTORY [/dev/fuse|io_uring [THREADS [spin=off]]]

use std::env;
use std::io;

use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions};

const FILE_BYTES: usize = 64 << 20;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| io::Error::other("which directory?"))?;
    let io_uring = arguments.next().is_some_and(|argument| argument == "io_uring");
    let device = Device::new(Memory::new(2 * FILE_BYTES as u64)?)?;
    let volume = Volume::create_on(device, &FormatOptions::new())?;
    volume.write("file", vec![0; FILE_BYTES])?;
    let threads = arguments.next().map_or(2, |threads| threads.parse().expect("a number"));
    let options = MountOptions::new().source("memory").io_uring(io_uring).threads(threads);
    let options = options.spin(arguments.next().is_none_or(|argument| argument != "spin=off"));
    Mount::new(volume, directory, &options)?.serve()
}
