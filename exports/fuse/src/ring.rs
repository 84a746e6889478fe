//! The carrier over io_uring. Each entry is memory for one request and its reply, which passes between the kernel and a task
//! of the thread that serves the entry's queue. There is a queue for each processor: a request comes to the thread that
//! serves the processor of the program that asks. FORGET, INTERRUPT and what is before INIT come over `/dev/fuse`.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use uringfs::reactor::{Command, run_command};
use uringfs::{Buffer, BufferPool, Errno};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{CommandIn, InHeader, OutHeader, ReadIn, RingHeader, WriteIn, command, opcode};
use crate::in_flight::InFlight;
use crate::request::Request;
use crate::session::{Carrier, Session, Task};

/// The most bytes of one read or write.
pub(crate) const MAX_RING_TRANSFER: u32 = 256 << 10;
/// Entries of a queue: the requests of one processor that are under way at once. More wait in the kernel.
const ENTRIES: usize = 16;
/// The most entries that one thread serves.
const MAX_ENTRIES: usize = 512;

/// The number of queues, if the kernel offers the carrier: root has to turn it on.
fn queues() -> Option<usize> {
    let enabled = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").ok()?;
    // As "0-7", or "0,2-7".
    let processors = fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    let last = processors.trim_end().rsplit([',', '-']).next()?;
    (enabled.trim_end() == "Y").then_some(last.parse::<usize>().ok()? + 1)
}

/// The queues that one thread serves, with memory for their entries.
pub(crate) struct RingQueues {
    queues: Vec<u16>,
    entries: usize,
    payloads: BufferPool,
}

impl RingQueues {
    /// Divides the kernel's queues among threads. `None` if it offers none.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn of_thread(thread: usize, threads: usize) -> io::Result<Option<RingQueues>> {
        let Some(count) = queues().filter(|count| *count <= CpuSet::MAX_CPU) else {
            return Ok(None);
        };
        let most = count.div_ceil(threads);
        if most > MAX_ENTRIES {
            return Ok(None);
        }
        let queues: Vec<u16> = (0..count as u16).skip(thread).step_by(threads).collect();
        let entries = ENTRIES.min(MAX_ENTRIES / most);
        let payloads =
            BufferPool::new(MAX_RING_TRANSFER as usize, (entries * queues.len()).max(1))?;
        Ok(Some(RingQueues { queues, entries, payloads }))
    }

    /// Keeps this thread on the processors whose programs it serves: it then runs when such a program waits for it. Returns
    /// where it was before.
    ///
    /// # Errors
    /// EINVAL if the process may not use these processors.
    pub(crate) fn stay_near(&self) -> rustix::io::Result<CpuSet> {
        let before = sched_getaffinity(None)?;
        let mut processors = CpuSet::new();
        for queue in &self.queues {
            processors.set(usize::from(*queue));
        }
        sched_setaffinity(None, &processors)?;
        Ok(before)
    }

    /// The queue and the payload of each entry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u16, Buffer)> {
        let queues = self.queues.iter().flat_map(|queue| (0..self.entries).map(move |_| *queue));
        queues.map(|queue| (queue, self.payloads.get().expect("the pool has one for each entry")))
    }
}

/// Serves one entry until the file system is unmounted.
pub(crate) async fn serve_entry(
    session: Arc<Session>,
    channel: Arc<OwnedFd>,
    queue: u16,
    payload: Buffer,
    _in_flight: InFlight,
) {
    if !session.ring.agreed().await {
        return;
    }
    let mut entry = Entry::new(channel, queue, payload);
    let mut operation = command::REGISTER;
    let mut commit_id = 0;
    loop {
        let result;
        (result, entry) = entry.run(operation, commit_id).await;
        // ENOTCONN: it is unmounted. After other errors the kernel does not use the entry.
        if result.is_err() {
            return;
        }
        commit_id = entry.answer(&session).await;
        operation = command::COMMIT_AND_FETCH;
    }
}

struct Entry {
    command: Box<Command>,
    queue: u16,
}

impl Entry {
    fn new(channel: Arc<OwnedFd>, queue: u16, payload: Buffer) -> Entry {
        let header = Buffer::zeroed(size_of::<RingHeader>());
        // SAFETY: the commands of /dev/fuse access the memory with which the entry was registered, which is this, and only
        // until they end. `payload` puts back what it takes out.
        let command = Box::new(unsafe { Command::new(channel, [header, payload]) });
        Entry { command, queue }
    }

