//! `uringfs serve nbd`, and the tables `[[nbd]]` of a configuration: serve disks by the NBD protocol.

use super::super::bounded::Bounded;
use super::super::exit_codes::with_io_code;
use super::disks::{Disk, DiskOptions, Disks};
use super::metrics::{Kind, Metric, metric};
use super::problem::Problem;
use super::service::{Context, Service};
use super::socket::{GroupId, Mode};
use crate::output::print_error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uringfs_lab::Error;
use uringfs_nbd::{Export, Exports, Server, ServerOptions, Tls};

/// The port of NBD.
const PORT: u16 = 10809;

/// The options of the command, and the keys of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[command(group = clap::ArgGroup::new("listen").args(["unix", "tcp"]).required(true).multiple(true))]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// The disks: TARGET:/path is a file in a volume; TARGET alone is a whole file, a block device or memory:SIZE
    #[arg(required = true, value_name = "TARGET[:/path]")]
    pub(super) targets: Vec<PathBuf>,

    /// Listen on this Unix socket
    #[arg(long, value_name = "SOCK")]
    pub(super) unix: Option<PathBuf>,

    /// Listen on this TCP address, on port 10809 if none is given. Without TLS it must be one of this machine alone, or --insecure
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(super) tcp: Option<String>,

    /// Let --tcp and --metrics listen without TLS on an address that other machines reach: they can read and write the disks
    #[arg(long)]
    pub(super) insecure: bool,

    /// Serve --tcp over TLS, and in no other way, with the certificate in this file, in the format PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Let only clients in that have a certificate of an authority in this file
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// The permissions of the Unix socket, in octal
    #[arg(long, value_name = "MODE", default_value_t)]
    mode: Mode,

    /// The group of the Unix socket, by its name or its number. --mode 660 lets it in
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupId>,

    /// Refuse every change
    #[arg(short, long)]
    pub(super) read_only: bool,

    /// The name of the disk. Without it, the last name of its path
    #[arg(short, long)]
    name: Option<String>,

    /// Serve each file of the directories that are named
    #[arg(short, long)]
    all: bool,

    /// Where bytes are cached in this machine: nowhere, or in the page cache of the volume
    #[arg(long, value_name = "WHERE", default_value = "none")]
    cache: CacheChoice,

    /// Threads that serve connections [default: one a processor, at most 8]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<Bounded<64>>,

    /// The most connections at a time [default: 4096]
    #[arg(long, value_name = "NUMBER")]
    max_connections: Option<Bounded<16000>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CacheChoice {
    /// Clients cache themselves.
    #[default]
    None,
    /// In the page cache of the volume.
    Volume,
}

impl Options {
    /// Refuses options that do not go together.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let (has_tcp, has_cert) = (self.tcp.is_some(), self.tls_cert.is_some());
        Problem::first(&[
            ("targets", self.targets.is_empty(), "name a disk"),
            ("unix", self.unix.is_none() && !has_tcp, "name a socket, or an address by --tcp"),
            ("group", self.group.is_some() && self.unix.is_none(), "only with --unix"),
            ("tls-cert", has_cert && self.tls_key.is_none(), "only with --tls-key"),
            ("tls-cert", has_cert && !has_tcp, "only with --tcp"),
            ("tls-key", self.tls_key.is_some() && !has_cert, "only with --tls-cert"),
            ("tls-ca", self.tls_ca.is_some() && !has_cert, "only with --tls-cert"),
            ("name", self.name.is_some() && self.all, "not with --all"),
            (
                "name",
                self.name.is_some() && self.targets.len() > 1,
                "it is the name of one disk; name one target",
            ),
        ])
    }

    /// The same server with other disks is another set of these.
    fn without_disks(&self) -> Options {
        Options { targets: Vec::new(), name: None, all: false, ..self.clone() }
    }

    fn open_disks(&self, context: &mut Context) -> Result<Vec<Disk>, Problem> {
        let unix = self.unix.as_ref().map(|path| path.to_string_lossy().into_owned());
        let options = DiskOptions {
            protocol: "nbd",
            address: unix.or_else(|| self.tcp.clone()),
            read_only: self.read_only,
            is_cached: self.cache == CacheChoice::Volume,
            directory_advice: "--all serves the files in it",
        };
        let mut disks = Disks::new(options, &mut context.targets);
        for target in &self.targets {
            let added = match self.all {
                true => disks.add_all(target.as_os_str()),
                false => disks.add(target.as_os_str(), self.name.as_deref()),
            };
            added.map_err(Problem::of("targets"))?;
        }
        Ok(disks.into_vec())
    }

    /// What clients of TCP have to use.
    fn tls(&self) -> Result<Option<Tls>, Problem> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let tls = Tls::from_files(certificate, key, self.tls_ca.as_deref());
        let failed = |error: std::io::Error| with_io_code(Error::input(error.to_string()), &error);
        tls.map(Some).map_err(failed).map_err(Problem::of("tls-cert"))
    }
}

