//! The client's side of the fixed newstyle handshake, from the greeting to the reply to `GO`. Does no I/O: bytes of the
//! server go in, bytes for it come out.

use std::io::ErrorKind;

use uringfs_nbd_protocol::MAX_STRING;
use uringfs_nbd_protocol::handshake::info::{self, BlockSizeInfo, ExportInfo};
use uringfs_nbd_protocol::handshake::{
    Greeting, MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode, OptionHeader, OptionReply,
    ReplyCode, flags,
};
use zerocopy::{FromBytes, IntoBytes};

use super::export::{BlockSizes, Export};
use super::refusal::{Refusal, printable};

/// The longest reply to an option, in bytes: a name and a description.
pub(super) const MAX_REPLY: usize = size_of::<OptionReply>() + 4 + 2 * MAX_STRING;

/// The most replies to one option. A server has no more exports, or they are not listed.
const MAX_REPLIES: u32 = 10_000;

/// The most names of exports in a message.
const MAX_NAMES: usize = 8;

/// The state of a handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    name: String,
    step: Step,
    /// Replies to the option so far.
    replies: u32,
    structured: bool,
    size_and_flags: Option<(u64, u16)>,
    block_sizes: BlockSizes,
}

#[derive(Debug)]
enum Step {
    Greeting,
    /// Replies to this option are awaited.
    Option(OptionCode),
    /// The export was not found: these are there, and so many more.
    List(Vec<String>, u32),
}

impl Handshake {
    /// A handshake for the export `name`, at most [`MAX_STRING`] bytes.
    pub(super) fn new(name: &str) -> Handshake {
        Handshake {
            name: name.to_owned(),
            step: Step::Greeting,
            replies: 0,
            structured: false,
            size_and_flags: None,
            block_sizes: BlockSizes::default(),
        }
    }

    /// Parses the next message at the beginning of `input`, and appends to `output` what the server must get. Returns the
    /// number of bytes parsed, 0 if the message is not complete, and the export when the handshake is done.
    ///
    /// # Errors
    /// When the server refuses the export, or does not follow the protocol. Nothing more can be sent then.
    pub(super) fn advance(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Option<Export>), Refusal> {
        if let Step::Greeting = self.step {
            return Ok((self.greet(input, output)?, None));
        }
        let Ok((reply, rest)) = OptionReply::read_from_prefix(input) else { return Ok((0, None)) };
        if reply.magic.get() != OPTION_REPLY_MAGIC {
            return Err(Refusal::violation("a reply without its magic number"));
        }
        let length = reply.length.get() as usize;
        if size_of::<OptionReply>() + length > MAX_REPLY {
            return Err(Refusal::violation(format!("a reply of {length} bytes to an option")));
        }
        let Some(data) = rest.get(..length) else { return Ok((0, None)) };
        self.replies += 1;
        if reply.option.get() != self.option().0 || self.replies > MAX_REPLIES {
            return Err(Refusal::violation("a reply to another option, or too many of them"));
        }
        let export = self.take_reply(ReplyCode(reply.reply.get()), data, output)?;
        Ok((size_of::<OptionReply>() + length, export))
    }

