//! Opens an image, within a bounded time.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use uringfs_errno::Errno;
use uringfs_rbd::{BlocklistEntry, Cluster, Image, ImageInfo, Library, OpenMode};

use super::bounded::{IsOver, within_timeout};
use super::instance::Instance;
use super::lease::Lease;
use super::opened::{BLOCK_SIZE, OpenedImage, whole_blocks};
use super::owner::Owner;
use super::target::{DEFAULT_LIFE, RbdTarget, shown_life};
use crate::geometry::{Discard, Geometry};
use crate::interface::backend::Access;

/// The objects of an image have blocks of this size.
const PHYSICAL_BLOCK_SIZE: u32 = 4096;

/// The longest transfer, of an image with larger objects.
const MAX_TRANSFER: u64 = 32 << 20;

/// The longest discard or zeroing.
const MAX_CLEAR: u64 = 1 << 30;

/// How long a client whose process has ended is shut out: its requests may still be on their way.
const ENDED_LIFE: Duration = Duration::from_secs(60 * 60);

/// How long a process that was killed may take to end before the image counts as in use.
const ENDING: Duration = Duration::from_secs(1);

/// A client that is shut out for less than this must have a lease.
const MIN_LIFE_WITHOUT_LEASE: Duration = Duration::from_secs(60 * 60);

/// How much longer than its lease a client is shut out at least: requests may be on their way when its process ends.
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// Opens an image. Changes no lock after the target's timeout.
pub(super) fn open(target: &RbdTarget, access: Access) -> io::Result<OpenedImage> {
    let of_thread = target.clone();
    within_timeout(target, move |library, is_over| {
        Opening { target: &of_thread, access, is_over }.open(library)
    })
}

/// An image that a thread opens.
pub(super) struct Opening<'a> {
    pub(super) target: &'a RbdTarget,
    pub(super) access: Access,
    pub(super) is_over: &'a IsOver,
}

