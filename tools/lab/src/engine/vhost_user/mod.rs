//! A guest's view of a disk: a client of vhost-user-blk servers, by the crate blkio. The target is the socket of a server;
//! each thread of a job has the disk of one server, with one queue. Needs the cargo feature `vhost-user`.

mod call_counter;
mod connection;
mod shared_queue;

use uringfs::Errno;

use self::call_counter::CallCounter;
use self::connection::inspect_socket;
use self::shared_queue::SharedQueue;
use super::{
    Capabilities, Engine, EngineReport, Io, IoCompletion, NO_BATCH, ReapBounds, Setup, SyncKind,
};
use crate::Error;
use crate::targets::Target;

/// The engine.
pub struct VhostUser {
    queue: SharedQueue,
    is_polled: bool,
    calls: CallCounter,
}

const NO_RING: &str = "requests go through memory that the server shares";

impl Engine for VhostUser {
    const CAPABILITIES: Capabilities = Capabilities {
        synchronous: false,
        // The server decides.
        buffered: false,
        any_alignment: false,
        extends_files: false,
        volumes: false,
        virtual_targets: false,
        inspect: inspect_socket,
        ignored_keys: &[
            ("registerfiles", NO_RING),
            ("fixedbufs", NO_RING),
            ("sqthread_poll", NO_RING),
            ("force_async", NO_RING),
            ("batch", NO_BATCH),
        ],
    };

    fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        setup.no_settings("vhost-user")?;
        let [Target::Path(socket)] = setup.targets else {
            let line = "engine vhost-user: a thread has one disk; name one socket in filename=";
            return Err(Error::input(line));
        };
        let queue = SharedQueue::start(socket, setup)?;
        Ok(Self { queue, is_polled: setup.options.polled, calls: CallCounter::new() })
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.queue.buffer(slot)
    }

    #[inline]
    fn push(&mut self, io: Io) -> Result<(), Errno> {
        self.queue.push(io);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.queue.submit()
    }

    #[inline]
    fn reap(&mut self, bounds: ReapBounds, done: &mut Vec<IoCompletion>) -> Result<(), Errno> {
        self.queue.reap(bounds, done)
    }

    fn sync(&mut self, _file: u32, _kind: SyncKind) -> Result<(), Errno> {
        self.queue.flush()
    }

    /// The cache of the server is out of reach.
    fn sync_and_drop_cache(&mut self, _file: u32) -> Result<(), Errno> {
        self.queue.flush()
    }

    fn report(&self) -> EngineReport {
        let waits = if self.is_polled { "polling for completions" } else { "by interrupts" };
        let counted = self.calls.count();
        let mut report = EngineReport {
            queue: "vhost-user".into(),
            tier: format!("vhost-user-blk, {waits}"),
            ..EngineReport::default()
        };
        match counted {
            Some(counted) => {
                // A thread waits for each interrupt, then reads it.
                report.system_calls = counted.notifications + 2 * counted.interrupts;
                report.counters = vec![
                    ("notifications".into(), counted.notifications),
                    ("interrupts".into(), counted.interrupts),
                ];
            }
            None => report.notes.push("the kernel counts no system calls of threads".into()),
        }
        report
    }
}
