//! The lines of the protocol. A client sends its hello and a [`Request`]; [`Received`] takes them from bytes of any origin.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// The version of the protocol. Both sides name theirs, and refuse another one.
pub const VERSION: u64 = 1;
/// The longest line of a client in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 4096;
/// The longest line of a server in bytes.
pub(crate) const MAX_REPLY_BYTES: usize = 1 << 20;
/// The longest freeze.
pub const MAX_FREEZE: Duration = Duration::from_secs(3600);

/// The request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// The volume and its mount.
    Info,
    /// The counters of the server's reactors and of the volume.
    Counters,
    /// The sizes of the volume and of its device, and the free space.
    Space,
    /// Enlarges the volume to this many bytes.
    Resize(u64),
    /// Makes everything durable, then holds back every change until [`Request::Thaw`], or for this time: whole seconds, from 1 to
    /// [`MAX_FREEZE`].
    Freeze(Duration),
    /// Lets changes in again.
    Thaw,
    /// Checks the volume while it is in use: see [`Client::check`](super::Client::check).
    Check {
        /// Also reads every block that files use.
        deep: bool,
    },
    /// Begins a session about files: see [`RemoteFiles`](super::RemoteFiles).
    Files,
    /// Reads the configuration of the server again.
    Reload,
}

impl Request {
    /// Its line, without the line feed.
    pub fn to_json(self) -> Value {
        match self {
            Request::Info => json!({"request": "info"}),
            Request::Counters => json!({"request": "counters"}),
            Request::Space => json!({"request": "space"}),
            Request::Resize(bytes) => json!({"request": "resize", "bytes": bytes}),
            Request::Freeze(time) => json!({"request": "freeze", "seconds": time.as_secs()}),
            Request::Thaw => json!({"request": "thaw"}),
            Request::Check { deep } => json!({"request": "check", "deep": deep}),
            Request::Files => json!({"request": "files"}),
            Request::Reload => json!({"request": "reload"}),
        }
    }

    /// The longest time that the server works on it; `None` if that depends on the device.
    pub(crate) fn timeout(self) -> Option<Duration> {
        match self {
            Request::Freeze(time) => Some(time),
            Request::Resize(_) | Request::Check { .. } | Request::Reload => None,
            _ => Some(Duration::ZERO),
        }
    }

    fn from_json(line: &[u8]) -> Result<Request, String> {
        let mut fields = object(line)?;
        let name = fields.remove("request");
        let request = match name.as_ref().and_then(Value::as_str) {
            Some("info") => Request::Info,
            Some("counters") => Request::Counters,
            Some("space") => Request::Space,
            Some("resize") => Request::Resize(number(&mut fields, "bytes")?),
            Some("freeze") => {
                let time = Duration::from_secs(number(&mut fields, "seconds")?);
                if time.is_zero() || time > MAX_FREEZE {
                    let longest = MAX_FREEZE.as_secs();
                    return Err(format!("a freeze lasts from 1 to {longest} seconds"));
                }
                Request::Freeze(time)
            }
            Some("thaw") => Request::Thaw,
            Some("check") => {
                let deep = fields.remove("deep").as_ref().and_then(Value::as_bool);
                Request::Check {
                    deep: deep.ok_or("a check has true or false as the field `deep`")?,
                }
            }
            Some("files") => Request::Files,
            Some("reload") => Request::Reload,
            Some(_) => return Err("there is no such request".into()),
            None => return Err("a request has its name as the field `request`".into()),
        };
        require_empty(&fields)?;
        Ok(request)
    }
}

/// The bytes of a client so far.
#[derive(Debug, Default)]
pub struct Received {
    bytes: Vec<u8>,
    has_greeted: bool,
    volume: Option<String>,
}

/// The meaning of the bytes of a client so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// More has to come.
    Incomplete,
    /// The client's only request.
    Request(Request),
    /// The reason, in one line, why there will be no request.
    Refused(String),
}

