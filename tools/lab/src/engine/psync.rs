//! pread and pwrite in the issuing thread. An I/O is complete when its push returns.

use uringfs::Errno;

use super::aligned_buffer::AlignedBuffer;
use super::files::Files;
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, NO_BATCH, ReapBounds, Setup, SyncKind,
};
use crate::Error;
use crate::targets::inspect_files;
use std::ops::Range;

/// The engine.
pub struct Psync {
    files: Files,
    slots: Vec<AlignedBuffer>,
    done: Vec<IoCompletion>,
    system_calls: u64,
}

const NO_RING: &str = "this engine has no ring";

impl Engine for Psync {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: true,
        buffered: true,
        any_alignment: false,
        extends_files: true,
        volumes: false,
        virtual_targets: false,
        inspect: inspect_files,
        ignored_keys: &[
            ("registerfiles", NO_RING),
            ("fixedbufs", NO_RING),
            ("hipri", NO_RING),
            ("sqthread_poll", NO_RING),
            ("force_async", NO_RING),
            ("batch", NO_BATCH),
        ],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("psync")?;
        Ok(Self {
            files: Files::open(setup)?,
            slots: (0..setup.depth).map(|_| AlignedBuffer::new(setup.block)).collect(),
            done: Vec::with_capacity(setup.depth as usize),
            system_calls: 0,
        })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.slots[slot as usize].bytes()
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let result = self.files.perform(io, self.slots[io.slot as usize].bytes());
        self.system_calls += 1;
        self.done.push(IoCompletion { slot: io.slot, result });
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    #[inline]
    fn reap(&mut self, _bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        done.append(&mut self.done);
        Ok(())
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        self.system_calls += 1;
        self.files.sync(file, kind)
    }

    fn write_back(&mut self, file: u32, range: Range<u64>, flags: u32) -> Result<(), Errno> {
        self.system_calls += 1;
        self.files.write_back(file, range, flags)
    }

    fn sync_and_drop_cache(&mut self, file: u32) -> Result<(), Errno> {
        self.files.sync_and_drop_cache(file)
    }

    fn report(&self) -> EngineReport {
        EngineReport {
            queue: "sync".into(),
            tier: "pread and pwrite in the issuing thread".into(),
            system_calls: self.system_calls,
            ..EngineReport::default()
        }
    }
}
