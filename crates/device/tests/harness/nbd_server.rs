//! Servers of other projects. The test makes the socket, so that a client may connect before the server has started, and
//! while it is restarted.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use uringfs_device::backend::nbd::NbdTarget;

/// A server, which is killed when it is dropped.
pub struct NbdServer {
    listener: OwnedFd,
    socket: PathBuf,
    address: Option<SocketAddr>,
    command: String,
    child: Option<Child>,
}

impl NbdServer {
    /// Starts `command` in a shell, for a socket in `folder`.
    pub fn start(folder: &Path, command: &str) -> NbdServer {
        let socket = folder.join("nbd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        NbdServer::on(listener.into(), socket, None, command)
    }

    /// The same, for a port of this machine.
    pub fn start_on_tcp(folder: &Path, command: &str) -> NbdServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        NbdServer::on(listener.into(), folder.to_owned(), Some(address), command)
    }

    fn on(
        listener: OwnedFd,
        socket: PathBuf,
        address: Option<SocketAddr>,
        command: &str,
    ) -> NbdServer {
        let command = command.to_owned();
        let mut server = NbdServer { listener, socket, address, command, child: None };
        server.restart();
        server
    }

    /// The export `name`.
    pub fn target(&self, name: &str) -> NbdTarget {
        NbdTarget::unix(&self.socket, name)
    }

    /// That of TCP.
    pub fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    /// Kills it. Connections break.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        self.kill();
        // Descriptor 3 is the socket, as systemd passes it.
        let script =
            format!("export LISTEN_PID=$$ LISTEN_FDS=1; exec {} 3<&0 </dev/null", self.command);
        let listener = self.listener.try_clone().unwrap();
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::from(File::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
