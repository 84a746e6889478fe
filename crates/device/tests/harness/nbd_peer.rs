//! A server of NBD for tests: a script that a thread runs for each connection, with the messages of the protocol. It can
//! be cut off at any message, as if it was killed and started again.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use uringfs_device::backend::nbd::NbdTarget;
use uringfs_nbd_protocol::handshake::info::{self, BlockSizeInfo, ExportInfo};
use uringfs_nbd_protocol::handshake::{
    Greeting, OptionCode, OptionHeader, OptionReply, ReplyCode, export_flags, flags,
};
use uringfs_nbd_protocol::transmission::{
    Chunk, ChunkKind, Command, ErrorHead, Request, SimpleReply, chunk_flags, command_flags,
};
use zerocopy::{FromBytes, IntoBytes};

/// All that a disk with a volatile cache has.
pub const ALL_FLAGS: u16 = export_flags::HAS_FLAGS
    | export_flags::SEND_FLUSH
    | export_flags::SEND_FUA
    | export_flags::SEND_TRIM
    | export_flags::SEND_WRITE_ZEROES;

/// The offer of the handshake.
#[derive(Clone, Debug)]
pub struct Offer {
    pub size: u64,
    pub flags: u16,
    /// Minimum, preferred, maximum.
    pub block_sizes: Option<[u32; 3]>,
    pub structured: bool,
}

impl Offer {
    pub fn new(size: u64, flags: u16) -> Offer {
        Offer { size, flags, block_sizes: Some([512, 4096, 1 << 20]), structured: true }
    }
}

/// Where the wire is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// After so many messages, of either side.
    pub after: u64,
    /// In the middle of the next message of the server.
    pub in_the_middle: bool,
}

/// A server. It ends when it is dropped.
pub struct Peer {
    shared: Arc<Shared>,
    socket: PathBuf,
    accepting: Option<JoinHandle<()>>,
}

type Script = dyn Fn(usize, &mut Conversation) -> io::Result<()> + Send + Sync;
type OnCut = dyn Fn() + Send + Sync;

struct Shared {
    state: Mutex<State>,
    on_cut: Box<OnCut>,
}

#[derive(Default)]
struct State {
    messages: u64,
    cuts: Vec<Cut>,
    streams: Vec<UnixStream>,
    connections: usize,
    has_stopped: bool,
}

/// One connection, seen from the server.
pub struct Conversation {
    stream: UnixStream,
    shared: Arc<Shared>,
    structured: bool,
}

impl Peer {
    /// A server that runs `script` for each connection, with its number.
    pub fn new(
        folder: &Path,
        script: impl Fn(usize, &mut Conversation) -> io::Result<()> + Send + Sync + 'static,
    ) -> Peer {
        Peer::with_cuts(folder, Vec::new(), || {}, script)
    }

