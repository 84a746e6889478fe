//! Opens an image, within a bounded time.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use uringfs_errno::Errno;
use uringfs_rbd::{
    Cluster, ConnectError, ConnectOptions, Image, ImageInfo, Library, OpenError, OpenMode,
};
use uringfs_ring::ForkDetector;

use super::opened::{BLOCK_SIZE, OpenedImage, whole_blocks};
use super::owner::Owner;
use super::target::{DEFAULT_LIFE, ImageCache, RbdTarget};
use crate::geometry::{Discard, Geometry};
use crate::interface::backend::Access;

/// The objects of an image have blocks of this size.
const PHYSICAL_BLOCK_SIZE: u32 = 4096;

/// The longest transfer, of an image with larger objects.
const MAX_TRANSFER: u64 = 32 << 20;

/// The longest discard or zeroing.
const MAX_CLEAR: u64 = 1 << 30;

/// How long a client is shut out whose process has ended: for what of it may still be on its way.
const ENDED_LIFE: Duration = Duration::from_secs(60 * 60);

/// The most abandoned openings in progress.
const MAX_ABANDONED: usize = 8;
static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// How much longer the thread is waited for than it waits for monitors, of whose silence it says more.
const MARGIN: Duration = Duration::from_secs(2);

/// Opens an image. A thread does it, since some calls of the library wait for storage daemons for as long as these are away.
/// After the timeout the opening is abandoned: the thread ends as soon as they answer, and changes no lock from then on.
pub(super) fn open(target: &RbdTarget, access: Access) -> io::Result<OpenedImage> {
    let library = Library::load()
        .map_err(|error| io::Error::new(ErrorKind::NotFound, format!("{target}: {error}")))?;
    if ABANDONED.load(Ordering::Relaxed) >= MAX_ABANDONED {
        return Err(io::Error::new(
            ErrorKind::TimedOut,
            format!(
                "{target}: {MAX_ABANDONED} earlier openings still wait for the cluster; see `ceph -s`"
            ),
        ));
    }
    let (sender, receiver) = channel();
    let timeout = target.timeout;
    let is_over = Arc::new(AtomicBool::new(false));
    let opening = Opening { target: target.clone(), access, is_over: is_over.clone() };
    let work = move || {
        let opened = opening.open(library);
        if opening.is_over.swap(true, Ordering::Relaxed) {
            drop(opened);
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        } else {
            // The other side waits for it.
            let _ = sender.send(opened);
        }
    };
    thread::Builder::new().name("uringfs-rbd-open".into()).spawn(work)?;
    match receiver.recv_timeout(timeout + MARGIN) {
        Ok(opened) => opened,
        Err(RecvTimeoutError::Timeout) => {
            // Before the thread can subtract it.
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            if is_over.swap(true, Ordering::Relaxed) {
                // The thread has ended in time after all, and sends.
                ABANDONED.fetch_sub(1, Ordering::Relaxed);
                let lost = || io::Error::other(format!("{target}: opening the image has failed"));
                return receiver.recv().unwrap_or_else(|_| Err(lost()));
            }
            Err(io::Error::new(
                ErrorKind::TimedOut,
                format!(
                    "{target}: the cluster does not answer within {} s; see `ceph -s`, or give more time by timeout=SECONDS",
                    timeout.as_secs()
                ),
            ))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other(format!("{target}: opening the image has failed")))
        }
    }
}

/// What a thread opens.
struct Opening {
    target: RbdTarget,
    access: Access,
    /// Set by the first of both: the thread that has opened, and the caller that abandons the opening.
    is_over: Arc<AtomicBool>,
}

