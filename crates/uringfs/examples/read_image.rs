//! Reads an image or a block device from beginning to end with `await`, and prints the same as `sum` of coreutils:
//! checksum and size in KiB.
//!
//!     cargo run --example read_image [IMAGE]

use std::error::Error;
use std::path::PathBuf;

use uringfs::device::Access;
use uringfs::{Buffer, Errno, File, Reactor, ReactorOptions};

/// Bytes of a read.
const CHUNK: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => create_sample(folder.path().join("image"))?,
    };
    let file = File::open(&path, Access::Read)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let checksum = reactor.block_on(checksum(&file))?;
    println!("{checksum:05} {:5} {}", file.len().div_ceil(1024), path.display());
    Ok(())
}

async fn checksum(file: &File) -> Result<u16, Errno> {
    let mut checksum: u16 = 0;
    let mut buffer = Buffer::zeroed(CHUNK);
    let mut offset = 0;
    loop {
        // The operation owns the buffer while it runs, and returns it with the result.
        let (result, filled) = file.read_at(buffer, offset).await;
        let length = result?;
        if length == 0 {
            return Ok(checksum);
        }
        for byte in &filled[..length] {
            checksum = checksum.rotate_right(1).wrapping_add(u16::from(*byte));
        }
        offset += length as u64;
        buffer = filled;
    }
}

/// Creates an image to read if the caller names none.
fn create_sample(path: PathBuf) -> Result<PathBuf, Box<dyn Error>> {
    uringfs::create_image(&path, 8 << 20)?;
    let file = File::open(&path, Access::ReadWrite)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    reactor.block_on(async {
        let text = b"uringfs\n".repeat(1000);
        file.write_at(Buffer::copy_of(&text), 12345).await.0?;
        file.sync_data().await
    })?;
    Ok(path)
}
