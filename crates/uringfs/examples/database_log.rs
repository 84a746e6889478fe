//! A database log in a named file. A writer appends records, and acknowledges each once it is durable. The writer is
//! killed in the middle, and every acknowledged record is found again.
//!
//!     cargo run --example database_log

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use uringfs::{Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume, VolumeOptions};

/// Bytes of a record: its number, little-endian, and room for the payload of a database.
const RECORD: usize = 100;
/// Acknowledgements after which the writer is killed.
const KILL_AFTER: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(image) = std::env::args_os().nth(1) {
        return append_forever(Path::new(&image));
    }
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("image");
    Volume::create(&image, &FormatOptions::new().size(64 << 20))?.close()?;

    let mut writer =
        Command::new(std::env::current_exe()?).arg(&image).stdout(Stdio::piped()).spawn()?;
    let mut acknowledged = 0;
    for line in BufReader::new(writer.stdout.take().ok_or("the output is not piped")?).lines() {
        acknowledged = line?.parse()?;
        if acknowledged == KILL_AFTER {
            writer.kill()?;
        }
    }
    writer.wait()?;

    let found = records(&image)?;
    println!("{acknowledged} records were acknowledged before the kill, {found} are found");
    if found < acknowledged {
        return Err("a record was lost".into());
    }
    Ok(())
}

/// Appends records, and prints the number of each once it is durable, until it is killed.
fn append_forever(image: &Path) -> Result<(), Box<dyn Error>> {
    let volume = Volume::open(image)?;
    let log = volume.open_with(
        "/log",
        OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true),
    )?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    reactor.block_on(async {
        let mut record = Buffer::zeroed(RECORD);
        for number in 1u64.. {
            record[..8].copy_from_slice(&number.to_le_bytes());
            let (appended, buffer) = log.append_durably(record).await;
            appended?;
            println!("{number}");
            std::io::stdout().flush()?;
            record = buffer;
        }
        Ok(())
    })
}

/// The number of records in the log. Their numbers must be consecutive.
fn records(image: &Path) -> Result<u64, Box<dyn Error>> {
    let volume = VolumeOptions::new().read_only(true).open(image)?;
    let log = volume.open_with("/log", OpenOptions::new().read(true).direct(true))?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let buffer = Buffer::zeroed(log.len() as usize);
    let (read, bytes) = reactor.block_on(log.read_at(buffer, 0));
    read?;
    let mut count = 0;
    for record in bytes.chunks_exact(RECORD) {
        count += 1;
        if record[..8] != u64::to_le_bytes(count) {
            return Err(format!("record {count} has another number").into());
        }
    }
    Ok(count)
}
