//! This stack, by its public token interface only.

use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind, ThreadCost,
};
use crate::Error;
use crate::job::SyncWrites;
use crate::targets::{Target, inspect};
use crate::workload::IoOp;
use ::uringfs::cache::Cache;
use ::uringfs::device::{Access, Device, Payload, Target as DeviceTarget};
use ::uringfs::file::{Advice, BufferedWait, FileState};
use ::uringfs::reactor::Counter;
use ::uringfs::{Buffer, BufferPool, Errno, File, Options, Reactor, SubmitError, Token, Tokens};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The engine.
pub struct Uringfs {
    reactor: Reactor,
    files: Vec<File>,
    /// Keeps the devices open while other threads of the run share them.
    _opened: Vec<Arc<SharedDevice>>,
    /// The page cache of buffered jobs.
    cache: Option<Arc<Cache>>,
    waits_in_threads: bool,
    buffers: SlotBuffers,
    durable: bool,
}

impl Engine for Uringfs {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        buffered: false,
        any_alignment: true,
        extends_files: false,
        virtual_targets: true,
        volumes: true,
        inspect,
        ignored_keys: &[
            ("registerfiles", "use --set ring.fixed_files=on|off"),
            ("fixedbufs", "use --set ring.fixed_buffers=on|off"),
            ("sqthread_poll", "the reactor submits"),
            ("force_async", "use --set completion=worker"),
        ],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        let mut options = Options::default();
        options.reactor.depth = setup.depth.max(options.reactor.depth);
        options.reactor.polled = setup.options.polled;
        for (name, value) in setup.settings {
            options.set(name, value).map_err(Error::input)?;
        }
        let (mut files, mut opened) = (Vec::new(), Vec::new());
        for target in setup.targets {
            let parsed = match target {
                Target::InVolume(file) => {
                    files.push(setup.volumes.file(file, options.file)?);
                    continue;
                }
                Target::Virtual(name) => name.parse::<DeviceTarget>(),
                Target::Path(path) => Ok(DeviceTarget::Path(path.clone())),
            };
            let shared = open(target, parsed, setup.access.writes)?;
            let (device, lock) = (shared.device.clone(), shared.lock.clone());
            files.push(File::over_with_lock(device, lock, options.file));
            opened.push(shared);
        }
        // Without a size there is no cache.
        let is_cached = options.cache_bytes.is_some() && !setup.options.direct;
        let cache = is_cached.then(|| shared_cache(&options));
        if let Some(cache) = &cache {
            files.iter_mut().for_each(|file| *file = file.buffered(cache));
        }
        let waits_in_threads = is_cached && options.file.buffered_wait == BufferedWait::Thread;
        let reactor = Reactor::new(options.reactor)
            .map_err(|error| Error::input("engine uringfs".to_owned()).because(error))?;
        for file in &files {
            // Choose the queue now, before anything is measured.
            reactor
                .queue_of(file.device())
                .map_err(|error| Error::input(file.device().description()).because(error))?;
        }
        if setup.options.invalidate && is_cached {
            files
                .iter()
                .try_for_each(|file| drop_cached(&reactor, file))
                .map_err(|errno| Error::run("cannot drop cached data".to_owned()).because(errno))?;
        }
        let depth = setup.depth as usize;
        let pool = BufferPool::new(setup.block, depth)
            .map_err(|error| Error::run("cannot allocate the buffers".to_owned()).because(error))?;
        Ok(Self {
            reactor,
            files,
            _opened: opened,
            cache,
            waits_in_threads,
            buffers: SlotBuffers {
                block: setup.block,
                slots: (0..depth).map(|_| Slot { idle: pool.get(), tail: None }).collect(),
            },
            durable: setup.options.sync != SyncWrites::No,
        })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.buffers.slots[slot as usize].idle.as_mut().expect("the slot is not in flight")
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        if io.op != IoOp::Read && (self.durable || io.op == IoOp::Trim) {
            return self.push_slow(io);
        }
        let (file, token) = (&self.files[io.file as usize], Token::new(io.slot.into()));
        let buffer = self.buffers.take(io.slot, io.length);
        // A return in each arm: if they were joined, the result would go through memory.
        match io.op {
            IoOp::Read => match self.reactor.read_at(file, buffer, io.offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.buffers.restore(io.slot, refused)),
            },
            IoOp::Write => match self.reactor.write_at(file, buffer, io.offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(self.buffers.restore(io.slot, refused)),
            },
            IoOp::Trim => unreachable!("a trim is pushed above"),
        }
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.reactor.submit()
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        let completions = self.reactor.completions(bounds.min, None)?;
        for completion in completions.take(bounds.max) {
            let slot = completion.token().get() as u32;
            let result = completion.result().map(|bytes| bytes as u32);
            // Before all that may panic, so that the completion is never copied to be dropped.
            match completion.into_payload() {
                Payload::Buffer(buffer) => {
                    if self.buffers.give_back(slot, buffer) != self.buffers.block {
                        self.buffers.rejoin(slot);
                    }
                }
                // A trim has no memory.
                _ => self.buffers.bring_back(slot),
            }
            done.push(IoCompletion { slot, result });
        }
        Ok(())
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        let file = &self.files[file as usize];
        self.reactor.block_on(match kind {
            SyncKind::Full => file.sync_all(),
            SyncKind::Data => file.sync_data(),
        })
    }

    fn write_back(&mut self, file: u32, range: Range<u64>, _flags: u32) -> Result<(), Errno> {
        let (file, length) = (&self.files[file as usize], range.end - range.start);
        self.reactor.block_on(file.sync_range(range.start, length))
    }

    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        drop_cached(&self.reactor, &self.files[file as usize])
    }

    fn report(&self) -> EngineReport {
        let counters = self.reactor.counters();
        // Read again: a driver may have refused the first choice.
        let queues: Vec<_> = self
            .files
            .iter()
            .map(|file| (file.device().description(), self.reactor.queue_of(file.device())))
            .collect();
        let notes = queues.iter().map(|(device, queue)| match queue {
            Ok((name, reason)) => format!("{device}: queue {name}: {reason}"),
            Err(error) => format!("{device}: no queue: {error}"),
        });
        // All files of a volume have one device.
        let mut notes: Vec<String> = notes.chain(self.reactor.registration_refused()).collect();
        notes.dedup();
        notes.extend(self.cache.as_ref().map(|cache| {
            let bytes = cache.statistics().bound_bytes;
            format!("direct=0: through a page cache of {bytes} bytes")
        }));
        let queue = queues.iter().find_map(|(_, queue)| queue.as_ref().ok());
        let helper_threads = match self.waits_in_threads {
            true => ThreadCost::read_threads_named("uringfs-pool"),
            false => ThreadCost::default(),
        };
        EngineReport {
            queue: queue.map_or(String::new(), |(name, _)| name.clone()),
            tier: self.reactor.tier(),
            system_calls: counters.get(Counter::Enters) + counters.get(Counter::OtherCalls),
            helper_threads,
            counters: counters.list().into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
            notes,
        }
    }
}

