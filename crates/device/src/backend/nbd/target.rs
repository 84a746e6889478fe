//! The URI of an export: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST[:PORT]/NAME`.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uringfs_nbd_protocol::MAX_STRING;

use super::super::percent::{decode, decode_text, encode};

/// The port of NBD servers.
const DEFAULT_PORT: u16 = 10809;

/// The time that a server may be away before requests fail. A server is restarted within it, and the kernel gives a
/// disk's command as long.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest timeout, in seconds: a day.
const MAX_TIMEOUT_S: u64 = 24 * 60 * 60;

/// The schemes of URIs of NBD, with the reason why one is refused.
const SCHEMES: [(&str, Result<Transport, &str>); 6] = [
    ("nbd+unix://", Ok(Transport::Unix)),
    ("nbd://", Ok(Transport::Tcp)),
    ("nbds://", Err(NO_TLS)),
    ("nbds+unix://", Err(NO_TLS)),
    ("nbd+vsock://", Err(NO_VSOCK)),
    ("nbds+vsock://", Err(NO_VSOCK)),
];

const NO_TLS: &str = "TLS is not supported; use nbd:// or nbd+unix://, if need be through a tunnel";
const NO_VSOCK: &str = "vsock is not supported; use nbd:// or nbd+unix://";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Unix,
    Tcp,
}

/// The name of an export of an NBD server: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST[:PORT]/NAME`, as in
/// [NBD's description of URIs](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md). The port is 10809
/// unless it is given. Both accept `timeout=SECONDS` (1 to 86400; 30 if it is not given): see
/// [`Nbd`](super::Nbd).
///
/// ```
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::nbd::NbdTarget;
///
/// let target = NbdTarget::parse("nbd+unix:///disk%201?socket=/run/nbd.sock").unwrap().unwrap();
/// assert_eq!(target.export(), "disk 1");
/// assert_eq!(target.to_string(), "nbd+unix:///disk%201?socket=/run/nbd.sock");
/// assert!(NbdTarget::parse("/dev/vda").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTarget {
    pub(super) endpoint: Endpoint,
    export: String,
    timeout: Duration,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Unix(PathBuf),
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        port: u16,
    },
}

impl NbdTarget {
    /// Parses a URI of NBD. `None` if the text has none of its schemes.
    ///
    /// # Errors
    /// One line that says what is wrong and what to write.
    pub fn parse(text: &str) -> Option<Result<NbdTarget, String>> {
        let find = |(scheme, transport): (&str, _)| Some((text.strip_prefix(scheme)?, transport));
        let (rest, transport) = SCHEMES.into_iter().find_map(find)?;
        Some(transport.map_err(str::to_owned).and_then(|transport| parse_rest(transport, rest)))
    }

    /// As [`Self::parse`], of a path. `None` if it is not UTF-8, as every URI is.
    ///
    /// # Errors
    /// As [`Self::parse`], with the path.
    pub fn from_path(path: &Path) -> Option<io::Result<NbdTarget>> {
        let text = path.to_str()?;
        let explain = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {what}"));
        Some(NbdTarget::parse(text)?.map_err(explain))
    }

    /// The bytes of the URI at the beginning of `URI:/path`. `None` if there is no URI.
    pub(crate) fn uri_length(argument: &[u8]) -> Option<usize> {
        let (scheme, _) =
            SCHEMES.iter().find(|(scheme, _)| argument.starts_with(scheme.as_bytes()))?;
        let is_end = |byte: &u8| matches!(byte, b'/' | b'?');
        let host = argument[scheme.len()..].iter().position(is_end);
        let host_end = host.map_or(argument.len(), |length| scheme.len() + length);
        let path = argument[host_end..].windows(2).position(|pair| pair == b":/");
        Some(path.map_or(argument.len(), |length| host_end + length))
    }

    /// The export `export` of the server that listens on the Unix socket `socket`.
    pub fn unix(socket: impl Into<PathBuf>, export: impl Into<String>) -> NbdTarget {
        let endpoint = Endpoint::Unix(socket.into());
        NbdTarget { endpoint, export: export.into(), timeout: DEFAULT_TIMEOUT }
    }

