//! Times loops that read 4 KiB at a time, each read after the one before, and do nothing else: what the code around one
//! system call costs.
//!
//!     cargo run --release -p uringfs-lab --example depth_one -- TARGET [SECONDS]
//!
//! TARGET is a file, which is read past the page cache, or `null:SIZE`. Each side makes 2,000 reads at random offsets
//! in turn, for SECONDS (default 10). Prints the fastest and the median of each side's turns, in nanoseconds a read.
//! The sides `wait` are threads without a reactor: `FileOp::wait` makes the call itself, and with a deadline hands the read
//! to a background reactor. The sides `pread` need a file. The queue `auto` is the one that calibration finds: for a file in memory the ring,
//! whose single reads the waiting thread calls itself.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use uringfs::device::{Access, Target};
use uringfs::reactor::QueueKind;
use uringfs::{
    BufResult, Buffer, BufferPool, File, FileOp, Reactor, ReactorOptions, Token, Tokens,
};
use uringfs_ring::bare_ring::{BareOptions, BareRing};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCK: usize = 4096;
/// Reads of one turn.
const READS: u64 = 2000;

/// Random offsets (xorshift64).
struct Offsets {
    state: u64,
    blocks: u64,
}

impl Offsets {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.blocks * BLOCK as u64
    }
}

/// A side: its name, and one turn.
type Side<'s> = (&'static str, Box<dyn FnMut(&mut Offsets) + 's>);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (target, rest) = arguments.split_first().ok_or("usage: depth_one TARGET [SECONDS]")?;
    let seconds: f64 = rest.first().map_or(Ok(10.0), |text| text.parse())?;
    let device = target.parse::<Target>()?.open(Access::Read)?;
    let size = device.geometry().size;
    let mut offsets = Offsets { state: 0x2545_f491_4f6c_dd1d, blocks: size / BLOCK as u64 };
    if offsets.blocks == 0 {
        return Err(format!("{target} has {size} bytes, and a read needs {BLOCK}").into());
    }
    let [ring, auto] = [QueueKind::Ring, QueueKind::Auto]
        .map(|queue| Reactor::new(ReactorOptions::new().queue(queue)));
    let (ring, auto) = (ring?, auto?);
    let (file, pool) = (File::from_device(device, Default::default()), BufferPool::new(BLOCK, 6)?);
    let (mut rings, mut memory) = ([bare_ring(target)?, bare_ring(target)?], Buffer::zeroed(BLOCK));
    let [inlined, called] = &mut rings;
    let mut buffers = [(); 6].map(|()| pool.get());
    let [first, second, third, fourth, fifth, sixth] = &mut buffers;
    let mut sides: Vec<Side<'_>> = vec![
        ("bare ring, inlined", Box::new(|offsets| bare(inlined, offsets, BareRing::enter))),
        ("bare ring, one return", Box::new(|offsets| bare(called, offsets, enter))),
        ("ring, by token", Box::new(|offsets| tokens(&ring, &file, first, offsets))),
        ("ring, awaited", Box::new(|offsets| awaits(&ring, &file, second, offsets))),
        ("auto, by token", Box::new(|offsets| tokens(&auto, &file, third, offsets))),
        ("auto, awaited", Box::new(|offsets| awaits(&auto, &file, fourth, offsets))),
        ("wait", Box::new(|offsets| waits(&file, fifth, offsets, |read| read.wait()))),
        ("wait, by a thread", Box::new(|offsets| waits(&file, sixth, offsets, hand_over))),
    ];
    if let Some(kernel) = plain_file(target)? {
        let other = kernel.try_clone()?;
        let mut second = Buffer::zeroed(BLOCK);
        sides.push(("pread, inlined", Box::new(move |at| pread(&kernel, &mut memory, at))));
        sides.push(("pread of std", Box::new(move |at| read_at(&other, &mut second, at))));
    }
    let mut times = vec![Vec::new(); sides.len()];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        for ((_, turn), times) in sides.iter_mut().zip(&mut times) {
            let before = Instant::now();
            turn(&mut offsets);
            times.push(before.elapsed().as_nanos() as f64 / READS as f64);
        }
    }
    let (queue, why) = auto.queue_of(file.device())?;
    println!("queue {queue}: {why}");
    for ((name, _), times) in sides.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let (fastest, median, turns) = (times[0], times[times.len() / 2], times.len());
        println!("{name:22} {fastest:7.0} ns, median {median:7.0} ns of {turns} turns");
    }
    Ok(())
}