impl Opening<'_> {
    fn open(&self, library: Library) -> io::Result<OpenedImage> {
        let writes = self.access == Access::ReadWrite;
        let cluster = self.target.connect(library, writes)?;
        if writes && let Some(snapshot) = self.target.snapshot() {
            return Err(self.refuse(
                ErrorKind::ReadOnlyFilesystem,
                format!("the snapshot {snapshot} cannot be written; use it for reading only"),
            ));
        }
        let mode = if writes { OpenMode::ReadWrite } else { OpenMode::Read };
        let mut image = self.target.open_image(&cluster, mode)?;
        let (mut address, mut taken, mut lease) = (None, None, None);
        if writes {
            self.require_lock_feature(&image)?;
            taken = self.fence(&image, &cluster)?;
            if taken.is_some() {
                // State that was read before may have changed until then.
                drop(image);
                image = self.target.open_image(&cluster, mode)?;
            }
            lease = self.target.lease.map(|time| self.begin_lease(time)).transpose()?;
            address = Some(self.lock(&image)?);
        }
        let info = image.info().map_err(|errno| self.failed("asking for its size", errno))?;
        let geometry = self.geometry(&image, &info)?;
        let size = Arc::new(AtomicU64::new(geometry.size));
        // librbd tells readers nothing.
        if writes {
            watch_size(&mut image, &size)
                .map_err(|errno| self.failed("watching its size", errno))?;
        }
        let instance = Instance::new(cluster, image, address, 0);
        Ok(OpenedImage::new(self.target.clone(), geometry, size, instance, taken, lease))
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

    /// Shuts out the client that has the exclusive lock, if its process has ended or the image is to be taken from it.
    /// Returns which one, in words.
    fn fence(&self, image: &Image, cluster: &Cluster) -> io::Result<Option<String>> {
        let asking = |errno| match errno {
            Errno::BUSY => self.refuse(
                ErrorKind::ResourceBusy,
                "the image has a lock that was set by hand; see `rbd lock ls`, and remove it"
                    .into(),
            ),
            errno => self.failed("asking for the owner of the image's exclusive lock", errno),
        };
        let Some(owner) = Owner::find(image).map_err(asking)? else {
            return self.fence_last(image, cluster);
        };
        let patience = if self.target.take_over.is_some() { Duration::ZERO } else { ENDING };
        let life = match (self.target.take_over, owner.ends_within(patience)) {
            (_, true) => ENDED_LIFE,
            (Some(life), false) => {
                self.require_life(life, &owner)?;
                life
            }
            (None, false) => {
                let watchers = image.watchers().map_err(asking)?;
                match watchers.contains(&owner.address) {
                    true => return Err(self.owned(&owner)),
                    // The cluster has not heard of it for a while: it has died, or is stopped, or cannot be reached.
                    false => DEFAULT_LIFE,
                }
            }
        };
        let taken = self.shut_out(cluster, &owner, life)?;
        self.is_over.require_wanted(self.target)?;
        match image.break_lock(&owner.address) {
            // Gone by itself.
            Ok(()) | Err(Errno::NOENT) => Ok(Some(taken)),
            Err(Errno::BUSY | Errno::AGAIN) => Err(self.refuse(
                ErrorKind::ResourceBusy,
                "another client has taken the image at the same time; try again".into(),
            )),
            Err(errno) => {
                Err(self.failed("taking the image's exclusive lock from its owner", errno))
            }
        }
    }

    /// Shuts the last owner out for longer if it could outlast its entry on the blocklist: librbd, which breaks the lock of one
    /// that has died or is stopped by itself, as for a resize, has an entry of an hour. Returns as [`Self::fence`].
    pub(super) fn fence_last(
        &self,
        image: &Image,
        cluster: &Cluster,
    ) -> io::Result<Option<String>> {
        let last = Owner::announced(image)
            .map_err(|errno| self.failed("asking for the image's last owner", errno))?;
        let Some(owner) = last else { return Ok(None) };
        let all = self.blocklisted(cluster)?;
        let entry = all.iter().find(|entry| entry.address == owner.address);
        let outlasts = |entry| self.require_life(left(entry), &owner).is_err();
        if !entry.is_some_and(outlasts) || owner.ends_within(ENDING) {
            return Ok(None);
        }
        let life = self.target.take_over.unwrap_or(DEFAULT_LIFE);
        self.require_life(life, &owner)?;
        self.shut_out(cluster, &owner, life).map(Some)
    }

    /// Puts the owner on the blocklist. Returns in words from which one the image is taken.
    fn shut_out(&self, cluster: &Cluster, owner: &Owner, life: Duration) -> io::Result<String> {
        self.is_over.require_wanted(self.target)?;
        let life = self.forget_older_entry(cluster, owner, life)?;
        self.is_over.require_wanted(self.target)?;
        cluster.blocklist(&owner.address, life).map_err(|errno| match errno {
            Errno::ACCESS | Errno::PERM => self.refuse(
                ErrorKind::PermissionDenied,
                format!("the client may shut out no other ({errno}); give it the capability mon 'profile rbd'"),
            ),
            errno => self.failed("shutting the owner of the image out", errno),
        })?;
        Ok(format!("taken from {owner}, which is shut out for {}", shown_life(life)))
    }

    /// The blocklist; empty for a client that may not see it, which may add to it nevertheless.
    fn blocklisted(&self, cluster: &Cluster) -> io::Result<Vec<BlocklistEntry>> {
        match cluster.blocklisted() {
            Err(Errno::ACCESS | Errno::PERM) => Ok(Vec::new()),
            all => all.map_err(|errno| self.target.explain_blocklist(errno)),
        }
    }

    /// Refuses a life that a stopped owner could outlast, whose last requests would then reach the image.
    fn require_life(&self, life: Duration, owner: &Owner) -> io::Result<()> {
        let lease_ends = owner.lease().is_some_and(|lease| lease + LEASE_MARGIN <= life);
        if life >= MIN_LIFE_WITHOUT_LEASE || lease_ends {
            return Ok(());
        }
        let has = match owner.lease() {
            Some(lease) => format!("a lease of {}", shown_life(lease)),
            None => "no lease".into(),
        };
        Err(self.refuse(
            ErrorKind::InvalidInput,
            format!(
                "{owner} has {has}, so it could still write when it is no longer shut out; take the image for 1h or more, or \
                 leave the time out"
            ),
        ))
    }

    /// Removes an entry of the owner on the blocklist that ends earlier, and would keep its time. Returns for how long the owner
    /// is to be shut out: for as long as that entry is there, if this client may not remove it and that is long enough.
    fn forget_older_entry(
        &self,
        cluster: &Cluster,
        owner: &Owner,
        life: Duration,
    ) -> io::Result<Duration> {
        let now = SystemTime::now();
        let is_older = |entry: &BlocklistEntry| {
            entry.address == owner.address && entry.ends().is_none_or(|found| found < now + life)
        };
        let all = self.blocklisted(cluster)?;
        let Some(older) = all.into_iter().find(is_older) else { return Ok(life) };
        let left = left(&older);
        let address = &owner.address;
        match cluster.remove_from_blocklist(address) {
            Ok(()) => Ok(life),
            Err(Errno::ACCESS | Errno::PERM) if self.require_life(left, owner).is_ok() => Ok(left),
            Err(errno) => Err(self.refuse(
                errno.kind(),
                format!(
                    "{owner} is on the blocklist already, and the client may not change its entry ({errno}); \
                     run `ceph osd blocklist rm {address}`, and try again"
                ),
            )),
        }
    }

    fn begin_lease(&self, time: Duration) -> io::Result<Lease> {
        if std::process::id() == 1 {
            // The kernel does not deliver it the signal.
            return Err(self.refuse(
                ErrorKind::Unsupported,
                "no timer kills the first process of a container, so it has no lease; start it below an init, such as \
                 that of `docker run --init`"
                    .into(),
            ));
        }
        Lease::begin(time).map_err(|errno| self.failed("beginning the lease", errno))
    }

    /// Takes the exclusive lock. Returns the address of the client that has it now.
    fn lock(&self, image: &Image) -> io::Result<String> {
        self.is_over.require_wanted(self.target)?;
        if let Err(errno) = image.acquire_lock() {
            return Err(match (errno, Owner::find(image)) {
                (Errno::ROFS | Errno::BUSY | Errno::AGAIN, Ok(Some(owner))) => self.owned(&owner),
                _ => self.failed("taking the image's exclusive lock", errno),
            });
        }
        Owner::announce(image, self.target.lease)
            .map_err(|errno| self.failed("noting the owner", errno))
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
        let has_cache = has_cache(self.target, image)?;
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
            cached_in_process: has_cache,
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
        self.target.refuse(kind, text)
    }

    fn failed(&self, what: &str, errno: Errno) -> io::Error {
        self.target.failed(what, errno)
    }
}