/// A server that has all that it needs. Clients that connect meanwhile wait.
pub(super) struct NbdServer {
    pub(super) options: Options,
    pub(super) disks: Vec<Disk>,
    exports: Exports,
    tls: Option<Tls>,
    /// The beginnings and the ends of the URIs of its disks.
    uris: Vec<(String, String)>,
}

/// What a reload changes of a server that goes on.
pub(super) struct Update {
    options: Options,
    disks: Vec<Disk>,
    /// Of the files as they are now.
    tls: Option<Tls>,
}

impl NbdServer {
    /// Opens the disks and the sockets, and returns the server with its service, which has not begun.
    pub(super) fn prepare(
        options: &Options,
        context: &mut Context,
    ) -> Result<(NbdServer, Service), Problem> {
        options.check()?;
        allow_descriptors();
        let disks = options.open_disks(context)?;
        let exports = Exports::new();
        for disk in &disks {
            add(&exports, disk, options.read_only)?;
        }
        let mut server_options = ServerOptions::new();
        if let Some(threads) = options.threads {
            server_options = server_options.threads(threads.get());
        }
        if let Some(most) = options.max_connections {
            server_options = server_options.max_connections(most.get());
        }
        let failed = |error: std::io::Error| Error::run("cannot serve").because(error);
        let server = Server::new(exports.clone(), server_options);
        let mut server = server.map_err(failed).map_err(Problem::of("targets"))?;
        let (mut uris, mut sockets) = (Vec::new(), Vec::new());
        if let Some(path) = &options.unix {
            let socket = context.sockets.unix("unix", path, options.mode, options.group)?;
            server.listen_unix(socket.unix_listener().map_err(Problem::of("unix"))?);
            uris.push(unix_uri(path));
            sockets.push(socket);
        }
        let tls = options.tls()?;
        if let Some(address) = &options.tcp {
            let is_open = options.insecure || tls.is_some();
            let socket = context.sockets.tcp("tcp", address, PORT, is_open, OPEN_ADVICE)?;
            let (listener, local) = socket.tcp_listener().map_err(Problem::of("tcp"))?;
            uris.push(tcp_uri(if tls.is_some() { "nbds" } else { "nbd" }, local));
            match &tls {
                Some(tls) => server.listen_tls(listener, tls.clone()),
                None => server.listen_tcp(listener),
            }
            sockets.push(socket);
        }
        let stopper = server.stopper();
        let serve = move || {
            // Removed with their last server, also with one that has failed.
            let _sockets = sockets;
            server.serve()
        };
        let service = Service::new("uringfs-nbd", serve, move || stopper.stop());
        Ok((NbdServer { options: options.clone(), disks, exports, tls, uris }, service))
    }

    /// Opens the disks of other options, and reads the files of TLS again. `None` if these are of another server.
    pub(super) fn prepare_update(
        &self,
        options: &Options,
        context: &mut Context,
    ) -> Result<Option<Update>, Problem> {
        if self.options.without_disks() != options.without_disks() {
            return Ok(None);
        }
        let (tls, disks) = (options.tls()?, options.open_disks(context)?);
        Ok(Some(Update { options: options.clone(), disks, tls }))
    }