impl Opening {
    fn open(&self, library: Library) -> io::Result<OpenedImage> {
        let cluster = self.connect(library)?;
        let writes = self.access == Access::ReadWrite;
        if writes && let Some(snapshot) = self.target.snapshot() {
            return Err(self.refuse(
                ErrorKind::ReadOnlyFilesystem,
                format!("the snapshot {snapshot} cannot be written; use it for reading only"),
            ));
        }
        let mode = if writes { OpenMode::ReadWrite } else { OpenMode::Read };
        let open = || {
            Image::open(&cluster, &self.target.name, mode).map_err(|error| self.explain_open(error))
        };
        let mut image = open()?;
        if writes {
            self.require_lock_feature(&image)?;
            if self.fence(&image, &cluster)? {
                // What was read before may have changed until then.
                drop(image);
                image = open()?;
            }
            self.lock(&image)?;
        }
        let info = image.info().map_err(|errno| self.failed("asking for its size", errno))?;
        let geometry = self.geometry(&image, &info)?;
        let size = Arc::new(AtomicU64::new(geometry.size));
        let noted = size.clone();
        // librbd tells readers nothing.
        if writes {
            image
                .watch_size(move |bytes| noted.store(whole_blocks(bytes), Ordering::Relaxed))
                .map_err(|errno| self.failed("watching its size", errno))?;
        }
        let (is_lost, fork) = (AtomicBool::new(false), ForkDetector::default());
        let name = self.target.name.clone();
        Ok(OpenedImage { geometry, cluster, image, name, size, is_lost, fork })
    }

