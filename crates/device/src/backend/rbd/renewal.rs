//! A new client instance for a device whose requests have timed out.
//!
//! Whether such a request was executed, or will be, is unknown. So it must not be executed again beside the old one: the old
//! instance is put on the cluster's blocklist first, and a new one executes the request again, the same bytes at the same
//! place. Until then the request has not ended, and others wait.

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use uringfs_errno::Errno;
use uringfs_rbd::{BlocklistEntry, Cluster, Image, Library, OpenMode};

use super::instance::Instance;
use super::open::{has_cache, watch_size};
use super::opened::OpenedImage;
use super::owner::Owner;
use super::target::{DEFAULT_LIFE, RbdTarget};

/// The longest time between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How long another client may have the lock before it counts as a writer.
const FOREIGN_PATIENCE: Duration = Duration::from_secs(60);

/// The fate of a request that has failed.
pub(super) enum Fate {
    /// It has ended with this error.
    Ended(Errno),
    /// The next instance executes it again.
    Again,
}

/// The fate of a request that the instance of this generation has ended with this error.
#[cold]
pub(super) fn fate(opened: &Arc<OpenedImage>, generation: u64, errno: Errno) -> Fate {
    if opened.geometry.read_only {
        return Fate::Ended(errno);
    }
    // Also after the drop of the device: what may still be executed must be shut out before the lock is given back.
    let times_out = opened.target.request_timeout.is_some();
    match errno {
        // The blocklist has it: by a renewal, or by a client that has taken the image.
        Errno::SHUTDOWN if opened.generation() != Some(generation) => Fate::Again,
        // An instance that does not reach its daemons can lose its lock, too.
        Errno::TIMEDOUT | Errno::ROFS if times_out => {
            begin(opened, generation);
            Fate::Again
        }
        // From now on all requests fail: the library itself would go on when its entry on the blocklist has ended.
        Errno::SHUTDOWN | Errno::ROFS => {
            opened.lose();
            Fate::Ended(Errno::SHUTDOWN)
        }
        errno => Fate::Ended(errno),
    }
}

/// Begins to renew the instance of this generation, unless that has begun.
fn begin(opened: &Arc<OpenedImage>, generation: u64) {
    if !opened.begin_renewal(generation) {
        return;
    }
    let weak = Arc::downgrade(opened);
    let renew = move || renew(&weak);
    if thread::Builder::new().name("uringfs-rbd-renew".into()).spawn(renew).is_err() {
        opened.lose();
    }
}

