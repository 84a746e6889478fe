//! How many small records become durable in a second: threads append 512 bytes, wait until those are
//! durable, and append again, to a volume or, where TARGET is a directory, through its file system's calls.
//!
//!     cargo run --release --example durable_appends -- TARGET [own|one [WRITERS [SECONDS]]]
//!
//! TARGET is a volume, a file that is not there (one of 1 GiB is made), `memory:1g`, or a directory. Each
//! of the 16 writers has a file of its own, `log-0` and so on, or with `one` they all append to `log-0`.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use uringfs::Target;
use uringfs::{Access, Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a record.
const RECORD: usize = 512;

fn main() -> Outcome<()> {
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
        return run(&names.iter().map(open).collect::<Outcome<Vec<_>>>()?, files, time);
    }
    let volume = open_volume(target)?;
    let options = OpenOptions { create: Some(0o644), ..OpenOptions::direct() };
    let open = |name: &String| Ok(volume.open(format!("/{name}"), options)?);
    run(&names.iter().map(open).collect::<Outcome<Vec<_>>>()?, files, time)
}

fn open_volume(target: &str) -> Outcome<Volume> {
    let target: Target = target.parse()?;
    let is_new = match &target {
        Target::Path(path) if path.exists() => false,
        Target::Path(path) => uringfs::create_image(path, 1 << 30).map(|()| true)?,
        _ => true,
    };
    let device = target.open(Access::ReadWrite)?;
    if is_new {
        Volume::format(&device, &FormatOptions::default())?;
    }
    Ok(Volume::open_on(device)?)
}

/// A file that a writer appends to.
trait Log: Sync {
    /// Appends a record and waits until it is durable, again and again until then; gives how often.
    fn append_until(&self, end: Instant) -> Outcome<u64>;
    /// Bytes.
    fn size(&self) -> Outcome<u64>;
}

fn run(logs: &[impl Log], files: &str, time: Duration) -> Outcome<()> {
    let sizes = || -> Outcome<u64> {
        let different = if files == "own" { logs } else { &logs[..logs.len().min(1)] };
        different.iter().map(Log::size).sum()
    };
    let before = sizes()?;
    let begin = Instant::now();
    let appended: Outcome<u64> = thread::scope(|scope| {
        let write = |log| scope.spawn(move || Log::append_until(log, begin + time));
        let writers: Vec<_> = logs.iter().map(write).collect();
        writers.into_iter().map(|writer| writer.join().map_err(|_| "a writer panicked")?).sum()
    });
    let (appended, elapsed) = (appended?, begin.elapsed());
    if sizes()? != before + appended * RECORD as u64 {
        return Err(format!("the files have not grown by {appended} records").into());
    }
    println!("appends {:.1} a second", appended as f64 / elapsed.as_secs_f64());
    Ok(())
}

impl Log for uringfs::File {
    fn append_until(&self, end: Instant) -> Outcome<u64> {
        let reactor = Reactor::new(ReactorOptions::default())?;
        reactor.block_on(async {
            let (mut record, mut count) = (Buffer::copy_of(&[7; RECORD]), 0);
            while Instant::now() < end {
                let (buffer, appended) = self.append_durably(record).await;
                appended?;
                (record, count) = (buffer, count + 1);
            }
            Ok(count)
        })
    }

    fn size(&self) -> Outcome<u64> {
        Ok(uringfs::File::size(self))
    }
}

/// A file of the kernel's, written as databases write their logs: through the page cache, then
/// `fdatasync`.
struct Kernel(std::fs::File);

impl Kernel {
    fn open(path: &Path) -> Outcome<Self> {
        let file = std::fs::File::options().append(true).create(true).open(path)?;
        Ok(Self(file))
    }
}

impl Log for Kernel {
    fn append_until(&self, end: Instant) -> Outcome<u64> {
        let mut count = 0;
        while Instant::now() < end {
            (&self.0).write_all(&[7; RECORD])?;
            self.0.sync_data()?;
            count += 1;
        }
        Ok(count)
    }

    fn size(&self) -> Outcome<u64> {
        Ok(self.0.metadata()?.len())
    }
}