    /// The same with another timeout.
    pub fn with_timeout(self, timeout: Duration) -> NbdTarget {
        NbdTarget { timeout, ..self }
    }

    /// The form that all URIs of the same export have: with the default timeout, and the absolute path of the socket without
    /// symbolic links, if it exists.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_device as device; }
    /// use uringfs::device::backend::nbd::NbdTarget;
    ///
    /// let canonical = |uri| NbdTarget::parse(uri).unwrap().unwrap().canonical().to_string();
    /// assert_eq!(canonical("nbd://Host:10809/%64isk?timeout=5"), "nbd://host/disk");
    /// ```
    pub fn canonical(&self) -> NbdTarget {
        let endpoint = match &self.endpoint {
            Endpoint::Unix(path) => {
                let found = path.canonicalize().or_else(|_| std::path::absolute(path));
                Endpoint::Unix(found.unwrap_or_else(|_| path.clone()))
            }
            Endpoint::Tcp { host, port } => {
                Endpoint::Tcp { host: host.to_ascii_lowercase(), port: *port }
            }
        };
        NbdTarget { endpoint, export: self.export.clone(), timeout: DEFAULT_TIMEOUT }
    }

    /// The name of the export; empty for the server's default.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// The time for which a silent connection is kept, and for which the server may then be away.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

impl fmt::Display for NbdTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = '?';
        let name = encode(self.export.as_bytes());
        match &self.endpoint {
            Endpoint::Unix(socket) => {
                let socket = encode(socket.as_os_str().as_bytes());
                write!(out, "nbd+unix:///{name}?socket={socket}")?;
                separator = '&';
            }
            Endpoint::Tcp { host, port } => {
                match host.contains(':') {
                    true => write!(out, "nbd://[{host}]")?,
                    false => write!(out, "nbd://{}", encode(host.as_bytes()))?,
                }
                if *port != DEFAULT_PORT {
                    write!(out, ":{port}")?;
                }
                write!(out, "/{name}")?;
            }
        }
        match self.timeout {
            DEFAULT_TIMEOUT => Ok(()),
            timeout => write!(out, "{separator}timeout={}", timeout.as_secs()),
        }
    }
}

/// Parses what follows the scheme.
fn parse_rest(transport: Transport, rest: &str) -> Result<NbdTarget, String> {
    if rest.contains('#') {
        return Err("a URI of NBD has no fragment; write '#' as %23".into());
    }
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let export = decode_text(path)?;
    if export.len() > MAX_STRING || export.contains('\0') {
        return Err(format!(
            "the export's name is longer than {MAX_STRING} bytes, or contains a NUL"
        ));
    }
    let options = Options::parse(query)?;
    let endpoint = match (transport, options.socket) {
        (Transport::Unix, _) if !authority.is_empty() => {
            return Err(format!(
                "'{authority}' is where no host belongs; write nbd+unix:///NAME?socket=PATH"
            ));
        }
        (Transport::Unix, Some(socket)) => Endpoint::Unix(socket),
        (Transport::Unix, None) => {
            return Err("the socket is missing; write nbd+unix:///NAME?socket=PATH".into());
        }
        (Transport::Tcp, Some(_)) => {
            return Err("'socket' is for nbd+unix://; write nbd://HOST/NAME without it".into());
        }
        (Transport::Tcp, None) => parse_authority(authority)?,
    };
    Ok(NbdTarget { endpoint, export, timeout: options.timeout })
}

struct Options {
    socket: Option<PathBuf>,
    timeout: Duration,
}

