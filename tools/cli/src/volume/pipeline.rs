//! Reads and writes chunks of files in a volume, many at once, on one reactor.

use super::files::OpenFile;
use std::collections::HashMap;
use std::io;
use uringfs::device::Payload;
use uringfs::{Buffer, Completion, Errno, Reactor, ReactorOptions, Token, Tokens};
use uringfs_lab::Error;

/// The size of a chunk: large enough that a few of them in flight use the full speed of a device.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The reason of a read that returned fewer bytes than the file has.
pub const DEVICE_TOO_SHORT: &str = "the volume's device ends before the file does";
/// The maximum number of chunks in flight.
const MAX_IN_FLIGHT: usize = 32;

/// The chunks in flight. `C` is what the caller needs to know about a chunk when it has finished.
pub struct Pipeline<C> {
    reactor: Reactor,
    in_flight: HashMap<u64, C>,
    next: u64,
    completed: Vec<Completion>,
    /// Chunks of files that the server of a mount has read or written.
    finished: Vec<FinishedChunk<C>>,
}

/// A chunk that was read or written, or failed.
pub struct FinishedChunk<C> {
    pub context: C,
    pub result: Result<u64, Errno>,
    pub buffer: Buffer,
}

enum Direction {
    Read,
    Write,
}

impl<C> Pipeline<C> {
    pub fn new() -> Result<Self, Error> {
        let reactor = Reactor::new(ReactorOptions::default())
            .map_err(|error| Error::run("cannot start I/O").because(error))?;
        Ok(Self {
            reactor,
            in_flight: HashMap::new(),
            next: 0,
            completed: Vec::new(),
            finished: Vec::new(),
        })
    }

    /// Starts to read into a buffer. The caller has waited for a slot.
    pub fn read(
        &mut self,
        file: &OpenFile,
        buffer: Buffer,
        offset: u64,
        context: C,
    ) -> io::Result<()> {
        self.start(Direction::Read, file, buffer, offset, context)
    }

    /// Starts to write a buffer. The caller has waited for a slot.
    pub fn write(
        &mut self,
        file: &OpenFile,
        buffer: Buffer,
        offset: u64,
        context: C,
    ) -> io::Result<()> {
        self.start(Direction::Write, file, buffer, offset, context)
    }

    fn start(
        &mut self,
        direction: Direction,
        file: &OpenFile,
        mut buffer: Buffer,
        offset: u64,
        context: C,
    ) -> io::Result<()> {
        let file = match file {
            OpenFile::Volume(file) => file,
            OpenFile::Served(file) => {
                let result = match direction {
                    Direction::Read => file.read_at(&mut buffer, offset),
                    Direction::Write => file.write_at(&buffer, offset),
                };
                self.finished.push(FinishedChunk { context, result, buffer });
                return Ok(());
            }
        };
        let token = Token::new(self.next);
        loop {
            let started = match direction {
                Direction::Read => self.reactor.read_at(file, buffer, offset, token),
                Direction::Write => self.reactor.write_at(file, buffer, offset, token),
            };
            let Err(refused) = started else { break };
            match (refused.error, refused.payload) {
                (Errno::AGAIN, Payload::Buffer(back)) if !self.in_flight.is_empty() => {
                    buffer = back
                }
                (error, _) => return Err(error.into()),
            }
            self.reactor.reap(1, None, &mut self.completed)?;
        }
        self.in_flight.insert(self.next, context);
        self.next += 1;
        Ok(())
    }

    /// Truncates or extends a file.
    pub fn set_len(&self, file: &OpenFile, size: u64) -> Result<(), Errno> {
        file.set_len(&self.reactor, size)
    }

    /// Waits until another chunk can start. Returns the finished chunks.
    pub fn wait_for_slot(&mut self) -> io::Result<Vec<FinishedChunk<C>>> {
        self.reap_until(MAX_IN_FLIGHT - 1)
    }

    /// Waits for all chunks. Returns the finished ones.
    pub fn drain(&mut self) -> io::Result<Vec<FinishedChunk<C>>> {
        self.reap_until(0)
    }

    fn reap_until(&mut self, max_left: usize) -> io::Result<Vec<FinishedChunk<C>>> {
        let mut finished = std::mem::take(&mut self.finished);
        loop {
            for completed in std::mem::take(&mut self.completed) {
                let context = self.in_flight.remove(&completed.token().get());
                let context = context.expect("only started chunks complete");
                let result = completed.result();
                finished.push(FinishedChunk { context, result, buffer: completed.into_buffer() });
            }
            let min = self.in_flight.len().saturating_sub(max_left);
            if min == 0 && !finished.is_empty() || self.in_flight.is_empty() {
                return Ok(finished);
            }
            self.reactor.reap(min, None, &mut self.completed)?;
            if min == 0 && self.completed.is_empty() {
                return Ok(finished);
            }
        }
    }
}
