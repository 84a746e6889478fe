//! The agreement of client and server before the first request: the fixed newstyle handshake. Does no I/O.

use std::str;
use std::sync::Arc;

use uringfs_nbd_protocol::MAX_STRING;
use uringfs_nbd_protocol::handshake::info::{self, BlockSizeInfo, ExportInfo};
use uringfs_nbd_protocol::handshake::{
    Greeting, OPTION_MAGIC, OptionCode, OptionHeader, OptionReply, ReplyCode, flags,
};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::exports::{Exports, ServedExport};

/// The most bytes of an option. A longer one ends the connection.
const MAX_OPTION: usize = 24 << 10;
/// With so many bytes of replies, no further option is answered before they are sent.
const MAX_REPLIES: usize = 64 << 10;
/// The only metadata context.
const ALLOCATION: &str = "base:allocation";
/// The number of [`ALLOCATION`] in replies.
pub(crate) const ALLOCATION_ID: u32 = 1;

/// The client does not keep to the protocol: the connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// A handshake under way.
pub(crate) struct Handshake {
    exports: Exports,
    tls: TlsState,
    /// The flags of the client, once they have come.
    client: Option<u32>,
    structured: bool,
    /// The export for which `base:allocation` was agreed on.
    allocation_of: Option<String>,
    /// The name that no export has, if the last attempt to begin had one.
    unknown_export: Option<String>,
}

/// Whether the connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TlsState {
    /// It never is.
    None,
    /// It will be, before anything else is said.
    Required,
    /// It is.
    Started,
}

/// The result of a handshake.
#[derive(Clone)]
pub(crate) struct Agreement {
    pub(crate) export: Arc<ServedExport>,
    /// Replies are structured.
    pub(crate) structured: bool,
    /// `BLOCK_STATUS` describes [`ALLOCATION_ID`].
    pub(crate) block_status: bool,
}

/// The next step.
pub(crate) enum Next {
    /// More bytes of the client.
    Receive,
    /// The replies are sent, then the next option is taken.
    Send,
    /// TLS, then more bytes of the client.
    StartTls,
    /// Requests.
    Begin(Agreement),
    /// Nothing.
    End,
}

impl Handshake {
    /// A handshake for these exports, and what is sent first. With `tls` nothing is said of them in plain text.
    pub(crate) fn new(exports: &Exports, tls: bool) -> (Handshake, Greeting) {
        let handshake = Handshake {
            exports: exports.clone(),
            tls: if tls { TlsState::Required } else { TlsState::None },
            client: None,
            structured: false,
            allocation_of: None,
            unknown_export: None,
        };
        (handshake, Greeting::new(flags::FIXED_NEWSTYLE | flags::NO_ZEROES))
    }

