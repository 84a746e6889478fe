//! pread and pwrite in the issuing thread: the plainest way there is. An I/O is done when its
//! push returns.

use super::slots::Aligned;
use super::{Done, Engine, EngineReport, Facts, Io, Setup, SyncKind, Wanted};
use crate::Error;
use crate::target::Target;
use crate::workload::IoOp;
use rustix::fs::Advice;
use rustix::io::Errno;
use std::fs::File;

/// The engine.
pub struct Psync {
    files: Vec<File>,
    slots: Vec<Aligned>,
    done: Vec<Done>,
    system_calls: u64,
}

const NO_RING: &str = "there is no ring";

impl Engine for Psync {
    const FACTS: Facts = Facts {
        synchronous: true,
        buffered: true,
        any_alignment: false,
        grows: true,
        virtual_targets: false,
        ignores: &[
            ("registerfiles", NO_RING),
            ("fixedbufs", NO_RING),
            ("hipri", NO_RING),
            ("sqthread_poll", NO_RING),
            ("force_async", NO_RING),
        ],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("psync")?;
        Ok(Self {
            files: open_files(setup)?,
            slots: (0..setup.depth).map(|_| Aligned::new(setup.block)).collect(),
            done: Vec::with_capacity(setup.depth as usize),
            system_calls: 0,
        })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.slots[slot as usize].bytes()
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        let bytes = &mut self.slots[io.slot as usize].bytes()[..io.length as usize];
        let result = transfer(&self.files[io.file as usize], io, bytes);
        self.system_calls += 1;
        self.done.push(Done { slot: io.slot, result });
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    #[inline]
    fn reap(&mut self, _wanted: Wanted, done: &mut Vec<Done>) -> Result<(), Errno> {
        done.append(&mut self.done);
        Ok(())
    }

    fn sync(&mut self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        self.system_calls += 1;
        sync_file(&self.files[file as usize], kind)
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

/// Opens a job's files, and drops their cached pages if the job says so, as fio does.
pub(super) fn open_files(setup: &Setup<'_>) -> Result<Vec<File>, Error> {
    let open = |target: &Target| {
        let file = target.open(setup.access)?;
        if setup.options.invalidate && !setup.access.direct {
            // Advice only: a file system that knows no cache may decline.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        Ok(file)
    };
    setup.targets.iter().map(open).collect()
}

/// One pread or pwrite.
#[inline]
pub(super) fn transfer(file: &File, io: Io, bytes: &mut [u8]) -> Result<u32, Errno> {
    let moved = match io.op {
        IoOp::Read => rustix::io::pread(file, bytes, io.offset),
        IoOp::Write => rustix::io::pwrite(file, bytes, io.offset),
    };
    moved.map(|bytes| bytes as u32)
}

/// One fsync or fdatasync.
pub(super) fn sync_file(file: &File, kind: SyncKind) -> Result<(), Errno> {
    match kind {
        SyncKind::Full => rustix::fs::fsync(file),
        SyncKind::Data => rustix::fs::fdatasync(file),
    }
}
