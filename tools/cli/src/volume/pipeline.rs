//! Pieces of files on their direction to or from a volume: many at once, on one reactor.

use std::collections::HashMap;
use std::io;
use uringfs::{Buffer, Completed, Errno, File, Payload, Reactor, ReactorOptions, Token, Tokens};
use uringfs_lab::Error;

/// Bytes of a chunk: large enough that a device works at its speed with a few of them.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Why fewer bytes of a file were read than it has.
pub const DEVICE_TOO_SHORT: &str = "the volume's device ends before the file does";
/// Pieces on their direction at once.
const MAX_IN_FLIGHT: usize = 32;

/// What is on its direction; `P` is what the caller wants to know of a chunk when it has finished.
pub struct Pipeline<C> {
    reactor: Reactor,
    in_flight: HashMap<u64, C>,
    next: u64,
    completed: Vec<Completed>,
}

/// A chunk that is there, or is not.
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
            .map_err(|error| Error::run("cannot begin").because(error))?;
        Ok(Self { reactor, in_flight: HashMap::new(), next: 0, completed: Vec::new() })
    }

    /// Reads into a buffer. There has to be room for one more.
    pub fn read(&mut self, file: &File, buffer: Buffer, offset: u64, context: C) -> io::Result<()> {
        self.start(Direction::Read, file, buffer, offset, context)
    }

    /// Writes a buffer. There has to be room for one more.
    pub fn write(
        &mut self,
        file: &File,
        buffer: Buffer,
        offset: u64,
        context: C,
    ) -> io::Result<()> {
        self.start(Direction::Write, file, buffer, offset, context)
    }

    fn start(
        &mut self,
        direction: Direction,
        file: &File,
        mut buffer: Buffer,
        offset: u64,
        context: C,
    ) -> io::Result<()> {
        let token = Token::new(self.next);
        loop {
            let started = match direction {
                Direction::Read => self.reactor.read(file, buffer, offset, token),
                Direction::Write => self.reactor.write(file, buffer, offset, token),
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

    /// Does something that is no chunk, to its end.
    pub fn block_on<T>(&self, operation: impl Future<Output = T>) -> T {
        self.reactor.block_on(operation)
    }

    /// Waits until there is room for one more, and gives what has finished.
    pub fn wait_for_slot(&mut self) -> io::Result<Vec<FinishedChunk<C>>> {
        self.reap_until(MAX_IN_FLIGHT - 1)
    }

    /// Waits for everything.
    pub fn drain(&mut self) -> io::Result<Vec<FinishedChunk<C>>> {
        self.reap_until(0)
    }

    fn reap_until(&mut self, max_left: usize) -> io::Result<Vec<FinishedChunk<C>>> {
        let mut finished = Vec::new();
        loop {
            for completed in std::mem::take(&mut self.completed) {
                let context = self.in_flight.remove(&completed.token().get());
                let context = context.expect("what completes has been started");
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