    /// Takes the whole messages at the beginning of `input`, and appends the replies to `output`. Returns how many bytes it took,
    /// and what comes next.
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Next), Violation> {
        let mut rest = input;
        loop {
            let next = match self.client {
                None => self.take_flags(&mut rest)?,
                Some(_) => self.take_option(&mut rest, output)?,
            };
            match next {
                // A whole message was taken.
                None if output.len() < MAX_REPLIES => {}
                None => return Ok((input.len() - rest.len(), Next::Send)),
                Some(next) => return Ok((input.len() - rest.len(), next)),
            }
        }
    }

    /// The name of an export that the client has wanted last, and that no export has.
    pub(crate) fn into_unknown_export(self) -> Option<String> {
        self.unknown_export
    }

    /// The export with a name that the client wants to use.
    fn find(&mut self, name: &str) -> Option<Arc<ServedExport>> {
        let found = self.exports.find(name);
        self.unknown_export = found.is_none().then(|| name.to_owned());
        found
    }

    fn take_flags(&mut self, rest: &mut &[u8]) -> Result<Option<Next>, Violation> {
        let Ok((client, after)) = U32::read_from_prefix(rest) else {
            return Ok(Some(Next::Receive));
        };
        let client = client.get();
        let known = u32::from(flags::FIXED_NEWSTYLE | flags::NO_ZEROES);
        if client & !known != 0 {
            return Err(Violation);
        }
        (self.client, *rest) = (Some(client), after);
        Ok(None)
    }

    fn take_option(
        &mut self,
        rest: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Next>, Violation> {
        let Ok((header, after)) = OptionHeader::read_from_prefix(rest) else {
            return Ok(Some(Next::Receive));
        };
        let length = header.length.get() as usize;
        if header.magic.get() != OPTION_MAGIC || length > MAX_OPTION {
            return Err(Violation);
        }
        let Some((data, after)) = after.split_at_checked(length) else {
            return Ok(Some(Next::Receive));
        };
        *rest = after;
        self.answer(OptionCode(header.option.get()), data, output)
    }

    /// Answers an option. `None` if another may follow.
    fn answer(
        &mut self,
        option: OptionCode,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Next>, Violation> {
        let reply = &mut Replies { option: option.0, output };
        match option {
            OptionCode::STARTTLS if self.tls == TlsState::Required && data.is_empty() => {
                reply.acknowledge();
                // Options that were agreed on in plain text do not count.
                (self.tls, self.structured, self.allocation_of) = (TlsState::Started, false, None);
                return Ok(Some(Next::StartTls));
            }
            OptionCode::STARTTLS if self.tls != TlsState::None => {
                reply.refuse(ReplyCode::ERR_INVALID, "TLS starts once, and has no data");
            }
            OptionCode::EXPORT_NAME if self.tls == TlsState::Required => return Err(Violation),
            OptionCode::ABORT => {
                reply.acknowledge();
                return Ok(Some(Next::End));
            }
            _ if self.tls == TlsState::Required => {
                reply.refuse(ReplyCode::ERR_TLS_REQD, "this server asks for TLS");
            }
            OptionCode::EXPORT_NAME => return self.begin_by_name(data, output).map(Some),
            OptionCode::LIST if data.is_empty() => {
                for export in self.exports.list() {
                    let name = export.name();
                    let length = U32::new(name.len() as u32);
                    let parts =
                        [length.as_bytes(), name.as_bytes(), export.description().as_bytes()];
                    reply.send(ReplyCode::SERVER, &parts);
                }
                reply.acknowledge();
            }
            OptionCode::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply.acknowledge();
            }
            OptionCode::LIST | OptionCode::STRUCTURED_REPLY => {
                reply.refuse(ReplyCode::ERR_INVALID, "this option has no data");
            }
            OptionCode::INFO | OptionCode::GO => match self.describe(data, reply) {
                Some(agreement) if option == OptionCode::GO => {
                    return Ok(Some(Next::Begin(agreement)));
                }
                _ => {}
            },
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                self.answer_contexts(option, data, reply);
            }
            _ => reply.refuse(ReplyCode::ERR_UNSUP, "this server does not know the option"),
        }
        Ok(None)
    }

    /// The old way to begin, which has no reply if there is no such export.
    fn begin_by_name(&mut self, name: &[u8], output: &mut Vec<u8>) -> Result<Next, Violation> {
        let name = str::from_utf8(name).map_err(|_| Violation)?;
        let export = self.find(name).ok_or(Violation)?;
        let info = export_info(&export, self.structured);
        output.extend(info.size.as_bytes());
        output.extend(info.flags.as_bytes());
        let client = self.client.unwrap_or_default();
        if client & u32::from(flags::NO_ZEROES) == 0 {
            output.extend([0; 124]);
        }
        Ok(Next::Begin(self.agreement(export)))
    }

    fn agreement(&self, export: Arc<ServedExport>) -> Agreement {
        let block_status = self.allocation_of.as_deref() == Some(export.name());
        Agreement { export, structured: self.structured, block_status }
    }

    /// Answers INFO and GO. Returns what was agreed on, if there is such an export.
    fn describe(&mut self, data: &[u8], reply: &mut Replies) -> Option<Agreement> {
        let Some((name, wanted)) = parse_info(data) else {
            reply.refuse(ReplyCode::ERR_INVALID, "the option's data are malformed");
            return None;
        };
        let Some(export) = self.find(name) else {
            reply.refuse(ReplyCode::ERR_UNKNOWN, "there is no export of this name");
            return None;
        };
        reply.send(ReplyCode::INFO, &[export_info(&export, self.structured).as_bytes()]);
        let text = |reply: &mut Replies, kind: u16, text: &str| {
            if wanted.contains(&U16::new(kind)) {
                reply.send(ReplyCode::INFO, &[U16::new(kind).as_bytes(), text.as_bytes()]);
            }
        };
        text(reply, info::NAME, export.name());
        if !export.description().is_empty() {
            text(reply, info::DESCRIPTION, export.description());
        }
        let [minimum, preferred, maximum] = export.block_sizes().map(U32::new);
        let sizes = BlockSizeInfo { kind: info::BLOCK_SIZE.into(), minimum, preferred, maximum };
        reply.send(ReplyCode::INFO, &[sizes.as_bytes()]);
        reply.acknowledge();
        Some(self.agreement(export))
    }

    fn answer_contexts(&mut self, option: OptionCode, data: &[u8], reply: &mut Replies) {
        let sets = option == OptionCode::SET_META_CONTEXT;
        if sets {
            self.allocation_of = None;
        }
        if sets && !self.structured {
            return reply.refuse(ReplyCode::ERR_INVALID, "structured replies come first");
        }
        let Some((name, queries)) = parse_contexts(data) else {
            return reply.refuse(ReplyCode::ERR_INVALID, "the option's data are malformed");
        };
        let Some(export) = self.exports.find(name) else {
            return reply.refuse(ReplyCode::ERR_UNKNOWN, "there is no export of this name");
        };
        let asks_for_it = match sets {
            true => queries.contains(&ALLOCATION.as_bytes()),
            false => {
                queries.is_empty()
                    || queries.iter().any(|query| [b"base:", ALLOCATION.as_bytes()].contains(query))
            }
        };
        if asks_for_it {
            let id = U32::new(if sets { ALLOCATION_ID } else { 0 });
            reply.send(ReplyCode::META_CONTEXT, &[id.as_bytes(), ALLOCATION.as_bytes()]);
            if sets {
                self.allocation_of = Some(export.name().to_owned());
            }
        }
        reply.acknowledge();
    }
}

