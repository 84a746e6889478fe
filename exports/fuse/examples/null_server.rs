//! Mounts one file, whose reads are answered from memory: the cost of the carrier alone, for scripts/bench/fuse. Everything
//! but the operations is the code of the server.
//!
//!     null_server DIRECTORY [/dev/fuse|io_uring [THREADS [spin=off]]]

#![allow(dead_code, reason = "of the server's modules only the carrier is used")]
#![allow(clippy::unused_async, reason = "the operations have the signatures of the server's")]

use std::env;
use std::io;

use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume};

use mount::{Mount, MountOptions};

#[path = "../src/abi.rs"]
mod abi;
#[path = "../src/agreement.rs"]
mod agreement;
#[path = "../src/attach.rs"]
mod attach;
#[path = "../src/changes.rs"]
mod changes;
#[path = "../src/closed.rs"]
mod closed;
#[path = "../src/commit.rs"]
mod commit;
#[path = "../src/control/mod.rs"]
pub mod control;
#[path = "../src/in_flight.rs"]
mod in_flight;
#[path = "../src/listen.rs"]
mod listen;
#[path = "../src/mount.rs"]
mod mount;
#[path = "../src/notify.rs"]
mod notify;
#[path = "../src/reply.rs"]
mod reply;
#[path = "../src/request.rs"]
mod request;
#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/serve.rs"]
mod serve;
#[path = "../src/session.rs"]
mod session;
#[path = "../src/tables.rs"]
mod tables;

pub use mount::unmount;
pub use session::MountCache;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| io::Error::other("which directory?"))?;
    let io_uring = arguments.next().is_some_and(|argument| argument == "io_uring");
    // A session has a volume. Nothing is read from this one.
    let volume = Volume::create_on(Device::new(Memory::new(64 << 20)?)?, &FormatOptions::new())?;
    let threads = arguments.next().map_or(2, |threads| threads.parse().expect("a number"));
    let options = MountOptions::new().source("null").io_uring(io_uring).threads(threads);
    let options = options.spin(arguments.next().is_none_or(|argument| argument != "spin=off"));
    Mount::new(volume, directory, &options)?.serve()
}

/// The name that the control socket takes from the operations on open files.
mod files {
    pub(crate) const CAPABILITY: &[u8] = b"security.capability";
}

/// The operations: a directory with one file.
mod operations {
    use uringfs::{Buffer, Errno};
    use zerocopy::IntoBytes;

    use crate::abi::{Attr, AttrOut, EntryOut, OpenOut, ROOT_ID, ReadIn, WriteIn, open};
    use crate::request::Operation;
    use crate::session::{Session, Task};

    const FILE_ID: u64 = 2;
    const SIZE: u64 = 1 << 30;
    /// Seconds.
    const VALID: u64 = 3600;
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

    impl Task {
        pub(crate) async fn answer(&self, operation: Operation<'_>, _: &[(&[u8], &[u8])]) {
            let handle = OpenOut { flags: open::DIRECT_IO, ..OpenOut::default() };
            match operation {
                Operation::Lookup(b"file") => {
                    let entry = EntryOut {
                        node: FILE_ID,
                        entry_valid: VALID,
                        attr_valid: VALID,
                        attr: attributes(FILE_ID),
                        ..EntryOut::default()
                    };
                    self.reply(Ok(entry.as_bytes()));
                }
                Operation::Lookup(_) => self.reply(Err(Errno::NOENT)),
                Operation::Getattr => {
                    let attr = attributes(self.header.node);
                    let reply = AttrOut { attr_valid: VALID, attr, ..AttrOut::default() };
                    self.reply(Ok(reply.as_bytes()));
                }
                Operation::Open(_) | Operation::Opendir => self.reply(Ok(handle.as_bytes())),
                Operation::Release(_) | Operation::Releasedir(_) | Operation::Destroy => {
                    self.reply(Ok(&[]));
                }
                _ => self.reply(Err(Errno::NOSYS)),
            }
        }

        pub(crate) async fn read(self, read: ReadIn, _: Buffer) {
            self.reply(Ok(&ZEROS[..ZEROS.len().min(read.size as usize)]));
        }

        pub(crate) async fn write(self, _: WriteIn, _: Buffer) {
            self.reply(Err(Errno::ROFS));
        }
    }

    impl Session {
        /// Of an entry over io_uring, whose memory is the reply.
        pub(crate) async fn read(
            &self,
            _: &ReadIn,
            buffer: Buffer,
        ) -> (Result<usize, Errno>, Buffer) {
            (Ok(buffer.len()), buffer)
        }

        pub(crate) async fn write(
            &self,
            _: &WriteIn,
            data: Buffer,
        ) -> (Result<crate::abi::WriteOut, Errno>, Buffer) {
            (Err(Errno::ROFS), data)
        }
    }

    fn attributes(node: u64) -> Attr {
        let (mode, size) = if node == ROOT_ID { (0o40_755, 0) } else { (0o100_644, SIZE) };
        Attr { ino: node, size, mode, nlink: 1, block_size: 4096, ..Attr::default() }
    }
}