impl Uringfs {
    /// A trim, or a durable write.
    #[inline(never)]
    fn push_slow(&mut self, io: Io) -> Result<(), Errno> {
        let (file, token) = (&self.files[io.file as usize], Token::new(io.slot.into()));
        if io.op == IoOp::Trim {
            self.buffers.put_aside(io.slot);
            let started = self.reactor.start(file.discard(io.offset, io.length.into()), token);
            return started.map_err(|refused| {
                self.buffers.bring_back(io.slot);
                refused.error
            });
        }
        let buffer = self.buffers.take(io.slot, io.length);
        let started = self.reactor.start(file.write_durably(buffer, io.offset), token);
        started.map_err(|refused| self.buffers.restore(io.slot, refused))
    }
}

/// The buffers of all slots.
struct SlotBuffers {
    /// Size of each in bytes.
    block: usize,
    slots: Box<[Slot]>,
}

/// The buffer of one slot.
struct Slot {
    /// `None` while the slot is in flight.
    idle: Option<Buffer>,
    /// The part that a shorter I/O does not use; all of it during a trim.
    tail: Option<Buffer>,
}

impl SlotBuffers {
    /// Takes the first `length` bytes of a slot's buffer, until the I/O completes.
    #[inline(always)]
    fn take(&mut self, slot: u32, length: u32) -> Buffer {
        let slot = &mut self.slots[slot as usize];
        if slot.idle.as_ref().is_some_and(|buffer| buffer.len() != length as usize) {
            slot.split_tail(length);
        }
        slot.idle.take().expect("the slot is not in flight")
    }

