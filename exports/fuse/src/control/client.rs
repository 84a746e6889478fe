//! [`Client`]: a program that asks the server of a volume.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use serde_json::Value;
use uringfs::Error;
use uringfs::volume::{CheckReport, CheckStep, Holder};

use super::file_request::broken;
use super::online_check;
use super::place::socket_of;
use super::protocol::{MAX_REPLY_BYTES, Request, check_hello, hello, parse_reply};
use super::remote::RemoteFiles;

/// How long a server may take for a line. It answers at once, unless it was stopped.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the server of a volume, for one request.
#[derive(Debug)]
pub struct Client {
    process: u32,
    /// The lock of the volume that it asks about.
    volume: Option<String>,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the server that has the volume of a file or block device open. `None` if no process has it open, or one that
    /// is ending or has no control socket, or none for this user.
    ///
    /// # Errors
    /// If another process than the volume's server listens there, or one of another version; ETIMEDOUT.
    pub fn connect(target: impl AsRef<Path>) -> io::Result<Option<Client>> {
        match Holder::find(target) {
            Some(holder) => {
                let client = Client::of_process(holder.process())?;
                let volume = Some(holder.lock().to_owned());
                Ok(client.map(|client| Client { volume, ..client }))
            }
            None => Ok(None),
        }
    }

    /// Connects to a server by its process, about its only volume, or none. `None` if it is ending, or has no control socket, or none for this user.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn of_process(process: u32) -> io::Result<Option<Client>> {
        let Some(user) = user_of(process) else { return Ok(None) };
        let Some(path) = socket_of(process, user) else { return Ok(None) };
        let Ok(stream) = UnixStream::connect(path) else { return Ok(None) };
        let peer = socket_peercred(&stream)?;
        if peer.pid.as_raw_nonzero().get() as u32 != process || peer.uid.as_raw() != user {
            return Err(protocol_error("another process than the server has its socket"));
        }
        stream.set_read_timeout(Some(LINE_TIMEOUT))?;
        stream.set_write_timeout(Some(LINE_TIMEOUT))?;
        let mut client = Client { process, volume: None, stream: BufReader::new(stream) };
        let line = match client.read_line() {
            // It is ending, or was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            line => line?,
        };
        // A refusal comes instead of a hello.
        parse_reply(&line)?;
        check_hello(&line).map_err(protocol_error)?;
        Ok(Some(client))
    }

    /// The process of the server.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Sends the request, and returns its result.
    ///
    /// # Errors
    /// The error that the server reports, with its kind: NotFound if the server has the target open, but not as a
    /// volume, or is closing it. TimedOut if it does not answer. Another kind if its reply cannot be understood.
    pub fn call(mut self, request: Request) -> io::Result<Value> {
        self.send(request)?;
        let timeout = request.timeout().map(|longest| longest + LINE_TIMEOUT);
        self.stream.get_mut().set_read_timeout(timeout)?;
        self.read_result()
    }

    /// Checks the volume as one commit left it, while it is in use: as
    /// [`Volume::check_online`](uringfs::Volume::check_online). With `deep` it also reads every block that files use. The
    /// check stops when the client is dropped.
    ///
    /// # Errors
    /// As `Volume::check_online`; EBUSY while another check is under way; errors of the conversation.
    pub fn check(
        mut self,
        deep: bool,
        progress: &mut dyn FnMut(CheckStep, u64),
    ) -> Result<CheckReport, Error> {
        self.send(Request::Check { deep }).map_err(broken)?;
        // The pages of a large catalog take the device a while.
        self.stream.get_mut().set_read_timeout(None).map_err(broken)?;
        online_check::receive(|| self.read_line(), progress)
    }

    /// Begins a session about the files of the volume.
    ///
    /// # Errors
    /// As [`Self::call`]; EBUSY if the server has too many sessions.
    pub fn files(mut self) -> io::Result<RemoteFiles> {
        self.send(Request::Files)?;
        self.read_result()?;
        // A change waits while the volume is frozen, and a sync as long as the device takes.
        self.stream.get_mut().set_read_timeout(None)?;
        self.stream.get_mut().set_write_timeout(None)?;
        Ok(RemoteFiles::new(self.stream))
    }

    fn send(&mut self, request: Request) -> io::Result<()> {
        let lines = format!("{}\n{}\n", hello(self.volume.as_deref()), request.to_json());
        self.stream.get_mut().write_all(lines.as_bytes())
    }

    fn read_result(&mut self) -> io::Result<Value> {
        loop {
            if let Some(result) = parse_reply(&self.read_line()?)? {
                return Ok(result);
            }
        }
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(MAX_REPLY_BYTES as u64).read_until(b'\n', &mut line);
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"))
            }
            Err(error) => Err(error),
            Ok(_) if line.pop() != Some(b'\n') => {
                let what = "the server ended the conversation";
                Err(io::Error::new(io::ErrorKind::ConnectionReset, what))
            }
            Ok(_) => Ok(line),
        }
    }
}

fn protocol_error(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// The user of a process.
fn user_of(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // Real, effective, saved, of the file system.
    users.split_whitespace().nth(1)?.parse().ok()
}