/// For how long an entry is still there.
fn left(entry: &BlocklistEntry) -> Duration {
    let left = entry.ends().and_then(|ends| ends.duration_since(SystemTime::now()).ok());
    left.unwrap_or_default()
}

/// Whether librbd has a cache for an image: the configuration of the image or of its pool may say something else than this
/// client.
///
/// # Errors
/// The cache is one that loses acknowledged writes: of a client that is replaced by another one, or of this machine alone.
pub(super) fn has_cache(target: &RbdTarget, image: &Image) -> io::Result<bool> {
    let setting = image.setting("rbd_cache");
    let cache = setting.map_err(|errno| target.failed("asking for its cache", errno))? != "false";
    if cache && target.request_timeout.is_some() {
        return Err(target.refuse(
            ErrorKind::Unsupported,
            "the configuration of the image or of its pool turns rbd_cache on, and what is in a cache would be lost by request-timeout; \
             leave request-timeout out, or run `rbd config pool remove POOL rbd_cache` and the same for the image"
                .into(),
        ));
    }
    // Older libraries have none.
    let persistent = image.setting("rbd_persistent_cache_mode").unwrap_or_default();
    match persistent.as_str() {
        "" | "disabled" => Ok(cache),
        mode => Err(target.refuse(
            ErrorKind::Unsupported,
            format!(
                "the configuration of the image or of its pool has rbd_persistent_cache_mode={mode}: acknowledged writes would be \
                 on this machine alone; run `rbd config pool set POOL rbd_persistent_cache_mode disabled`, or the same for the image"
            ),
        )),
    }
}

/// Keeps the size up to date that the image has.
pub(super) fn watch_size(image: &mut Image, size: &Arc<AtomicU64>) -> Result<(), Errno> {
    let noted = size.clone();
    image.watch_size(move |bytes| noted.store(whole_blocks(bytes), Ordering::Relaxed))?;
    // It may have changed before.
    size.store(whole_blocks(image.size()?), Ordering::Relaxed);
    Ok(())
}