impl Received {
    /// Takes the next bytes. Keeps no more than one line of them, and none after a request or a refusal.
    pub fn push(&mut self, bytes: &[u8]) -> Heard {
        for byte in bytes {
            if *byte != b'\n' {
                if self.bytes.len() == MAX_REQUEST_BYTES {
                    return Heard::Refused(format!("a line has at most {MAX_REQUEST_BYTES} bytes"));
                }
                self.bytes.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.bytes);
            if self.has_greeted {
                return match Request::from_json(&line) {
                    Ok(request) => Heard::Request(request),
                    Err(reason) => Heard::Refused(reason),
                };
            }
            match check_hello(&line) {
                Ok(volume) => self.volume = volume,
                Err(reason) => return Heard::Refused(reason),
            }
            self.has_greeted = true;
        }
        Heard::Incomplete
    }

    /// The volume that the client has named in its hello, by its lock.
    pub fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }
}

/// The first line of a side. A client names a volume by its lock.
pub(crate) fn hello(volume: Option<&str>) -> Value {
    let mut hello = json!({"uringfs": "control", "version": VERSION});
    if let Some(volume) = volume {
        hello["volume"] = volume.into();
    }
    hello
}

/// The volume in a hello.
///
/// # Errors
/// The reason why no conversation is possible.
pub(crate) fn check_hello(line: &[u8]) -> Result<Option<String>, String> {
    let mut fields = object(line)?;
    if fields.get("uringfs").and_then(Value::as_str) != Some("control") {
        return Err("the first line is no hello of this protocol".into());
    }
    match fields.get("version").and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(format!("one side has version {other}, the other version {VERSION}"));
        }
        None => return Err("the hello has no version".into()),
    }
    match fields.remove("volume") {
        None => Ok(None),
        Some(Value::String(volume)) => Ok(Some(volume)),
        Some(_) => Err("the hello has a text as the field `volume`".into()),
    }
}

/// Sends a line. The peer has gone, or reads nothing, if it does not fit into the socket's buffer.
pub(crate) fn send(mut stream: &UnixStream, line: &Value) {
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}

/// The last line of a successful reply.
pub(crate) fn result(value: Value) -> Value {
    json!({"result": value})
}

/// The last line of a failed one. `errno` tells causes apart.
pub(crate) fn failure(message: &str, errno: i32) -> Value {
    json!({"error": message, "errno": errno})
}

/// The meaning of a line of a server: the result if it is the last one, or `None` if others follow.
pub(crate) fn parse_reply(line: &[u8]) -> io::Result<Option<Value>> {
    let mut fields = object(line).map_err(io::Error::other)?;
    if let Some(result) = fields.remove("result") {
        return Ok(Some(result));
    }
    let Some(message) = fields.get("error") else { return Ok(None) };
    let message = message.as_str().unwrap_or("the server gives no reason");
    let errno = fields.get("errno").and_then(Value::as_i64).and_then(|errno| errno.try_into().ok());
    let kind =
        errno.map_or(io::ErrorKind::Other, |errno| io::Error::from_raw_os_error(errno).kind());
    Err(io::Error::new(kind, message))
}

/// # Errors
/// There are fields that were not asked for.
pub(super) fn require_empty(fields: &Map<String, Value>) -> Result<(), String> {
    match fields.is_empty() {
        true => Ok(()),
        false => Err("the request has a field that it should not have".into()),
    }
}

pub(super) fn number(fields: &mut Map<String, Value>, name: &str) -> Result<u64, String> {
    let number = fields.remove(name).as_ref().and_then(Value::as_u64);
    number.ok_or_else(|| format!("the request has a number as the field `{name}`"))
}