impl Options {
    fn parse(query: &str) -> Result<Options, String> {
        let (mut socket, mut timeout) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_repeated = match key {
                "socket" => {
                    let path = decode(value)?;
                    if path.is_empty() || path.contains(&0) {
                        return Err("'socket' is not the path of a socket".into());
                    }
                    socket.replace(PathBuf::from(OsStr::from_bytes(&path))).is_some()
                }
                "timeout" => match value.parse() {
                    Ok(seconds @ 1..=MAX_TIMEOUT_S) => {
                        timeout.replace(Duration::from_secs(seconds)).is_some()
                    }
                    _ => {
                        return Err(format!(
                            "timeout {value} is not within 1 to {MAX_TIMEOUT_S} (seconds)"
                        ));
                    }
                },
                _ => {
                    return Err(format!(
                        "a URI of NBD has no '{key}' here; it has 'socket' and 'timeout'"
                    ));
                }
            };
            if is_repeated {
                return Err(format!("'{key}' is given twice"));
            }
        }
        Ok(Options { socket, timeout: timeout.unwrap_or(DEFAULT_TIMEOUT) })
    }
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn parse_authority(authority: &str) -> Result<Endpoint, String> {
    if authority.contains('@') {
        return Err("NBD has no users; write nbd://HOST/NAME".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a ']' is missing after the address")?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| format!("'{host}' is no IPv6 address"))?;
            let port = match port {
                "" => "",
                port => port.strip_prefix(':').ok_or("the port begins with ':'")?,
            };
            (host.to_owned(), port)
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            if port.contains(':') {
                return Err(format!("write an IPv6 address in brackets: [{authority}]"));
            }
            (decode_text(host)?, port)
        }
    };
    if host.is_empty() {
        return Err(
            "the host is missing; write nbd://HOST/NAME or nbd+unix:///NAME?socket=PATH".into()
        );
    }
    let port = match port {
        "" => DEFAULT_PORT,
        port => match port.parse() {
            Ok(number @ 1..) if port.bytes().all(|byte| byte.is_ascii_digit()) => number,
            _ => return Err(format!("port {port} is not within 1 to 65535")),
        },
    };
    Ok(Endpoint::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    fn unix(path: &str) -> Endpoint {
        Endpoint::Unix(path.into())
    }

    #[test]
    fn all_forms_of_a_uri_are_parsed() {
        let seconds = Duration::from_secs;
        for (text, endpoint, export, timeout) in [
            ("nbd+unix:///?socket=/run/s", unix("/run/s"), "", seconds(30)),
            ("nbd+unix://?socket=/run/s", unix("/run/s"), "", seconds(30)),
            ("nbd+unix:///disk?socket=/run/s", unix("/run/s"), "disk", seconds(30)),
            ("nbd+unix:////disk?socket=s", unix("s"), "/disk", seconds(30)),
            ("nbd+unix:///a/b:c?socket=/a:/b", unix("/a:/b"), "a/b:c", seconds(30)),
            ("nbd+unix:///a%3fb%25?socket=/x%20y%26z", unix("/x y&z"), "a?b%", seconds(30)),
            ("nbd+unix:///n?timeout=5&socket=/s", unix("/s"), "n", seconds(5)),
            ("nbd+unix:///n?socket=/s&&timeout=86400", unix("/s"), "n", seconds(86400)),
            ("nbd+unix:///gr%C3%BCn?socket=/s", unix("/s"), "grün", seconds(30)),
            ("nbd://host", tcp("host", 10809), "", seconds(30)),
            ("nbd://host/", tcp("host", 10809), "", seconds(30)),
            ("nbd://host:/n", tcp("host", 10809), "n", seconds(30)),
            ("nbd://host:1/n", tcp("host", 1), "n", seconds(30)),
            ("nbd://host.example:65535/n/m", tcp("host.example", 65535), "n/m", seconds(30)),
            ("nbd://127.0.0.1?timeout=1", tcp("127.0.0.1", 10809), "", seconds(1)),
            ("nbd://[::1]/n", tcp("::1", 10809), "n", seconds(30)),
            ("nbd://[fe80::1]:10810/n?timeout=7", tcp("fe80::1", 10810), "n", seconds(7)),
        ] {
            let target = NbdTarget::parse(text).expect("it is a URI of NBD").unwrap();
            assert_eq!(target, NbdTarget { endpoint, export: export.into(), timeout }, "{text}");
            let again = NbdTarget::parse(&target.to_string()).expect("it is one again").unwrap();
            assert_eq!(again, target, "{text} became {target}");
        }
    }

    #[test]
    fn a_path_in_a_volume_follows_the_first_colon_and_slash_after_the_host() {
        for (uri, path) in [
            ("nbd+unix:///n?socket=/run/s", ":/a/b"),
            ("nbd+unix:///n?socket=/run/s", ":/a:/b"),
            ("nbd+unix:///n?socket=/run/s", ""),
            ("nbd+unix:///n", ":/n?socket=/run/s"),
            ("nbd+unix://?socket=s", ":/"),
            ("nbd+unix:///n%3A/m?socket=/s%3A/t&timeout=5", ":/a"),
            ("nbd://host/n", ":/a"),
            ("nbd://host:/n", ":/a"),
            ("nbd://host:10809/n", ":/a?b=/c"),
            ("nbd://[fe80::1]:1/n", ":/a"),
            ("nbd://host?timeout=1", ":/a"),
            ("nbd://host:", ""),
            ("nbd://host", ""),
            ("nbds://host/", ":/a"),
        ] {
            let whole = format!("{uri}{path}");
            assert_eq!(NbdTarget::uri_length(whole.as_bytes()), Some(uri.len()), "{whole}");
        }
        for path in ["/dev/sda:/nbd://h/n:/a", "nbd:/a", "./nbd://host/n:/a", ""] {
            assert_eq!(NbdTarget::uri_length(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn a_bad_uri_is_explained() {
        for (text, expected) in [
            ("nbd+unix:///n", "socket is missing"),
            ("nbd+unix:///n?socket=", "not the path"),
            ("nbd+unix:///n?socket", "not the path"),
            ("nbd+unix:///n?socket=a%00b", "not the path"),
            ("nbd+unix://host/n?socket=/s", "where no host belongs"),
            ("nbd+unix:///n?socket=/s&socket=/t", "given twice"),
            ("nbd+unix:///n?socket=/s&tls=on", "has no 'tls'"),
            ("nbd+unix:///n?socket=/s&timeout=0", "1 to 86400"),
            ("nbd+unix:///n?socket=/s&timeout=86401", "1 to 86400"),
            ("nbd+unix:///n?socket=/s&timeout=5s", "1 to 86400"),
            ("nbd+unix:///n?socket=/s#f", "%23"),
            ("nbd+unix:///%?socket=/s", "%25"),
            ("nbd+unix:///%g0?socket=/s", "%25"),
            ("nbd+unix:///%ff?socket=/s", "not UTF-8"),
            ("nbd+unix:///a%00b?socket=/s", "NUL"),
            ("nbd://", "host is missing"),
            ("nbd:///n", "host is missing"),
            ("nbd://:10809/n", "host is missing"),
            ("nbd://host/n?socket=/s", "nbd+unix"),
            ("nbd://host:0/n", "1 to 65535"),
            ("nbd://host:65536/n", "1 to 65535"),
            ("nbd://host:+1/n", "1 to 65535"),
            ("nbd://host:x/n", "1 to 65535"),
            ("nbd://::1/n", "brackets"),
            ("nbd://[::1/n", "']'"),
            ("nbd://[::1]10809/n", "':'"),
            ("nbd://[host]/n", "no IPv6 address"),
            ("nbd://me@host/n", "no users"),
            ("nbds://host/n", "TLS"),
            ("nbds+unix:///n?socket=/s", "TLS"),
            ("nbd+vsock://2/n", "vsock"),
        ] {
            let line = NbdTarget::parse(text).expect("it is a URI of NBD").expect_err(text);
            assert!(line.contains(expected) && !line.contains('\n'), "{text}: {line}");
        }
    }

    #[test]
    fn other_texts_are_no_uris_of_nbd() {
        for text in ["/dev/vda", "nbd", "nbd:/x", "nbd:host:10809", "./nbd://x", "memory:1m", ""] {
            assert_eq!(NbdTarget::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_uri_is_parsed_or_refused(rest in "\\PC{0,40}", unix in any::<bool>()) {
            let scheme = if unix { "nbd+unix://" } else { "nbd://" };
            if let Some(Ok(target)) = NbdTarget::parse(&format!("{scheme}{rest}")) {
                let again = NbdTarget::parse(&target.to_string());
                prop_assert_eq!(again, Some(Ok(target)));
            }
        }
    }
}
