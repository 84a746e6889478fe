//! A session with a front end: what was agreed, the guest's memory, and the rings. Each request changes this state, and stops
//! and starts the queues that it concerns. Does no I/O of its own on the connection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use uringfs::buffer::{Registration, SharedMemory};
use zerocopy::IntoBytes;

use crate::abi::{
    CONFIG_CHANGED, ConfigRange, InFlightArea, RingAddresses, RingState, feature, header, protocol,
};
use crate::chain::MAX_RING_SIZE;
use crate::connection::send_some;
use crate::disk::{PinMemory, ServedDisk};
use crate::eventfd;
use crate::in_flight::{InFlightTables, bytes_of_tables};
use crate::mapping::Mapping;
use crate::memory::{Area, GuestMemory, MAX_REGIONS};
use crate::message::{MAX_CONFIG_BYTES, Request, RingEvent, build};
use crate::packed_ring::PackedRing;
use crate::queue::QueueStart;
use crate::ring::Ring;
use crate::split_ring::SplitRing;
use crate::worker::Worker;

/// A session.
#[derive(Debug)]
pub(crate) struct Session<'w> {
    disk: Arc<ServedDisk>,
    workers: &'w mut [Worker],
    protocol_features: u64,
    common: CommonSetup,
    rings: Vec<RingSetup>,
    /// Messages of the back end.
    channel: Option<OwnedFd>,
}

/// The setup that all rings use.
#[derive(Clone, Debug, Default)]
struct CommonSetup {
    features: u64,
    memory: Arc<GuestMemory>,
    in_flight: Option<InFlightTables>,
}

/// Guest memory, in its form for the buffers of one queue, so that queues share no counter of users.
#[derive(Clone, Debug)]
struct QueueMemory {
    of: Arc<GuestMemory>,
    shared: Arc<[SharedMemory]>,
}

/// The setup of a ring, as the front end has described it.
#[derive(Clone, Debug, Default)]
struct RingSetup {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u32,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    /// Always true without protocol features.
    is_enabled: bool,
    /// Kept while the memory stays the same: to register it again would take long.
    memory: Option<QueueMemory>,
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// None but an acknowledgement, if the front end asks for one.
    Nothing,
    Bytes(Vec<u8>),
    /// With a descriptor.
    Descriptor(Vec<u8>, OwnedFd),
}

impl Reply {
    fn of<T: IntoBytes + zerocopy::Immutable>(value: T) -> Reply {
        Reply::Bytes(value.as_bytes().into())
    }
}

/// A request that cannot be served. The session's state is as before.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused(error.to_string())
    }
}

fn refuse<T>(why: &str) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