    /// Serves the new disks instead of those that are not among them. The clients of the others notice nothing; new ones
    /// meet the new certificate. Returns the lines of the new disks, and those that are no longer served, once their last
    /// request is answered.
    pub(super) fn update(&mut self, update: Update) -> (String, Vec<Disk>) {
        let Update { options, disks, tls } = update;
        if let (Some(old), Some(new)) = (&self.tls, &tls) {
            old.replace(new);
        }
        self.options = options;
        let is_in = |disks: &[Disk], disk: &Disk| disks.iter().any(|other| other.is_same(disk));
        let old = std::mem::take(&mut self.disks);
        let (kept, gone): (Vec<_>, Vec<_>) = old.into_iter().partition(|disk| is_in(&disks, disk));
        for disk in &gone {
            self.exports.remove_and_wait(disk.name());
        }
        let new: Vec<_> = disks.into_iter().filter(|disk| !is_in(&kept, disk)).collect();
        for disk in &new {
            if let Err(problem) = add(&self.exports, disk, self.options.read_only) {
                print_error(&problem.error.to_string());
            }
        }
        let lines = self.lines_of(&new);
        self.disks = kept;
        self.disks.extend(new);
        (lines, gone)
    }

    /// The disks of a server that has ended.
    pub(super) fn into_disks(self) -> Vec<Disk> {
        self.disks
    }

    /// A line for each disk and socket.
    pub(super) fn lines(&self) -> String {
        self.lines_of(&self.disks)
    }

    fn lines_of(&self, disks: &[Disk]) -> String {
        let with = |(begin, end): &(String, String), disk: &Disk| {
            format!("{begin}{}{end}\n", percent_encoded(disk.name().as_bytes()))
        };
        let lines = self.uris.iter().flat_map(|uri| disks.iter().map(move |it| with(uri, it)));
        lines.collect()
    }
}

const CONNECTIONS: Metric =
    metric("uringfs_disk_connections", Kind::Gauge, "Connections of clients to the disk.");

const OPEN_ADVICE: &str = "every program that reaches this address could read and write the disks; \
     use --tls-cert with --tls-ca, a tunnel to 127.0.0.1, or --insecure";

fn add(exports: &Exports, disk: &Disk, read_only: bool) -> Result<(), Problem> {
    let export = Export::new(disk.name(), disk.file().clone())
        .description(disk.description())
        .read_only(read_only);
    let failed = |errno| Error::input(format!("{}: {errno}", disk.description()));
    exports.add(export).map_err(failed).map_err(Problem::of("targets"))?;
    let (exports, name) = (exports.clone(), disk.name().to_owned());
    disk.show(move |page, labels| {
        page.add(&CONNECTIONS, labels, exports.connections(&name) as u64);
        page.add_requests(labels, &exports.counts(&name));
    });
    Ok(())
}

/// Raises the limit of open files, which each connection is one of, as far as it goes.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What stands before the name of a disk in its URI, and after it.
fn unix_uri(socket: &Path) -> (String, String) {
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let socket = percent_encoded(socket.as_os_str().as_bytes());
    ("nbd+unix:///".to_owned(), format!("?socket={socket}"))
}

fn tcp_uri(scheme: &str, address: SocketAddr) -> (String, String) {
    (format!("{scheme}://{address}/"), String::new())
}

/// Bytes as a URI has them in its path and its query.
fn percent_encoded(bytes: &[u8]) -> String {
    let encode = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(*byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    bytes.iter().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_encoded() {
        assert_eq!(percent_encoded("a b/é".as_bytes()), "a%20b/%C3%A9");
        let (begin, end) = unix_uri(Path::new("/run/so ck?"));
        assert_eq!((&*begin, &*end), ("nbd+unix:///", "?socket=/run/so%20ck%3F"));
        let (begin, end) = tcp_uri("nbd", "[::1]:7".parse().unwrap());
        assert_eq!((&*begin, &*end), ("nbd://[::1]:7/", ""));
    }
}
