//! Messages of the vhost-user protocol: bytes into requests, and replies into bytes. Does no I/O.
//!
//! A message has a header, a payload of at most [`MAX_PAYLOAD`] bytes, and descriptors. Everything in it comes from the
//! front end, so each length and count is checked here; numbers are checked where they are used.

use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{
    ConfigRange, InFlightArea, MemoryRegion, MessageHeader, NO_DESCRIPTOR, RingAddresses,
    RingState, header, message,
};

/// The longest payload in bytes.
pub(crate) const MAX_PAYLOAD: usize = 4096;
/// The most descriptors of a message.
pub(crate) const MAX_DESCRIPTORS: usize = 8;
/// The size of a header in bytes.
pub(crate) const HEADER_BYTES: usize = size_of::<MessageHeader>();

/// A range of the configuration space.
pub(crate) const MAX_CONFIG_BYTES: u32 = 256;

/// A request of the front end.
#[derive(Debug)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemory(Vec<(MemoryRegion, OwnedFd)>),
    SetSize(RingState),
    SetAddresses(RingAddresses),
    SetBase(RingState),
    GetBase(RingState),
    SetKick(RingEvent),
    SetCall(RingEvent),
    SetError(RingEvent),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueues,
    SetEnabled(RingState),
    SetBackendChannel(OwnedFd),
    GetConfig(ConfigRange),
    SetConfig,
    GetInFlight(InFlightArea),
    SetInFlight(InFlightArea, OwnedFd),
    GetMemorySlots,
    AddMemory(MemoryRegion, OwnedFd),
    RemoveMemory(MemoryRegion),
}

/// The eventfd of a ring, if it has one.
#[derive(Debug)]
pub(crate) struct RingEvent {
    pub(crate) index: u32,
    pub(crate) event: Option<OwnedFd>,
}

/// A message that is not one of the protocol. The session ends: what follows may begin anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The header of a message, and the length of its payload.
///
/// # Errors
/// If it is none that a front end may send.
pub(crate) fn parse_header(
    bytes: &[u8; HEADER_BYTES],
) -> Result<(MessageHeader, usize), Malformed> {
    let message = MessageHeader::read_from_bytes(bytes).expect("it has as many bytes");
    if message.flags & header::VERSION_MASK != header::VERSION {
        return Err(Malformed("unknown version"));
    }
    if message.flags & header::REPLY != 0 {
        return Err(Malformed("a reply that nothing asked for"));
    }
    match message.length as usize {
        length if length <= MAX_PAYLOAD => Ok((message, length)),
        _ => Err(Malformed("payload too long")),
    }
}

impl Request {
    /// The request in a message.
    ///
    /// # Errors
    /// If payload or descriptors do not fit the code, and for unknown codes.
    pub(crate) fn parse(
        code: u32,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Request, Malformed> {
        let mut parts = Parts { payload, descriptors };
        let request = match code {
            message::GET_FEATURES => Request::GetFeatures,
            message::SET_FEATURES => Request::SetFeatures(parts.take()?),
            message::SET_OWNER => Request::SetOwner,
            message::RESET_OWNER => Request::ResetOwner,
            message::SET_MEM_TABLE => Request::SetMemory(parts.take_memory()?),
            message::SET_VRING_NUM => Request::SetSize(parts.take()?),
            message::SET_VRING_ADDR => Request::SetAddresses(parts.take()?),
            message::SET_VRING_BASE => Request::SetBase(parts.take()?),
            message::GET_VRING_BASE => Request::GetBase(parts.take()?),
            message::SET_VRING_KICK => Request::SetKick(parts.take_event()?),
            message::SET_VRING_CALL => Request::SetCall(parts.take_event()?),
            message::SET_VRING_ERR => Request::SetError(parts.take_event()?),
            message::GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
            message::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(parts.take()?),
            message::GET_QUEUE_NUM => Request::GetQueues,
            message::SET_VRING_ENABLE => Request::SetEnabled(parts.take()?),
            message::SET_BACKEND_REQ_FD => Request::SetBackendChannel(parts.take_descriptor()?),
            message::GET_CONFIG => Request::GetConfig(parts.take_config()?),
            message::SET_CONFIG => parts.take_config().map(|_| Request::SetConfig)?,
            message::GET_INFLIGHT_FD => Request::GetInFlight(parts.take_area()?),
            message::SET_INFLIGHT_FD => {
                Request::SetInFlight(parts.take_area()?, parts.take_descriptor()?)
            }
            message::GET_MAX_MEM_SLOTS => Request::GetMemorySlots,
            message::ADD_MEM_REG => {
                Request::AddMemory(parts.take_region()?, parts.take_descriptor()?)
            }
            message::REM_MEM_REG => {
                // Old front ends pass a descriptor, which is closed unused.
                parts.descriptors.clear();
                Request::RemoveMemory(parts.take_region()?)
            }
            _ => return Err(Malformed("unknown code")),
        };
        match parts {
            Parts { payload: [], descriptors } if descriptors.is_empty() => Ok(request),
            _ => Err(Malformed("more bytes or descriptors than the code has")),
        }
    }
}

/// The rest of a message.
struct Parts<'p> {
    payload: &'p [u8],
    descriptors: Vec<OwnedFd>,
}