    fn connect(&self, library: Library) -> io::Result<Arc<Cluster>> {
        let RbdTarget { config, client, cache, timeout, .. } = &self.target;
        let cache = if *cache == ImageCache::On { "true" } else { "false" };
        // What is durable says librbd's own cache alone.
        let settings =
            [("rbd_cache", cache), ("rbd_plugins", ""), ("rbd_persistent_cache_mode", "disabled")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let options = ConnectOptions {
            config: config.clone(),
            name: client.clone(),
            settings,
            timeout: *timeout,
        };
        Cluster::connect(library, &options).map_err(|error| self.explain_connect(error))
    }

    fn require_lock_feature(&self, image: &Image) -> io::Result<()> {
        let info = image.info().map_err(|errno| self.failed("asking for its features", errno))?;
        match info.features.has_exclusive_lock() {
            true => Ok(()),
            false => Err(self.refuse(
                ErrorKind::Unsupported,
                "the image has no exclusive lock, by which one writer excludes others; \
                 run `rbd feature enable POOL/IMAGE exclusive-lock`"
                    .into(),
            )),
        }
    }

    /// Shuts the client out that has the exclusive lock, if its process has ended or the image is to be taken from it. Returns
    /// whether it did.
    fn fence(&self, image: &Image, cluster: &Cluster) -> io::Result<bool> {
        let asking = |errno| match errno {
            Errno::BUSY => self.refuse(
                ErrorKind::ResourceBusy,
                "the image has a lock that was set by hand; see `rbd lock ls`, and remove it"
                    .into(),
            ),
            errno => self.failed("asking for the owner of the image's exclusive lock", errno),
        };
        let Some(owner) = Owner::find(image).map_err(asking)? else { return Ok(false) };
        let life = match (self.target.take_over, owner.has_ended()) {
            (_, true) => ENDED_LIFE,
            (Some(life), false) => life,
            (None, false) => {
                let watchers = image.watchers().map_err(asking)?;
                match watchers.contains(&owner.address) {
                    true => return Err(self.owned(&owner)),
                    // The cluster has not heard of it for a while: it has died, or is stopped, or cannot be reached.
                    false => DEFAULT_LIFE,
                }
            }
        };
        self.require_wanted()?;
        self.forget_older_entry(cluster, &owner)?;
        cluster.blocklist(&owner.address, life).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => self.refuse(
                ErrorKind::PermissionDenied,
                format!("the client may shut out no other ({errno}); give it the capability mon 'profile rbd'"),
            ),
            errno => self.failed("shutting the owner of the image out", errno),
        })?;
        match image.break_lock(&owner.address) {
            // Gone by itself.
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::BUSY | Errno::AGAIN) => Err(self.refuse(
                ErrorKind::ResourceBusy,
                "another client has taken the image at the same time; try again".into(),
            )),
            Err(errno) => {
                Err(self.failed("taking the image's exclusive lock from its owner", errno))
            }
        }
    }

    /// Removes an entry of the owner on the blocklist, which would keep its time. The owner still has the lock, so no other
    /// client relies on the entry.
    fn forget_older_entry(&self, cluster: &Cluster, owner: &Owner) -> io::Result<()> {
        // A client that may not see the list may add to it nevertheless.
        if !cluster.blocklisted().is_ok_and(|all| all.contains(&owner.address)) {
            return Ok(());
        }
        let address = &owner.address;
        cluster.remove_from_blocklist(address).map_err(|errno| {
            self.refuse(
                errno.kind(),
                format!(
                    "{owner} is on the blocklist already, and the client may not change its entry ({errno}); \
                     run `ceph osd blocklist rm {address}`, and try again"
                ),
            )
        })
    }

    /// Ends an abandoned opening before it changes a lock.
    fn require_wanted(&self) -> io::Result<()> {
        match self.is_over.load(Ordering::Relaxed) {
            true => Err(self.refuse(ErrorKind::TimedOut, "the opening was abandoned".into())),
            false => Ok(()),
        }
    }

    /// Takes the exclusive lock.
    fn lock(&self, image: &Image) -> io::Result<()> {
        self.require_wanted()?;
        if let Err(errno) = image.acquire_lock() {
            return Err(match (errno, Owner::find(image)) {
                (Errno::ROFS | Errno::BUSY | Errno::AGAIN, Ok(Some(owner))) => self.owned(&owner),
                _ => self.failed("taking the image's exclusive lock", errno),
            });
        }
        Owner::announce(image).map_err(|errno| self.failed("noting the owner", errno))
    }

    fn owned(&self, owner: &Owner) -> io::Error {
        self.refuse(
            ErrorKind::ResourceBusy,
            format!(
                "{owner} has the image's exclusive lock; end that program first, or, if it cannot be reached, take the image \
                 from it with the option take-over"
            ),
        )
    }

    fn geometry(&self, image: &Image, info: &ImageInfo) -> io::Result<Geometry> {
        let ImageInfo { size, object_size, stripe_unit, .. } = *info;
        let size = whole_blocks(size);
        if size == 0 || size > i64::MAX as u64 {
            return Err(self.refuse(
                ErrorKind::InvalidData,
                format!(
                    "the image has {size} bytes, which no device has; resize it, or name another"
                ),
            ));
        }
        // The configuration of the image or of its pool may say something else than this client.
        let cache = image
            .setting("rbd_cache")
            .map_err(|errno| self.failed("asking for its cache", errno))?;
        let has_cache = cache != "false";
        let whole = object_size.min(stripe_unit).min(MAX_TRANSFER);
        let granularity = image.setting("rbd_discard_granularity_bytes").ok();
        let granularity = granularity.and_then(|bytes| bytes.parse::<u32>().ok());
        let granularity = granularity.unwrap_or(0).max(PHYSICAL_BLOCK_SIZE);
        Ok(Geometry {
            size,
            block_size: BLOCK_SIZE,
            physical_block_size: PHYSICAL_BLOCK_SIZE,
            memory_alignment: 1,
            max_transfer: whole.max(u64::from(PHYSICAL_BLOCK_SIZE)) as u32,
            volatile_cache: has_cache,
            fua: !has_cache,
            durable_writes: !has_cache,
            discard: Some(Discard { granularity, max_bytes: MAX_CLEAR }),
            write_zeroes: true,
            read_only: self.access == Access::Read,
            rotational: false,
            direct: true,
        })
    }

    fn refuse(&self, kind: ErrorKind, text: String) -> io::Error {
        io::Error::new(kind, format!("{}: {text}", self.target))
    }

    fn failed(&self, what: &str, errno: Errno) -> io::Error {
        self.refuse(errno.kind(), format!("{what}: {errno}; see `ceph -s`"))
    }

    fn explain_connect(&self, error: ConnectError) -> io::Error {
        let client = self.target.client.as_deref().unwrap_or("admin");
        let (kind, text) = match &error {
            ConnectError::Configuration(errno) => {
                let file = match &self.target.config {
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
                    self.target.timeout.as_secs()
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
        let name = &self.target;
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