impl<'w> Session<'w> {
    pub(crate) fn new(disk: Arc<ServedDisk>, workers: &'w mut [Worker]) -> Session<'w> {
        let rings = workers.iter().map(|_| RingSetup::default()).collect();
        Session {
            disk,
            workers,
            protocol_features: 0,
            common: CommonSetup::default(),
            rings,
            channel: None,
        }
    }

    /// True if the front end may ask for acknowledgements.
    pub(crate) fn acknowledges(&self) -> bool {
        self.protocol_features & protocol::REPLY_ACK != 0
    }

    fn offered_protocol_features(&self) -> u64 {
        // For packed rings nothing is recorded.
        let in_flight = if self.disk.disk.packed { 0 } else { protocol::IN_FLIGHT };
        protocol::MULTI_QUEUE
            | protocol::REPLY_ACK
            | protocol::BACKEND_REQUESTS
            | protocol::CONFIG
            | protocol::MEMORY_SLOTS
            | in_flight
    }

    /// Carries a request out.
    pub(crate) fn handle(&mut self, request: Request) -> Result<Reply, Refused> {
        match request {
            Request::GetFeatures => return Ok(Reply::of(self.disk.features())),
            Request::GetProtocolFeatures => {
                return Ok(Reply::of(self.offered_protocol_features()));
            }
            Request::GetQueues => return Ok(Reply::of(self.workers.len() as u64)),
            Request::GetMemorySlots => return Ok(Reply::of(MAX_REGIONS as u64)),
            Request::GetConfig(range) => return self.read_config(range),
            Request::GetBase(RingState { index, .. }) => {
                let base = self.stop_ring(index)?;
                return Ok(Reply::of(RingState { index, number: base }));
            }
            Request::GetInFlight(area) => return self.make_in_flight(area),
            Request::SetOwner => {}
            Request::ResetOwner => self.stop_all(),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetProtocolFeatures(features) => {
                if features & !self.offered_protocol_features() != 0 {
                    return refuse("protocol features that were not offered");
                }
                self.protocol_features = features;
            }
            Request::SetMemory(regions) => {
                let mut memory = GuestMemory::default();
                for (range, file) in regions {
                    memory.add(range, file)?;
                }
                self.set_memory(memory)?;
            }
            Request::AddMemory(range, file) => {
                let mut memory = (*self.common.memory).clone();
                memory.add(range, file)?;
                self.set_memory(memory)?;
            }
            Request::RemoveMemory(range) => {
                let mut memory = (*self.common.memory).clone();
                if !memory.remove(&range) {
                    return refuse("no such region of memory");
                }
                self.set_memory(memory)?;
            }
            Request::SetSize(RingState { index, number }) => {
                let is_valid = (1..=u32::from(MAX_RING_SIZE)).contains(&number)
                    && (number.is_power_of_two() || self.is_packed());
                if !is_valid {
                    return refuse("a ring of that size");
                }
                self.change(index, |ring| ring.size = number as u16)?;
            }
            Request::SetAddresses(addresses) => {
                self.change(addresses.index, |ring| ring.addresses = Some(addresses))?;
            }
            Request::SetBase(RingState { index, number }) => {
                if !self.is_packed() && number > u32::from(u16::MAX) {
                    return refuse("a position that no ring has");
                }
                self.change(index, |ring| ring.base = number)?;
            }
            Request::SetKick(RingEvent { event: None, .. }) => {
                return refuse("rings without notifications");
            }
            Request::SetKick(RingEvent { index, event: Some(event) }) => {
                let event = Arc::new(eventfd::accept(event)?);
                self.change(index, |ring| ring.kick = Some(event))?;
            }
            Request::SetCall(RingEvent { index, event }) => {
                let event = event.map(eventfd::accept).transpose()?.map(Arc::new);
                self.change(index, |ring| ring.call = event)?;
            }
            Request::SetError(RingEvent { index, event }) => {
                let event = event.map(eventfd::accept).transpose()?.map(Arc::new);
                self.change(index, |ring| ring.error = event)?;
            }
            Request::SetEnabled(RingState { index, number }) => {
                self.change(index, |ring| ring.is_enabled = number != 0)?;
            }
            Request::SetInFlight(area, file) => self.set_in_flight(area, file)?,
            Request::SetBackendChannel(channel) => self.channel = Some(channel),
            Request::SetConfig => return refuse("a configuration that can be written"),
        }
        Ok(Reply::Nothing)
    }

    fn is_packed(&self) -> bool {
        self.common.features & feature::PACKED != 0
    }

    fn has_protocol_features(&self) -> bool {
        self.common.features & feature::PROTOCOL != 0
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refused> {
        if features & !self.disk.features() != 0 {
            return refuse("features that were not offered");
        }
        self.change_all(|common| common.features = features)
    }

    fn set_memory(&mut self, memory: GuestMemory) -> Result<(), Refused> {
        let memory = Arc::new(memory);
        let changed = self.change_all(|common| common.memory = memory);
        self.workers.iter().for_each(Worker::release_memory);
        changed
    }

    /// Changes the setup of a ring, while its queue is stopped.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut RingSetup)) -> Result<(), Refused> {
        let number = self.ring_number(index)?;
        self.pause(number);
        let before = self.rings[number].clone();
        change(&mut self.rings[number]);
        let resumed = self.resume(number);
        if resumed.is_err() {
            self.rings[number] = before;
            self.resume(number)?;
        }
        resumed
    }

    /// Changes what all rings use, while all queues are stopped.
    fn change_all(&mut self, change: impl FnOnce(&mut CommonSetup)) -> Result<(), Refused> {
        self.pause_all();
        let before = self.common.clone();
        change(&mut self.common);
        let resumed = self.resume_all();
        if resumed.is_err() {
            self.pause_all();
            self.common = before;
            self.resume_all()?;
        }
        resumed
    }

    fn pause_all(&mut self) {
        (0..self.rings.len()).for_each(|number| self.pause(number));
    }

    fn resume_all(&mut self) -> Result<(), Refused> {
        (0..self.rings.len()).try_for_each(|number| self.resume(number))
    }

    fn ring_number(&self, index: u32) -> Result<usize, Refused> {
        match index as usize {
            number if number < self.rings.len() => Ok(number),
            _ => refuse("a ring that the disk does not have"),
        }
    }

    /// Stops a queue, and keeps where it would continue.
    fn pause(&mut self, number: usize) {
        if let Some(base) = self.workers[number].stop() {
            self.rings[number].base = base;
        }
    }

    /// Starts a queue if all is there that it needs.
    fn resume(&mut self, number: usize) -> Result<(), Refused> {
        let memory = &self.common.memory;
        self.rings[number].memory.take_if(|kept| !Arc::ptr_eq(&kept.of, memory));
        let ring = &self.rings[number];
        let in_flight = self.common.in_flight.as_ref();
        let in_flight = in_flight.and_then(|tables| tables.of_ring(number, ring.size));
        let is_enabled = ring.is_enabled || !self.has_protocol_features();
        let (Some(kick), Some(addresses), true) = (&ring.kick, &ring.addresses, is_enabled) else {
            return Ok(());
        };
        if memory.is_empty() || ring.size == 0 {
            return Ok(());
        }
        let shared = match &ring.memory {
            Some(kept) => kept.shared.clone(),
            None => memory.share(self.registration()).into(),
        };
        let start = QueueStart {
            ring: self.build_ring(ring, addresses, in_flight)?,
            memory: memory.clone(),
            shared: shared.clone(),
            kick: kick.clone(),
            call: ring.call.clone(),
            error: ring.error.clone(),
            // Without the feature the guest cannot flush.
            writes_through: self.common.features & feature::FLUSH == 0,
        };
        self.workers[number].run(start);
        // Requests may have come before the first notification is waited for, and an earlier server may have ended between
        // the return of a request and its interrupt.
        eventfd::signal(kick);
        ring.call.iter().for_each(|call| eventfd::signal(call));
        self.rings[number].memory = Some(QueueMemory { of: self.common.memory.clone(), shared });
        Ok(())
    }

    fn build_ring(
        &self,
        ring: &RingSetup,
        addresses: &RingAddresses,
        in_flight: Option<Area>,
    ) -> Result<Ring, Refused> {
        let has = |bit| self.common.features & bit != 0;
        let wishes = (has(feature::EVENT_INDEX), has(feature::INDIRECT));
        let (memory, size) = (self.common.memory.clone(), ring.size);
        let built = match self.is_packed() {
            true => PackedRing::new(memory, size, addresses, ring.base, wishes).map(Ring::Packed),
            false => {
                let base = ring.base as u16;
                SplitRing::new(memory, size, addresses, base, wishes, in_flight).map(Ring::Split)
            }
        };
        built.map_err(|_| Refused("a ring that is not in the guest's memory".into()))
    }

    /// Makes a table of requests in flight for the front end to keep.
    fn make_in_flight(&self, area: InFlightArea) -> Result<Reply, Refused> {
        let Some(bytes) = self.bytes_of_tables(&area) else {
            return refuse("a table of requests in flight of that size");
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("uringfs-in-flight", flags).map_err(io::Error::from)?;
        ftruncate(&file, bytes as u64).map_err(io::Error::from)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        let area = InFlightArea { bytes: bytes as u64, offset: 0, ..area };
        Ok(Reply::Descriptor(area.as_bytes().into(), file))
    }

    fn set_in_flight(&mut self, area: InFlightArea, file: OwnedFd) -> Result<(), Refused> {
        let bytes = self.bytes_of_tables(&area);
        let Some(bytes) = bytes.filter(|bytes| *bytes as u64 <= area.bytes) else {
            return refuse("a table of requests in flight of that size");
        };
        let mapping = Mapping::new(file, area.offset, bytes as u64)?;
        let tables = InFlightTables::new(Area::of_mapping(mapping, bytes), area.queue_size);
        self.change_all(|common| common.in_flight = Some(tables))
    }

    fn bytes_of_tables(&self, area: &InFlightArea) -> Option<usize> {
        let is_offered = self.offered_protocol_features() & protocol::IN_FLIGHT != 0;
        bytes_of_tables(area, self.rings.len()).filter(|_| is_offered)
    }

    /// Whether buffers of the guest's memory are registered.
    fn registration(&self) -> Registration {
        let fits = || {
            let limit = getrlimit(Resource::Memlock).current;
            let needed = self.common.memory.bytes().saturating_mul(self.workers.len() as u64);
            limit.is_none_or(|limit| needed <= limit)
        };
        match self.disk.disk.pin_memory {
            PinMemory::On => Registration::AtFirstUse,
            PinMemory::Auto if fits() => Registration::AtFirstUse,
            PinMemory::Auto | PinMemory::Off => Registration::Never,
        }
    }

    /// Stops a ring until it gets a new notification, and returns where it would continue.
    fn stop_ring(&mut self, index: u32) -> Result<u32, Refused> {
        let number = self.ring_number(index)?;
        self.pause(number);
        self.rings[number].kick = None;
        Ok(self.rings[number].base)
    }

    fn stop_all(&mut self) {
        for number in 0..self.rings.len() {
            self.pause(number);
            self.rings[number].kick = None;
        }
    }

    fn read_config(&self, range: ConfigRange) -> Result<Reply, Refused> {
        let ConfigRange { offset, length, .. } = range;
        let end = offset.checked_add(length).filter(|end| *end <= MAX_CONFIG_BYTES);
        let Some(end) = end else {
            // The protocol's way to say so.
            return Ok(Reply::of(ConfigRange { length: 0, ..range }));
        };
        let config = self.disk.config();
        let bytes = &config[offset as usize..end as usize];
        Ok(Reply::Bytes([range.as_bytes(), bytes].concat()))
    }

    /// Tells the front end that the configuration has changed, if it has a channel for that.
    pub(crate) fn report_config_change(&self) {
        if let Some(channel) = &self.channel {
            let message = build(CONFIG_CHANGED, 0, &[]);
            // A front end that does not read its messages misses this one.
            let _ = send_some(channel, &message, None);
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.stop_all();
        self.rings.clear();
        self.workers.iter().for_each(Worker::release_memory);
    }
}

/// The message of a reply, or the acknowledgement of a request.
pub(crate) fn reply_message(code: u32, payload: &[u8]) -> Vec<u8> {
    build(code, header::REPLY, payload)
}