/// Renews the instance as soon as the cluster answers, unless the device is dropped before.
fn renew(opened: &Weak<OpenedImage>) {
    // A cluster that answers some requests only may have let the last renewal succeed for nothing.
    let Some(pause) = opened.upgrade().map(|opened| opened.renewals.lock().pause()) else { return };
    thread::sleep(pause);
    let mut pause = Duration::from_millis(100);
    let mut renewal: Option<Renewal> = None;
    while let Some(opened) = opened.upgrade() {
        let renewal = renewal.get_or_insert_with(|| Renewal::of(&opened));
        let clients = renewal.own.len();
        let error = match renewal.attempt(&opened) {
            Ok(instance) => {
                tracing::warn!(target: "uringfs", event = "rbd_renewed", "{}: goes on as {:?}", opened.target, instance.cluster);
                opened.renewals.lock().note();
                return opened.renew(instance);
            }
            Err(Failure::Lost) => {
                tracing::error!(target: "uringfs", event = "rbd_lost", "{}: another client has taken the image", opened.target);
                return opened.lose();
            }
            Err(Failure::Unwanted) => return,
            Err(Failure::Later(error)) => error,
        };
        tracing::warn!(target: "uringfs", event = "rbd_renewal", "{error}; trying again");
        // The next attempt puts the client of this one on the blocklist, too.
        let after_client = (renewal.own.len() > clients).then(|| opened.renewals.lock().note());
        drop(opened);
        thread::sleep(after_client.unwrap_or_default().max(pause));
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Why an attempt has failed.
enum Failure {
    /// Another client has had the image meanwhile.
    Lost,
    /// The device has been dropped meanwhile.
    Unwanted,
    /// The cluster does not answer.
    Later(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Later(error)
    }
}

/// The attempts to renew an instance.
struct Renewal {
    target: RbdTarget,
    size: Arc<AtomicU64>,
    generation: u64,
    /// The addresses of this device's clients so far.
    own: Vec<String>,
    /// Those of them that may be on the blocklist by this renewal.
    listed: Vec<String>,
    /// It may have broken the lock, so that a free one does not mean that another client has had it.
    has_broken: bool,
    /// Since when a client that is none of these has had the lock.
    foreign_since: Option<Instant>,
}

impl Renewal {
    fn of(opened: &OpenedImage) -> Renewal {
        let old = opened.instance();
        Renewal {
            target: opened.target.clone(),
            size: opened.size.clone(),
            generation: old.generation,
            own: old.address.clone().into_iter().collect(),
            listed: Vec::new(),
            has_broken: false,
            foreign_since: None,
        }
    }

    fn attempt(&mut self, opened: &Arc<OpenedImage>) -> Result<Instance, Failure> {
        let target = self.target.clone();
        let failed = |what, errno| Failure::Later(target.failed(what, errno));
        let asking = |errno| failed("asking for the owner of its lock", errno);
        // Nothing but this thread has a device that was dropped.
        let require_wanted = || match Arc::strong_count(opened) {
            1 => Err(Failure::Unwanted),
            _ => Ok(()),
        };
        let library = Library::load()
            .map_err(|error| target.refuse(ErrorKind::NotFound, error.to_string()))?;
        let cluster = target.connect(library, true)?;
        self.shut_out(&cluster)?;
        let mut image = target.open_image(&cluster, OpenMode::ReadWrite)?;
        let owner = image.lock_owner().map_err(asking)?;
        if !self.is_announced(&image).map_err(asking)? {
            return Err(Failure::Lost);
        }
        match owner {
            None if !self.has_broken => return Err(Failure::Lost),
            None => {}
            // It may have the lock only for a moment, as for a resize or a snapshot. Otherwise the lock is free afterwards. Once
            // this device has broken the lock, it would not notice that.
            Some(owner) if !self.own.contains(&owner) => {
                let since = *self.foreign_since.get_or_insert_with(Instant::now);
                return Err(match self.has_broken || since.elapsed() > FOREIGN_PATIENCE {
                    true => Failure::Lost,
                    false => failed("the lock", Errno::BUSY),
                });
            }
            Some(owner) => {
                require_wanted()?;
                self.has_broken = true;
                match image.break_lock(&owner) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => {
                        return Err(failed("taking its lock from the client before", errno));
                    }
                }
                // State that was read before may have changed until then.
                drop(image);
                image = target.open_image(&cluster, OpenMode::ReadWrite)?;
            }
        }
        // Writes in a cache would be lost with this instance: see the parser of the target.
        has_cache(&target, &image)?;
        require_wanted()?;
        // Whether it has the lock after a failure is unknown.
        self.own.push(cluster.address().map_err(|errno| failed("asking for its address", errno))?);
        image.acquire_lock().map_err(|errno| failed("taking its lock", errno))?;
        if !self.is_announced(&image).map_err(asking)? {
            return Err(Failure::Lost);
        }
        let address = Owner::announce(&image, target.lease)
            .map_err(|errno| failed("noting the owner", errno))?;
        watch_size(&mut image, &self.size).map_err(|errno| failed("watching its size", errno))?;
        Ok(Instance::new(cluster, image, Some(address), self.generation + 2))
    }

    /// Whether a client of this device is the one that has said last that it has the lock.
    fn is_announced(&self, image: &Image) -> Result<bool, Errno> {
        Ok(Owner::announced(image)?.is_some_and(|owner| self.own.contains(&owner.address)))
    }

    /// Puts the earlier clients on the blocklist. If others have done so, they have taken the image.
    fn shut_out(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let failed = |errno| self.target.failed("shutting out the client before", errno);
        // A client that may not see the list may add to it nevertheless.
        let all = match cluster.blocklisted() {
            Err(Errno::ACCESS | Errno::PERM) => Vec::new(),
            all => all.map_err(failed)?,
        };
        let is_listed =
            |address: &String| all.iter().any(|entry: &BlocklistEntry| entry.address == *address);
        for address in &self.own {
            match (is_listed(address), self.listed.contains(address)) {
                (true, false) => return Err(Failure::Lost),
                (false, false) => self.listed.push(address.clone()),
                // By an attempt before; or whether it is there is unknown after a failure.
                _ => {}
            }
            // Requests that follow come with a map that has the entry.
            match is_listed(address) {
                true => cluster.wait_for_latest_map(),
                false => cluster.blocklist(address, DEFAULT_LIFE),
            }
            .map_err(failed)?;
        }
        Ok(())
    }
}
