//! A front end and a driver of its own for the tests: every message, ring and request can be what no other one sends.
#![allow(dead_code)] // Each test uses a part of it.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::time::Timespec;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Codes of messages.
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

pub mod feature {
    pub const FLUSH: u64 = 1 << 9;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const PACKED: u64 = 1 << 34;
}

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const NEED_REPLY: u32 = 9;
/// Where the guest's memory is, for the guest and for the front end.
pub const GUEST: u64 = 1 << 32;
pub const USER: u64 = 1 << 44;
pub const MEMORY_BYTES: u64 = 4 << 20;

/// A message.
pub struct Message {
    pub code: u32,
    pub flags: u32,
    pub payload: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// A connection to a server.
pub struct FrontEnd {
    pub socket: UnixStream,
}

pub fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

pub fn state(index: u32, number: u32) -> Vec<u8> {
    [index.to_ne_bytes(), number.to_ne_bytes()].concat()
}

impl FrontEnd {
    pub fn connect(path: &Path) -> FrontEnd {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        FrontEnd { socket }
    }

    /// Sends raw bytes. False if the server has closed the connection.
    pub fn send_raw(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let bytes_to_send = [IoSlice::new(bytes)];
        let mut send = || sendmsg(&self.socket, &bytes_to_send, &mut control, SendFlags::NOSIGNAL);
        let sent = retry_on_intr(&mut send);
        sent.is_ok_and(|sent| sent == bytes.len())
    }

    pub fn send(&self, code: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        let head = [code, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        self.send_raw(&[&head, payload].concat(), files)
    }

    /// The next message. `None` if the server has closed the connection.
    pub fn receive(&self) -> Option<Message> {
        let mut descriptors = Vec::new();
        let mut head = [0; 12];
        self.receive_exactly(&mut head, &mut descriptors)?;
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(8) as usize];
        self.receive_exactly(&mut payload, &mut descriptors)?;
        Some(Message { code: word(0), flags: word(4), payload, descriptors })
    }