    /// The same, cut at `cuts`, the first of which is the last in the list. `on_cut` is called before clients notice.
    pub fn with_cuts(
        folder: &Path,
        cuts: Vec<Cut>,
        on_cut: impl Fn() + Send + Sync + 'static,
        script: impl Fn(usize, &mut Conversation) -> io::Result<()> + Send + Sync + 'static,
    ) -> Peer {
        let socket = folder.join("peer.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let state = Mutex::new(State { cuts, ..State::default() });
        let shared = Arc::new(Shared { state, on_cut: Box::new(on_cut) });
        let accepting = Some(thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared, Arc::new(script))
        }));
        Peer { shared, socket, accepting }
    }

    pub fn target(&self) -> NbdTarget {
        NbdTarget::unix(&self.socket, "disk")
    }

    /// Messages so far, of either side.
    pub fn messages(&self) -> u64 {
        self.shared.lock().messages
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// Cuts it now, instead of the cuts that are left.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.cuts.clear();
        self.shared.cut_all(&mut state);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.has_stopped = true;
        self.shared.cut_all(&mut state);
        drop(state);
        let _ = UnixStream::connect(&self.socket);
        self.accepting.take().map(JoinHandle::join);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>, script: Arc<Script>) {
    let mut threads = Vec::new();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        let mut state = shared.lock();
        if state.has_stopped {
            break;
        }
        state.streams.push(stream.try_clone().unwrap());
        let number = state.connections;
        state.connections += 1;
        drop(state);
        let (shared, script) = (shared.clone(), script.clone());
        threads.push(thread::spawn(move || {
            let mut conversation = Conversation { stream, shared, structured: false };
            let _ = script(number, &mut conversation);
            let _ = conversation.stream.shutdown(Shutdown::Both);
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn cut_all(&self, state: &mut State) {
        (self.on_cut)();
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Counts a message. The error, if the wire is cut before it.
    fn count_message(&self, stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let number = state.messages;
        state.messages += 1;
        match state.cuts.last() {
            Some(cut) if cut.after == number => {
                if cut.in_the_middle {
                    let _ = stream.write_all(&bytes[..bytes.len() / 2]);
                }
                state.cuts.pop();
                self.cut_all(&mut state);
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            _ => Ok(()),
        }
    }
}

impl Conversation {
    /// Offers the export, whatever its name, until the client takes it.
    pub fn handshake(&mut self, offer: &Offer) -> io::Result<()> {
        self.greet()?;
        loop {
            let (option, _) = self.option()?;
            match option {
                OptionCode::STRUCTURED_REPLY if offer.structured => {
                    self.structured = true;
                    self.reply(option, ReplyCode::ACK, &[])?;
                }
                OptionCode::GO => return self.go(offer),
                option => self.reply(option, ReplyCode::ERR_UNSUP, &[])?,
            }
        }
    }

    /// The greeting, and the client's.
    pub fn greet(&mut self) -> io::Result<()> {
        self.send(Greeting::new(flags::FIXED_NEWSTYLE | flags::NO_ZEROES).as_bytes())?;
        self.receive(4).map(drop)
    }

    /// The next option, and its data.
    pub fn option(&mut self) -> io::Result<(OptionCode, Vec<u8>)> {
        let bytes = self.receive(size_of::<OptionHeader>())?;
        let header = OptionHeader::read_from_bytes(&bytes).unwrap();
        let mut data = vec![0; header.length.get() as usize];
        self.stream.read_exact(&mut data)?;
        Ok((OptionCode(header.option.get()), data))
    }

    pub fn reply(&mut self, option: OptionCode, code: ReplyCode, data: &[u8]) -> io::Result<()> {
        let head = OptionReply::new(option.0, code, data.len() as u32);
        self.send(&[head.as_bytes(), data].concat())
    }

    fn go(&mut self, offer: &Offer) -> io::Result<()> {
        let (size, flags) = (offer.size.into(), offer.flags.into());
        let export = ExportInfo { kind: info::EXPORT.into(), size, flags };
        self.reply(OptionCode::GO, ReplyCode::INFO, export.as_bytes())?;
        if let Some([minimum, preferred, maximum]) = offer.block_sizes {
            let sizes = BlockSizeInfo {
                kind: info::BLOCK_SIZE.into(),
                minimum: minimum.into(),
                preferred: preferred.into(),
                maximum: maximum.into(),
            };
            self.reply(OptionCode::GO, ReplyCode::INFO, sizes.as_bytes())?;
        }
        self.reply(OptionCode::GO, ReplyCode::ACK, &[])
    }

    /// The next request, and the payload of a write.
    pub fn request(&mut self) -> io::Result<(Request, Vec<u8>)> {
        let bytes = self.receive(size_of::<Request>())?;
        let request = Request::read_from_bytes(&bytes).unwrap();
        let mut payload = Vec::new();
        if request.command.get() == Command::WRITE.0 {
            payload.resize(request.length.get() as usize, 0);
            self.stream.read_exact(&mut payload)?;
        }
        Ok((request, payload))
    }

    /// The reply to a request without data.
    pub fn done(&mut self, request: &Request) -> io::Result<()> {
        let cookie = request.cookie.get();
        // Both are allowed; both are tried.
        match self.structured && cookie.is_multiple_of(2) {
            true => {
                let chunk = Chunk::new(ChunkKind::NONE, chunk_flags::DONE, cookie, 0);
                self.send(chunk.as_bytes())
            }
            false => self.send(SimpleReply::new(0, cookie).as_bytes()),
        }
    }

    pub fn fail(&mut self, request: &Request, error: u32) -> io::Result<()> {
        let cookie = request.cookie.get();
        if !self.structured {
            return self.send(SimpleReply::new(error, cookie).as_bytes());
        }
        let message = b"as the test asks for";
        let head = ErrorHead { error: error.into(), length: (message.len() as u16).into() };
        let length = (size_of::<ErrorHead>() + message.len()) as u32;
        let chunk = Chunk::new(ChunkKind::ERROR, chunk_flags::DONE, cookie, length);
        self.send(&[chunk.as_bytes(), head.as_bytes(), message].concat())
    }

    /// The reply to a read: in two chunks, the last one first, if it is long enough.
    pub fn data(&mut self, request: &Request, bytes: &[u8]) -> io::Result<()> {
        let cookie = request.cookie.get();
        if !self.structured {
            return self.send(&[SimpleReply::new(0, cookie).as_bytes(), bytes].concat());
        }
        let offset = request.offset.get();
        let (first, last) = bytes.split_at(bytes.len() / 2);
        self.chunk(cookie, 0, offset + first.len() as u64, last)?;
        self.chunk(cookie, chunk_flags::DONE, offset, first)
    }

    fn chunk(&mut self, cookie: u64, flags: u16, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let chunk = Chunk::new(ChunkKind::OFFSET_DATA, flags, cookie, 8 + bytes.len() as u32);
        self.send(&[chunk.as_bytes(), &offset.to_be_bytes(), bytes].concat())
    }

    /// Sends a message.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.shared.count_message(&mut self.stream, bytes)?;
        self.stream.write_all(bytes)
    }

    /// Receives the head of a message.
    fn receive(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        self.shared.count_message(&mut self.stream, &[])?;
        Ok(bytes)
    }
}

/// The content of a disk with a volatile cache, which a cut of its server loses.
pub struct CachedDisk {
    content: Mutex<Content>,
}

struct Content {
    current: Vec<u8>,
    stable: Vec<u8>,
    /// Where they differ, at most.
    dirty: Vec<Range<usize>>,
    losses: usize,
    /// The connection with the last write.
    last_writer: usize,
}

impl CachedDisk {
    pub fn new(size: usize) -> Arc<CachedDisk> {
        CachedDisk::with_content(vec![0; size])
    }

    pub fn with_content(stable: Vec<u8>) -> Arc<CachedDisk> {
        let current = stable.clone();
        let content = Content { current, stable, dirty: Vec::new(), losses: 0, last_writer: 0 };
        Arc::new(CachedDisk { content: Mutex::new(content) })
    }

    /// Loses what was not flushed. Connections that are open do nothing any more.
    pub fn lose_cache(&self) {
        let Content { current, stable, dirty, losses, .. } = &mut *self.content.lock().unwrap();
        for range in dirty.drain(..) {
            current[range.clone()].copy_from_slice(&stable[range]);
        }
        *losses += 1;
    }

    /// The content that a loss of the cache would leave.
    pub fn stable(&self) -> Vec<u8> {
        self.content.lock().unwrap().stable.clone()
    }

    /// The number of the connection with the last write.
    pub fn last_writer(&self) -> usize {
        self.content.lock().unwrap().last_writer
    }

    /// Serves connection `number`.
    pub fn serve(
        &self,
        number: usize,
        conversation: &mut Conversation,
        offer: &Offer,
    ) -> io::Result<()> {
        let losses = self.content.lock().unwrap().losses;
        conversation.handshake(offer)?;
        loop {
            let (request, payload) = conversation.request()?;
            if request.command.get() == Command::DISC.0 {
                return Ok(());
            }
            if request.command.get() == Command::WRITE.0 {
                self.content.lock().unwrap().last_writer = number;
            }
            match self.execute(&request, &payload, losses)? {
                Some(bytes) => conversation.data(&request, &bytes)?,
                None => conversation.done(&request)?,
            }
        }
    }

    fn execute(
        &self,
        request: &Request,
        payload: &[u8],
        losses: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        let Content { current, stable, dirty, losses: all, .. } =
            &mut *self.content.lock().unwrap();
        if *all != losses {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let begin = request.offset.get() as usize;
        let range = begin..begin + request.length.get() as usize;
        match Command(request.command.get()) {
            Command::READ => return Ok(Some(current[range].to_vec())),
            Command::WRITE => current[range.clone()].copy_from_slice(payload),
            Command::WRITE_ZEROES => current[range.clone()].fill(0),
            Command::TRIM => current[range.clone()].fill(0xdd),
            Command::FLUSH => {
                for range in dirty.drain(..) {
                    stable[range.clone()].copy_from_slice(&current[range]);
                }
            }
            other => panic!("the client sent {other:?}"),
        }
        match request.flags.get() & command_flags::FUA {
            0 => dirty.push(range),
            _ => stable[range.clone()].copy_from_slice(&current[range]),
        }
        Ok(None)
    }
}

/// A server of such a disk.
pub fn cached_disk(folder: &Path, disk: &Arc<CachedDisk>, offer: Offer, cuts: Vec<Cut>) -> Peer {
    let (on_cut, served) = (disk.clone(), disk.clone());
    Peer::with_cuts(
        folder,
        cuts,
        move || on_cut.lose_cache(),
        move |number, conversation| served.serve(number, conversation, &offer),
    )
}
