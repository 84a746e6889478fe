//! TLS: the server's certificate and whom it lets in, and the encrypted side of a connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use uringfs::{Buffer, Errno};

/// The certificate of a server, and which clients it lets in. Clones are the same.
///
/// ```no_run
/// use std::path::Path;
/// use uringfs_nbd::Tls;
///
/// # fn main() -> std::io::Result<()> {
/// // Clients need a certificate of these authorities.
/// let tls = Tls::from_files("server-cert.pem", "server-key.pem", Some(Path::new("ca-cert.pem")))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    config: Arc<Mutex<Arc<ServerConfig>>>,
}

impl Tls {
    /// From files in the format PEM: the certificate with those that lead to its authority, its private key, and the
    /// authorities whose clients are let in. Without these every client is.
    ///
    /// # Errors
    /// Those of reading the files. `InvalidData` for what is no certificate or no key, and a key that does not belong to the
    /// certificate. Each names its file. (Half of the keys of `certtool --ecc` have a wrong first byte, which only GnuTLS
    /// ignores: `openssl ec -in KEY -out NEW` corrects it.)
    pub fn from_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        client_authorities: Option<&Path>,
    ) -> io::Result<Tls> {
        let (certificate, key) = (certificate.as_ref(), key.as_ref());
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| of_pem(key, error))?;
        let provider = Arc::new(default_provider());
        // Otherwise the error of such a key would not name its file.
        let loaded = provider.key_provider.load_private_key(private.clone_key());
        loaded.map_err(|error| invalid(key, error))?;
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| invalid(path, error))?;
                }
                let roots = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder
                    .with_client_cert_verifier(roots.build().map_err(|error| invalid(path, error))?)
            }
        };
        let config = builder.with_single_cert(chain, private);
        let config = Arc::new(config.map_err(|error| invalid(certificate, error))?);
        Ok(Tls { config: Arc::new(Mutex::new(config)) })
    }

    /// Takes the certificate and the authorities of `other` for the connections that begin from now on, such as a certificate
    /// that was renewed. A server that has this one, or a clone, goes on meanwhile.
    pub fn replace(&self, other: &Tls) {
        let config = other.config();
        *self.config.lock() = config;
    }

    fn config(&self) -> Arc<ServerConfig> {
        self.config.lock().clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| of_pem(path, error))?;
    let certificates: Result<Vec<_>, _> = certificates.collect();
    let certificates = certificates.map_err(|error| of_pem(path, error))?;
    match certificates.is_empty() {
        true => Err(invalid(path, "has no certificate")),
        false => Ok(certificates),
    }
}

fn of_pem(path: &Path, error: pem::Error) -> io::Error {
    match error {
        pem::Error::Io(error) => {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        }
        error => invalid(path, error),
    }
}

fn invalid(path: &Path, why: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// One connection: bytes of the socket on one side, plain ones on the other.
pub(crate) struct Session {
    connection: ServerConnection,
    /// Bytes of the socket that are not decrypted yet, from `start` on: there is room for few plain ones.
    received: Buffer,
    start: usize,
}

impl Session {
    pub(crate) fn new(tls: &Tls) -> Result<Session, Errno> {
        let mut connection = ServerConnection::new(tls.config()).map_err(|_| Errno::PROTO)?;
        // The outbox never holds more than the requests under way.
        connection.set_buffer_limit(None);
        Ok(Session { connection, received: Buffer::zeroed(0), start: 0 })
    }

    /// The next plain bytes: how many of them are in `into` now. `None` if more bytes of the socket are needed.
    ///
    /// # Errors
    /// EPROTO for what is no TLS, and when the client ends the connection without a word, which an attacker could do, too.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match self.connection.reader().read(into) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Errno::PROTO),
            }
            if self.start == self.received.len() {
                return Ok(None);
            }
            self.decrypt()?;
        }
    }

    /// Takes bytes of the socket, once those before them are decrypted: during the handshake they are at once. None at its end.
    ///
    /// # Errors
    /// EPROTO for what is no TLS, and for a client that may not come in.
    pub(crate) fn receive(&mut self, bytes: Buffer) -> Result<(), Errno> {
        assert_eq!(self.start, self.received.len(), "bytes are decrypted in their order");
        (self.received, self.start) = (bytes, 0);
        self.decrypt()?;
        while self.is_shaking_hands() && self.start < self.received.len() {
            self.decrypt()?;
        }
        Ok(())
    }

    /// Decrypts some bytes.
    fn decrypt(&mut self) -> Result<(), Errno> {
        let mut bytes = &self.received[self.start..];
        self.connection.read_tls(&mut bytes).map_err(|_| Errno::PROTO)?;
        self.start = self.received.len() - bytes.len();
        self.connection.process_new_packets().map_err(|_| Errno::PROTO)?;
        Ok(())
    }

    /// Encrypts bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.connection.writer().write_all(bytes).map_err(|_| Errno::PROTO)
    }

    /// The bytes to send: encrypted ones, and those of the handshake.
    pub(crate) fn take_output(&mut self) -> Vec<Buffer> {
        let mut output = Vec::new();
        while self.connection.wants_write() {
            // A vector takes all.
            let _ = self.connection.write_tls(&mut output);
        }
        match output.is_empty() {
            true => Vec::new(),
            false => {
                let mut buffer = Buffer::aligned(output.len(), 8);
                buffer.copy_from_slice(&output);
                vec![buffer]
            }
        }
    }

    /// The last bytes that are sent.
    pub(crate) fn end(&mut self) -> Vec<Buffer> {
        self.connection.send_close_notify();
        self.take_output()
    }

    /// Whether the handshake goes on, and needs more bytes of the socket.
    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.connection.is_handshaking()
    }
}
