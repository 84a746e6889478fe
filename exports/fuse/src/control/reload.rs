//! [`ReloadServer`]: takes requests to reload a configuration at a control socket. One thread serves one client after the other; each
//! has five seconds for its lines.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde_json::{Value, json};
use uringfs::Errno;

use super::place::ControlSocket;
use super::protocol::{Heard, Request, failure, result};
use super::server::{Connection, send};

/// How long new clients wait after one could not be accepted.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Serves a control socket until it is dropped.
pub struct ReloadServer {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl ReloadServer {
    /// Calls `reload` for each request of root, or of this process's user. Its error is one line.
    ///
    /// # Errors
    /// When there is no descriptor or no thread.
    pub fn start(
        socket: ControlSocket,
        mut reload: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> io::Result<ReloadServer> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let builder = thread::Builder::new().name("uringfs-control".to_owned());
        let thread = builder.spawn(move || {
            while let Some(client) = accept(&socket, &stopped) {
                serve(client, &stopped, &mut reload);
            }
        })?;
        Ok(ReloadServer { stop, thread: Some(thread) })
    }
}

impl Drop for ReloadServer {
    fn drop(&mut self) {
        // An eventfd that nothing has written to takes it.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for ReloadServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ReloadServer")
    }
}

/// The next client. `None`: the server ends.
fn accept(socket: &ControlSocket, stop: &OwnedFd) -> Option<Connection> {
    loop {
        if !is_readable(&socket.listener, stop, None)? {
            continue;
        }
        match socket.listener.accept() {
            Ok((stream, _)) => match Connection::begin(stream) {
                Some(client) => return Some(client),
                None => continue,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Most often there is no descriptor left.
            Err(_) => {
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&ACCEPT_PAUSE));
            }
        }
    }
}

fn serve(mut client: Connection, stop: &OwnedFd, reload: &mut impl FnMut() -> Result<(), String>) {
    let reply = loop {
        let mut bytes = [0; 4096];
        match is_readable(&client.stream, stop, Some(client.until)) {
            Some(true) => {}
            _ => return,
        }
        let length = match (&client.stream).read(&mut bytes) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        match client.received.push(&bytes[..length]) {
            Heard::Incomplete => {}
            Heard::Request(Request::Reload) => break reply(reload()),
            Heard::Request(_) => {
                let what = "its server has several volumes and disks, and takes no commands for one of them: use the \
                            files below the mount point";
                break failure(what, Errno::OPNOTSUPP.raw_os_error());
            }
            Heard::Refused(reason) => break failure(&reason, Errno::PROTO.raw_os_error()),
        }
    };
    send(&client.stream, &reply);
}

fn reply(reloaded: Result<(), String>) -> Value {
    match reloaded {
        Ok(()) => result(json!({})),
        Err(reason) => failure(&reason, Errno::INVAL.raw_os_error()),
    }
}

/// Waits for bytes or a connection. False: the time is over. `None`: the server ends.
fn is_readable(source: &impl AsFd, stop: &OwnedFd, until: Option<Instant>) -> Option<bool> {
    let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
    let rest = rest.map(|rest| rest.try_into().expect("a short time"));
    let mut watched = [PollFd::new(stop, PollFlags::IN), PollFd::new(source, PollFlags::IN)];
    // EINTR: nothing is readable.
    let _ = poll(&mut watched, rest.as_ref());
    match watched[0].revents().is_empty() {
        true => Some(!watched[1].revents().is_empty()),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};

    use super::super::protocol::hello;
    use super::*;

    fn serve(place: &Path, reload: fn() -> Result<(), String>) -> (ReloadServer, PathBuf) {
        let socket = ControlSocket::bind_in(place).unwrap();
        let path = place.join(std::process::id().to_string()).join("control");
        (ReloadServer::start(socket, reload).unwrap(), path)
    }

    fn call(path: &Path, request: &str) -> Value {
        let mut stream = UnixStream::connect(path).unwrap();
        write!(stream, "{}\n{request}\n", hello()).unwrap();
        let line = BufReader::new(stream).lines().last().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_reload_is_done_or_its_reason_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (server, path) = serve(folder.path(), || Ok(()));
        assert_eq!(call(&path, r#"{"request":"reload"}"#), json!({"result": {}}));
        let busy = call(&path, r#"{"request":"space"}"#);
        assert_eq!(busy["errno"], Errno::OPNOTSUPP.raw_os_error());
        assert_eq!(call(&path, "{}")["errno"], Errno::PROTO.raw_os_error());
        drop(server);
        assert!(!path.exists());
        let (_server, path) = serve(folder.path(), || Err("line 7".into()));
        assert_eq!(call(&path, r#"{"request":"reload"}"#)["error"], "line 7");
    }

    #[test]
    fn a_client_that_says_nothing_does_not_hold_up_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (server, path) = serve(folder.path(), || Ok(()));
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut greeting = [0; 10];
        stream.read_exact(&mut greeting).unwrap();
        drop(server);
        assert!(!path.exists());
    }
}