/// The target as a file, past the page cache. `None` if it is none.
fn plain_file(target: &str) -> Result<Option<fs::File>> {
    if target.starts_with("null:") {
        return Ok(None);
    }
    let file =
        fs::File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(target);
    Ok(Some(file.map_err(|error| format!("{target}: {error}; name a file, or null:SIZE"))?))
}

fn bare_ring(target: &str) -> Result<BareRing> {
    let options = BareOptions {
        depth: 1,
        block_size: BLOCK as u32,
        fixed_files: true,
        fixed_buffers: true,
        polled: false,
        submission_thread: false,
        force_async: 0,
    };
    let file = plain_file(target)?;
    Ok(BareRing::new(options, file.as_ref().map(AsFd::as_fd).as_slice())?)
}

/// The same entry as that of the ring, but in a function that returns after the system call.
#[inline(never)]
fn enter(ring: &mut BareRing, wait: u32) -> std::result::Result<(), uringfs::Errno> {
    black_box(ring.enter(black_box(wait)))
}

#[inline(always)]
fn bare(
    ring: &mut BareRing,
    offsets: &mut Offsets,
    enter: impl Fn(&mut BareRing, u32) -> std::result::Result<(), uringfs::Errno>,
) {
    for _ in 0..READS {
        ring.push_read(0, 0, offsets.next(), BLOCK as u32);
        let mut done = 0;
        while done == 0 {
            enter(ring, 1).expect("the kernel takes requests");
            ring.reap(1, |_, result| {
                assert_eq!(result, Ok(BLOCK as u32));
                done += 1;
            });
        }
    }
}

fn tokens(reactor: &Reactor, file: &File, buffer: &mut Option<Buffer>, offsets: &mut Offsets) {
    for _ in 0..READS {
        let memory = buffer.take().expect("the last read returned it");
        reactor.read_at(file, memory, offsets.next(), Token::new(0)).expect("one is in flight");
        while buffer.is_none() {
            for done in reactor.completions(1, None).expect("the kernel takes requests") {
                assert_eq!(done.result(), Ok(BLOCK as u64));
                *buffer = Some(done.into_buffer());
            }
        }
    }
}

fn awaits(reactor: &Reactor, file: &File, buffer: &mut Option<Buffer>, offsets: &mut Offsets) {
    reactor.block_on(async {
        for _ in 0..READS {
            let memory = buffer.take().expect("the last read returned it");
            let (read, memory) = file.read_at(memory, offsets.next()).await;
            assert_eq!(read, Ok(BLOCK));
            *buffer = Some(memory);
        }
    });
}

fn waits(
    file: &File,
    buffer: &mut Option<Buffer>,
    offsets: &mut Offsets,
    wait: impl Fn(FileOp<BufResult<usize>>) -> BufResult<usize>,
) {
    for _ in 0..READS {
        let memory = buffer.take().expect("the last read returned it");
        let (read, memory) = wait(file.read_at(memory, offsets.next()));
        assert_eq!(read, Ok(BLOCK));
        *buffer = Some(memory);
    }
}

/// Waits for a background reactor, as every wait with a deadline does.
fn hand_over(read: FileOp<BufResult<usize>>) -> BufResult<usize> {
    read.deadline(Instant::now() + Duration::from_secs(3600)).wait()
}

fn pread(file: &fs::File, memory: &mut [u8], offsets: &mut Offsets) {
    for _ in 0..READS {
        assert_eq!(rustix::io::pread(file, &mut *memory, offsets.next()), Ok(BLOCK));
    }
}

fn read_at(file: &fs::File, memory: &mut [u8], offsets: &mut Offsets) {
    for _ in 0..READS {
        assert_eq!(file.read_at(memory, offsets.next()).expect("the file can be read"), BLOCK);
    }
}
