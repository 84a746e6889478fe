//! This stack, by its public interfaces only: reads and writes by token, or with `batch=on` by batch.

mod batch;
mod shared;
mod tokens;

use self::batch::BatchTransfers;
use self::shared::{SharedDevice, open, shared_cache};
use self::tokens::TokenTransfers;
use super::stack_threads::StackThreads;
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, ReapBounds, Setup, SyncKind, ThreadCost,
};
use crate::Error;
use crate::job::SyncWrites;
use crate::targets::{Target, inspect};
use ::uringfs::cache::Cache;
use ::uringfs::device::Target as DeviceTarget;
use ::uringfs::file::Advice;
use ::uringfs::reactor::Counter;
use ::uringfs::{BufferPool, Errno, File, Options, Reactor};
use std::ops::Range;
use std::sync::Arc;

/// The engine.
pub struct Uringfs {
    reactor: Reactor,
    files: Vec<File>,
    /// Keeps the devices open while other threads of the run share them.
    _opened: Vec<Arc<SharedDevice>>,
    /// The page cache of buffered jobs.
    cache: Option<Arc<Cache>>,
    transfers: Transfers,
    /// Made before the reactor: its threads count from their beginning.
    threads: StackThreads,
}

/// The reads and writes of the job.
enum Transfers {
    ByToken(TokenTransfers),
    ByBatch(BatchTransfers),
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
            ("registerfiles", "files are registered, unless --set ring.fixed_files=off"),
            ("fixedbufs", "buffers are registered, unless --set ring.fixed_buffers=off"),
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
            files.push(File::from_device_with_state(device, lock, options.file));
            opened.push(shared);
        }
        // Without a size there is no cache.
        let is_cached = options.cache_bytes.is_some() && !setup.options.direct;
        let cache = is_cached.then(|| shared_cache(&options));
        if let Some(cache) = &cache {
            files.iter_mut().for_each(|file| *file = file.buffered(cache));
        }
        let threads = StackThreads::new();
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
        let failed = |error| Error::run("cannot allocate the buffers".to_owned()).because(error);
        let pool = BufferPool::new(setup.block, setup.depth as usize).map_err(failed)?;
        let transfers = match setup.options.batch {
            true => Transfers::ByBatch(BatchTransfers::new(&reactor, &pool).map_err(failed)?),
            false => {
                let durable = setup.options.sync != SyncWrites::No;
                let transfers = TokenTransfers::new(&pool, setup.block, setup.depth, durable);
                Transfers::ByToken(transfers)
            }
        };
        Ok(Self { reactor, files, _opened: opened, cache, transfers, threads })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        match &mut self.transfers {
            Transfers::ByToken(transfers) => transfers.buffer(slot),
            Transfers::ByBatch(transfers) => transfers.buffer(slot),
        }
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        match &mut self.transfers {
            Transfers::ByToken(transfers) => transfers.push(&self.reactor, &self.files, io),
            Transfers::ByBatch(transfers) => transfers.push(&self.reactor, &self.files, io),
        }
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if let Transfers::ByBatch(transfers) = &mut self.transfers {
            transfers.begin(&self.files);
        }
        self.reactor.submit()
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        match &mut self.transfers {
            Transfers::ByToken(transfers) => transfers.reap(&self.reactor, bounds, done),
            Transfers::ByBatch(transfers) => transfers.reap(&self.files, bounds, done),
        }
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
        let own = match &self.transfers {
            Transfers::ByToken(_) => Vec::new(),
            Transfers::ByBatch(transfers) => transfers.counters().to_vec(),
        };
        EngineReport {
            queue: queue.map_or(String::new(), |(name, _)| name.clone()),
            tier: self.reactor.tier(),
            system_calls: counters.get(Counter::Enters) + counters.get(Counter::OtherCalls),
            helper_threads: self.threads.cost() + ThreadCost::read_ring_workers(),
            counters: counters
                .list()
                .into_iter()
                .chain(own)
                .map(|(name, n)| (name.to_owned(), n))
                .collect(),
            notes,
        }
    }
}

/// Writes back what is in the page cache, so that a later job that opens the same file or device reads it. As at a close of a
/// file of the kernel's, an error is not reported: a job with `end_fsync=1` gets it.
impl Drop for Uringfs {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let is_buffered = |file: &&File| file.is_buffered() && !file.geometry().read_only;
        for file in self.files.iter().filter(is_buffered) {
            let _ = self.reactor.block_on(file.sync_data());
        }
    }
}

/// Drops the cached data of a file, if it has a cache.
fn drop_cached(reactor: &Reactor, file: &File) -> Result<(), Errno> {
    reactor.block_on(file.advise(Advice::DoNotNeed, 0, file.len().next_multiple_of(1 << 20)))
}