pub(super) fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("a line has a JSON object".into()),
        Err(error) => Err(format!("a line is no JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "{\"uringfs\":\"control\",\"version\":1}\n";

    fn heard(text: &str) -> Heard {
        Received::default().push(text.as_bytes())
    }

    fn all() -> Vec<Request> {
        let freeze = Request::Freeze(MAX_FREEZE);
        vec![
            Request::Info,
            Request::Counters,
            Request::Space,
            Request::Resize(u64::MAX),
            freeze,
            Request::Thaw,
            Request::Files,
            Request::Reload,
        ]
    }

    #[test]
    fn each_request_comes_as_it_was_sent_however_its_bytes_are_split() {
        for request in all() {
            let text = format!("{HELLO}{}\n", request.to_json());
            assert_eq!(heard(&text), Heard::Request(request));
            let mut received = Received::default();
            let (last, before) = text.as_bytes().split_last().unwrap();
            for byte in before {
                assert_eq!(received.push(&[*byte]), Heard::Incomplete);
            }
            assert_eq!(received.push(&[*last]), Heard::Request(request));
        }
    }

    #[test]
    fn a_hello_may_name_a_volume() {
        for (field, volume) in [("", None), (",\"volume\":\"fe:00:7\"", Some("fe:00:7"))] {
            let hello = format!("{{\"uringfs\":\"control\",\"version\":1{field}}}\n");
            let mut received = Received::default();
            assert_eq!(received.push(hello.as_bytes()), Heard::Incomplete);
            assert_eq!(received.volume(), volume);
        }
        let wrong = "{\"uringfs\":\"control\",\"version\":1,\"volume\":7}\n";
        assert!(matches!(heard(wrong), Heard::Refused(_)));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "1", "[]", "{}", "{\"uringfs\":\"control\"}", "{\"version\":1}", "\0"] {
            assert!(matches!(heard(&format!("{line}\n")), Heard::Refused(_)), "{line}");
        }
        for line in [
            "",
            "x",
            r#"{"request":1}"#,
            r#"{"request":"open"}"#,
            r#"{"request":"resize"}"#,
            r#"{"request":"resize","bytes":-1}"#,
            r#"{"request":"resize","bytes":18446744073709551616}"#,
            r#"{"request":"check"}"#,
            r#"{"request":"check","deep":1}"#,
            r#"{"request":"freeze","seconds":0}"#,
            r#"{"request":"freeze","seconds":3601}"#,
            r#"{"request":"freeze","seconds":1.5}"#,
        ] {
            assert!(matches!(heard(&format!("{HELLO}{line}\n")), Heard::Refused(_)), "{line}");
        }
        let more = "{\"request\":\"info\",\"path\":\"/etc/shadow\"}\n";
        assert!(matches!(heard(&format!("{HELLO}{more}")), Heard::Refused(_)));
    }

    #[test]
    fn another_version_is_named() {
        let Heard::Refused(reason) = heard("{\"uringfs\":\"control\",\"version\":2}\n") else {
            panic!("version 2 is not there yet");
        };
        assert_eq!(reason, "one side has version 2, the other version 1");
    }

    #[test]
    fn a_line_without_end_is_refused_at_its_bound() {
        let mut received = Received::default();
        assert_eq!(received.push(&[b' '; MAX_REQUEST_BYTES]), Heard::Incomplete);
        assert!(matches!(received.push(b" "), Heard::Refused(_)));
        let nested = format!("{HELLO}{}\n", "[".repeat(MAX_REQUEST_BYTES));
        assert!(matches!(heard(&nested), Heard::Refused(_)));
    }

    #[test]
    fn a_reply_ends_with_its_result_or_its_error() {
        let parse = |value: Value| parse_reply(value.to_string().as_bytes());
        assert_eq!(parse(json!({"item": 1})).unwrap(), None);
        assert_eq!(parse(result(json!(7))).unwrap(), Some(json!(7)));
        let error = parse(failure("it is frozen", 16)).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::ResourceBusy, "it is frozen".into())
        );
        assert!(parse_reply(b"x").is_err());
    }
}