impl Parts<'_> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Malformed> {
        let (value, rest) =
            T::read_from_prefix(self.payload).map_err(|_| Malformed("payload too short"))?;
        self.payload = rest;
        Ok(value)
    }

    fn take_descriptor(&mut self) -> Result<OwnedFd, Malformed> {
        match self.descriptors.len() {
            1 => Ok(self.descriptors.remove(0)),
            _ => Err(Malformed("not one descriptor")),
        }
    }

    fn take_event(&mut self) -> Result<RingEvent, Malformed> {
        let number: u64 = self.take()?;
        let event = match number & NO_DESCRIPTOR {
            0 => Some(self.take_descriptor()?),
            _ => None,
        };
        Ok(RingEvent { index: (number & 0xff) as u32, event })
    }

    fn take_memory(&mut self) -> Result<Vec<(MemoryRegion, OwnedFd)>, Malformed> {
        let [count, _padding]: [u32; 2] = self.take()?;
        if count as usize != self.descriptors.len() {
            return Err(Malformed("as many regions as descriptors are due"));
        }
        let descriptors = std::mem::take(&mut self.descriptors);
        descriptors.into_iter().map(|descriptor| Ok((self.take()?, descriptor))).collect()
    }

    fn take_region(&mut self) -> Result<MemoryRegion, Malformed> {
        let _padding: u64 = self.take()?;
        self.take()
    }

    /// The bytes that follow are of no use: no field can be written.
    fn take_config(&mut self) -> Result<ConfigRange, Malformed> {
        let range: ConfigRange = self.take()?;
        if range.length as usize != self.payload.len() {
            return Err(Malformed("the configuration has another length"));
        }
        self.payload = &[];
        Ok(range)
    }

    /// Some front ends leave the padding at the end out.
    fn take_area(&mut self) -> Result<InFlightArea, Malformed> {
        const UNPADDED: usize = size_of::<InFlightArea>() - size_of::<u32>();
        match self.payload.len() {
            UNPADDED => {
                let mut padded = [0; size_of::<InFlightArea>()];
                padded[..UNPADDED].copy_from_slice(std::mem::take(&mut self.payload));
                Ok(InFlightArea::read_from_bytes(&padded).expect("it has as many bytes"))
            }
            _ => self.take(),
        }
    }
}

/// A message to the front end.
pub(crate) fn build(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header =
        MessageHeader { code, flags: flags | header::VERSION, length: payload.len() as u32 };
    [header.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect()
    }

    fn parse(code: u32, payload: &[u8], count: usize) -> Result<Request, Malformed> {
        Request::parse(code, payload, descriptors(count))
    }

    #[test]
    fn a_header_is_checked_before_its_payload_is_received() {
        let header = |flags, length| {
            let header = MessageHeader { code: 1, flags, length };
            parse_header(header.as_bytes().try_into().unwrap()).map(|(_, length)| length)
        };
        assert_eq!(header(1, 4096), Ok(4096));
        assert_eq!(header(9, 0), Ok(0));
        assert_eq!(header(1, 4097), Err(Malformed("payload too long")));
        assert_eq!(header(1, u32::MAX), Err(Malformed("payload too long")));
        assert_eq!(header(2, 0), Err(Malformed("unknown version")));
        assert_eq!(header(5, 0), Err(Malformed("a reply that nothing asked for")));
    }

    #[test]
    fn every_payload_has_the_length_of_its_code() {
        for code in 0..48 {
            let lengths = (0..128)
                .filter(|length| (0..3).any(|count| parse(code, &vec![0; *length], count).is_ok()));
            let expected: &[usize] = match code {
                1 | 3 | 4 | 15 | 17 | 36 => &[0],
                2 | 8 | 10 | 11 | 12 | 13 | 14 | 16 | 18 => &[8],
                5 => &[8],
                9 | 37 | 38 => &[40],
                21 => &[0],
                24 | 25 => &[12],
                31 | 32 => &[20, 24],
                _ => &[],
            };
            assert_eq!(lengths.collect::<Vec<_>>(), expected, "code {code}");
        }
    }

    #[test]
    fn wrong_numbers_of_descriptors_are_refused() {
        let table = |regions: u64, bytes: usize, count| {
            let payload = [&regions.to_ne_bytes()[..], &vec![0; bytes]].concat();
            parse(message::SET_MEM_TABLE, &payload, count).is_ok()
        };
        assert!(table(2, 64, 2));
        assert!(!table(2, 64, 1) && !table(2, 64, 3) && !table(2, 63, 2) && !table(3, 64, 3));
        assert!(!table(u32::MAX.into(), 64, 2));
        let event = |number: u64, count| {
            parse(message::SET_VRING_KICK, &number.to_ne_bytes(), count).is_ok()
        };
        assert!(event(0, 1) && event(NO_DESCRIPTOR, 0));
        assert!(!event(0, 0) && !event(0, 2) && !event(NO_DESCRIPTOR, 1));
        assert!(parse(message::GET_FEATURES, &[], 1).is_err());
        assert!(parse(message::ADD_MEM_REG, &[0; 40], 0).is_err());
        assert!(parse(message::REM_MEM_REG, &[0; 40], 1).is_ok());
    }

    #[test]
    fn a_configuration_is_as_long_as_it_says() {
        let range = |length: u32, bytes: usize| {
            let range = ConfigRange { offset: 32, length, flags: 0 };
            let payload = [range.as_bytes(), &vec![1; bytes]].concat();
            parse(message::SET_CONFIG, &payload, 0)
        };
        assert!(matches!(range(1, 1), Ok(Request::SetConfig)));
        assert!(range(1, 0).is_err() && range(1, 2).is_err() && range(u32::MAX, 4).is_err());
    }
}
