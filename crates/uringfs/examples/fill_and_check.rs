//! Creates an image, fills it with the bytes of files on this machine, reads it back by token at several depths, and
//! compares every byte. Prints the rate at each depth.
//!
//!     cargo run --release --example fill_and_check [IMAGE] [--size 64M] [--depths 1,8,32,128]
//!
//! IMAGE must not exist, and is kept. Without IMAGE the image is a temporary file.

use std::error::Error;
use std::fs;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use uringfs::device::Access;
use uringfs::device::backend::parse_size;
use uringfs::{Buffer, BufferPool, File, Reactor, ReactorOptions, Token, Tokens};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Directories to search for files.
const SOURCES: [&str; 4] = ["/usr", "/etc", "/opt", "/var/lib"];
/// Bytes of a write.
const CHUNK: usize = 1 << 20;
/// Writes in flight.
const WRITES: usize = 8;
/// Bytes of a read. Aligned reads of this size take the fast path.
const BLOCK: usize = 4096;
/// Upper bound for one pass at depth 1. A slower device is read in larger blocks.
const MAX_PASS: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("fill_and_check: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fill_and_check: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = arguments.image.clone().unwrap_or_else(|| folder.path().join("image"));
    uringfs::create_image(&path, arguments.size)?;
    let text = Text::from_files(arguments.size)?;
    println!("{}", text.origin);
    fill(&path, &text)?;

    // Open the image only now: the choice of a queue is measured by reads, and blocks that were never written are not
    // read from the device at all.
    let file = File::open(&path, Access::Read)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let (queue, why) = reactor.queue_of(file.device())?;
    println!("queue {queue}: {why}");
    let block = choose_block_size(&reactor, &file)?;
    for depth in &arguments.depths {
        check(&reactor, &file, &text, block, *depth)?;
    }
    Ok(())
}

/// Writes the whole image, several chunks at a time.
fn fill(path: &Path, text: &Text) -> Result<()> {
    let file = File::open(path, Access::ReadWrite)?;
    let reactor = Reactor::new(ReactorOptions::default())?;
    let pool = BufferPool::new(CHUNK, WRITES)?;
    let progress = Progress::new("writing", file.len());
    let begin = Instant::now();
    let (mut offset, mut done) = (0, 0);
    let mut completed = Vec::new();
    while done < file.len() {
        while offset < file.len() {
            let Some(mut buffer) = pool.get() else { break };
            let length = buffer.len().min((file.len() - offset) as usize);
            // The tail of a short last chunk goes back to the pool together with its head.
            drop(buffer.split_off(length));
            text.copy(offset, &mut buffer);
            reactor.write_at(&file, buffer, offset, Token::new(offset))?;
            offset += length as u64;
        }
        reactor.reap(1, None, &mut completed)?;
        for completion in completed.drain(..) {
            done += completion.result()?;
        }
        progress.show(done);
    }
    reactor.block_on(file.sync_data())?;
    progress.clear();
    let rate = file.len() as f64 / begin.elapsed().as_secs_f64();
    println!("written and flushed: {:.0} MiB/s", rate / f64::from(1 << 20));
    Ok(())
}

/// Reads the whole image in order, `depth` blocks at a time, and compares.
fn check(reactor: &Reactor, file: &File, text: &Text, block: usize, depth: usize) -> Result<()> {
    let blocks = file.len().div_ceil(block as u64);
    let pool = BufferPool::new(block, depth)?;
    let progress = Progress::new(&format!("reading at depth {depth}"), file.len());
    let begin = Instant::now();
    let (mut next, mut done) = (0, 0);
    let mut completed = Vec::with_capacity(depth);
    while done < blocks {
        while next < blocks {
            let Some(buffer) = pool.get() else { break };
            reactor.read_at(file, buffer, next * block as u64, Token::new(next))?;
            next += 1;
        }
        // Reap half of them, so that the other half keeps the device busy.
        reactor.reap(depth.div_ceil(2), None, &mut completed)?;
        for completion in completed.drain(..) {
            let offset = completion.token().get() * block as u64;
            let length = completion.result()?;
            if length != (file.len() - offset).min(block as u64) {
                return Err(format!("the read at {offset} returned {length} bytes").into());
            }
            text.compare(offset, &completion.into_buffer()[..length as usize])?;
            done += 1;
        }
        progress.show(done * block as u64);
    }
    progress.clear();
    let rate = blocks as f64 / begin.elapsed().as_secs_f64();
    println!(
        "depth {depth:4}: every byte is correct; {rate:8.0} reads of {block} bytes a second, \
         {:.0} MiB/s",
        rate * block as f64 / f64::from(1 << 20)
    );
    Ok(())
}

