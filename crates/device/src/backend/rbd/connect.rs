//! Connects to the cluster of an image, and opens the image. Errors are one line, with the name and what to do.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use uringfs_errno::Errno;
use uringfs_rbd::{Cluster, ConnectError, ConnectOptions, Image, Library, OpenError, OpenMode};

use super::target::{ImageCache, RbdTarget};

impl RbdTarget {
    /// Connects. Only requests of a writer time out, and commands to the monitors: what is abandoned must not be executed later.
    pub(super) fn connect(&self, library: Library, writes: bool) -> io::Result<Arc<Cluster>> {
        let RbdTarget { config, client, cache, timeout, request_timeout, .. } = self;
        let cache = if *cache == ImageCache::On { "true" } else { "false" };
        let request_timeout = request_timeout.filter(|_| writes).unwrap_or_default();
        let request_timeout = request_timeout.as_secs().to_string();
        let command_timeout = timeout.as_secs().max(1).to_string();
        // Only librbd's own cache decides what is durable, and requests time out only if this device asks for it. An object map
        // whose update has timed out stays valid: a new client updates it. librbd shuts clients out whose locks it breaks, for
        // the cluster's time: the monitors refuse the command in which librbd 16 names another.
        let settings = [
            ("rbd_cache", cache),
            ("rbd_plugins", ""),
            ("rbd_persistent_cache_mode", "disabled"),
            ("rados_osd_op_timeout", &request_timeout),
            ("rados_mon_op_timeout", &command_timeout),
            ("rbd_invalidate_object_map_on_timeout", "false"),
            ("rbd_blocklist_on_break_lock", "true"),
            ("rbd_blocklist_expire_seconds", "0"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let options = ConnectOptions {
            config: config.clone(),
            name: client.clone(),
            settings,
            timeout: *timeout,
        };
        Cluster::connect(library, &options).map_err(|error| self.explain_connect(error))
    }

    pub(super) fn open_image(&self, cluster: &Arc<Cluster>, mode: OpenMode) -> io::Result<Image> {
        Image::open(cluster, &self.name, mode).map_err(|error| self.explain_open(error))
    }

    pub(super) fn refuse(&self, kind: ErrorKind, text: String) -> io::Error {
        io::Error::new(kind, format!("{self}: {text}"))
    }

    pub(super) fn failed(&self, what: &str, errno: Errno) -> io::Error {
        self.refuse(errno.kind(), format!("{what}: {errno}; see `ceph -s`"))
    }

    fn explain_connect(&self, error: ConnectError) -> io::Error {
        let client = self.client.as_deref().unwrap_or("admin");
        let (kind, text) = match &error {
            ConnectError::Configuration(errno) => {
                let file = match &self.config {
                    Some(path) => path.display().to_string(),
                    None => "of Ceph ($CEPH_CONF, or /etc/ceph/ceph.conf)".into(),
                };
                (
                    errno.kind(),
                    format!(
                        "the configuration {file} cannot be read ({errno}); name one by conf=FILE"
                    ),
                )
            }
            ConnectError::Setting(name, errno) => (
                ErrorKind::Unsupported,
                format!(
                    "the library refuses the setting {name} ({errno}); install Ceph 16 or newer"
                ),
            ),
            ConnectError::Connect(Errno::TIMEDOUT) => (
                ErrorKind::TimedOut,
                format!(
                    "no monitor of the cluster answers within {} s; check `mon host` in the configuration, and that one runs",
                    self.timeout.as_secs()
                ),
            ),
            ConnectError::Connect(Errno::NOENT) => (
                ErrorKind::NotFound,
                format!(
                    "there is no key of client.{client}, or no monitor in the configuration; put its keyring beside that, or name another client by id=NAME"
                ),
            ),
            ConnectError::Connect(errno @ (Errno::ACCESS | Errno::PERM)) => (
                ErrorKind::PermissionDenied,
                format!(
                    "the cluster refuses client.{client} ({errno}); check its key with `ceph auth get client.{client}`"
                ),
            ),
            ConnectError::Connect(errno) => {
                (errno.kind(), format!("no connection to the cluster ({errno}); see `ceph -s`"))
            }
        };
        self.refuse(kind, text)
    }

    fn explain_open(&self, error: OpenError) -> io::Error {
        let name = self;
        let (pool, image) = (name.pool(), name.image());
        match error {
            OpenError::Pool(Errno::NOENT) => self.refuse(
                ErrorKind::NotFound,
                format!("the cluster has no pool {pool}; see `ceph osd pool ls`"),
            ),
            OpenError::Image(Errno::NOENT) => {
                let what = match name.snapshot() {
                    Some(snapshot) => format!("image {image} with a snapshot {snapshot}"),
                    None => format!("image {image}"),
                };
                let place = match name.namespace() {
                    "" => pool.to_owned(),
                    namespace => format!("{pool}/{namespace}"),
                };
                self.refuse(
                    ErrorKind::NotFound,
                    format!("the pool {place} has no {what}; see `rbd ls {place}`, or make it with `rbd create`"),
                )
            }
            OpenError::Image(errno @ (Errno::ACCESS | Errno::PERM))
            | OpenError::Pool(errno @ (Errno::ACCESS | Errno::PERM)) => self.refuse(
                ErrorKind::PermissionDenied,
                format!(
                    "the client may not use the image ({errno}); give it `profile rbd` for the pool"
                ),
            ),
            OpenError::Pool(errno) => self.failed("opening the pool", errno),
            OpenError::Image(errno) => self.failed("opening the image", errno),
        }
    }
}
