//! The control: a bare io_uring loop, with as little code as possible above the kernel. Its rate on a
//! target is what the queue can give; the other engines are compared with it.

use super::files::Files;
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, NO_BATCH, ReapBounds, Setup, SyncKind,
    ThreadCost,
};
use crate::Error;
use crate::targets::{Target, inspect_files};
use crate::workload::IoOp;
use std::ops::Range;
use uringfs::Errno;
use uringfs_ring::bare_ring::{BareOptions, BareRing};

/// The engine.
pub struct Ring {
    ring: BareRing,
    files: Files,
    tier: String,
    /// Trims that have ended and are not reaped. The kernel's ring has none before Linux 6.12: each is a call, as with fio.
    trimmed: Vec<IoCompletion>,
    /// Requests of the ring that are not submitted.
    queued: u32,
    /// Requests of the ring that have not completed, those included.
    in_ring: usize,
    /// System calls of trims and syncs.
    calls: u64,
}

impl Engine for Ring {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        buffered: true,
        any_alignment: false,
        extends_files: true,
        volumes: false,
        virtual_targets: true,
        inspect: inspect_files,
        ignored_keys: &[("batch", NO_BATCH)],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("ring")?;
        let nothing = setup.targets.iter().all(|target| match target {
            Target::Virtual(name) => name.starts_with("null:"),
            Target::Path(_) | Target::InVolume(_) => false,
        });
        let files = if nothing { Files::none() } else { Files::open(setup)? };
        let options = BareOptions {
            depth: setup.depth,
            block_size: setup.block as u32,
            fixed_files: setup.options.register_files,
            fixed_buffers: setup.options.fixed_buffers,
            polled: setup.options.polled,
            submission_thread: setup.options.sq_thread_poll,
            force_async: setup.options.force_async,
        };
        let ring = BareRing::new(options.clone(), &files.descriptors())
            .map_err(|error| Error::input("engine ring".to_owned()).because(error))?;
        let named = |fixed, what| if fixed { format!("{what} registered") } else { String::new() };
        let tier = [
            "bare io_uring".to_owned(),
            named(options.fixed_files, "files"),
            named(options.fixed_buffers, "buffers"),
            if options.polled { "polled".to_owned() } else { String::new() },
            if options.submission_thread {
                "submitted by a kernel thread".into()
            } else {
                String::new()
            },
            match options.force_async {
                0 => String::new(),
                1 => "each request to a worker".into(),
                n => format!("one request in {n} to a worker"),
            },
        ];
        let tier = tier.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>();
        Ok(Self {
            ring,
            files,
            tier: tier.join(", "),
            trimmed: Vec::new(),
            queued: 0,
            in_ring: 0,
            calls: 0,
        })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.ring.buffer(slot)
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        match io.op {
            IoOp::Read => self.ring.push_read(io.slot, io.file, io.offset, io.length),
            IoOp::Write => self.ring.push_write(io.slot, io.file, io.offset, io.length),
            IoOp::Trim => {
                self.trim(io);
                return Ok(());
            }
        }
        self.queued += 1;
        self.in_ring += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.queued == 0 {
            // Only trims were pushed.
            return Ok(());
        }
        self.ring.enter(0)?;
        self.queued = 0;
        Ok(())
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        let trimmed = self.trimmed.len().min(bounds.max);
        if trimmed > 0 {
            done.extend(self.trimmed.drain(..trimmed));
        }
        if self.in_ring == 0 {
            return Ok(());
        }
        self.ring.enter(bounds.min.saturating_sub(trimmed) as u32)?;
        self.queued = 0;
        let max = bounds.max - trimmed;
        let before = done.len();
        self.ring.reap(max, |slot, result| done.push(IoCompletion { slot, result }));
        self.in_ring -= done.len() - before;
        Ok(())
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        self.calls += 1;
        self.files.sync(file, kind)
    }

    fn write_back(&mut self, file: u32, range: Range<u64>, flags: u32) -> Result<(), Errno> {
        self.calls += 1;
        self.files.write_back(file, range, flags)
    }

    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        self.files.sync_and_drop_cache(file)
    }

    fn report(&self) -> EngineReport {
        EngineReport {
            queue: "ring".into(),
            tier: self.tier.clone(),
            system_calls: self.ring.enters() + self.calls,
            helper_threads: ThreadCost::read_ring_workers(),
            ..EngineReport::default()
        }
    }
}

impl Ring {
    #[cold]
    fn trim(&mut self, io: Io) {
        self.calls += u64::from(!self.files.is_empty());
        self.trimmed.push(IoCompletion { slot: io.slot, result: self.files.trim(io) });
    }
}