    fn greet(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<usize, Refusal> {
        let Ok((greeting, _)) = Greeting::read_from_prefix(input) else { return Ok(0) };
        if greeting.magic.get() != MAGIC {
            let text = "the server does not speak NBD; check the address";
            return Err(Refusal::new(ErrorKind::InvalidData, text));
        }
        let server = greeting.flags.get();
        if greeting.option_magic.get() != OPTION_MAGIC || server & flags::FIXED_NEWSTYLE == 0 {
            let text = "the server speaks an old variant of NBD; use one with the fixed newstyle handshake";
            return Err(Refusal::new(ErrorKind::Unsupported, text));
        }
        let client = u32::from(server & (flags::FIXED_NEWSTYLE | flags::NO_ZEROES));
        output.extend(client.to_be_bytes());
        self.request(OptionCode::STRUCTURED_REPLY, &[], output);
        Ok(size_of::<Greeting>())
    }

    /// The option whose replies are awaited.
    fn option(&self) -> OptionCode {
        match &self.step {
            Step::Option(option) => *option,
            Step::Greeting | Step::List(..) => OptionCode::LIST,
        }
    }

    fn request(&mut self, option: OptionCode, data: &[u8], output: &mut Vec<u8>) {
        output.extend(OptionHeader::new(option, data.len() as u32).as_bytes());
        output.extend(data);
        self.replies = 0;
        self.step = match option {
            OptionCode::LIST => Step::List(Vec::new(), 0),
            option => Step::Option(option),
        };
    }

    fn take_reply(
        &mut self,
        reply: ReplyCode,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Export>, Refusal> {
        if reply == ReplyCode::ERR_TLS_REQD {
            let text = "the server requires TLS, which is not supported; allow connections without it, \
                        or connect through a tunnel";
            return Err(Refusal::new(ErrorKind::Unsupported, text));
        }
        match &mut self.step {
            Step::Option(OptionCode::STRUCTURED_REPLY) => {
                // Without them the server answers reads in one piece.
                self.structured = reply == ReplyCode::ACK;
                let data = self.go_data();
                self.request(OptionCode::GO, &data, output);
                Ok(None)
            }
            Step::List(names, more) => match reply {
                ReplyCode::SERVER if names.len() < MAX_NAMES => {
                    names.push(listed_name(data)?);
                    Ok(None)
                }
                ReplyCode::SERVER => {
                    *more += 1;
                    Ok(None)
                }
                _ => Err(not_found(&self.name, names, *more)),
            },
            _ => match reply {
                ReplyCode::INFO => self.take_info(data).map(|()| None),
                ReplyCode::ACK => self.export().map(Some),
                ReplyCode::ERR_UNKNOWN => {
                    self.request(OptionCode::LIST, &[], output);
                    Ok(None)
                }
                reply => Err(refused(&self.name, reply, data)),
            },
        }
    }

    /// The data of `GO`: it names the export, and asks for its block sizes.
    fn go_data(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend(1u16.to_be_bytes());
        data.extend(info::BLOCK_SIZE.to_be_bytes());
        data
    }

    fn take_info(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let malformed = || Refusal::violation("information of a wrong length");
        match data.first_chunk().map(|kind| u16::from_be_bytes(*kind)).ok_or_else(malformed)? {
            info::EXPORT => {
                let info = ExportInfo::read_from_bytes(data).map_err(|_| malformed())?;
                self.size_and_flags = Some((info.size.get(), info.flags.get()));
            }
            info::BLOCK_SIZE => {
                let info = BlockSizeInfo::read_from_bytes(data).map_err(|_| malformed())?;
                self.block_sizes = BlockSizes {
                    minimum: info.minimum.get(),
                    preferred: info.preferred.get(),
                    maximum: info.maximum.get(),
                };
            }
            _ => {}
        }
        Ok(())
    }

    fn export(&self) -> Result<Export, Refusal> {
        let (size, flags) =
            self.size_and_flags.ok_or_else(|| Refusal::violation("no size of the export"))?;
        let (block_sizes, structured) = (self.block_sizes, self.structured);
        Ok(Export { size, flags, block_sizes, structured })
    }
}

/// The name in a reply to `LIST`.
fn listed_name(data: &[u8]) -> Result<String, Refusal> {
    let name = || {
        let (length, rest) = data.split_first_chunk()?;
        rest.get(..u32::from_be_bytes(*length) as usize)
    };
    name().map(printable).ok_or_else(|| Refusal::violation("a name that is longer than its reply"))
}

fn not_found(name: &str, names: &[String], more: u32) -> Refusal {
    let name = printable(name.as_bytes());
    let listed = match names {
        [] => "and lists none; check the name".to_owned(),
        names => {
            let quoted: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("but {}{more}; name one of these", quoted.join(", "))
        }
    };
    let text = format!("the server has no export '{name}', {listed}");
    Refusal::new(ErrorKind::NotFound, text)
}

/// The refusal of an export, with the server's words.
fn refused(name: &str, reply: ReplyCode, data: &[u8]) -> Refusal {
    if !reply.is_error() {
        return Refusal::violation(format!("reply {} to an option", reply.0));
    }
    let (kind, text) = match reply {
        ReplyCode::ERR_UNSUP => (
            ErrorKind::Unsupported,
            "the server cannot open exports by NBD_OPT_GO; use a newer one",
        ),
        ReplyCode::ERR_POLICY => (
            ErrorKind::PermissionDenied,
            "the server's policy refuses the export; see its configuration",
        ),
        _ => (ErrorKind::Other, "the server refuses the export; see its messages"),
    };
    let said = match printable(data) {
        said if said.is_empty() => format!("error {:#x}", reply.0),
        said => said,
    };
    Refusal::new(kind, format!("{text} (export '{}': {said})", printable(name.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringfs_nbd_protocol::handshake::export_flags;

    fn reply(option: OptionCode, reply: ReplyCode, data: &[u8]) -> Vec<u8> {
        let mut bytes = OptionReply::new(option.0, reply, data.len() as u32).as_bytes().to_vec();
        bytes.extend(data);
        bytes
    }

    fn greeting() -> Vec<u8> {
        Greeting::new(flags::FIXED_NEWSTYLE | flags::NO_ZEROES).as_bytes().to_vec()
    }

    fn export_info(size: u64) -> Vec<u8> {
        let flags = export_flags::HAS_FLAGS.into();
        ExportInfo { kind: info::EXPORT.into(), size: size.into(), flags }.as_bytes().to_vec()
    }

    /// Feeds `input` in pieces of `step` bytes.
    fn run(input: &[u8], step: usize) -> (Result<Option<Export>, Refusal>, Vec<u8>) {
        let (mut handshake, mut output) = (Handshake::new("disk"), Vec::new());
        let (mut begin, mut end) = (0, 0);
        loop {
            match handshake.advance(&input[begin..end], &mut output) {
                Ok((_, Some(export))) => return (Ok(Some(export)), output),
                Ok((0, None)) if end == input.len() => return (Ok(None), output),
                Ok((0, None)) => end = (end + step).min(input.len()),
                Ok((parsed, None)) => begin += parsed,
                Err(refusal) => return (Err(refusal), output),
            }
        }
    }

    fn refusal(input: &[u8]) -> String {
        let text = run(input, usize::MAX / 2).0.expect_err("refused").text;
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn an_export_is_opened_whatever_the_pieces() {
        let mut input = greeting();
        input.extend(reply(OptionCode::STRUCTURED_REPLY, ReplyCode::ACK, &[]));
        input.extend(reply(OptionCode::GO, ReplyCode::INFO, &export_info(1 << 20)));
        input.extend(reply(OptionCode::GO, ReplyCode::INFO, &[0, 77, 1, 2, 3]));
        let sizes = BlockSizeInfo {
            kind: info::BLOCK_SIZE.into(),
            minimum: 1.into(),
            preferred: 8192.into(),
            maximum: 65536.into(),
        };
        input.extend(reply(OptionCode::GO, ReplyCode::INFO, sizes.as_bytes()));
        input.extend(reply(OptionCode::GO, ReplyCode::ACK, &[]));
        for step in [1, 2, 7, 1000] {
            let (export, output) = run(&input, step);
            let export = export.unwrap().expect("the handshake is done");
            assert_eq!((export.size, export.structured), (1 << 20, true));
            assert_eq!(export.block_sizes.preferred, 8192);
            // Flags, STRUCTURED_REPLY, GO with a name of 4 bytes and one request for information.
            assert_eq!(output.len(), 4 + 16 + 16 + 4 + 4 + 2 + 2);
            assert!(output.windows(4).any(|bytes| bytes == b"disk"));
        }
    }

    #[test]
    fn a_server_without_structured_replies_is_used_without() {
        let mut input = greeting();
        input.extend(reply(OptionCode::STRUCTURED_REPLY, ReplyCode::ERR_UNSUP, b"no"));
        input.extend(reply(OptionCode::GO, ReplyCode::INFO, &export_info(512)));
        input.extend(reply(OptionCode::GO, ReplyCode::ACK, &[]));
        let export = run(&input, 1000).0.unwrap().expect("the handshake is done");
        assert!(!export.structured);
        assert_eq!(export.block_sizes, BlockSizes::default());
    }

    #[test]
    fn an_unknown_export_is_refused_with_the_names_of_others() {
        let mut input = greeting();
        input.extend(reply(OptionCode::STRUCTURED_REPLY, ReplyCode::ACK, &[]));
        input.extend(reply(OptionCode::GO, ReplyCode::ERR_UNKNOWN, b"who?"));
        let none = [&input[..], &reply(OptionCode::LIST, ReplyCode::ERR_POLICY, b"")].concat();
        assert!(refusal(&none).contains("no export 'disk', and lists none"));
        for number in 0..10u8 {
            let name = [&[0, 0, 0, 2, b'd', b'0' + number][..], b"a description"].concat();
            input.extend(reply(OptionCode::LIST, ReplyCode::SERVER, &name));
        }
        input.extend(reply(OptionCode::LIST, ReplyCode::ACK, &[]));
        let text = refusal(&input);
        assert!(text.contains("no export 'disk', but 'd0', 'd1'"), "{text}");
        assert!(text.contains("'d7' and 2 more; name one"), "{text}");
    }

    #[test]
    fn refusals_say_why() {
        let begin = [greeting(), reply(OptionCode::STRUCTURED_REPLY, ReplyCode::ACK, &[])].concat();
        let go =
            |code, data: &[u8]| refusal(&[&begin[..], &reply(OptionCode::GO, code, data)].concat());
        assert!(go(ReplyCode::ERR_TLS_REQD, b"").contains("requires TLS"));
        assert!(go(ReplyCode::ERR_UNSUP, b"").contains("newer"));
        assert!(go(ReplyCode::ERR_POLICY, b"not\nyou").contains("policy"));
        assert!(go(ReplyCode::ERR_POLICY, b"not\nyou").contains("not you"));
        assert!(go(ReplyCode::ERR_INVALID, b"").contains("0x80000003"));
        assert!(go(ReplyCode::ACK, b"").contains("no size"));
        assert!(go(ReplyCode::SERVER, b"").contains("breaks the NBD protocol"));
        assert!(go(ReplyCode::INFO, b"").contains("wrong length"));
        assert!(go(ReplyCode::INFO, &[0, 0, 1]).contains("wrong length"));
        assert!(go(ReplyCode::INFO, &[0, 3, 1]).contains("wrong length"));
    }

    #[test]
    fn other_protocols_are_recognised() {
        assert!(refusal(b"SSH-2.0-OpenSSH_9.2p1\r\n").contains("does not speak NBD"));
        let old = [&MAGIC.to_be_bytes()[..], &0x0000_4202_8186_1253u64.to_be_bytes(), &[0; 8]];
        assert!(refusal(&old.concat()).contains("old variant"));
        assert!(refusal(Greeting::new(0).as_bytes()).contains("old variant"));
        let bad = [greeting(), vec![7; 20]].concat();
        assert!(refusal(&bad).contains("magic"));
        let long = OptionReply::new(OptionCode::STRUCTURED_REPLY.0, ReplyCode::ACK, u32::MAX);
        assert!(refusal(&[&greeting()[..], long.as_bytes()].concat()).contains("4294967295 bytes"));
        let other = reply(OptionCode::GO, ReplyCode::ACK, &[]);
        assert!(refusal(&[greeting(), other].concat()).contains("another option"));
    }
}
