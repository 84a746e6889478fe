//! Pieces of files on their way to or from a volume: many at once, on one reactor.

use std::collections::HashMap;
use std::io;
use uringfs::{Buffer, Completed, Errno, File, Payload, Reactor, ReactorOptions, Token, Tokens};
use uringfs_lab::Error;

/// Bytes of a piece: large enough that a device works at its speed with a few of them.
pub const PIECE: usize = 1 << 20;
/// Why fewer bytes of a file were read than it has.
pub const ENDS_EARLY: &str = "the volume's device ends before the file does";
/// Pieces on their way at once.
const MOST: usize = 32;

/// What is on its way; `P` is what the caller wants to know of a piece when it has landed.
pub struct Flight<P> {
    reactor: Reactor,
    pieces: HashMap<u64, P>,
    next: u64,
    completed: Vec<Completed>,
}

/// A piece that is there, or is not.
pub struct Landed<P> {
    pub piece: P,
    pub result: Result<u64, Errno>,
    pub buffer: Buffer,
}

enum Way {
    Read,
    Write,
}

impl<P> Flight<P> {
    pub fn new() -> Result<Self, Error> {
        let reactor = Reactor::new(ReactorOptions::default())
            .map_err(|error| Error::run("cannot begin").because(error))?;
        Ok(Self { reactor, pieces: HashMap::new(), next: 0, completed: Vec::new() })
    }

    /// Reads into a buffer. There has to be room for one more.
    pub fn read(&mut self, file: &File, buffer: Buffer, offset: u64, piece: P) -> io::Result<()> {
        self.start(Way::Read, file, buffer, offset, piece)
    }

    /// Writes a buffer. There has to be room for one more.
    pub fn write(&mut self, file: &File, buffer: Buffer, offset: u64, piece: P) -> io::Result<()> {
        self.start(Way::Write, file, buffer, offset, piece)
    }

    fn start(
        &mut self,
        way: Way,
        file: &File,
        mut buffer: Buffer,
        offset: u64,
        piece: P,
    ) -> io::Result<()> {
        let token = Token::new(self.next);
        loop {
            let started = match way {
                Way::Read => self.reactor.read(file, buffer, offset, token),
                Way::Write => self.reactor.write(file, buffer, offset, token),
            };
            let Err(refused) = started else { break };
            match (refused.error, refused.payload) {
                (Errno::AGAIN, Payload::Buffer(back)) if !self.pieces.is_empty() => buffer = back,
                (error, _) => return Err(error.into()),
            }
            self.reactor.reap(1, None, &mut self.completed)?;
        }
        self.pieces.insert(self.next, piece);
        self.next += 1;
        Ok(())
    }

    /// Does something that is no piece, to its end.
    pub fn wait<T>(&self, ask: impl Future<Output = T>) -> T {
        self.reactor.block_on(ask)
    }

    /// Waits until there is room for one more, and gives what has landed.
    pub fn make_room(&mut self) -> io::Result<Vec<Landed<P>>> {
        self.wait_for(MOST - 1)
    }

    /// Waits for everything.
    pub fn finish(&mut self) -> io::Result<Vec<Landed<P>>> {
        self.wait_for(0)
    }

    fn wait_for(&mut self, most: usize) -> io::Result<Vec<Landed<P>>> {
        let mut landed = Vec::new();
        loop {
            for completed in std::mem::take(&mut self.completed) {
                let piece = self.pieces.remove(&completed.token().get());
                let piece = piece.expect("what completes has been started");
                let result = completed.result();
                landed.push(Landed { piece, result, buffer: completed.into_buffer() });
            }
            let min = self.pieces.len().saturating_sub(most);
            if min == 0 && !landed.is_empty() || self.pieces.is_empty() {
                return Ok(landed);
            }
            self.reactor.reap(min, None, &mut self.completed)?;
            if min == 0 && self.completed.is_empty() {
                return Ok(landed);
            }
        }
    }
}