    /// Waits for the next request.
    async fn run(mut self, operation: u32, commit_id: u64) -> (Result<u32, Errno>, Entry) {
        let argument = CommandIn { commit_id, queue: self.queue, ..CommandIn::default() };
        self.command.set(operation, zerocopy::transmute!(argument));
        let (result, command) = run_command(self.command).await;
        (result, Entry { command, ..self })
    }

    /// Answers the request in the entry. Returns its number for the commit.
    async fn answer(&mut self, session: &Arc<Session>) -> u64 {
        let header = RingHeader::read_from_bytes(&self.command.buffers()[0]);
        let header = header.expect("it has the size of a header");
        let (request, _) = InHeader::read_from_prefix(header.in_out.as_bytes()).expect("it fits");
        let size = header.payload_size as usize;
        let result = match request.opcode {
            opcode::READ => self.read(session, &header).await,
            opcode::WRITE => self.write(session, &header, size).await,
            _ => self.answer_any(session, &header, request, size).await,
        };
        let (error, size) = match result {
            Ok(size) => (0, size),
            Err(errno) => (-errno.raw_os_error(), 0),
        };
        let length = (size_of::<OutHeader>() + size) as u32;
        let reply = OutHeader { length, error, unique: request.unique };
        let mut header = RingHeader { payload_size: size as u32, ..header };
        header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(reply.as_bytes());
        self.command.buffers()[0].copy_from_slice(header.as_bytes());
        header.commit_id
    }

    /// Reads from the device into the entry.
    async fn read(&mut self, session: &Session, header: &RingHeader) -> Result<usize, Errno> {
        let (read, _) = ReadIn::read_from_prefix(header.operation.as_bytes()).expect("it fits");
        let size = (read.size as usize).min(self.command.buffers()[1].len());
        let payload = &mut self.command.buffers()[1];
        let rest = payload.split_off(size);
        let (length, data) = session.read(&read, payload.split_off(0)).await;
        self.put_back([data, rest]);
        length
    }

    /// Writes from the entry to the device.
    async fn write(
        &mut self,
        session: &Session,
        header: &RingHeader,
        size: usize,
    ) -> Result<usize, Errno> {
        let (write, _) = WriteIn::read_from_prefix(header.operation.as_bytes()).expect("it fits");
        let payload = &mut self.command.buffers()[1];
        let rest = payload.split_off(size.min(payload.len()));
        let (written, data) = session.write(&write, payload.split_off(0)).await;
        self.put_back([data, rest]);
        let written = written?;
        Ok(self.put(written.as_bytes()))
    }

    /// Parses the request as if it came over `/dev/fuse`.
    async fn answer_any(
        &mut self,
        session: &Arc<Session>,
        header: &RingHeader,
        request: InHeader,
        size: usize,
    ) -> Result<usize, Errno> {
        let front = (request.length as usize).checked_sub(size_of::<InHeader>() + size);
        let operation =
            front.and_then(|front| header.operation.as_bytes().get(..front)).ok_or(Errno::INVAL)?;
        let payload = self.command.buffers()[1].get(..size).ok_or(Errno::INVAL)?;
        let bytes = [request.as_bytes(), operation, payload].concat();
        let Ok(request) = Request::parse(&bytes) else { return Err(Errno::INVAL) };
        let carrier = Carrier::Entry(RefCell::new(Err(Errno::IO)));
        let task = Task { session: session.clone(), header: request.header, carrier };
        task.run(request).await;
        let Carrier::Entry(reply) = task.carrier else { unreachable!("it was made above") };
        let reply = reply.into_inner()?;
        match reply.len() <= self.command.buffers()[1].len() {
            true => Ok(self.put(&reply)),
            false => Err(Errno::OVERFLOW),
        }
    }

    /// Copies a reply into the entry, where it has room. Returns its length.
    fn put(&mut self, reply: &[u8]) -> usize {
        self.command.buffers()[1][..reply.len()].copy_from_slice(reply);
        reply.len()
    }

    /// Puts back the payload, in parts.
    fn put_back(&mut self, parts: [Buffer; 2]) {
        for part in parts {
            let joined = self.command.buffers()[1].join(part);
            joined.expect("the parts are adjacent");
        }
    }
}
