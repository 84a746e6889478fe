//! Measures how many small records become durable in a second. Threads append 512 bytes, wait until they are durable,
//! and append again. They write to a volume, or, if TARGET is a directory, through the kernel's file system.
//!
//!     cargo run --release --example durable_appends -- TARGET [own|one [WRITERS [SECONDS]]]
//!
//! TARGET is a volume, a path that does not exist (a file of 1 GiB is created), `memory:1g`, or a directory. Each of
//! the 16 writers has its own file, `log-0` and so on. With `one` they all append to `log-0`. The first 0.3 seconds do
//! not count: files get their first blocks, and the device's queues are measured.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use uringfs::device::Access;
use uringfs::device::Target;
use uringfs::{Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a record.
const RECORD: usize = 512;
/// The time before the appends that count.
const RAMP: Duration = Duration::from_millis(300);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (target, files, rest) = match words[..] {
        [target] => (target, "own", &[][..]),
        [target, files @ ("own" | "one"), ref rest @ ..] if rest.len() < 3 => (target, files, rest),
        _ => {
            return Err("usage: durable_appends TARGET [own|one [WRITERS [SECONDS]]]".into());
        }
    };
    let writers: usize = rest.first().unwrap_or(&"16").parse()?;
    let seconds: f64 = rest.get(1).unwrap_or(&"2").parse()?;
    let time = Duration::try_from_secs_f64(seconds)?;
    let name = |writer| format!("log-{}", if files == "own" { writer } else { 0 });
    let names: Vec<String> = (0..writers).map(name).collect();
    if Path::new(target).is_dir() {
        let open = |name: &String| Kernel::open(&Path::new(target).join(name));
        return run(&names.iter().map(open).collect::<Result<Vec<_>>>()?, files, time, None);
    }
    let volume = open_volume(target)?;
    let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let open = |name: &String| Ok(volume.open_with(format!("/{name}"), options)?);
    run(&names.iter().map(open).collect::<Result<Vec<_>>>()?, files, time, Some(&volume))
}

fn open_volume(target: &str) -> Result<Volume> {
    Ok(match target.parse()? {
        Target::Path(path) if path.exists() => Volume::open(path)?,
        Target::Path(path) => Volume::create(path, &FormatOptions::new().size(1 << 30))?,
        in_memory => Volume::create_on(in_memory.open(Access::ReadWrite)?, &FormatOptions::new())?,
    })
}

/// A file that a writer appends to.
trait Log: Sync {
    /// Appends one durable record after another until `end`; returns how many.
    fn append_until(&self, end: Instant) -> Result<u64>;
    /// The size in bytes.
    fn size(&self) -> Result<u64>;
}

fn run(logs: &[impl Log], files: &str, time: Duration, volume: Option<&Volume>) -> Result<()> {
    append(logs, RAMP)?;
    let sizes = || -> Result<u64> {
        let different = if files == "own" { logs } else { &logs[..logs.len().min(1)] };
        different.iter().map(Log::size).sum()
    };
    let commits = || volume.map(|volume| volume.statistics().commits);
    let (before, commits_before, begin) = (sizes()?, commits(), Instant::now());
    let appended = append(logs, time)?;
    let elapsed = begin.elapsed();
    if sizes()? != before + appended * RECORD as u64 {
        return Err(format!("the files have not grown by {appended} records").into());
    }
    print!("appends {:.1} a second", appended as f64 / elapsed.as_secs_f64());
    if let (Some(before), Some(after)) = (commits_before, commits()) {
        print!(", {:.2} a commit", appended as f64 / (after - before) as f64);
    }
    println!();
    Ok(())
}

/// Appends to each log in a thread of its own. Returns how many records there were.
fn append(logs: &[impl Log], time: Duration) -> Result<u64> {
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let write = |log| scope.spawn(move || Log::append_until(log, end));
        let writers: Vec<_> = logs.iter().map(write).collect();
        writers.into_iter().map(|writer| writer.join().map_err(|_| "a writer panicked")?).sum()
    })
}

impl Log for uringfs::File {
    fn append_until(&self, end: Instant) -> Result<u64> {
        let reactor = Reactor::new(ReactorOptions::default())?;
        reactor.block_on(async {
            let (mut record, mut count) = (Buffer::copy_of(&[7; RECORD]), 0);
            while Instant::now() < end {
                let (appended, buffer) = self.append_durably(record).await;
                appended?;
                (record, count) = (buffer, count + 1);
            }
            Ok(count)
        })
    }

    fn size(&self) -> Result<u64> {
        Ok(self.len())
    }
}

/// A file of the kernel's file system, written as databases write their logs: through the page cache, then
/// `fdatasync`.
struct Kernel(std::fs::File);

impl Kernel {
    fn open(path: &Path) -> Result<Self> {
        let file = std::fs::File::options().append(true).create(true).open(path)?;
        Ok(Self(file))
    }
}

impl Log for Kernel {
    fn append_until(&self, end: Instant) -> Result<u64> {
        let mut count = 0;
        while Instant::now() < end {
            (&self.0).write_all(&[7; RECORD])?;
            self.0.sync_data()?;
            count += 1;
        }
        Ok(count)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