/// [`BLOCK`], or the larger size that it takes to read everything within [`MAX_PASS`] at depth 1.
fn choose_block_size(reactor: &Reactor, file: &File) -> Result<usize> {
    let reads = (file.len() / BLOCK as u64).clamp(1, 64);
    let begin = Instant::now();
    reactor.block_on(async {
        let mut buffer = Buffer::zeroed(BLOCK);
        for read in 0..reads {
            let offset = file.len() / reads * read / BLOCK as u64 * BLOCK as u64;
            let result;
            (result, buffer) = file.read_at(buffer, offset).await;
            result?;
        }
        Ok::<_, uringfs::Errno>(())
    })?;
    let per_read = begin.elapsed() / reads as u32;
    let mut block = BLOCK;
    while block < CHUNK
        && per_read.as_secs_f64() * file.len() as f64 / block as f64 > MAX_PASS.as_secs_f64()
    {
        block *= 2;
    }
    Ok(block)
}

/// The content of the image: bytes of files. If they are fewer than the image has, they repeat, each time rotated by
/// one byte, so that repeated blocks differ.
struct Text {
    bytes: Vec<u8>,
    /// A description of the source, for the user.
    origin: String,
}

impl Text {
    /// Up to `size` bytes of files, and at most a quarter of the available memory.
    fn from_files(size: u64) -> Result<Text> {
        let max = size.min(available_memory() / 4) as usize;
        let mut bytes = Vec::with_capacity(max);
        let mut files = 0;
        let mut folders: Vec<PathBuf> = SOURCES.iter().map(PathBuf::from).collect();
        let progress = Progress::new("gathering files", max as u64);
        while let Some(folder) = folders.pop() {
            // Unreadable files are skipped.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file()
                    && bytes.len() < max
                    && let Ok(file) = fs::File::open(entry.path())
                {
                    let before = bytes.len();
                    let _ = file.take((max - before) as u64).read_to_end(&mut bytes);
                    files += u64::from(bytes.len() > before);
                }
            }
            progress.show(bytes.len() as u64);
            if bytes.len() == max {
                break;
            }
        }
        progress.clear();
        if bytes.is_empty() {
            return Err(
                format!("no readable file with content under {}", SOURCES.join(", ")).into()
            );
        }
        let length = bytes.len() as u64;
        let mut origin = format!("{} MiB of {files} files", length.div_ceil(1 << 20));
        if length < size {
            origin += &format!(", repeated to {} MiB", size.div_ceil(1 << 20));
        }
        Ok(Text { bytes, origin })
    }

    /// The `length` bytes from `offset` on, as a sequence of slices.
    fn slices(&self, offset: u64, length: usize) -> impl Iterator<Item = &[u8]> {
        let whole = self.bytes.len();
        let mut at = offset;
        let end = offset + length as u64;
        std::iter::from_fn(move || {
            let round = at / whole as u64;
            let position = (at % whole as u64) as usize;
            let start = (position + (round % whole as u64) as usize) % whole;
            let length = (whole - position).min(whole - start).min((end - at) as usize);
            at += length as u64;
            (length > 0).then(|| &self.bytes[start..start + length])
        })
    }

    fn copy(&self, offset: u64, into: &mut [u8]) {
        let mut rest = into;
        for slice in self.slices(offset, rest.len()) {
            let (head, tail) = rest.split_at_mut(slice.len());
            head.copy_from_slice(slice);
            rest = tail;
        }
    }

    fn compare(&self, offset: u64, found: &[u8]) -> Result<()> {
        let mut rest = found;
        for slice in self.slices(offset, found.len()) {
            let (head, tail) = rest.split_at(slice.len());
            if head != slice {
                let wrong = head.iter().zip(slice).position(|(found, written)| found != written);
                let at = offset + (found.len() - rest.len() + wrong.unwrap_or(0)) as u64;
                return Err(format!("byte {at} differs from the byte that was written").into());
            }
            rest = tail;
        }
        Ok(())
    }
}

/// Available memory in bytes; a small default if the kernel does not report it.
fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(256 << 10) << 10
}

struct Arguments {
    image: Option<PathBuf>,
    size: u64,
    depths: Vec<usize>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> std::result::Result<Arguments, String> {
        let mut arguments = Arguments { image: None, size: 64 << 20, depths: vec![1, 8, 32, 128] };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--size" => arguments.size = parse_size(&value()?)?,
                "--depths" => arguments.depths = depths(&value()?)?,
                option if option.starts_with('-') => {
                    return Err(format!(
                        "unknown option {option}; the options are --size and --depths"
                    ));
                }
                image => arguments.image = Some(image.into()),
            }
        }
        if arguments.size == 0 {
            return Err("--size must not be 0".into());
        }
        Ok(arguments)
    }
}

fn depths(text: &str) -> std::result::Result<Vec<usize>, String> {
    let depth = |word: &str| word.parse().ok().filter(|depth| (1..=1024).contains(depth));
    let depths: Option<Vec<usize>> = text.split(',').map(depth).collect();
    depths.ok_or(format!("{text:?} is not a list of depths from 1 to 1024"))
}

/// A progress line, shown only on a terminal.
struct Progress {
    label: Option<String>,
    total: u64,
}

impl Progress {
    fn new(label: &str, total: u64) -> Progress {
        let label = std::io::stderr().is_terminal().then(|| label.to_owned());
        Progress { label, total: total.max(1) }
    }

    fn show(&self, done: u64) {
        if let Some(label) = &self.label {
            eprint!("\r{label}: {} % ", done.min(self.total) * 100 / self.total);
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.label.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