    fn receive_exactly(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Option<()> {
        let mut done = 0;
        while done < into.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut part = [IoSliceMut::new(&mut into[done..])];
            match recvmsg(&self.socket, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes > 0 => done += received.bytes,
                Ok(_) => return None,
                Err(Errno::AGAIN) => panic!("no message within 30 seconds"),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
        }
        Some(())
    }

    /// Sends a request that has a reply, and returns the reply.
    pub fn ask(&self, code: u32, payload: &[u8]) -> Message {
        assert!(self.send(code, 1, payload, &[]));
        let reply = self.receive().expect("a reply");
        assert_eq!((reply.code, reply.flags), (code, 5));
        reply
    }

    pub fn ask_number(&self, code: u32) -> u64 {
        u64::from_ne_bytes(self.ask(code, &[]).payload[..].try_into().unwrap())
    }

    /// Sends a request and returns whether it was done.
    pub fn request(&self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> bool {
        self.try_request(code, payload, files).expect("an acknowledgement")
    }

    /// The same; `None` if the server closes the connection instead.
    pub fn try_request(&self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> Option<bool> {
        if !self.send(code, NEED_REPLY, payload, files) {
            return None;
        }
        let reply = self.receive()?;
        assert_eq!((reply.code, reply.flags, reply.payload.len()), (code, 5, 8));
        Some(reply.payload == [0; 8])
    }

    /// Agrees on features, with protocol features.
    pub fn negotiate(&self, features: u64) {
        let offered = self.ask_number(code::GET_FEATURES);
        let features = features | feature::PROTOCOL | feature::VERSION_1;
        assert_eq!(offered & features, features, "it offers {offered:x}");
        let protocol = self.ask_number(code::GET_PROTOCOL_FEATURES);
        assert!(self.send(code::SET_PROTOCOL_FEATURES, 1, &numbers(&[protocol]), &[]));
        assert!(self.request(code::SET_OWNER, &[], &[]));
        assert!(self.request(code::SET_FEATURES, &numbers(&[features]), &[]));
    }

    pub fn add_memory(&self, memory: &Memory) {
        let region = numbers(&[0, GUEST, MEMORY_BYTES, USER, 0]);
        assert!(self.request(code::ADD_MEM_REG, &region, &[memory.file.as_fd()]));
    }

    /// Sets a ring up and starts it.
    pub fn start(&self, queue: &Queue, base: u32) {
        let index = queue.index;
        assert!(self.request(code::SET_VRING_NUM, &state(index, queue.size.into()), &[]));
        assert!(self.request(code::SET_VRING_BASE, &state(index, base), &[]));
        let addresses = queue.addresses(USER);
        assert!(self.request(code::SET_VRING_ADDR, &addresses, &[]));
        let event = |event: &OwnedFd, code| {
            let number = numbers(&[index.into()]);
            assert!(self.request(code, &number, &[event.as_fd()]));
        };
        event(&queue.call, code::SET_VRING_CALL);
        event(&queue.error, code::SET_VRING_ERR);
        event(&queue.kick, code::SET_VRING_KICK);
        assert!(self.request(code::SET_VRING_ENABLE, &state(index, 1), &[]));
    }

    /// Stops a ring and returns where it would continue.
    pub fn stop(&self, index: u32) -> u32 {
        let reply = self.ask(code::GET_VRING_BASE, &state(index, 0));
        u32::from_ne_bytes(reply.payload[4..8].try_into().unwrap())
    }

    /// True if the server closes the connection, whatever it sends before.
    pub fn is_closed(&self) -> bool {
        while self.receive().is_some() {}
        true
    }
}

/// Memory of a guest.
pub struct Memory {
    pub file: OwnedFd,
    pub region: MmapRegion,
}

impl Memory {
    pub fn new() -> Memory {
        let file = memfd_create("uringfs-guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY_BYTES).unwrap();
        Memory::of(file)
    }

    /// Another mapping of the same memory.
    pub fn again(&self) -> Memory {
        Memory::of(self.file.try_clone().unwrap())
    }

    fn of(file: OwnedFd) -> Memory {
        let mapped = FileOffset::new(File::from(file.try_clone().unwrap()), 0);
        let region = MmapRegion::from_file(mapped, MEMORY_BYTES as usize).unwrap();
        Memory { file, region }
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let slice = self.region.get_slice(offset as usize, bytes.len()).unwrap();
        slice.write_slice(bytes, 0).unwrap();
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let slice = self.region.get_slice(offset as usize, length).unwrap();
        slice.read_slice(&mut bytes, 0).unwrap();
        bytes
    }

    pub fn load(&self, offset: u64) -> u16 {
        let slice = self.region.get_slice(offset as usize, 2).unwrap();
        slice.load(0, Ordering::SeqCst).unwrap()
    }

    pub fn store(&self, offset: u64, value: u16) {
        let slice = self.region.get_slice(offset as usize, 2).unwrap();
        slice.store(value, 0, Ordering::SeqCst).unwrap();
    }
}

/// A descriptor: address, length, flags.
pub type Descriptor = (u64, u32, u16);

/// The driver's side of a ring.
pub struct Queue {
    pub index: u32,
    pub size: u16,
    packed: bool,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub error: OwnedFd,
    /// Split: of the next chain. Packed: the place of the next descriptor.
    pub next: u16,
    wrap: bool,
    /// The same of the next chain to get back.
    pub next_used: u16,
    used_wrap: bool,
    /// Packed: the descriptors of each chain.
    lengths: Vec<u16>,
    pub has_event_index: bool,
}

/// The most descriptors of a chain by [`Queue::add`], whose slots are as far apart.
pub const SLOT: u16 = 4;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x4000;
const QUEUE_BYTES: u64 = 0x8000;

impl Queue {
    pub fn split(index: u32, size: u16) -> Queue {
        Queue::new(index, size, false)
    }

    pub fn packed(index: u32, size: u16) -> Queue {
        Queue::new(index, size, true)
    }

    fn new(index: u32, size: u16, packed: bool) -> Queue {
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Queue {
            index,
            size,
            packed,
            kick: event(),
            call: event(),
            error: event(),
            next: 0,
            wrap: true,
            next_used: 0,
            used_wrap: true,
            lengths: vec![0; usize::from(size)],
            has_event_index: false,
        }
    }

    /// The value of `SET_VRING_BASE` for a new ring.
    pub fn first_base(&self) -> u32 {
        if self.packed { 0x8000_8000 } else { 0 }
    }

    pub fn base(&self) -> u64 {
        u64::from(self.index) * QUEUE_BYTES
    }

    pub fn available(&self) -> u64 {
        self.base() + AVAILABLE
    }

    pub fn used(&self) -> u64 {
        self.base() + USED
    }

    fn addresses(&self, user: u64) -> Vec<u8> {
        let at = |offset| user + offset;
        let head = [self.index.to_ne_bytes(), 0_u32.to_ne_bytes()].concat();
        let rest = numbers(&[at(self.base()), at(self.used()), at(self.available()), 0]);
        [head, rest].concat()
    }

    pub fn write_descriptor(
        &self,
        memory: &Memory,
        number: u16,
        (address, length, flags): Descriptor,
        next: u16,
    ) {
        let at = self.base() + 16 * u64::from(number);
        memory.write(at, &descriptor_bytes((address, length, flags), next));
    }

    /// Makes a chain of at most [`SLOT`] descriptors available, under the number of a slot.
    pub fn add(&mut self, memory: &Memory, slot: u16, chain: &[Descriptor]) {
        assert!(chain.len() <= SLOT.into());
        let last = chain.len() - 1;
        if self.packed {
            self.lengths[usize::from(slot)] = chain.len() as u16;
            let first = self.base() + 16 * u64::from(self.next);
            let mut first_flags = 0;
            for (number, (address, length, flags)) in chain.iter().enumerate() {
                let next = if number == last { 0 } else { NEXT };
                let owner = if self.wrap { 1 << 7 } else { 1 << 15 };
                let flags = flags | next | owner;
                let bytes = descriptor_bytes((*address, *length, slot), flags);
                let at = self.base() + 16 * u64::from(self.next);
                if number == 0 {
                    first_flags = flags;
                    memory.write(at, &bytes[..14]);
                } else {
                    memory.write(at, &bytes);
                }
                self.next += 1;
                if self.next == self.size {
                    (self.next, self.wrap) = (0, !self.wrap);
                }
            }
            // The first descriptor is handed over last.
            memory.store(first + 14, first_flags);
            return;
        }
        let head = slot * SLOT;
        for (number, (address, length, flags)) in chain.iter().enumerate() {
            let next = if number == last { 0 } else { NEXT };
            let number = head + number as u16;
            self.write_descriptor(memory, number, (*address, *length, flags | next), number + 1);
        }
        self.publish(memory, head);
    }

    /// Makes a head available in a split ring.
    pub fn publish(&mut self, memory: &Memory, head: u16) {
        memory.store(self.available() + 4 + 2 * u64::from(self.next % self.size), head);
        self.next = self.next.wrapping_add(1);
        memory.store(self.available() + 2, self.next);
    }

    pub fn notify(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// The next slot that the device has given back, with the bytes written.
    pub fn take_used(&mut self, memory: &Memory) -> Option<(u16, u32)> {
        if self.packed {
            let at = self.base() + 16 * u64::from(self.next_used);
            let flags = memory.load(at + 14);
            let bit = |number: u16| flags >> number & 1 == 1;
            if bit(7) != self.used_wrap || bit(15) != self.used_wrap {
                return None;
            }
            let bytes = memory.read(at, 16);
            let slot = u16::from_le_bytes(bytes[12..14].try_into().unwrap());
            self.next_used += self.lengths[usize::from(slot)];
            if self.next_used >= self.size {
                self.next_used -= self.size;
                self.used_wrap = !self.used_wrap;
            }
            return Some((slot, u32::from_le_bytes(bytes[8..12].try_into().unwrap())));
        }
        if memory.load(self.used() + 2) == self.next_used {
            return None;
        }
        let at = self.used() + 4 + 8 * u64::from(self.next_used % self.size);
        self.next_used = self.next_used.wrapping_add(1);
        let bytes = memory.read(at, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        Some((word(0) as u16 / SLOT, word(4)))
    }

    /// Asks for an interrupt at the next chain that the device gives back.
    fn ask_for_interrupt(&self, memory: &Memory) {
        match (self.has_event_index, self.packed) {
            (false, _) => {}
            (true, false) => {
                let event = self.available() + 4 + 2 * u64::from(self.size);
                memory.store(event, self.next_used);
            }
            (true, true) => {
                let position = self.next_used | u16::from(self.used_wrap) << 15;
                memory.store(self.available(), position);
                memory.store(self.available() + 2, 2);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Waits for an interrupt. False if none comes in time.
    pub fn wait(&self, timeout: Duration) -> bool {
        is_signalled(&self.call, timeout)
    }

    /// Waits for so many chains that the device gives back.
    pub fn wait_used(&mut self, memory: &Memory, count: usize) -> Vec<(u16, u32)> {
        let mut used = Vec::new();
        loop {
            used.extend(std::iter::from_fn(|| self.take_used(memory)));
            if used.len() >= count {
                return used;
            }
            self.ask_for_interrupt(memory);
            if let Some(next) = self.take_used(memory) {
                used.push(next);
                continue;
            }
            assert!(self.wait(Duration::from_secs(30)), "{} of {count} came back", used.len());
        }
    }
}

pub fn descriptor_bytes((address, length, flags): Descriptor, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Waits until an eventfd is signalled, and resets it.
pub fn is_signalled(event: &OwnedFd, timeout: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut polled = [PollFd::new(event, PollFlags::IN)];
    // Only a fuzzer's process has signals.
    let ready = retry_on_intr(|| poll(&mut polled, Some(&timeout))).unwrap();
    if ready == 1 {
        rustix::io::read(event, &mut [0; 8]).unwrap();
    }
    ready == 1
}

/// Kinds of requests.
pub const READ: u32 = 0;
pub const WRITE_OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

/// Where a slot has its header, then its status.
pub fn header_at(slot: u16) -> u64 {
    0x10_0000 + 64 * u64::from(slot)
}

/// Where a slot has its data.
pub fn data_at(slot: u16) -> u64 {
    0x20_0000 + 0x4000 * u64::from(slot)
}

pub const STATUS: u64 = 16;
const UNSET: u8 = 0xaa;

/// A driver with one ring and its memory.
pub struct Driver {
    pub front_end: FrontEnd,
    pub memory: Memory,
    pub queue: Queue,
}

impl Driver {
    /// Connects, and starts queue 0.
    pub fn new(socket: &Path, features: u64, mut queue: Queue) -> Driver {
        queue.has_event_index = features & feature::EVENT_INDEX != 0;
        let (front_end, memory) = (FrontEnd::connect(socket), Memory::new());
        front_end.negotiate(features);
        front_end.add_memory(&memory);
        front_end.start(&queue, queue.first_base());
        assert!(queue.wait(Duration::ZERO), "a queue that starts interrupts its driver");
        Driver { front_end, memory, queue }
    }

    /// Makes a request available. Its data of `length` bytes are at [`data_at`].
    pub fn add(&mut self, slot: u16, kind: u32, sector: u64, length: u32) {
        let chain = self.chain(slot, kind, sector, length);
        self.queue.add(&self.memory, slot, &chain);
    }

    /// The descriptors of a request.
    pub fn chain(&self, slot: u16, kind: u32, sector: u64, length: u32) -> Vec<Descriptor> {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write(header_at(slot), &header);
        self.memory.write(header_at(slot) + STATUS, &[UNSET]);
        let is_read = matches!(kind, READ | GET_ID);
        let data = (GUEST + data_at(slot), length, if is_read { WRITE } else { 0 });
        let mut chain = vec![(GUEST + header_at(slot), 16, 0)];
        chain.extend((length > 0).then_some(data));
        chain.push((GUEST + header_at(slot) + STATUS, 1, WRITE));
        chain
    }

    pub fn status(&self, slot: u16) -> u8 {
        self.memory.read(header_at(slot) + STATUS, 1)[0]
    }

    /// Does a request to its end, and returns its status and the bytes written.
    pub fn run(&mut self, kind: u32, sector: u64, length: u32) -> (u8, u32) {
        self.add(0, kind, sector, length);
        self.queue.notify();
        let used = self.queue.wait_used(&self.memory, 1);
        assert_eq!((used.len(), used[0].0), (1, 0));
        (self.status(0), used[0].1)
    }
}