fn export_info(export: &ServedExport, structured: bool) -> ExportInfo {
    let (size, flags) = (export.current_size().into(), export.flags(structured).into());
    ExportInfo { kind: info::EXPORT.into(), size, flags }
}

/// The replies to one option.
struct Replies<'o> {
    option: u32,
    output: &'o mut Vec<u8>,
}

impl Replies<'_> {
    fn send(&mut self, code: ReplyCode, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = OptionReply::new(self.option, code, length as u32);
        self.output.extend(header.as_bytes());
        parts.iter().for_each(|part| self.output.extend(*part));
    }

    fn acknowledge(&mut self) {
        self.send(ReplyCode::ACK, &[]);
    }

    fn refuse(&mut self, code: ReplyCode, why: &str) {
        self.send(code, &[why.as_bytes()]);
    }
}

/// Takes a string with its length before it.
fn take_string<'d>(data: &mut &'d [u8]) -> Option<&'d [u8]> {
    let (length, rest) = U32::read_from_prefix(data).ok()?;
    let length = length.get() as usize;
    if length > MAX_STRING {
        return None;
    }
    let (string, rest) = rest.split_at_checked(length)?;
    *data = rest;
    Some(string)
}

fn take_name<'d>(data: &mut &'d [u8]) -> Option<&'d str> {
    str::from_utf8(take_string(data)?).ok()
}

/// The name and the kinds of information of INFO and GO.
fn parse_info(mut data: &[u8]) -> Option<(&str, &[U16])> {
    let name = take_name(&mut data)?;
    let (count, rest) = U16::read_from_prefix(data).ok()?;
    let wanted = <[U16]>::ref_from_bytes_with_elems(rest, count.get().into()).ok()?;
    Some((name, wanted))
}

/// The name and the queries of the options for contexts.
fn parse_contexts(mut data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let name = take_name(&mut data)?;
    let (count, mut rest) = U32::read_from_prefix(data).ok()?;
    // Each query has a length: this allocates no more than was received.
    if count.get() as usize > rest.len() / size_of::<U32>() {
        return None;
    }
    let queries = (0..count.get()).map(|_| take_string(&mut rest)).collect::<Option<Vec<_>>>()?;
    rest.is_empty().then_some((name, queries))
}