    /// Puts the buffer of a slot in flight back; returns its length.
    #[inline(always)]
    fn give_back(&mut self, slot: u32, buffer: Buffer) -> usize {
        let place = &mut self.slots[slot as usize].idle;
        assert!(place.is_none(), "the slot is in flight");
        place.insert(buffer).len()
    }

    /// Takes a slot's buffer out of use, until its trim completes.
    #[cold]
    fn put_aside(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        *tail = Some(idle.take().expect("the slot is not in flight"));
    }

    /// The trim of a slot has ended.
    #[cold]
    #[inline(never)]
    fn bring_back(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        *idle = tail.take();
    }

    /// Puts the buffer of a refused request back; returns the error.
    #[cold]
    #[inline(never)]
    fn restore(&mut self, slot: u32, refused: SubmitError) -> Errno {
        if let Payload::Buffer(buffer) = refused.payload {
            self.give_back(slot, buffer);
            self.rejoin(slot);
        }
        refused.error
    }

    /// Joins a slot's buffer with its unused part.
    #[cold]
    #[inline(never)]
    fn rejoin(&mut self, slot: u32) {
        let Slot { idle, tail } = &mut self.slots[slot as usize];
        if let (Some(buffer), Some(tail)) = (idle, tail.take()) {
            let joined = buffer.join(tail);
            assert!(joined.is_ok(), "they were one buffer");
        }
    }
}

impl Slot {
    #[cold]
    #[inline(never)]
    fn split_tail(&mut self, length: u32) {
        self.tail = self.idle.as_mut().map(|buffer| buffer.split_off(length as usize));
    }
}

/// A device that all threads of a run share. So they write to the same memory, a block device is opened
/// once, and its queue is chosen once.
struct SharedDevice {
    device: Device,
    lock: Arc<FileState>,
}

/// Drops the cached data of a file, if it has a cache.
fn drop_cached(reactor: &Reactor, file: &File) -> Result<(), Errno> {
    reactor.block_on(file.advise(Advice::DoNotNeed, 0, file.len().next_multiple_of(1 << 20)))
}

/// The page cache that all threads of a run share, with its size.
static CACHE: Mutex<(Option<u64>, Weak<Cache>)> = Mutex::new((None, Weak::new()));

fn shared_cache(options: &Options) -> Arc<Cache> {
    let (bytes, shared) = &mut *CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cache) = shared.upgrade().filter(|_| *bytes == options.cache_bytes) {
        return cache;
    }
    let cache = Arc::new(options.cache());
    (*bytes, *shared) = (options.cache_bytes, Arc::downgrade(&cache));
    cache
}

/// Open devices, by name and by whether they are written.
static OPEN_DEVICES: Mutex<Vec<(String, bool, Weak<SharedDevice>)>> = Mutex::new(Vec::new());

fn open(
    target: &Target,
    parsed: io::Result<DeviceTarget>,
    writes: bool,
) -> Result<Arc<SharedDevice>, Error> {
    let name = target.to_string();
    let mut open = OPEN_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, _, opened)| opened.strong_count() > 0);
    let known =
        open.iter().find(|(other, other_writes, _)| *other == name && *other_writes == writes);
    if let Some(opened) = known.and_then(|(_, _, opened)| opened.upgrade()) {
        return Ok(opened);
    }
    let access = if writes { Access::ReadWrite } else { Access::Read };
    let device = parsed
        .and_then(|target| target.open(access))
        .map_err(|error| Error::input(name.clone()).because(error))?;
    let opened = Arc::new(SharedDevice { device, lock: Arc::default() });
    open.push((name, writes, Arc::downgrade(&opened)));
    Ok(opened)
}
